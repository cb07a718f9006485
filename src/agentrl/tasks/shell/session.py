"""Our side of the shell of an attempt: starts it in a box, has it carry out commands, starts it anew when it is lost.

Bash lives for the whole attempt at the other end of a channel, under a supervisor (`inside`) that interrupts it, so
that a command leaves behind whatever a shell can hold: variables, functions, options, jobs, open files. One bash for
each call, with its state saved and restored, would lose the last two and cost a start each time.
"""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Box, BoxLimits, Channel, Reason
from agentrl.tasks.shell import inside
from agentrl.tasks.shell.output import signal_name

_BOOT = """
import os
def take(count):
    data = b""
    while len(data) < count:
        part = os.read(3, count - len(data))
        if not part:
            raise SystemExit
        data += part
    return data
exec(compile(take(int.from_bytes(take(4), "big")), "shell", "exec"))
"""
_START_S = 30.0
_PATIENCE_S = inside.GRACE_S + 5.0
_FILE_S = 10.0
_LOST: dict[Reason, str] = {
    "time": "the attempt has no more time",
    "memory": "more than {memory_mib} MiB of memory were used in all",
    "output": "too much was printed",
    "disk": "more than {disk_mib} MiB or {files} files were written",
    "processes": "more than {processes} processes ran at a time",
}


@dataclass(frozen=True, kw_only=True)
class ShellLimits:
    """What an attempt in a shell may use.

    Args:
        call_s: seconds that one command may run; a call may ask for less. The harness must give a call some seconds
            more than that, for the start of the box and for the interrupt.
        output_chars: characters of output that the policy is shown of one command; the middle is left out.
        box: what the whole attempt may use; its ``wall_s`` is from the first call to the last.

    Raises:
        SandboxError: a limit that is not positive.
    """

    call_s: float = 20.0
    output_chars: int = 10_000
    box: BoxLimits = field(
        default_factory=lambda: BoxLimits(
            wall_s=3600.0, cpu_s=60.0, memory_mib=1024, processes=64, disk_mib=64, files=8192
        )
    )

    def __post_init__(self) -> None:
        for name in ("call_s", "output_chars"):
            if not getattr(self, name) > 0:
                raise SandboxError(f"limit {name} is {getattr(self, name)!r}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a command ended.

    Attributes:
        head: the beginning of what it printed, errors and output as they came.
        tail: the end of it, when ``cut`` bytes were left out between the two or else what follows on ``head``.
        cut: bytes left out.
        status: its exit status, where it has one.
        why: what ended it, when it did not end by itself, or what became of the shell.
    """

    head: bytes = b""
    tail: bytes = b""
    cut: int = 0
    status: int = 0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the supervisor says; nothing of it is to be believed."""

    kind: int
    number: int
    cut: int
    first: bytes
    second: bytes


class FileRefused(Exception):
    """A file cannot be read or written, for a reason that the policy can do something about."""


class Shell:
    """The shell of one attempt.

    Args:
        box: where it runs. Nothing else may run there until `close`.
        limits: what the box was started with, and what a command may take.
    """

    def __init__(self, box: Box, limits: ShellLimits) -> None:
        self._box = box
        self._limits = limits
        self._channel: Channel | None = None
        self._talking = False
        self._has_run = False

    async def run(self, command: str, wall_s: float) -> Ran:
        """Carry out a command in the shell as the last one left it.

        Raises:
            SandboxError: the box was lost, or no shell can be had in it.
            UnicodeEncodeError: the command holds half a character.
        """
        body = command.encode()
        try:
            reply = await self._ask({"do": "run", "wall_s": wall_s}, body, wall_s + _PATIENCE_S)
        except _Lost as lost:
            return Ran(why=str(lost))
        return Ran(head=reply.first, tail=reply.second, cut=reply.cut, status=reply.number, why=_told(reply, wall_s))

    async def load(self, path: str) -> bytes | None:
        """The content of a file of the workspace; None when there is none.

        Raises:
            FileRefused: the path is of no file that can be edited.
            SandboxError: as `run`.
        """
        reply = await self._ask_for_file({"do": "load", "path": path}, b"")
        return None if reply.kind == inside.MISSING else reply.first

    async def store(self, path: str, content: bytes, *, new: bool) -> None:
        """Put a content in the place of a file, whose mode stays; a ``new`` one gets its folders too.

        Raises:
            FileRefused: it cannot be written; the file is as it was.
            SandboxError: as `run`.
        """
        await self._ask_for_file({"do": "store", "path": path, "new": new}, content)

    async def close(self) -> Reason | None:
        """End the shell and all that it left, and say for which limit of the box it had been ended before, if for any.

        Raises:
            SandboxError: the box was lost.
        """
        channel, self._channel = self._channel, None
        return (await channel.close()).killed_for if channel else None

    async def _ask_for_file(self, request: dict[str, object], body: bytes) -> Reply:
        try:
            reply = await self._ask(request, body, _FILE_S)
        except _Lost as lost:
            raise FileRefused(str(lost)) from lost
        if reply.kind not in (inside.FILE, inside.MISSING):
            raise FileRefused(reply.first.decode(errors="replace"))
        return reply

    async def _ask(self, request: dict[str, object], body: bytes, patience_s: float) -> Reply:
        """One request and its reply.

        Raises:
            _Lost: the shell has ended, or gave no answer in time.
        """
        if self._talking:
            await self.close()  # a call was given up, so that what comes next on the channel answers something else
        self._talking = True
        channel = self._channel or await self._start()
        try:
            async with asyncio.timeout(patience_s):
                head = json.dumps(request).encode()
                await channel.send(struct.pack("!II", len(head), len(body)) + head + body)
                reply = await _received(channel)
        except (EOFError, TimeoutError, ValueError) as error:
            reason = await self.close()
            self._talking = False
            why = await self._reason(reason, error)
            raise _Lost(f"everything in the shell was ended: {why}; the next call starts a new one") from error
        self._talking = False
        return reply

    async def _reason(self, reason: Reason | None, error: Exception) -> str:
        limits = vars(self._limits.box)
        if reason == "disk":  # where the disk is watched, and not bounded, no program would run any more
            await self._box.reset()
            return f"{_LOST[reason].format(**limits)}, so that the files were put back to those of the start"
        if reason is not None:
            return _LOST[reason].format(**limits)
        return "it gave no answer" if isinstance(error, TimeoutError) else "its processes were killed"

    async def _start(self) -> Channel:
        """A channel to a supervisor whose bash is ready.

        Raises:
            SandboxError: none can be had, and none ever could.
            _Lost: none can be had any more. That is the policy's doing, for whom it must not be a way out of a zero.
        """
        self._channel = await self._box.channel(["python", "-I", "-S", "-c", _BOOT])
        source = Path(inside.__file__).read_bytes()
        try:
            async with asyncio.timeout(_START_S):
                await self._channel.send(len(source).to_bytes(4, "big") + source)
                await _received(self._channel)
        except (EOFError, TimeoutError, ValueError) as error:
            channel, self._channel = self._channel, None
            ended = await channel.close()
            last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2][-300:]
            said = last or f"its supervisor ended without a word (status {ended.status}, signal {ended.signal})"
            if self._has_run:
                raise _Lost(f"no shell can be started any more: {said}") from error
            raise SandboxError(f"no shell can be had in the box: {said}") from error
        self._has_run = True
        return self._channel


