"""The pool of worker processes that runs untrusted programs.

A job is sent to a warm worker, which forks a child for it; see worker_main.py. Programs are held to be pure, so
the result of an equal job is remembered. One thread at a time may use a pool, from any number of event loops
one after another, or without one through `WorkerPool.run_sync`.
"""

from __future__ import annotations

import asyncio
import hashlib
import selectors
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.errors import SandboxError
from agentrl.sandbox.jobs import Job, JobResult, Limits, encode_job, read_result
from agentrl.sandbox.process import Answer, Ticket, WorkerProcess

_WINDOW = 16


@dataclass(kw_only=True)
class PoolStats:
    """Counts since the pool was made.

    ``hits`` were answered from memory or shared a job that was already under way, ``misses`` were sent to a worker.
    ``seconds`` is the time that workers spent on jobs. ``lost`` jobs ended in a SandboxError.
    """

    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    lost: int = 0
    restarts: int = 0
    seconds: float = 0.0


class WorkerPool:
    """Runs jobs in ``num_workers`` worker processes, which start when they are first needed.

    Args:
        num_workers: how many jobs may run at once.
        limits: what each job may use.
        cache_size: how many results to remember; 0 remembers none.

    Raises:
        SandboxError: ``num_workers`` below 1 or ``cache_size`` below 0.
    """

    def __init__(self, num_workers: int = 2, limits: Limits | None = None, cache_size: int = 100_000) -> None:
        if num_workers < 1 or cache_size < 0:
            raise SandboxError(f"{num_workers} workers and a cache of {cache_size}; need at least 1 and 0")
        self.limits = limits or Limits()
        self.stats = PoolStats()
        self._cache_size = cache_size
        self._memory: OrderedDict[bytes, JobResult] = OrderedDict()
        self._pending: dict[bytes, Ticket] = {}
        self._queue: deque[Ticket] = deque()
        self._workers: list[WorkerProcess | None] = [None] * num_workers
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[int, WorkerProcess] = {}
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, job: Job) -> JobResult:
        """The result of one job. Jobs that are asked for in one turn of the event loop are sent together.

        Raises:
            SandboxError: the worker died, did not answer in time, or the pool is closed. Not the program's doing.
            TaskError: the job cannot be sent.
        """
        loop = asyncio.get_running_loop()
        self._bind(loop)
        ticket = self._submit(job)
        if ticket.done:
            return ticket.outcome()
        waiter: asyncio.Future[JobResult] = loop.create_future()
        ticket.waiters.append(waiter)
        if not self._flush_due:
            self._flush_due = True
            loop.call_soon(self._flush)
        return await waiter

    async def run_many(self, jobs: Sequence[Job]) -> list[JobResult]:
        """The results of several jobs, in their order. Raises as `run` does, for the first that was lost."""
        return list(await asyncio.gather(*map(self.run, jobs)))

    def run_sync(self, jobs: Sequence[Job]) -> list[JobResult]:
        """As `run_many`, without an event loop: blocks until all jobs are done."""
        return self.finish(self.start(jobs))

    def start(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Set jobs going without an event loop, to be waited for by `finish`. Raises as `run_sync` does."""
        tickets = [self._submit(job) for job in jobs]
        self._assign()
        return tickets

    def finish(self, tickets: Sequence[Ticket]) -> list[JobResult]:
        """The results of jobs that `start` set going, in their order.

        Raises:
            SandboxError: for the first that was lost.
        """
        for ticket in tickets:
            while not ticket.done:
                self._assign()
                self._wait()
        if self._loop is not None and not self._loop.is_closed():
            self._watch()
        return [ticket.outcome() for ticket in tickets]

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers that run now."""
        return tuple(worker.process.pid for worker in self._running())

    def close(self) -> None:
        """End the workers; jobs that are still wanted are lost. Safe to call twice."""
        self._closed = True
        self._lose([*self._queue], "the sandbox pool was closed")
        self._queue.clear()
        for index in range(len(self._workers)):
            self._discard(index, "the sandbox pool was closed")
        if self._timer is not None:
            self._timer.cancel()
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What is asked for, and what is known already.

    def _submit(self, job: Job) -> Ticket:
        if self._closed:
            raise SandboxError("the sandbox pool is closed; make a new WorkerPool")
        payload = encode_job(job)
        key = hashlib.blake2b(payload, digest_size=16).digest()
        if key in self._memory:
            self.stats.hits += 1
            self._memory.move_to_end(key)
            return Ticket(job=job, payload=b"", key=key, result=self._memory[key])
        if key in self._pending:
            self.stats.hits += 1
            return self._pending[key]
        self.stats.misses += 1
        ticket = Ticket(job=job, payload=payload, key=key)
        self._pending[key] = ticket
        self._queue.append(ticket)
        return ticket

    def _settle(self, answer: Answer) -> None:
        ticket = answer.ticket
        self.stats.seconds += answer.seconds
        if answer.end == "lost":
            self._lose([ticket], "the sandbox could not start a process for a job")
            return
        ticket.result = read_result(ticket.job, answer.end, answer.output)
        self.stats.timeouts += ticket.result.end == "timeout"
        del self._pending[ticket.key]
        if ticket.result.repeatable and self._cache_size:
            self._memory[ticket.key] = ticket.result
            if len(self._memory) > self._cache_size:
                self._memory.popitem(last=False)
        ticket.wake()

    def _lose(self, tickets: Sequence[Ticket], reason: str) -> None:
        for ticket in tickets:
            self.stats.lost += 1
            self._pending.pop(ticket.key, None)
            ticket.error = SandboxError(f"{reason}; the job was lost, not failed")
            ticket.wake()

    # Workers.

    def _assign(self) -> None:
        """Give queued jobs to the workers with the fewest, and send them."""
        while self._queue:
            loads = [len(worker.in_flight) if worker is not None else 0 for worker in self._workers]
            index = loads.index(min(loads))
            if loads[index] >= _WINDOW:
                break
            self._worker(index).load(self._queue.popleft())
        for worker in self._running():
            worker.push()

    def _worker(self, index: int) -> WorkerProcess:
        worker = self._workers[index]
        if worker is None:
            if self._directory is None:  # not before there is a worker, which removes it when we are killed
                self._directory = tempfile.TemporaryDirectory(prefix="agentrl-sandbox-")
            worker = WorkerProcess(self.limits, Path(self._directory.name) / str(index))
            self._workers[index] = worker
        return worker

    def _running(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker is not None]

    def _service(self, worker: WorkerProcess) -> None:
        """Take in what a worker has said; replace it if it is gone."""
        answers, alive = worker.pull()
        for answer in answers:
            self._settle(answer)
        if not alive:
            self._replace(worker, worker.obituary())

    def _replace(self, worker: WorkerProcess, reason: str) -> None:
        self.stats.restarts += 1
        self._discard(self._workers.index(worker), reason)

    def _discard(self, index: int, reason: str) -> None:
        worker = self._workers[index]
        if worker is None:
            return
        self._workers[index] = None
        self._unwatch(worker)
        worker.close()
        self._lose(worker.in_flight, reason)
        worker.in_flight.clear()

    def _give_up_on_stuck(self) -> None:
        for worker in self._running():
            if worker.in_flight and time.monotonic() >= worker.deadline:
                worker.process.kill()
                pid = worker.process.pid
                self._replace(worker, f"sandbox worker {pid} gave no answer for {worker.patience_s:g} s")

    # Waiting without an event loop.

    def _wait(self) -> None:
        """Block until a busy worker can be read or written, or one has been silent for too long."""
        busy = [worker for worker in self._running() if worker.in_flight]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.read_fd, selectors.EVENT_READ, worker)
                if worker.outgoing:
                    selector.register(worker.write_fd, selectors.EVENT_WRITE, None)
            deadline = min(worker.deadline for worker in busy)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        for key, _ in ready:
            if key.data is not None:
                self._service(key.data)
        self._give_up_on_stuck()

    # Waiting with an event loop.

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move to another event loop. What the last one still had in flight nobody waits for any more."""
        if self._loop is loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise SandboxError("this sandbox pool is in use by another running event loop; give each its own pool")
        self._lose([*self._queue], "the event loop that asked for it has ended")
        self._queue.clear()
        for index, worker in enumerate(self._workers):
            if worker is not None and worker.in_flight:
                self._discard(index, "the event loop that asked for it has ended")
        self._loop, self._flush_due, self._timer = loop, False, None
        self._watched.clear()

    def _flush(self) -> None:
        self._flush_due = False
        self._assign()
        self._watch()

    def _on_readable(self, worker: WorkerProcess) -> None:
        self._service(worker)
        self._assign()
        self._watch()

    def _on_writable(self) -> None:
        self._assign()
        self._watch()

    def _watch(self) -> None:
        """Have the event loop look at exactly the busy workers."""
        assert self._loop is not None
        for worker in self._running():
            if not worker.in_flight:
                self._unwatch(worker)
                continue
            if worker.read_fd not in self._watched:
                self._watched[worker.read_fd] = worker
                self._loop.add_reader(worker.read_fd, self._on_readable, worker)
            if worker.outgoing:
                self._loop.add_writer(worker.write_fd, self._on_writable)
            else:
                self._loop.remove_writer(worker.write_fd)
        if self._watched and self._timer is None:
            deadline = min(worker.deadline for worker in self._watched.values())
            self._timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._on_timer)

    def _unwatch(self, worker: WorkerProcess) -> None:
        if self._watched.pop(worker.read_fd, None) is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(worker.read_fd)
            self._loop.remove_writer(worker.write_fd)

    def _on_timer(self) -> None:
        self._timer = None
        self._give_up_on_stuck()
        self._assign()
        self._watch()
