"""The pool: jobs of untrusted programs go in, results come out, from boxes of one backend.

Programs are held to be pure, so the result of an equal job is remembered. The boxes live in an event loop of the pool's
own, so that any thread may use a pool, from an event loop or without one, and tools run while a model samples.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Backend
from agentrl.sandbox.choose import choose
from agentrl.sandbox.jobs import Job, JobResult, Limits, encode_job
from agentrl.sandbox.lanes import Lane, open_lane
from agentrl.sandbox.portal import Portal

R = TypeVar("R")
T = TypeVar("T")
Ticket = concurrent.futures.Future[JobResult]
"""A job that is under way; its result, or a SandboxError when it was lost."""


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """Counts since the pool was made.

    ``hits`` were answered from memory or shared a job that was already under way, ``misses`` were sent to a box.
    ``seconds`` is the time that boxes spent on jobs. ``lost`` jobs ended in a SandboxError; ``restarts`` boxes were
    replaced for it.
    """

    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    lost: int = 0
    restarts: int = 0
    seconds: float = 0.0


class _Wanted(NamedTuple):
    job: Job
    payload: bytes
    key: bytes
    ticket: Ticket


class Pool:
    """Runs jobs in ``size`` boxes, which start when they are first needed.

    Args:
        backend: where the boxes are from; the pool closes it. None takes the strongest that works here.
        size: how many jobs may run at once.
        limits: what each job may use.
        cache_size: how many results to remember; 0 remembers none.

    Raises:
        SandboxError: ``size`` below 1, ``cache_size`` below 0, or no backend here has walls that are strong enough.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        size: int = 2,
        limits: Limits | None = None,
        cache_size: int = 100_000,
    ) -> None:
        if size < 1 or cache_size < 0:
            raise SandboxError(f"{size} boxes and a memory of {cache_size} results; need at least 1 and 0")
        self.limits = limits or Limits()
        self.backend = choose().backend if backend is None else backend
        self._size, self._cache_size = size, cache_size
        self._stats = PoolStats()
        self._lock = threading.Lock()
        self._memory: OrderedDict[bytes, JobResult] = OrderedDict()
        self._pending: dict[bytes, Ticket] = {}
        self._portal = Portal("agentrl-sandbox")
        self._queue: asyncio.Queue[_Wanted] = asyncio.Queue()
        self._lanes: list[asyncio.Task[None]] = []
        self._idle = 0
        self._endings: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._closed = False
        atexit.register(self.close)

    @property
    def stats(self) -> PoolStats:
        """The counts so far."""
        return self._stats

    async def run(self, job: Job) -> JobResult:
        """The result of one job.

        Raises:
            SandboxError: the box was lost, or the pool is closed. Not the program's doing.
            TaskError: the job cannot be sent.
        """
        ticket = self._submit(job)
        return ticket.result() if ticket.done() else await asyncio.wrap_future(ticket)

    async def run_many(self, jobs: Sequence[Job]) -> list[JobResult]:
        """The results of several jobs, in their order. Raises as `run` does, for the first that was lost."""
        return list(await asyncio.gather(*map(self.run, jobs)))

    def run_sync(self, jobs: Sequence[Job]) -> list[JobResult]:
        """As `run_many`, without an event loop: blocks until all jobs are done."""
        return [ticket.result() for ticket in self.start(jobs)]

    def start(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Set jobs going without waiting for them. Raises TaskError as `run` does."""
        return [self._submit(job) for job in jobs]

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine comes to in the pool's event loop, where all that uses the backend has to live.

        Raises:
            SandboxError: the pool is closed.
        """
        if self._closed:
            work.close()
            raise SandboxError(_CLOSED)
        return await asyncio.wrap_future(self._portal.start(work))

    def before_close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something ended in the pool's event loop before the backend is."""
        self._endings.append(work)

    def close(self) -> None:
        """End the boxes and the backend; jobs that are still wanted are lost. Safe to call twice."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        atexit.unregister(self.close)
        self._portal.start(self._shut()).result()
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What is asked for, and what is known already: in whatever thread asks.

    def _submit(self, job: Job) -> Ticket:
        payload = encode_job(job)
        key = hashlib.blake2b(payload, digest_size=16).digest()
        with self._lock:
            if self._closed:
                raise SandboxError(_CLOSED)
            known = self._known(key)
            self._count(hits=known is not None, misses=known is None)
            if known is not None:
                return known
            ticket = Ticket()
            ticket.set_running_or_notify_cancel()  # who gives up waiting does not take it from the others
            self._pending[key] = ticket
        self._portal.soon(self._take, _Wanted(job, payload, key, ticket))
        return ticket

    def _known(self, key: bytes) -> Ticket | None:
        if key not in self._memory:
            return self._pending.get(key)
        self._memory.move_to_end(key)
        ticket = Ticket()
        ticket.set_result(self._memory[key])
        return ticket

    def _count(self, **more: float) -> None:
        now = {name: getattr(self._stats, name) + number for name, number in more.items()}
        self._stats = replace(self._stats, **now)

    # What runs: in the pool's own thread.

    def _take(self, wanted: _Wanted) -> None:
        self._queue.put_nowait(wanted)
        if self._queue.qsize() > self._idle and len(self._lanes) < self._size:
            self._idle += 1
            self._lanes.append(asyncio.get_running_loop().create_task(self._serve()))

    async def _serve(self) -> None:
        """Carry out one job after the other in a box of our own, and in a new one when that was lost."""
        lane: Lane | None = None
        try:
            while True:
                wanted = await self._queue.get()
                self._idle -= 1
                lane = await self._carry_out(lane, wanted)
                self._idle += 1
        finally:
            if lane is not None:
                await _close(lane)

    async def _carry_out(self, lane: Lane | None, wanted: _Wanted) -> Lane | None:
        started = time.monotonic()
        try:
            lane = lane or await open_lane(self.backend, self.limits)
            result = await lane.run(wanted.job, wanted.payload, self.limits)
        except Exception as error:  # of whatever kind: who waits is told, and the lane goes on with the next job
            if lane is not None:
                with self._lock:
                    self._count(restarts=1)
                await _close(lane)
            own = error if isinstance(error, SandboxError) else SandboxError(f"{type(error).__name__}: {error}")
            self._settle(wanted, own, 0.0)
            return None
        except asyncio.CancelledError:
            self._settle(wanted, SandboxError("the sandbox pool was closed"), 0.0)
            raise
        self._settle(wanted, result, time.monotonic() - started)
        return lane

    def _settle(self, wanted: _Wanted, came: JobResult | SandboxError, seconds: float) -> None:
        with self._lock:
            self._pending.pop(wanted.key, None)
            if isinstance(came, SandboxError):
                self._count(lost=1)
            else:
                self._count(timeouts=came.end == "timeout", seconds=seconds)
                self._remember(wanted.key, came)
        if isinstance(came, SandboxError):
            wanted.ticket.set_exception(SandboxError(f"{came}; the job was lost, not failed"))
        else:
            wanted.ticket.set_result(came)

    def _remember(self, key: bytes, result: JobResult) -> None:
        if result.repeatable and self._cache_size:
            self._memory[key] = result
            if len(self._memory) > self._cache_size:
                self._memory.popitem(last=False)

    async def _shut(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        while not self._queue.empty():
            self._settle(self._queue.get_nowait(), SandboxError("the sandbox pool was closed"), 0.0)
        for work in reversed(self._endings):
            await work()
        await self.backend.close()


class Lease(Generic[R]):
    """The place where the programs of a task set run: one that it was given, or a pool of its own.

    Args:
        given: whose it is stays whose it is; None has a pool made when it is first needed.
    """

    def __init__(self, given: R | None) -> None:
        self._given = given
        self._own: Pool | None = None

    def get(self) -> R | Pool:
        """It. Raises SandboxError when no pool can be had."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = Pool()
        return self._own

    def close(self) -> None:
        """End the pool that was made, if one was. Safe to call twice."""
        if self._own is not None:
            self._own.close()
            self._own = None


_CLOSED = "the sandbox pool is closed; make a new Pool"


async def _close(lane: Lane) -> None:
    with contextlib.suppress(SandboxError):  # it was lost; so much the better
        await lane.close()
