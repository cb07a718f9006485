"""What becomes of zygote boxes when a part of the machinery dies or gives up, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Finished, Spec
from agentrl.sandbox.zygote import ZygoteBackend
from agentrl.sandbox.zygote_link import ZygoteBox
from tests.sandbox.backends import why_not
from tests.sandbox.zygotes import (
    Census,
    children_of,
    eventually,
    with_backend,
    with_box,
    zygote_of,
)

if why_not("zygote"):
    pytest.skip(why_not("zygote"), allow_module_level=True)


def test_a_killed_zygote_loses_its_boxes_and_the_next_start_works(census: Census) -> None:
    async def body(backend: ZygoteBackend) -> None:
        boxes = [await backend.start(Spec()) for _ in range(3)]
        running = asyncio.create_task(boxes[0].exec(["sleep", "60"], wall_s=5))
        channel = await boxes[1].channel(["sleep", "60"])
        await asyncio.sleep(0.1)
        os.kill(zygote_of(backend), signal.SIGKILL)
        with pytest.raises(SandboxError, match="lost"):
            await running
        with pytest.raises(EOFError):
            await channel.receive(1)
        with pytest.raises(SandboxError, match="lost"):
            await channel.close()
        with pytest.raises(SandboxError, match="lost"):
            await boxes[2].write({"x": b""})
        box = await backend.start(Spec())
        assert (await box.exec(["true"])).ok
        assert backend.restarts == 1

    with_backend(body)


def test_a_killed_starter_takes_the_zygote_along(census: Census) -> None:
    async def body(backend: ZygoteBackend) -> None:
        box = await backend.start(Spec())
        zygote = zygote_of(backend)
        os.kill(backend.process_ids[0], signal.SIGKILL)
        with pytest.raises(SandboxError, match="lost"):
            await box.exec(["sleep", "60"], wall_s=5)
        assert eventually(lambda: not Path(f"/proc/{zygote}").exists())
        assert (await (await backend.start(Spec())).exec(["true"])).ok

    with_backend(body)


def test_a_killed_keeper_loses_its_box_only(census: Census) -> None:
    async def body(backend: ZygoteBackend) -> None:
        victim, other = await backend.start(Spec()), await backend.start(Spec())
        keeper = min(children_of(zygote_of(backend)))
        running = asyncio.create_task(victim.exec(["sleep", "60"], wall_s=5))
        while not children_of(keeper):
            await asyncio.sleep(0.01)
        (program,) = children_of(keeper)
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(SandboxError, match="lost"):
            await running
        assert eventually(lambda: not Path(f"/proc/{program}").exists())
        assert (await other.exec(["true"])).ok
        await victim.close()
        assert backend.restarts == 0

    with_backend(body)


@pytest.mark.parametrize("kills", [8, pytest.param(150, marks=pytest.mark.faults)])
def test_kills_at_any_moment_are_errors_of_ours_and_leave_nothing(census: Census, kills: int) -> None:
    """Programs that end well end as they should or are reported lost; which is never taken for the program's doing."""
    seen: dict[str, int] = {"finished": 0, "lost": 0}

    async def work(backend: ZygoteBackend, until: asyncio.Event) -> None:
        while not until.is_set():
            try:
                box = await backend.start(Spec(files={"a": b"x"}))
                done = await box.exec(["sh", "-c", "cat a; exit 3"])
                assert (done.status, done.stdout) == (3, b"x"), done
                await box.close()
                seen["finished"] += 1
            except SandboxError:
                seen["lost"] += 1

    async def body(backend: ZygoteBackend) -> None:
        chance, until = random.Random(kills), asyncio.Event()
        workers = [asyncio.create_task(work(backend, until)) for _ in range(4)]
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.02, 0.15))
            with contextlib.suppress(OSError, ValueError, IndexError):  # it is gone already
                zygote = zygote_of(backend)
                keeper = chance.choice(children_of(zygote))
                program = chance.choice(children_of(keeper) or [keeper])
                os.kill(chance.choice([keeper, keeper, program, zygote]), signal.SIGKILL)
        while not seen["finished"]:  # where boxes start slowly, none lived long enough until now
            await asyncio.sleep(0.01)
        until.set()
        await asyncio.gather(*workers)
        box = await backend.start(Spec())
        assert (await box.exec(["true"])).ok

    with_backend(body, max_boxes=6)


def test_a_keeper_that_fails_says_why(census: Census) -> None:
    async def body(box: ZygoteBox) -> None:
        with pytest.raises(SandboxError, match="its keeper failed: KeyError"):
            await box._ask({"do": "what no keeper knows"})
        with pytest.raises(SandboxError, match="its keeper failed: KeyError"):
            await box.exec(["true"])

    with_box(body)


def test_a_caller_that_gives_up_ends_the_program_and_the_box_goes_on(census: Census) -> None:
    async def body(box: ZygoteBox) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.exec(["sleep", "60"], wall_s=9), 0.2)
        assert (await box.exec(["echo", "on"])).stdout == b"on\n"

    with_box(body)


