"""What every sandbox can do, whatever keeps the program inside: one interface for all backends. No torch.

A `Backend` starts boxes. A `Box` is one workspace and whatever runs in it: files go in, programs run, files come out.
Faults of ours are SandboxErrors; whatever a program does is a `Finished`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol

from agentrl.errors import SandboxError

Network = Literal["none", "loopback"]
Reason = Literal["time", "memory", "output", "disk", "processes"]
"""The limits for which a program is ended from outside."""


class BoxFull(SandboxError):
    """There is no room in a box for what was to be written. The box is well: reset it, or remove files in it."""


class Level(IntEnum):
    """How strong the walls are, weakest first. A run records the level that it had.

    NONE runs with the rights of the user; LIMITS bounds what a program uses; LANDLOCK also keeps it from files, sockets
    and processes that are not its own; NAMESPACES leaves nothing of the machine to be seen.
    """

    NONE = 0
    LIMITS = 1
    LANDLOCK = 2
    NAMESPACES = 3


@dataclass(frozen=True, kw_only=True)
class BoxLimits:
    """What one box may use. A number is of the whole box, all its processes together, unless it says otherwise.

    Args:
        wall_s: seconds by the clock that one program may run.
        cpu_s: seconds of processor time of one process.
        memory_mib: memory of all processes. One process cannot exceed it; all together are looked at 20 times a second,
            and what they can touch between two looks (some 60 MiB on two cores) comes on top.
        processes: processes and threads at a time.
        disk_mib: bytes in the workspace and in /tmp.
        files: files and folders in each of them.
        output_bytes: what is kept of each of standard output and standard error; the middle is cut out.

    Raises:
        SandboxError: a limit that is not positive.
    """

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_mib: int = 512
    processes: int = 32
    disk_mib: int = 16
    files: int = 2048
    output_bytes: int = 65_536

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise SandboxError(f"limit {name} is {value!r}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a box starts with.

    Args:
        files: path below the workspace -> content. Paths are relative, with ``/``, without ``..``.
        limits: what it may use.
        network: ``none``, or ``loopback`` inside the box; never more.

    Raises:
        SandboxError: a path that would lie outside of the workspace.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    limits: BoxLimits = BoxLimits()
    network: Network = "none"

    def __post_init__(self) -> None:
        for path in self.files:
            check_path(path)


def _name_length(path: str) -> int:
    """In bytes; 0 for what cannot be the name of a file, since it holds half a character."""
    try:
        return len(os.fsencode(path))
    except UnicodeEncodeError:
        return 0


def check_path(path: str) -> str:
    """The path, when it lies below the workspace and is written plainly.

    Raises:
        SandboxError: naming the path and what is allowed.
    """
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts) or not 0 < _name_length(path) <= 1024:
        raise SandboxError(f"path {path!r}: give a relative path below the workspace, such as src/main.py")
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """How a program ended. ``status`` is its exit status, or None when a signal ended it.

    ``killed_for`` says which limit we ended it for. ``stdout`` and ``stderr`` hold at most ``output_bytes`` each, with
    ``cut`` bytes of both left out of the middle.
    """

    status: int | None
    signal: int | None = None
    killed_for: Reason | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    cut: int = 0
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.status == 0 and self.killed_for is None


class Channel(Protocol):
    """A stream of bytes to a program that runs inside a box: what we write it reads on descriptor 3, and the reverse.

    Everything that comes from it was written by an adversary.
    """

    async def send(self, data: bytes) -> None:
        """Write all of it. Raises EOFError when the program is gone."""
        ...

    async def receive(self, count: int) -> bytes:
        """Exactly so many bytes. Raises EOFError when the program is gone before."""
        ...

    def fileno(self) -> int:
        """The descriptor of our end, a socket, for another process to talk through instead of us."""
        ...

    async def close(self) -> Finished:
        """End the program, if it still runs, and say how it ended. Safe to call twice."""
        ...


class Box(Protocol):
    """One workspace, and whatever runs in it."""

    @property
    def level(self) -> Level:
        """The walls that this box has."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        wall_s: float | None = None,
    ) -> Finished:
        """Run a program to its end, with every process that it leaves behind ended too.

        Args:
            argv: the program and its arguments; ``python`` is the interpreter of the box.
            stdin: what it reads.
            env: variables beside the box's own few; nothing of ours is passed on.
            cwd: a folder below the workspace.
            wall_s: less time than the box's limit.

        Raises:
            SandboxError: the box is closed, or was lost. Never for what the program does.
        """
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Put files into the workspace. What stands in the way (a link, a folder) is removed, never followed.

        Each file is either new as a whole or as it was.

        Raises:
            BoxFull: no room for one of them, because of ``disk_mib`` or ``files``; those before it are written.
            SandboxError: a path outside; the box is closed, or was lost.
        """
        ...

    async def read(self, paths: Sequence[str], *, max_bytes: int = 1 << 20) -> Mapping[str, bytes]:
        """The contents of those of these that are regular files of at most ``max_bytes``, reached without a link.

        What is anything else (missing, a link, a device, too large) is not in the result.
        """
        ...

    async def channel(self, argv: Sequence[str], *, wall_s: float | None = None) -> Channel:
        """Start a program that talks with us on descriptor 3; ``wall_s`` bounds its whole life."""
        ...

    async def reset(self) -> None:
        """Back to the files that the box started with; nothing else stays."""
        ...

    async def close(self) -> None:
        """End every process of the box and remove what it wrote. Safe to call twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class Support:
    """Whether a backend works on this machine, found out by doing it.

    Attributes:
        backend: its name.
        level: the walls that were reached; NONE when it does not work.
        works: whether a program ran inside.
        features: what it can do beyond, by name: ``network namespace``, ``memory watchdog`` ...
        missing: what it lacks, each with the reason and the remedy.
    """

    backend: str
    level: Level
    works: bool
    features: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """As plain data, for a run folder."""
        return {**asdict(self), "level": self.level.name.lower()}


class Backend(Protocol):
    """Starts boxes."""

    name: str

    def probe(self) -> Support:
        """What this machine gives it. Never raises."""
        ...

    async def start(self, spec: Spec) -> Box:
        """A box with these files.

        Raises:
            SandboxError: it cannot be had, with the reason and the remedy.
        """
        ...

    async def close(self) -> None:
        """End whatever the backend keeps warm. Safe to call twice."""
        ...
