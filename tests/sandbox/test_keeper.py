"""Boxes that a keeper process keeps: whoever is killed, nothing is left and nobody is told a lie."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.base import BoxLimits, Spec
from agentrl.sandbox.bubblewrap import BubblewrapBackend
from agentrl.sandbox.keeper_main import closed_above
from agentrl.sandbox.landlocked import LandlockBackend
from agentrl.sandbox.unsafe import SubprocessBackend
from tests.sandbox.backends import open_backend

KEPT = ("bubblewrap", "landlock", "subprocess")


@pytest.fixture(params=KEPT)
def backend(request):
    return open_backend(request.param)


def stat_of(pid):
    """State and parent of a process; a zombie has ended."""
    with contextlib.suppress(OSError, IndexError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return state, int(parent)
    return "Z", 0


def living_with(mark):
    """Processes of the machine with a word on their command line that have not ended."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes() and stat_of(name)[0] != "Z":
                found.append(int(name))
    return found


def all_gone(mark, within_s=30.0):
    end = time.monotonic() + within_s
    while living_with(mark):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def children_of(pid):
    return [int(one.name) for one in Path("/proc").glob("[0-9]*") if stat_of(one.name)[1] == pid]


async def busy(box, mark):
    """A program with a daemon, both with the mark on their command line, and what waits for it."""
    running = asyncio.create_task(box.exec(["sh", "-c", f"(setsid sh -c 'sleep 60; :' {mark} &) ; sleep 60; : {mark}"]))
    running.add_done_callback(lambda task: task.exception())
    end = time.monotonic() + 30
    while not living_with(mark) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return running


async def next_box_works(backend):
    box = await backend.start(Spec(files={"a": b"1"}))
    try:
        return (await box.exec(["cat", "a"])).stdout == b"1"
    finally:
        await box.close()


def test_a_killed_keeper_is_an_error_of_ours(backend):
    mark = f"mark-{uuid.uuid4().hex}"

    async def go():
        box = await backend.start(Spec())
        running = await busy(box, mark)
        os.kill(box._keeper.process.pid, signal.SIGKILL)
        finished = await asyncio.gather(running, return_exceptions=True)
        for call in (box.exec(["true"]), box.write({"a": b""}), box.read(["a"]), box.reset()):
            with pytest.raises(SandboxError, match=r"lost|closed"):
                await call
        await box.close()
        return finished[0], box._keeper.home, await next_box_works(backend)

    finished, home, works = asyncio.run(go())
    assert isinstance(finished, SandboxError)
    assert all_gone(mark)
    assert not os.path.exists(home)
    assert works


def test_a_killed_guard_is_an_error_of_ours(backend):
    mark = f"mark-{uuid.uuid4().hex}"

    async def go():
        box = await backend.start(Spec())
        running = await busy(box, mark)
        (guard,) = children_of(box._keeper.process.pid)
        os.kill(guard, signal.SIGKILL)
        with pytest.raises(SandboxError, match="lost, not failed"):
            await running
        gone = all_gone(mark)
        with pytest.raises(SandboxError):
            await box.exec(["true"])
        await box.close()
        return gone, await next_box_works(backend)

    assert asyncio.run(go()) == (True, True)


VICTIM = """
import asyncio, sys
sys.path[:0] = sys.argv[2].split(":")
from tests.sandbox.backends import FACTORIES
from agentrl.sandbox.base import Spec
async def main():
    box = await FACTORIES[sys.argv[1]]().start(Spec(files={"a": b""}))
    print(box._keeper.home, flush=True)
    await box.exec(["sh", "-c", "(setsid sh -c 'sleep 60; :' " + sys.argv[3] + " &) ; sleep 60"])
asyncio.run(main())
"""


def test_when_we_are_killed_all_of_it_goes(backend):
    mark, root = f"mark-{uuid.uuid4().hex}", str(Path(__file__).resolve().parents[2])
    words = [sys.executable, "-c", VICTIM, backend.name, f"{root}:{root}/src", mark]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as victim:
        home = victim.stdout.readline().strip()
        assert os.path.isdir(home)
        end = time.monotonic() + 30
        while len(living_with(mark)) < 2 and time.monotonic() < end:  # the victim, and what it started
            time.sleep(0.02)
        assert len(living_with(mark)) > 1
        victim.kill()
    assert all_gone(mark)
    end = time.monotonic() + 30
    while os.path.exists(home) and time.monotonic() < end:
        time.sleep(0.02)
    assert not os.path.exists(home)


