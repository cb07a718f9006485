"""How much memory a tree of processes holds. Looked at often, it bounds what a limit per process cannot."""

from __future__ import annotations

import contextlib
import os

from . import limits

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FEW_FILES = 64
_SOCKET_BYTES = 208 << 10  # the kernel's default for what one socket may have on the way
_PIPE_BYTES = 64 << 10
_LOOKS_TO_HIDE = 3
_STARTED_TICKS = 2  # of 10 ms; to fill 100 MiB of sockets takes more


def descendants(pid: int) -> list[int]:
    """The process and all below it, as this process's /proc shows them."""
    found, fresh = [pid], [pid]
    while fresh:
        fresh = [child for parent in fresh for child in _children(parent)]
        found += fresh
    return found


def used_bytes(processes: list[int], enough: int) -> int:
    """Memory of processes. Shared pages are split among those who share them, once a plain sum is above ``enough``.

    Splitting is exact and dear, the plain sum is cheap and never too low.
    """
    total = sum(map(_resident, processes))
    return total if total <= enough else sum(map(_proportional, processes))


class Buffers:
    """What the sockets and pipes of a tree of processes can hold in the kernel, which counts as nobody's memory.

    Only processes with many open files are looked into, since every program has some; one that did not let itself be
    looked into for three looks in a row is held to have as many sockets as it may. A process that starts a program, or
    ends, does not for a moment; and the first one does not until it has come to run, which on a busy machine takes any
    time.
    """

    def __init__(self) -> None:
        self._hidden: dict[int, int] = {}

    def most_bytes(self, processes: list[int]) -> int:
        """Of these processes, the first of which is the one that all others come from."""
        seen: set[str] = set()
        hidden: dict[int, int] = {}
        for pid in processes:
            try:
                names = os.listdir(f"/proc/{pid}/fd")
                if len(names) > _FEW_FILES:
                    seen.update(_links(pid, names))
            except PermissionError:
                if _resident(pid) > 0 and (pid != processes[0] or _has_run(pid)):
                    hidden[pid] = self._hidden.get(pid, 0) + 1
            except OSError:
                continue  # it ended meanwhile
        self._hidden = hidden
        unknown = sum(looks >= _LOOKS_TO_HIDE for looks in hidden.values())
        sockets = sum(link.startswith("socket:") for link in seen) + unknown * limits.OPEN_FILES
        return sockets * _SOCKET_BYTES + sum(link.startswith("pipe:") for link in seen) * _PIPE_BYTES


def _has_run(pid: int) -> bool:
    """Whether it has used so much processor time that it must be in its program by now."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # a process gives itself a name, which need be no text
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return int(fields[11]) + int(fields[12]) >= _STARTED_TICKS


def _links(pid: int, names: list[str]) -> set[str]:
    found = set()
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    except OSError:
        return children  # it ended meanwhile
    return children


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    """The proportional share; the resident size where the process does not let itself be looked into."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return _resident(pid)
