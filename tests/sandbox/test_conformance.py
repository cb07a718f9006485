"""One battery for every backend: what a box promises, whatever its walls."""

import asyncio
import os
import signal
import socket
import time

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Spec
from tests.sandbox.backends import open_backend
from tests.sandbox.boxes import BRIEF, DAEMON, EVERY_BACKEND, a_box, python, run

pytestmark = EVERY_BACKEND


def test_files_go_in_and_out(backend):
    async def go():
        async with a_box(backend, {"src/deep/a.bin": b"\0\xff", "b": b""}) as box:
            await box.write({"src/c": b"c", "b": b"new"})
            done = await box.exec(["sh", "-c", "cat src/c > d; printf e > src/deep/e; rm src/c"])
            return done, await box.read(["src/deep/a.bin", "b", "d", "src/deep/e", "src/c", "src"])

    done, files = asyncio.run(go())
    assert done.ok
    assert files == {"src/deep/a.bin": b"\0\xff", "b": b"new", "d": b"c", "src/deep/e": b"e"}


def test_a_program_gets_its_input_environment_and_folder(backend):
    source = "import sys, os; print(sys.stdin.read(), os.environ['A'], os.path.basename(os.getcwd()), sys.argv[1:])"
    done = run(
        backend,
        *python(source),
        "x y",
        "",
        files={"sub/x": b""},
        stdin=b"in" * 100_000,
        env={"A": "=1 é"},
        cwd="sub",
    )
    assert done.stderr == b""
    assert done.stdout.decode() == "in" * 100_000 + " =1 é sub ['x y', '']\n" or done.cut > 0
    assert done.stdout.decode().endswith(" =1 é sub ['x y', '']\n")


