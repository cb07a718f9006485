"""Mounts: a root that shows a program what it needs to run, read-only, and small file systems in memory to write to."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from . import kernel

READ_ONLY, NO_SET_UID, NO_DEVICES, NO_EXECUTION = 1, 2, 4, 8
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_DETACH, _NO_FOLLOW = 2, 8
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_STAGE = "/tmp"  # covered in our own view only, as long as the new root is being made


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system.

    Raises:
        OSError: naming what and where.
    """
    passed = [os.fsencode(text) + b"\0" if text else None for text in (source, target, kind)]
    kernel.call("mount", *passed, flags, options.encode() + b"\0", step=f"mount {kind or source} on {target}")


def mount_memory(target: str, *, mib: int, files: int = 0, mode: str = "0755", options: int = 0) -> None:
    """An empty file system in memory.

    Args:
        mib: the bytes that it holds at most.
        files: files and folders in it at most; 0 for as many as there is room for.
        options: `READ_ONLY` and such, beside no set-uid programs and no devices.
    """
    inodes = f",nr_inodes={files + 1}" if files else ""
    mount("tmpfs", target, "tmpfs", options | NO_SET_UID | NO_DEVICES, f"size={mib}m,mode={mode}{inodes}")


def mount_processes(target: str) -> None:
    """``/proc`` of this process's pid namespace. Refused where the machine's own /proc is covered in part."""
    mount("proc", target, "proc", NO_SET_UID | NO_DEVICES | NO_EXECUTION)


def bind(source: str, target: str) -> None:
    """Show a file or folder, with what is mounted below, at another place as well."""
    mount(source, target, flags=_BIND | _RECURSIVE)


def restrict(target: str, attributes: int, *, below: bool = True) -> None:
    """Add `READ_ONLY` and such to a mount, and to all below.

    Raises:
        OSError: the kernel is older than 5.12, or refused.
    """
    attribute = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if below else 0
    name = os.fsencode(target) + b"\0"
    kernel.call("mount_setattr", _AT_FDCWD, name, flags, attribute, len(attribute), step=f"restrict {target}")


def unmount(target: str) -> None:
    """Take the uppermost mount away, at once for us and for good when the last user has gone."""
    kernel.call("umount2", os.fsencode(target) + b"\0", _DETACH | _NO_FOLLOW, step=f"unmount {target}")


class Held(NamedTuple):
    """A folder that stays within reach when something is mounted above it: its path, and a descriptor of it."""

    path: str
    place: int


def hold(paths: Iterable[str], *, below: str) -> list[Held]:
    """Those of these folders that lie below a place which is about to be covered, for `show_held`."""
    inside = [path for path in paths if path.startswith(f"{below}/") and os.path.exists(path)]
    return [Held(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in inside]


def mount_points(paths: Iterable[str], *, below: str) -> list[str]:
    """The folders right below a place that lead to those of these paths that are below it."""
    start = len(below) + 1
    firsts = (path[start:].partition("/")[0] for path in paths if path.startswith(f"{below}/"))
    return list(dict.fromkeys(f"{below}/{first}" for first in firsts))


def show_held(held: Sequence[Held], *, below: str) -> None:
    """Show folders again at their paths in what was mounted above them.

    What leads to them is a mount of its own from the first folder on, read-only, so that whoever may write around it
    can neither move nor replace it.

    Raises:
        OSError: naming the step.
    """
    for point in mount_points((path for path, _ in held), below=below):
        os.makedirs(point, exist_ok=True)
        if all(path != point for path, _ in held):
            mount_memory(point, mib=1)
        for path, place in held:
            if path == point or path.startswith(f"{point}/"):
                os.makedirs(path, exist_ok=True)
                bind(f"/proc/self/fd/{place}", path)
        restrict(point, READ_ONLY | NO_SET_UID | NO_DEVICES, below=False)


def make_root(shown: Sequence[str], *, hidden: Iterable[str], files: Mapping[str, str], folders: Iterable[str]) -> None:
    """Give this process, in a mount namespace of its own, a new root that holds little and cannot be written to.

    Args:
        shown: files and folders of the machine to show at the same paths; links stay links, what is missing is
            left out.
        hidden: folders to cover with empty ones, where they are shown.
        files: path -> text of files to make.
        folders: empty folders to make: places to mount on.

    Raises:
        OSError: naming the step.
    """
    mount("none", "/", flags=_PRIVATE | _RECURSIVE)
    mount_memory(_STAGE, mib=4)
    for name in ("old", "new"):
        os.mkdir(f"{_STAGE}/{name}")
    _pivot(_STAGE, f"{_STAGE}/old")
    mount_memory("/new", mib=4)
    for path in shown:
        _show(path, "/old", "/new")
    _make_devices()
    for path, text in files.items():
        _make_file(f"/new{path}", text)
    for path in folders:
        os.makedirs(f"/new{path}", exist_ok=True)
    for path in hidden:
        if os.path.isdir(f"/new{path}"):
            mount_memory(f"/new{path}", mib=1, options=READ_ONLY)
    os.makedirs("/new/proc", exist_ok=True)
    mount_processes("/new/proc")
    _leave_old_root()


def _leave_old_root() -> None:
    os.mkdir("/new/old-root")
    _pivot("/new", "/new/old-root")
    unmount("/old-root")
    os.rmdir("/old-root")
    restrict("/", READ_ONLY | NO_SET_UID, below=False)


def _pivot(root: str, old: str) -> None:
    kernel.call("pivot_root", root.encode() + b"\0", old.encode() + b"\0", step="pivot_root")
    os.chdir("/")


def _show(path: str, old: str, new: str) -> None:
    """Show one path of the old root in the new one, with the folders above it made."""
    source, target = old + path, new + path
    try:
        kind = os.lstat(source).st_mode
    except FileNotFoundError:
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if stat.S_ISLNK(kind):
        with contextlib.suppress(FileExistsError):
            os.symlink(os.readlink(source), target)
        return
    if stat.S_ISDIR(kind):
        os.makedirs(target, exist_ok=True)
    else:
        _make_file(target, "")
    bind(source, target)
    restrict(target, READ_ONLY | NO_SET_UID | NO_DEVICES)


def _make_devices() -> None:
    os.makedirs("/new/dev/shm", exist_ok=True)
    for name in _DEVICES:
        _make_file(f"/new/dev/{name}", "")
        bind(f"/old/dev/{name}", f"/new/dev/{name}")
        restrict(f"/new/dev/{name}", NO_SET_UID | NO_EXECUTION)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/new/dev/{name}")


def _make_file(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
