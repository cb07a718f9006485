"""The process that waits to keep the next box: used, replaced when it was lost, and never left behind."""

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest

from agentrl.sandbox.base import Spec
from tests.sandbox.backends import open_backend
from tests.sandbox.zygotes import Census, eventually


@pytest.fixture(params=["bubblewrap", "landlock", "subprocess"])
def backend(request):
    return open_backend(request.param)


def gone(pid):
    return not os.path.exists(f"/proc/{pid}")


async def echoes(backend):
    """A new box that works; the id of its keeper."""
    box = await backend.start(Spec(files={"a": b"content"}))
    assert (await box.exec(["cat", "a"])).stdout == b"content"
    await box.close()
    return box._keeper.process.pid


def test_one_waits_from_the_second_box_on_and_keeps_the_next(backend, census: Census):
    async def go():
        await echoes(backend)
        assert backend.process_ids == ()
        await echoes(backend)
        (waiting,) = backend.process_ids
        assert await echoes(backend) == waiting
        assert backend.process_ids not in ((), (waiting,))
        await backend.close()
        assert backend.process_ids == ()

    asyncio.run(go())


def test_one_that_was_lost_is_passed_over(backend, census: Census):
    async def go():
        await echoes(backend)
        await echoes(backend)
        (waiting,) = backend.process_ids
        os.kill(waiting, signal.SIGKILL)
        assert eventually(lambda: Path(f"/proc/{waiting}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert await echoes(backend) != waiting
        await backend.close()

    asyncio.run(go())


def test_a_backend_that_nobody_closes_leaves_none(backend, census: Census):
    async def go(backend):
        for _ in range(3):
            await echoes(backend)
        return backend.process_ids

    forgotten = open_backend(backend.name)
    (waiting,) = asyncio.run(go(forgotten))
    del forgotten
    gc.collect()
    assert eventually(lambda: gone(waiting))


def test_a_fork_of_ours_that_ends_does_not_end_it(backend, census: Census):
    async def go():
        await echoes(backend)
        await echoes(backend)
        child = os.fork()
        if child == 0:
            try:
                backend._end_spare()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        (waiting,) = backend.process_ids
        assert await echoes(backend) == waiting
        await backend.close()

    asyncio.run(go())