def test_nothing_of_our_environment_is_passed_on(backend, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cret")
    done = run(backend, "env")
    assert b"s3cret" not in done.stdout
    assert b"PATH=" in done.stdout


@pytest.mark.parametrize("status", [0, 1, 3, 127])
def test_the_exit_status_is_the_programs(backend, status):
    done = run(backend, "sh", "-c", f"exit {status}")
    assert (done.status, done.signal, done.killed_for) == (status, None, None)
    assert done.ok == (status == 0)


def test_a_signal_is_reported_as_one(backend):
    done = run(backend, "sh", "-c", "kill -SEGV $$")
    assert (done.status, done.signal, done.killed_for) == (None, signal.SIGSEGV, None)


@pytest.mark.parametrize("argv", [("no-such-program",), ("./not-executable",), ("./a-folder",)])
def test_a_program_that_cannot_be_run_is_the_programs_failure(backend, argv):
    done = run(backend, *argv, files={"not-executable": b"x", "a-folder/x": b""})
    assert done.status in (126, 127)
    assert argv[0].strip("./") in done.stderr.decode()


def test_words_that_are_too_many_are_the_programs_failure(backend):
    done = run(backend, "true", "x" * 200_000)  # one word has at most 131,072 bytes
    assert done.status == 126
    assert b"Argument list too long" in done.stderr


def test_a_folder_that_is_not_there_is_a_failure_too(backend):
    done = run(backend, "true", cwd="nowhere")
    assert done.status in (126, 127)


def test_every_descendant_is_ended_with_the_program(backend):
    async def go():
        async with a_box(backend) as box:
            done = await box.exec(python(DAEMON))
            first = await box.read(["beat"])
            await asyncio.sleep(0.1)
            return done, first, await box.read(["beat"])

    done, first, later = asyncio.run(go())
    assert done.ok
    assert len(first["beat"]) > 1  # it did run
    assert later == first


def test_a_daemon_that_holds_the_output_does_not_hold_us(backend):
    done = run(backend, "sh", "-c", "sleep 60 & echo done")
    assert (done.ok, done.stdout) == (True, b"done\n")
    assert done.wall_s < 10


ECHO = """
    import os
    while data := os.read(3, 1 << 16):
        os.write(3, data.upper())
"""


def test_a_channel_carries_bytes_both_ways(backend):
    async def go():
        async with a_box(backend) as box:
            channel = await box.channel(python(ECHO))
            await channel.send(b"abc")
            first = await channel.receive(3)
            await channel.send(b"x" * 100_000)
            second = await channel.receive(100_000)
            finished = await channel.close()
            return first, second, finished, await channel.close()

    first, second, finished, again = asyncio.run(go())
    assert first == b"ABC"
    assert second == b"X" * 100_000
    assert again == finished


def test_a_channel_ends_with_its_program(backend):
    async def go():
        async with a_box(backend) as box:
            channel = await box.channel(python("import os, sys; os.write(3, b'last'); print('x'); sys.exit(5)"))
            said = await channel.receive(4)
            with pytest.raises(EOFError):
                await channel.receive(1)
            await asyncio.sleep(0.2)
            with pytest.raises(EOFError):
                await channel.send(b"y")
            return said, await channel.close()

    said, finished = asyncio.run(go())
    assert said == b"last"
    assert (finished.status, finished.stdout) == (5, b"x\n")


def test_a_channel_ends_with_its_time(backend):
    async def go():
        async with a_box(backend) as box:
            channel = await box.channel(["sleep", "60"], wall_s=0.5)
            with pytest.raises(EOFError):
                await channel.receive(1)
            return await channel.close()

    assert asyncio.run(go()).killed_for == "time"


def test_reset_brings_back_the_files_it_started_with(backend):
    listing = "find . | sort; ls -A ${TMPDIR:-/tmp}"
    mess = "rm a; mkdir a b c; echo x > b/y; ln -s / root; mkfifo pipe; chmod 0 c; mkdir -p d/e/f"

    async def go():
        async with a_box(backend, {"a": b"1", "keep/b": b"2"}) as box:
            at_first = await box.exec(["sh", "-c", listing])
            assert (await box.exec(["sh", "-c", mess + "; echo z > ${TMPDIR:-/tmp}/z"])).ok
            await box.reset()
            listed = await box.exec(["sh", "-c", listing])
            return at_first, listed, await box.read(["a", "keep/b"])

    at_first, listed, files = asyncio.run(go())
    assert listed.stdout == at_first.stdout
    assert listed.stdout.decode().split()[:4] == [".", "./a", "./keep", "./keep/b"]
    assert b"z" not in listed.stdout.split()
    assert files == {"a": b"1", "keep/b": b"2"}


def test_boxes_that_run_together_do_not_see_each_other(backend):
    source = "import os, sys, time; open(sys.argv[1], 'w'); time.sleep(0.3); print(sorted(os.listdir()))"

    async def go():
        opened = open_backend(backend)
        boxes = [await opened.start(Spec(files={"mine": b""}, limits=BRIEF)) for _ in range(3)]
        try:
            return await asyncio.gather(*(box.exec([*python(source), f"n{i}"]) for i, box in enumerate(boxes)))
        finally:
            for box in boxes:
                await box.close()
            await opened.close()

    seen = [done.stdout.decode().strip() for done in asyncio.run(go())]
    assert seen == [f"['mine', 'n{i}']" for i in range(3)]


def test_what_is_no_plain_file_of_the_workspace_is_not_read(backend, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s")
    mess = f"""
        import os, socket
        os.mkdir("d"); open("d/plain", "w").write("p")
        os.symlink({str(secret)!r}, "link"); os.symlink("d", "dirlink"); os.symlink("d/plain", "inside")
        try: os.mkfifo("fifo")
        except PermissionError: pass  # some walls refuse even to make one
        open("large", "w").write("x" * 101); open("fits", "w").write("x" * 100)
        os.symlink("loop", "loop"); os.mkdir("closed"); open("closed/f", "w"); os.chmod("closed", 0)
    """
    names = ["link", "dirlink/plain", "inside", "fifo", "large", "loop", "d", "missing", "d/plain/x", "d/plain", "fits"]

    async def go():
        async with a_box(backend) as box:
            done = await box.exec(python(mess))
            return done, await box.read(names, max_bytes=100)

    done, files = asyncio.run(go())
    assert done.stderr == b""
    assert files == {"d/plain": b"p", "fits": b"x" * 100}


def test_writing_goes_through_no_link(backend, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("k")
    tmp_path.chmod(0o777)
    kept.chmod(0o666)

    async def go():
        async with a_box(backend) as box:
            assert (await box.exec(["ln", "-s", str(kept), "link"])).ok
            await box.write({"link": b"new"})
            return await box.read(["link"])

    assert asyncio.run(go()) == {"link": b"new"}
    assert kept.read_text() == "k"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "", "a//b", "./a", "a/", "a\0b"])
def test_a_path_outside_is_refused(backend, path):
    async def go():
        async with a_box(backend) as box:
            with pytest.raises(SandboxError, match="path"):
                await box.write({path: b""})
            with pytest.raises(SandboxError, match="path"):
                await box.read([path])

    asyncio.run(go())
    with pytest.raises(SandboxError, match="path"):
        Spec(files={path: b""})


def test_a_closed_box_raises_and_can_be_closed_again(backend):
    async def go():
        opened = open_backend(backend)
        box = await opened.start(Spec())
        await box.close()
        await box.close()
        for call in (box.exec(["true"]), box.read(["a"]), box.write({"a": b""}), box.reset(), box.channel(["true"])):
            with pytest.raises(SandboxError):
                await call
        await opened.close()
        await opened.close()

    asyncio.run(go())


def test_closing_ends_what_runs(backend):
    async def go():
        opened = open_backend(backend)
        box = await opened.start(Spec(limits=BRIEF))
        running = asyncio.create_task(box.exec(["sleep", "60"]))
        await asyncio.sleep(0.3)
        begin = time.monotonic()
        await box.close()
        with pytest.raises(SandboxError):
            await running
        await opened.close()
        return time.monotonic() - begin

    assert asyncio.run(go()) < 10


def test_giving_up_on_a_program_ends_it(backend):
    async def go():
        async with a_box(backend) as box:
            running = asyncio.create_task(box.exec(["sh", "-c", "while :; do echo x >> beat; sleep 0.01; done"]))
            while not (await box.read(["beat"])).get("beat"):
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await asyncio.sleep(0.5)
            first = await box.read(["beat"])
            await asyncio.sleep(0.2)
            return first, await box.read(["beat"]), await box.exec(["echo", "next"])

    first, later, done = asyncio.run(go())
    assert first == later
    assert done.stdout == b"next\n"


SERVE_AND_REACH = """
    import socket, sys
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    server.accept()[0].send(b"hi")
    print(client.recv(2))
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2)
        print("reached")
    except OSError:
        print("not reached")
"""


@pytest.mark.parametrize("network", ["loopback", "none"])
def test_a_loopback_is_the_boxs_own_and_only_when_it_is_asked_for(backend, network):
    async def go():
        with socket.create_server(("127.0.0.1", 0)) as server:  # one of the machine
            async with a_box(backend, network=network) as box:
                return await box.exec([*python(SERVE_AND_REACH), str(server.getsockname()[1])])

    if backend == "landlock" and network == "loopback" and os.geteuid() != 0:
        with pytest.raises(SandboxError, match="a loopback needs a network of its own"):
            asyncio.run(go())
        return
    done = asyncio.run(go())
    if backend == "subprocess":
        assert done.stdout == b"b'hi'\nreached\n"  # it has no walls
    elif network == "loopback":
        assert done.stdout == b"b'hi'\nnot reached\n"
    else:
        assert not done.ok


def test_words_that_no_program_can_be_given_are_refused(backend):
    async def go():
        async with a_box(backend) as box:
            for argv, env in (((), {}), (("a\0b",), {}), (("true",), {"A": "\0"})):
                with pytest.raises(SandboxError):
                    await box.exec(argv, env=env)
            with pytest.raises(SandboxError):
                await box.exec(["true"], cwd="../..")

    asyncio.run(go())
