"""What is told to the process that runs a program in a box, and what it tells of the end. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.sandbox.base import Reason

STARTED = b"started\n"
"""Written to the marker when all walls are up, right before the program runs."""

ENDED = b"ended\n"
"""Written to the marker by the shell that starts a program in bubblewrap, when the program has ended."""

CHANNEL_FD, MARKER_FD, FILTER_FD = 3, 4, 5
"""Where a program has its channel; where bubblewrap has the marker and the system call filter."""

NOT_FOUND, NOT_RUN = 127, 126
"""Exit statuses of a program that does not exist and of one that cannot be run, as in a shell."""


@dataclass(frozen=True, kw_only=True)
class Walls:
    """What is put around each program of a box.

    Args:
        user: user and group to become, or None to stay who we are.
        readable: what Landlock lets it read and run; None for no Landlock.
        writable: what Landlock lets it change.
        sockets: whether it may have sockets that are not just a pair.
        filter: the system call filter, in base64; empty for none.
        by_bubblewrap: the program is bubblewrap, which puts up the walls itself and says on the marker that it did.
        uncounted: processes that count against the limit of processes although they are not of the program.
    """

    user: tuple[int, int] | None = None
    readable: tuple[str, ...] | None = None
    writable: tuple[str, ...] = ()
    sockets: bool = False
    filter: str = ""
    by_bubblewrap: bool = False
    uncounted: int = 0


@dataclass(frozen=True, kw_only=True)
class Order:
    """One program to run. ``cwd`` is below the first folder of the box; the numbers are those of BoxLimits."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    wall_s: float
    cpu_s: float
    memory_mib: int
    processes: int
    disk_mib: int
    files: int


@dataclass(kw_only=True)
class Report:
    """How a program ended: see Finished. ``fault`` is what kept it from being started, or kept us from ending it."""

    started: bool = False
    status: int | None = None
    signal: int | None = None
    killed_for: Reason | None = None
    wall_s: float = 0.0
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Descriptors of one program: its standard streams, the guard's control socket, and maybe a channel.

    ``life`` can be read when the keeper has ended.
    """

    life: int
    stdin: int
    stdout: int
    stderr: int
    control: int
    channel: int | None = None