def test_programs_run_at_the_same_time_in_one_box(backend):
    async def go():
        box = await backend.start(Spec(limits=BoxLimits(wall_s=20)))
        try:
            channel = await box.channel(["cat"])
            many = await asyncio.gather(*(box.exec(["sh", "-c", f"sleep 0.2; echo {i}"]) for i in range(4)))
            still = await box.exec(["echo", "still"])
            return [done.stdout for done in many], still.stdout, (await channel.close()).status
        finally:
            await box.close()

    assert asyncio.run(go()) == ([b"0\n", b"1\n", b"2\n", b"3\n"], b"still\n", 0)


def test_a_box_without_room_for_its_files_is_an_error_of_ours(backend):
    async def go():
        box = await backend.start(Spec(limits=BoxLimits(disk_mib=1)))
        try:
            if not box._keeper.ready.bounded:
                pytest.skip("no file system bounds the folders here")
            with pytest.raises(SandboxError, match="No space left"):
                await box.write({"large": bytes(2 << 20)})
            await box.reset()
            await box.write({"small": b"x"})
        finally:
            await box.close()

    asyncio.run(go())


FACTORIES = {
    "bubblewrap": BubblewrapBackend,
    "landlock": LandlockBackend,
    "subprocess": lambda **limits: SubprocessBackend(allow_unsafe=True, **limits),
}


def test_boxes_beyond_the_limit_wait_for_one_to_close(backend):
    async def go():
        few = FACTORIES[backend.name](max_boxes=1, wait_s=60)
        first = await few.start(Spec())
        second = asyncio.create_task(few.start(Spec()))
        await asyncio.sleep(0.4)
        waited = not second.done()
        await first.close()
        box = await second
        done = await box.exec(["echo", "x"])
        await few.close()  # ends the box that is open
        with pytest.raises(SandboxError, match="closed"):
            await box.exec(["true"])
        with pytest.raises(SandboxError, match="backend is closed"):
            await few.start(Spec())
        return waited, done.stdout, os.path.exists(box._keeper.home)

    assert asyncio.run(go()) == (True, b"x\n", False)


def test_programs_beyond_the_limit_take_turns(backend):
    async def go():
        few = FACTORIES[backend.name](max_running=1, wait_s=60)
        box = await few.start(Spec())
        source = "mkdir lock || exit 9; sleep 0.1; rmdir lock"
        many = await asyncio.gather(*(box.exec(["sh", "-c", source]) for _ in range(4)))
        channel = await box.channel(["cat"])  # which may last as long as an attempt, so that it does not count
        done = await box.exec(["echo", "x"])
        await channel.close()
        await few.close()
        return [one.status for one in many], done.stdout

    assert asyncio.run(go()) == ([0, 0, 0, 0], b"x\n")


def test_who_waits_too_long_is_told_what_to_do(backend):
    async def go():
        few = FACTORIES[backend.name](max_boxes=1, wait_s=0.2)
        await few.start(Spec())
        with pytest.raises(SandboxError, match="raise the limit"):
            await few.start(Spec())
        await few.close()

    asyncio.run(go())


def test_a_folder_that_only_its_owner_may_pass_is_found(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for folder in (tmp_path, *tmp_path.parents):
        if closed_above(str(inner)) is None:
            break
        folder.chmod(folder.stat().st_mode | 0o055)
    assert closed_above(str(inner)) is None
    (tmp_path / "a").chmod(0o700)
    assert closed_above(str(inner)) == str(tmp_path / "a")
    (tmp_path / "a").chmod(0o711)  # to pass is enough on the way
    assert closed_above(str(inner)) is None
    inner.chmod(0o711)  # and not at its end
    assert closed_above(str(inner)) == str(inner)


@pytest.mark.faults
def test_a_thousand_jobs_leave_nothing(backend):
    mark = f"mark-{uuid.uuid4().hex}"
    source = f"(setsid sh -c 'sleep 60; :' {mark} >/dev/null 2>&1 &); echo > $TMPDIR/x; mkdir d; ln -s / d/l; echo $$"

    def traces():
        places = (Path("/proc/self/mounts"), Path("/proc/sysvipc/shm"))
        homes = {str(path) for path in Path(tempfile.gettempdir()).glob(f"agentrl-box-{os.getpid()}-*")}
        return (
            len(os.listdir("/proc/self/fd")),
            [place.read_text() for place in places],
            homes,
            {*children_of(os.getpid())} - {*backend.process_ids},  # one may wait for the next box
        )

    async def jobs(count):
        box = await backend.start(Spec(files={"a": b"1"}))
        try:
            for _ in range(count):
                assert (await box.exec(["sh", "-c", source])).ok
                await box.reset()
        finally:
            await box.close()

    async def go(boxes):
        for _ in range(boxes):
            await asyncio.gather(jobs(10), jobs(10))

    asyncio.run(go(1))
    before = traces()
    asyncio.run(go(50))
    assert traces() == before
    assert all_gone(mark)
