"""A zygote box: what it is, what stays in it, what a channel and a warm interpreter do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import zygote_root
from agentrl.sandbox.base import BoxLimits, Level, Spec
from agentrl.sandbox.zygote_link import ZygoteBox
from tests.sandbox.backends import why_not
from tests.sandbox.zygotes import (
    PYTHON,
    Census,
    python,
    with_box,
)

if why_not("zygote"):
    pytest.skip(why_not("zygote"), allow_module_level=True)


def test_a_program_is_nobody_sees_little_and_is_alone(census: Census) -> None:
    async def body(box: ZygoteBox) -> None:
        assert box.level is Level.NAMESPACES
        assert (
            await python(box, "import os; print(os.getuid(), os.getgid(), os.getpid(), os.getppid())")
            == b"1000 1000 2 1"
        )
        processes = "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))"
        assert await python(box, processes) == b"[1, 2]"
        devices = "print([line.split(':')[0].strip() for line in open('/proc/net/dev')][2:])"
        assert await python(box, devices) == b"['lo']"
        root = (await python(box, "import os; print(*os.listdir('/'))")).split()
        assert {b"home", b"sys", b"var", b"work", b"srv", b"boot"}.isdisjoint(root)

    with_box(body)


def test_nobody_inside_is_root_outside(census: Census) -> None:
    async def body(box: ZygoteBox) -> None:
        mark = f"7{os.getpid()}.25"
        running = asyncio.create_task(box.exec(["sleep", mark], wall_s=5))

        def owners() -> set[int]:
            found = set()
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    if (path / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]:
                        found.add(path.stat().st_uid)
                except OSError:
                    continue
            return found

        while not owners():
            await asyncio.sleep(0.01)
        assert 0 not in owners()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert owners() == set()

    with_box(body)


def test_files_stay_between_programs_and_processes_do_not() -> None:
    async def body(box: ZygoteBox) -> None:
        first = await box.exec(["sh", "-c", "echo kept > file; mkdir -p a/b; (sleep 50 &) ; echo x > /tmp/also"])
        assert first.ok
        assert first.wall_s < 5
        assert (await box.exec(["sh", "-c", "cat file /tmp/also; pgrep sleep"])).stdout == b"kept\nx\n"

    with_box(body)


def test_reset_gives_the_first_files_and_nothing_else() -> None:
    async def body(box: ZygoteBox) -> None:
        at_first = (await box.exec(["sh", "-c", "cat a.txt; ls -A . /tmp"])).stdout
        await box.exec(["sh", "-c", "echo changed > a.txt; touch new /tmp/new; mkdir d; ln -s /etc/passwd l"])
        await box.reset()
        assert (await box.exec(["sh", "-c", "cat a.txt; ls -A . /tmp"])).stdout == at_first
        assert at_first.startswith(b"first.:\na.txt\n\n/tmp:\n")

    with_box(body, Spec(files={"a.txt": b"first"}))


def test_reset_ends_a_program_with_a_channel() -> None:
    async def body(box: ZygoteBox) -> None:
        channel = await box.channel(["sleep", "60"])
        await box.reset()
        assert (await channel.close()).signal == signal.SIGKILL
        assert (await box.exec(["true"])).ok

    with_box(body)


def test_a_channel_carries_bytes_both_ways_while_files_are_read_and_written() -> None:
    echo = "import socket\ns = socket.socket(fileno=3)\nwhile data := s.recv(65536): s.sendall(data.upper())"

    async def body(box: ZygoteBox) -> None:
        channel = await box.channel([*PYTHON, echo])
        await channel.send(b"hello")
        assert await channel.receive(5) == b"HELLO"
        await box.write({"x": b"1"})
        assert await box.read(["x"]) == {"x": b"1"}
        with pytest.raises(SandboxError, match="close the channel"):
            await box.exec(["true"])
        big = b"y" * 3_000_000
        sending = asyncio.create_task(channel.send(big))
        assert await channel.receive(len(big)) == big.upper()
        await sending
        done = await channel.close()
        assert (done, await channel.close()) == (done, done)
        assert (await box.exec(["true"])).ok

    with_box(body)


def test_a_channel_ends_with_its_program_or_its_time() -> None:
    async def body(box: ZygoteBox) -> None:
        channel = await box.channel(["sh", "-c", "exit 3"])
        with pytest.raises(EOFError):
            await channel.receive(1)
        assert (await channel.close()).status == 3
        channel = await box.channel(["sleep", "60"], wall_s=0.2)
        with pytest.raises(EOFError):
            await channel.receive(1)
        assert (await channel.close()).killed_for == "time"

    with_box(body)


def test_closing_a_channel_wakes_who_waits_for_it() -> None:
    async def body(box: ZygoteBox) -> None:
        channel = await box.channel(["sleep", "60"])
        waiting = asyncio.create_task(channel.receive(1))
        await asyncio.sleep(0.05)
        assert (await channel.close()).signal == signal.SIGKILL
        with pytest.raises(EOFError):
            await asyncio.wait_for(waiting, 5)

    with_box(body)


def test_output_is_kept_from_both_ends_at_the_exact_limit() -> None:
    def program(size: int) -> str:
        return f"import sys; sys.stdout.write(('0123456789' * {size})[:{size}])"

    async def body(box: ZygoteBox) -> None:
        for size, cut in ((99, 0), (100, 0), (101, 1), (400, 300)):
            done = await box.exec([*PYTHON, program(size)])
            text = (b"0123456789" * size)[:size]
            assert (done.cut, done.killed_for) == (cut, None)
            assert done.stdout == (text if not cut else text[:50] + text[-50:])

    with_box(body, Spec(limits=BoxLimits(output_bytes=100)))


def test_what_was_printed_before_the_time_was_up_is_there() -> None:
    async def body(box: ZygoteBox) -> None:
        done = await box.exec(["sh", "-c", "printf started; sleep 60"], wall_s=0.3)
        assert done.stdout == b"started"
        assert (done.status, done.signal, done.killed_for) == (None, signal.SIGKILL, "time")

    with_box(body)


def test_a_missing_program_is_the_callers_doing_and_no_fault_of_ours() -> None:
    async def body(box: ZygoteBox) -> None:
        missing = await box.exec(["no-such-program"])
        assert (missing.status, missing.stderr) == (127, b"sandbox: no-such-program: No such file or directory\n")
        assert (await box.exec(["/etc/passwd"])).status == 126
        assert (await box.exec(["true"], cwd="no/such")).status == 127
        assert (await box.exec(["echo", "\udcff"])).stdout == b"\xff\n"
        assert (await box.exec(["true", "x" * 3_000_000])).status == 126
        for words in (["a\0b"], ["\ud800"], []):
            with pytest.raises(SandboxError):
                await box.exec(words)
        assert (await box.exec(["true"])).ok

    with_box(body)


def test_a_program_that_shuts_its_own_workspace_does_not_shut_us_out() -> None:
    async def body(box: ZygoteBox) -> None:
        await box.exec(["sh", "-c", "echo x > a; chmod 0 a . /tmp"])
        assert await box.read(["a"]) == {"a": b"x\n"}
        await box.write({"b/c": b"1"})
        assert (await box.exec(["true"], cwd="b")).ok
        await box.reset()
        assert (await box.exec(["sh", "-c", "echo y > a; cat a"])).stdout == b"y\n"

    with_box(body)


def test_a_long_input_is_fed_and_one_that_nobody_reads_does_no_harm() -> None:
    async def body(box: ZygoteBox) -> None:
        assert (await box.exec(["wc", "-c"], stdin=b"x" * 10_000_000)).stdout == b"10000000\n"
        assert (await box.exec(["true"], stdin=b"x" * 10_000_000)).ok
        assert (await box.exec(["cat"])).stdout == b""

    with_box(body)


def test_a_program_cannot_hold_its_output_open_by_sending_it_to_us() -> None:
    source = """
