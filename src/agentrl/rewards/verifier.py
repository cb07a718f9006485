"""Answers are verified in processes of their own, so that one that never ends or grows without bound costs nothing
but itself: the process is ended at its limit, and the next one gets a fresh process.

Libraries that check answers guard themselves with the alarm signal, which works in a main thread alone, and take a
time that ran out for a wrong answer. So their own limits are off, and the limit is the processor time of the process:
a busy machine changes no verdict.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from agentrl.errors import ScorerError, TaskError

Job = Literal["about", "make", "reasoning_gym", "math", "readable", "same"]
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR")
"""What a process inherits; keys of services are not among them."""
_MAIN = "agentrl.rewards.verifier_main"


class Unverifiable(ScorerError):
    """A job failed by what it was given, on a machine that did its part: it raised, or used up its processor time."""


class Verifier:
    """A few processes that make tasks and verify answers. Safe to use from several threads and event loops.

    Args:
        workers: processes at the same time, started when they are needed.
        cpu_s: processor time after which a job is given up, in seconds.
        wall_s: time after which it is given up though it computes nothing, in seconds.
    """

    def __init__(self, *, workers: int = 2, cpu_s: float = 10.0, wall_s: float = 120.0) -> None:
        self.cpu_s, self.wall_s = cpu_s, wall_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="verifier")
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self.replaced = 0

    async def ask(self, job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Have a job of `verifier_jobs` done.

        Args:
            job: its name.
            arguments: JSON-plain.

        Raises:
            Unverifiable: it raised, or used up its processor time.
            ScorerError: it gave no answer for another reason.
            TaskError: the package that it needs is missing.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.ask_now, job, arguments)

    def ask_now(self, job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`ask` for callers that wait."""
        child = self._take()
        try:
            answer = child.exchange({"job": job, "cpu_s": self.cpu_s, **arguments}, self.wall_s)
        except (OSError, EOFError) as error:
            self.replaced += 1
            kind, why = child.end(error, self.cpu_s, self.wall_s)
            raise kind(f"verifier {job}: {why}") from error
        except BaseException:
            child.end()
            raise
        self._idle.put(child)
        if "missing" in answer:
            raise TaskError(answer["missing"])
        if "error" in answer:
            raise Unverifiable(f"verifier {job} raised {answer['error']}")
        return answer

    def close(self) -> None:
        """End the processes. Safe to call twice."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().end()

    def _take(self) -> _Child:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return _Child()


class _Child:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            # sets are in the same order in every process, since some generators go by it
            kept |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MAIN, str(theirs.fileno())],
                env=kept,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._replies = self._socket.makefile("rb")

    def exchange(self, request: Mapping[str, Any], wall_s: float) -> dict[str, Any]:
        """Send a job and wait for what comes back. Raises OSError at the limit, EOFError when the process ended."""
        self._socket.settimeout(wall_s)
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._replies.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return dict(json.loads(line))

    def end(
        self, error: Exception | None = None, cpu_s: float = 0.0, wall_s: float = 0.0
    ) -> tuple[type[ScorerError], str]:
        """End the process, and say why a job failed."""
        self._process.kill() if isinstance(error, TimeoutError) else self._socket.shutdown(socket.SHUT_RDWR)
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._replies.close()
        self._socket.close()
        if isinstance(error, TimeoutError):
            return ScorerError, f"no verdict within {wall_s:g} s"
        if status == -signal.SIGPROF:
            return Unverifiable, f"no verdict within {cpu_s:g} s of processor time"
        return ScorerError, f"its process ended with status {status}"
