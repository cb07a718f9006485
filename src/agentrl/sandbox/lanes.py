"""Where jobs run one after another: a lane is a box, and the process in it that carries jobs out."""

from __future__ import annotations

import asyncio
import json
import marshal
import signal
import time
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import ModuleType
from typing import Protocol

from agentrl.errors import SandboxError
from agentrl.sandbox import asserts, child, guest, importer, values, zygote_jobs
from agentrl.sandbox.base import Backend, Box, BoxLimits, Channel, Finished, Spec
from agentrl.sandbox.jobs import Batch, Job, JobResult, Limits, Suite, read_result

_LIBRARY, _START = ".agentrl/lib", ".agentrl/start.py"
_COLD = ("python", "-s", "-S", "-P", "-B", _START)  # -I would ignore the seed of hashes
_PROGRAM = f"import sys\nsys.path.insert(0, {_LIBRARY!r})\nfrom agentrl.sandbox import guest\nguest.start()\n"
_CLOCKS = {signal.SIGPROF, signal.SIGALRM, signal.SIGXCPU}
_ITS_OWN_DOING = {"memory", "output", "disk", "processes"}
_MAX_OUTPUT = 1 << 22
_MAX_WALL_S = 3600.0
_GRACE_S = 20.0
_COPIES = 4
"""Of a job in memory while it is read."""
_MAX_USES = 1000
_MAX_AGE_S = 600.0


class Lane(Protocol):
    """Carries out one job at a time."""

    async def run(self, job: Job, payload: bytes, limits: Limits) -> JobResult:
        """What a job comes to. Nothing of it is left for the next one.

        Args:
            job: what to do.
            payload: the same, as `jobs.encode_job` gives it.
            limits: what it may use; each part of a batch has the processor time of a job.

        Raises:
            SandboxError: the machinery failed. Never for what a program does.
        """
        ...

    async def close(self) -> None:
        """End the box."""
        ...


async def open_lane(backend: Backend, limits: Limits) -> Lane:
    """A lane in a new box. Time is limited job by job, so that the box allows more.

    Raises:
        SandboxError: there is no box to be had.
    """
    bounds = BoxLimits(wall_s=_MAX_WALL_S, cpu_s=_MAX_WALL_S, memory_mib=limits.memory_mib, output_bytes=_MAX_OUTPUT)
    if backend.name == "zygote":
        return WarmLane(await backend.start(Spec(limits=bounds)))
    return ColdLane(await backend.start(Spec(files=_files(), limits=bounds)))


class WarmLane:
    """A box of the zygote, in which process 1 forks a process for each job; see zygote_jobs.py."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._channel: Channel | None = None
        self._uses = 0
        self._since = 0.0

    async def run(self, job: Job, payload: bytes, limits: Limits) -> JobResult:
        """As `Lane.run`."""
        if _is_too_large(payload, limits):
            return read_result(job, "finished", b"")
        channel = await self._ready_channel()
        numbers = _numbers(job, limits)
        request = json.dumps({**numbers, "tests": _tests(job)}).encode() + b"\n" + payload
        try:
            async with asyncio.timeout(numbers["wall_s"] + _GRACE_S):
                await channel.send(len(request).to_bytes(4, "big") + request)
                answer = await channel.receive(int.from_bytes(await channel.receive(4), "big"))
        except EOFError:
            return _cut_short(job, await self._hang_up())
        except TimeoutError:
            raise SandboxError(f"the server of a sandboxed job gave no answer within {_GRACE_S:g} s") from None
        head, _, output = answer.partition(b"\n")
        end, left = head.decode().split()
        if left == "dirty":
            await self._hang_up()
        if end == "lost":
            raise SandboxError("the sandbox could not start a process for a job")
        return read_result(job, end, output)

    async def _ready_channel(self) -> Channel:
        self._uses += 1
        if self._uses > _MAX_USES or time.monotonic() - self._since > _MAX_AGE_S:
            await self._hang_up()
        if self._channel is None:
            self._uses, self._since = 1, time.monotonic()
            self._channel = await self._box.channel([zygote_jobs.NAME])
        return self._channel

    async def _hang_up(self) -> Finished | None:
        """End the server and empty the box; the next job finds new ones."""
        if self._channel is None:
            return None
        channel, self._channel = self._channel, None
        done = await channel.close()
        await self._box.reset()
        return done

    async def close(self) -> None:
        """As `Lane.close`."""
        try:
            if self._channel is not None:
                await self._channel.close()
        finally:
            await self._box.close()


def _cut_short(job: Job, done: Finished | None) -> JobResult:
    """A job whose server was ended, which only the limits of the whole box can bring about.

    Raises:
        SandboxError: something else did.
    """
    if done is None or done.killed_for not in _ITS_OWN_DOING:
        raise SandboxError(f"the server of a sandboxed job was lost: {'' if done is None else _complaint(done)}")
    return read_result(job, "finished", b"")


class ColdLane:
    """A box in which an interpreter is started for each job."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._used = False

    async def run(self, job: Job, payload: bytes, limits: Limits) -> JobResult:
        """As `Lane.run`."""
        if _is_too_large(payload, limits):
            return read_result(job, "finished", b"")
        if self._used:
            await self._box.reset()
        self._used = True
        numbers = _numbers(job, limits)
        order = json.dumps(numbers).encode() + b"\n" + payload
        done = await self._box.exec(_COLD, stdin=order, wall_s=min(numbers["wall_s"], _MAX_WALL_S))
        late = done.killed_for == "time" or done.signal in _CLOCKS
        if done.stdout.startswith(guest.READY):
            return read_result(job, "timeout" if late else "finished", done.stdout[len(guest.READY) :])
        if late:
            return read_result(job, "timeout", b"")
        raise SandboxError(f"a sandboxed job did not start: {_complaint(done)}")

    async def close(self) -> None:
        """As `Lane.close`."""
        await self._box.close()


def _is_too_large(payload: bytes, limits: Limits) -> bool:
    """Whether a job is more than a process of its limits can take in. That is the program's own doing."""
    return _COPIES * len(payload) > limits.memory_mib << 20


def _tests(job: Job) -> dict[str, str]:
    return {path: job.files[path] for path in job.run.paths} if isinstance(job.run, Suite) else {}


def _numbers(job: Job, limits: Limits) -> dict[str, float]:
    shares = len(job.run.parts) if isinstance(job.run, Batch) else 1
    return {
        "wall_s": limits.wall_s + (shares - 1) * limits.cpu_s,
        "cpu_s": limits.cpu_s,
        "output_bytes": limits.output_bytes,
        "max_bytes": min(_MAX_OUTPUT, 2 * shares * limits.output_bytes + 65_536),
    }


def _complaint(done: Finished) -> str:
    said = done.stderr.decode(errors="replace").strip().splitlines()
    how = f"signal {done.signal}" if done.status is None else f"status {done.status}"
    why = f", over its limit of {done.killed_for}" if done.killed_for else ""
    return f"{how}{why}{f': {said[-1]}' if said else ''}"


def _files() -> dict[str, bytes]:
    """Our program as files, for interpreters that do not have it in memory."""
    modules = (asserts, child, guest, importer, values)
    compiled = {f"{_LIBRARY}/{module.__name__.replace('.', '/')}.pyc": _compiled(module) for module in modules}
    return {_START: _PROGRAM.encode(), **compiled}


def _compiled(module: ModuleType) -> bytes:
    source = Path(str(module.__file__)).read_bytes()
    code = compile(source, f"{module.__name__}.py", "exec", dont_inherit=True, optimize=2)
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