import array, os, socket
channel = socket.socket(fileno=3)
channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
"""

    async def body(box: ZygoteBox) -> None:
        channel = await box.channel([*PYTHON, source])
        await asyncio.sleep(0.3)
        assert (await channel.close()).status == 0
        assert (await box.exec(["true"])).ok

    with_box(body)


def test_numeric_libraries_with_their_threads_work_within_the_limits() -> None:
    source = """
import threading
import numpy
results = []
def work():
    results.append(float((numpy.ones((200, 200)) @ numpy.ones((200, 200))).sum()))
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(results == [8_000_000.0] * 8)
"""

    async def body(box: ZygoteBox) -> None:
        done = await box.exec(["python", "-c", source])
        assert done.stdout == b"True\n", done

    pytest.importorskip("numpy")
    with_box(body, Spec(limits=BoxLimits(wall_s=60, cpu_s=60)))


def test_memory_is_counted_over_all_processes_and_a_smaller_need_passes() -> None:
    source = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        held = b"x" * (%d << 20)
        time.sleep(%g)
        os._exit(0)
[os.wait() for _ in range(4)]
"""

    async def body(box: ZygoteBox) -> None:
        assert (await box.exec([*PYTHON, source % (15, 0.4)])).ok  # 4 * 15 MiB, below 128
        assert (await box.exec([*PYTHON, source % (60, 60)])).killed_for == "memory"  # 4 * 60 MiB

    with_box(body, Spec(limits=BoxLimits(memory_mib=128)))


def test_our_package_is_covered_where_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = zygote_root.plan()
    shown = Path(sys.prefix) / "lib"
    monkeypatch.setattr(zygote_root, "plan", lambda: plan | {"hidden": [str(shown)]})

    async def body(box: ZygoteBox) -> None:
        assert (await box.exec(["ls", "-A", str(shown)])).stdout == b""
        assert (await box.exec(["ls", "-A", str(shown.parent)])).stdout != b""

    with_box(body)


def test_loopback_reaches_the_box_itself_and_nothing_else(census: Census) -> None:
    source = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print("own", client is not None)
for place in (("127.0.0.1", %d), ("10.0.0.1", 80), ("1.1.1.1", 53)):
    try:
        socket.create_connection(place, 1)
        print("reached", place)
    except OSError as error:
        print("no")
"""

    async def body(box: ZygoteBox) -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await python(box, source % port) == b"own True\nno\nno\nno"
        server.close()
        await server.wait_closed()

    with_box(body, Spec(network="loopback"))
