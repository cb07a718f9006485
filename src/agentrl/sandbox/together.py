"""Jobs that are asked for at the same time share a process. It is for programs of our own making."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from agentrl.sandbox.jobs import Batch, Job, JobResult


class Runner(Protocol):
    """Something that runs jobs, such as a `Pool`."""

    async def run(self, job: Job) -> JobResult:
        """The result of one job. Raises SandboxError when the machinery failed."""
        ...


class _Wanted(NamedTuple):
    job: Job
    waiter: asyncio.Future[JobResult]


class Together:
    """Runs what is asked for in one turn of the event loop as the parts of ``num_shares`` batches.

    To fork a process costs several times what a small program does. Nothing keeps one part from tampering with the
    next, so what a policy has written must not come here. What did not finish in time in company runs alone.

    Args:
        runner: where the batches run.
        num_shares: how many batches at once, such as the number of boxes.
    """

    def __init__(self, runner: Runner, num_shares: int = 2) -> None:
        self._runner = runner
        self._num_shares = num_shares
        self._wanted: list[_Wanted] = []
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, job: Job) -> JobResult:
        """The result of one job that makes calls or runs tests. Raises as the runner does."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[JobResult] = loop.create_future()
        self._wanted.append(_Wanted(job, waiter))
        if len(self._wanted) == 1:
            loop.call_soon(self._send)
        return await waiter

    def _send(self) -> None:
        size = -(-len(self._wanted) // self._num_shares)
        for start in range(0, len(self._wanted), size):
            task = asyncio.create_task(self._run_share(self._wanted[start : start + size]))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self._wanted = []

    async def _run_share(self, share: Sequence[_Wanted]) -> None:
        try:
            batch = await self._runner.run(Job(files={}, run=Batch(parts=tuple(wanted.job for wanted in share))))
            for wanted, part in zip(share, batch.parts, strict=True):
                result = part if part.repeatable else await self._runner.run(wanted.job)
                if not wanted.waiter.done():
                    wanted.waiter.set_result(result)
        except Exception as error:  # whoever waits is to know
            for wanted in share:
                if not wanted.waiter.done():
                    wanted.waiter.set_exception(error)