class _Lost(Exception):
    """There is no shell, and why, for the policy to read."""


async def _received(channel: Channel) -> Reply:
    """The next reply. Raises ValueError for one that the supervisor does not send."""
    kind, number, cut, first, second = inside.REPLY.unpack(await channel.receive(inside.REPLY.size))
    if max(first, second) > inside.MOST_FILE_BYTES:
        raise ValueError(f"a reply of {first + second} bytes")
    parts = await channel.receive(first), await channel.receive(second)
    return Reply(kind=kind, number=number, cut=cut, first=parts[0], second=parts[1])


def _told(reply: Reply, wall_s: float) -> str:
    """In words, what there is to say beside the status."""
    whole = {
        inside.TIME: f"interrupted after {wall_s:g} s",
        inside.FLOOD: f"interrupted, as it had printed more than {inside.FLOOD_BYTES >> 20} MiB",
        inside.CROWDED: "no more processes could be started, so all were ended",
        inside.ENDED: f"the shell itself ended {_as_status(reply.number)}",
        inside.GONE: "the shell had ended since the last command, so that this one was not run",
    }
    why = whole.get(reply.kind & ~inside.RESTARTED, "")
    if not reply.kind & inside.RESTARTED:
        return f"{why}; the shell goes on, its background jobs were ended" if why else ""
    if reply.kind & ~inside.RESTARTED in (inside.TIME, inside.FLOOD):
        why += " and did not stop"
    return f"{why}; a new one was started, without the variables, functions, options and jobs of the old"


def _as_status(number: int) -> str:
    return f"with status {number}" if number >= 0 else f"by {signal_name(-number)}"