def test_boxes_run_at_the_same_time_and_do_not_see_each_other() -> None:
    async def body(backend: ZygoteBackend) -> None:
        boxes = await asyncio.gather(*(backend.start(Spec(files={"me": b"%d" % number})) for number in range(8)))
        source = "me=$(cat me); touch ready /tmp/of-$me /dev/shm/of-$me; until [ -e go ]; do sleep 0.02; done; "
        source += "echo /tmp/of-* /dev/shm/of-*"
        running = [asyncio.create_task(box.exec(["sh", "-c", source])) for box in boxes]
        for box in boxes:  # none goes on before all have come, which one after another never do
            while not await box.read(["ready"]):
                await asyncio.sleep(0.01)
        for box in boxes:
            await box.write({"go": b""})
        done: list[Finished] = await asyncio.gather(*running)
        assert [one.stdout for one in done] == [
            b"/tmp/of-%d /dev/shm/of-%d\n" % (number, number) for number in range(8)
        ]

    with_backend(body, max_running=8)


def test_the_next_box_waits_for_its_turn() -> None:
    async def body(backend: ZygoteBackend) -> None:
        first = await backend.start(Spec())
        waiting = asyncio.create_task(backend.start(Spec()))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await first.close()
        await (await waiting).close()

    with_backend(body, max_boxes=1, wait_s=60)


def test_the_next_box_does_not_wait_for_ever() -> None:
    async def body(backend: ZygoteBackend) -> None:
        first = await backend.start(Spec())
        with pytest.raises(SandboxError, match="all 1 zygote boxes stayed in use for 1 s"):
            await backend.start(Spec())
        await first.close()
        await (await backend.start(Spec())).close()

    with_backend(body, max_boxes=1, wait_s=1)


def test_a_closed_box_and_a_closed_backend_say_so() -> None:
    async def body(backend: ZygoteBackend) -> None:
        box = await backend.start(Spec())
        await box.close()
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec(["true"])
        await backend.close()
        await backend.close()
        with pytest.raises(SandboxError, match="closed"):
            await backend.start(Spec())

    with_backend(body)


def test_one_backend_serves_one_event_loop_after_another(census: Census) -> None:
    backend = ZygoteBackend()

    async def once() -> bool:
        box = await backend.start(Spec())
        done = await box.exec(["true"])
        await box.close()
        return done.ok

    assert [asyncio.run(once()) for _ in range(3)] == [True] * 3
    assert backend.restarts == 0
    asyncio.run(backend.close())


def test_a_loop_that_ends_with_boxes_open_leaves_nothing(census: Census) -> None:
    backend = ZygoteBackend()

    async def careless() -> None:
        for _ in range(3):
            box = await backend.start(Spec())
            task = asyncio.create_task(box.exec(["sleep", "60"]))
            await asyncio.sleep(0.05)
            task.cancel()

    asyncio.run(careless())
    asyncio.run(backend.close())


def test_our_own_death_ends_everything() -> None:
    source = """
import asyncio, sys
from agentrl.sandbox.base import Spec
from agentrl.sandbox.zygote import ZygoteBackend
async def main():
    backend = ZygoteBackend()
    box = await backend.start(Spec())
    asyncio.create_task(box.exec(["sleep", "60"]))
    await asyncio.sleep(0.2)
    print(backend.process_ids[0], flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        starter = int(ours.stdout.readline())
        below = [starter, *children_of(starter)]
        below += children_of(below[1])
        assert len(below) == 3
        ours.kill()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.faults)])
def test_many_boxes_leave_nothing(census: Census, count: int) -> None:
    program = "(sleep 60 &); echo x > /dev/shm/a; echo x > /tmp/b; echo x > c; mkfifo d"

    async def one(backend: ZygoteBackend) -> bool:
        box = await backend.start(Spec(files={"a": b"x"}))
        done = await box.exec(["sh", "-c", program])
        await box.close()
        return done.ok

    async def body(backend: ZygoteBackend) -> None:
        await one(backend)
        inside = zygote_of(backend)
        for _ in range(count // 10):
            assert all(await asyncio.gather(*(one(backend) for _ in range(10))))
        assert eventually(lambda: children_of(inside) == [])
        assert len(os.listdir(f"/proc/{inside}/fd")) < 10
        assert backend.restarts == 0

    with_backend(body)


def test_the_census_notices_what_is_left(tmp_path: Path) -> None:
    before = Census()
    assert Census().within(before)
    with (tmp_path / "open").open("w"):
        assert not Census().within(before)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not Census().within(before)
        child.kill()
    assert Census().within(before)


def test_a_fork_server_is_replaced_after_so_many_boxes_and_ends_with_its_last(census: Census) -> None:
    async def body(backend: ZygoteBackend) -> None:
        first = [await backend.start(Spec()) for _ in range(2)]
        old = zygote_of(backend)
        starter = backend.process_ids[0]
        await first[0].close()
        third = await backend.start(Spec())  # of a server that made two
        assert zygote_of(backend) != old
        assert alive(old)
        for box in (first[1], third):
            assert (await box.exec(["echo", "on"])).stdout == b"on\n"
        await first[1].close()
        assert eventually(lambda: not alive(old))
        await backend.start(Spec())
        assert not Path(f"/proc/{starter}").exists()  # waited for, too
        assert backend.restarts == 0

    with_backend(body, recycle_after=2)


def test_many_boxes_at_a_time_survive_the_replacements(census: Census) -> None:
    async def one(backend: ZygoteBackend, number: int) -> bytes:
        box = await backend.start(Spec(files={"me": b"%d" % number}))
        try:
            return (await box.exec(["cat", "me"])).stdout
        finally:
            await box.close()

    async def body(backend: ZygoteBackend) -> None:
        said = await asyncio.gather(*(one(backend, number) for number in range(24)))
        assert said == [b"%d" % number for number in range(24)]
        assert backend.restarts == 0

    with_backend(body, recycle_after=5)


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
