"""One worker process and the two pipes to it. Everything here is non-blocking; the pool does the waiting."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from agentrl.errors import SandboxError
from agentrl.sandbox import worker_main
from agentrl.sandbox.jobs import Batch, Job, JobResult, Limits

_GRACE_S = 20.0
_CLOSE_S = 2.0
_READ_SIZE = 1 << 20


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """A job that is queued or in flight, and who waits for it."""

    job: Job
    payload: bytes
    key: bytes
    result: JobResult | None = None
    error: SandboxError | None = None
    waiters: list[asyncio.Future[JobResult]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the job has a result or was lost."""
        return self.result is not None or self.error is not None

    def outcome(self) -> JobResult:
        """The result of a finished job.

        Raises:
            SandboxError: the job was lost.
        """
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def wake(self) -> None:
        """Tell the waiters, except those that have given up or whose event loop has ended."""
        for waiter in self.waiters:
            if waiter.done() or waiter.get_loop().is_closed():
                continue
            if self.error is not None:
                waiter.set_exception(self.error)
            else:
                waiter.set_result(self.outcome())


class Answer(NamedTuple):
    """What a worker says about one job: how it ended, the seconds that it took, what it reported."""

    ticket: Ticket
    end: str
    seconds: float
    output: bytes


class WorkerProcess:
    """A running worker. It answers jobs in the order in which they were loaded."""

    def __init__(self, limits: Limits, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        arguments = [limits.wall_s, limits.cpu_s, limits.memory_mib, limits.output_bytes]
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", worker_main.__file__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=directory,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for us to handle
        )
        self.write_fd, self.read_fd, error_fd = (stream.fileno() for stream in self._streams())
        for fd in (self.write_fd, self.read_fd, error_fd):
            os.set_blocking(fd, False)
        self.in_flight: deque[Ticket] = deque()
        self.outgoing = bytearray()
        self.incoming = bytearray()
        self.patience_s = limits.wall_s + _GRACE_S
        self.part_s = limits.cpu_s
        self.deadline = 0.0

    def load(self, ticket: Ticket) -> None:
        """Queue a job; `push` sends it."""
        self.in_flight.append(ticket)
        if len(self.in_flight) == 1:
            self._extend_deadline()
        self.outgoing += struct.pack(">I", len(ticket.payload)) + ticket.payload

    def push(self) -> None:
        """Send as much as the pipe takes now."""
        try:
            while self.outgoing:
                del self.outgoing[: os.write(self.write_fd, self.outgoing)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.outgoing.clear()  # the end of the other pipe tells the rest

    def pull(self) -> tuple[list[Answer], bool]:
        """The answers that have come, and whether the worker is still there."""
        alive = True
        try:
            while part := os.read(self.read_fd, _READ_SIZE):
                self.incoming += part
            alive = False
        except BlockingIOError:
            pass
        return self._answers(), alive

    def _answers(self) -> list[Answer]:
        answers = []
        while len(self.incoming) >= 4:
            (length,) = struct.unpack_from(">I", self.incoming)
            if len(self.incoming) < 4 + length:
                break
            header, _, output = bytes(self.incoming[4 : 4 + length]).partition(b"\n")
            del self.incoming[: 4 + length]
            end, seconds = header.decode().split()
            answers.append(Answer(self.in_flight.popleft(), end, float(seconds), output))
        if answers:
            self._extend_deadline()
        return answers

    def _extend_deadline(self) -> None:
        """Give the job that runs now its time, and us some grace."""
        run = self.in_flight[0].job.run if self.in_flight else None
        extra_s = len(run.parts) * self.part_s if isinstance(run, Batch) else 0.0
        self.deadline = time.monotonic() + self.patience_s + extra_s

    def obituary(self) -> str:
        """Kill the worker and say how it ended, with the last line of its standard error."""
        self.process.kill()
        status = self.process.wait()
        complaint = (self._streams()[2].read() or b"").decode(errors="replace").strip()
        last = f": {complaint.splitlines()[-1]}" if complaint else ""
        return f"sandbox worker {self.process.pid} ended with status {status}{last}"

    def _streams(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return self.process.stdin, self.process.stdout, self.process.stderr

    def close(self) -> None:
        """End the process, politely if it is idle, and release its pipes. Safe to call twice."""
        if self.in_flight:
            self.process.kill()
        for stream in self._streams():
            stream.close()
        try:
            self.process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _environment() -> dict[str, str]:
    """The worker's whole environment. An interpreter with shared libraries needs to be told where they are.

    Symbols are looked up at the start, or else every forked child would look up the same ones again.
    """
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return fixed | {"LD_BIND_NOW": "1"} | inherited
