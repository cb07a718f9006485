"""How much memory this process may take: that of the machine, or less where a control group bounds it.

A container sees the memory of its host in /proc and in sysconf; what ends its processes is the limit of its control
group, or of any group above it. Both versions of control groups are read, where the process itself is in them.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.current, memory.stat) and
cgroup-v1/memory.rst (memory.limit_in_bytes, memory.usage_in_bytes); /proc/[pid]/mountinfo of proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a device: those that are free for this run, and all."""

    free: int
    total: int


class _Names(NamedTuple):
    """Files of a group: its limit, what it holds, and of which fields of memory.stat the kernel takes back files."""

    limit: str
    used: str
    files: tuple[str, ...]


_V2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def host_bytes(proc: Path = PROC) -> int:
    """All that this process may take: the memory of the machine, or the least limit of its control groups."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(limit for limit, _ in _limits(proc))])


def host_memory(proc: Path = PROC) -> Memory | None:
    """Of the computer, or of the control groups of this process where they allow less; None where /proc does not tell.
    What this process holds already counts as free for the run, and so do files that the kernel keeps in memory."""
    found = kibibytes(proc / "meminfo", "MemAvailable", "MemTotal")
    if len(found) < 2:
        return None
    limits = list(_limits(proc))
    free = min([found["MemAvailable"], *(free for _, free in limits)])
    total = min([found["MemTotal"], *(limit for limit, _ in limits)])
    return Memory(free=min(free + resident(proc), total), total=total)


def resident(proc: Path = PROC) -> int:
    """Bytes that this process holds now, as far as /proc tells: Python, the libraries and what they have loaded."""
    return kibibytes(proc / "self" / "status", "VmRSS").get("VmRSS", 0)


def kibibytes(path: Path, *names: str) -> dict[str, int]:
    """Some fields of a file of /proc that counts in units of 1,024 bytes, in bytes; those that it has."""
    parts = (line.split() for line in _text(path).splitlines())
    return {part[0].rstrip(":"): int(part[1]) * 1024 for part in parts if part and part[0].rstrip(":") in names}


def _limits(proc: Path) -> Iterator[tuple[int, int]]:
    """Bytes that each bounded group of this process may hold, and those that it may still take."""
    for folder, names in _groups(proc):
        limit, used = (_number(folder / name) for name in (names.limit, names.used))
        if limit is not None:
            yield limit, max(0, limit - max(0, (used or 0) - _files(folder, names)))


def _groups(proc: Path) -> Iterator[tuple[Path, _Names]]:
    """The folders of the groups that bound this process: its own, and those above it as far as they are mounted."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            kind, names = "cgroup2", _V2
        elif "memory" in controllers.split(","):
            kind, names = "cgroup", _V1
        else:
            continue
        for root, mounted in _mounts(proc, kind):
            own = mounted / _below(path, root)
            yield from ((folder, names) for folder in (own, *own.parents) if folder.is_relative_to(mounted))


def _below(path: str, root: str) -> PurePosixPath:
    """A group's path within a mount that begins at another one; the mount's own where it lies elsewhere, as a container
    sees it that has the path of its host."""
    inside = PurePosixPath(path)
    return inside.relative_to(root) if inside.is_relative_to(root) and ".." not in inside.parts else PurePosixPath()


def _mounts(proc: Path, kind: str) -> Iterator[tuple[str, Path]]:
    """Where control groups are mounted, and with which of them each mount begins."""
    for line in _text(proc / "self" / "mountinfo").splitlines():
        before, _, behind = line.partition(" - ")
        fields, (found, _, options) = before.split(), behind.split(" ", 2)
        if found == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            yield fields[3], Path(fields[4])


def _number(path: Path) -> int | None:
    """What a file says; None where there is none, or it says ``max``."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _files(folder: Path, names: _Names) -> int:
    """Bytes of files that a group keeps in memory."""
    parts = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return sum(int(part[1]) for part in parts if part[0] in names.files)


def _text(path: Path) -> str:
    """Of a file; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
