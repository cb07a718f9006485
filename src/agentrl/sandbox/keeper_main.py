"""The process that keeps one box: its folders live here, and every program of the box is forked from here.

It runs on a bare interpreter with the standard library and holds nothing that a program may not know. When the socket
to the user's process ends, for whatever reason, it ends all programs and removes the folders.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from agentrl.sandbox import tally
from agentrl.sandbox.guard import run_guard
from agentrl.sandbox.orders import Order, Report, Streams, Walls
from agentrl.sandbox.walls import kernel, mounts, namespaces
from agentrl.sandbox.workspace import empty

FOLDERS = ("work", "tmp", "shm")
"""The folders of a box below its home: programs start in the first; the others are for temporary files and for memory
that is shared by name."""

_RECURSIVE, _PRIVATE = 16384, 1 << 18
_END_S = 10.0
_MOST_DESCRIPTORS = 8
_SHARED = "/dev/shm"
_STREAMS = ("stdin", "stdout", "stderr", "control", "channel")  # in the order in which they are handed over
_PR_SET_CHILD_SUBREAPER = 36

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the keeper of a box prepares.

    Args:
        home: an empty folder that was made for the box. The keeper removes it.
        user: user and group that the folders belong to, or None for whoever we are.
        mounts: whether to have mounts of our own: never, where it can be had with privilege, or also without by a user
            namespace.
        network: whether to leave the network of the machine for an empty one, or for one with a loopback.
        visible: what the user of the box must be able to reach although a folder above may be closed to it.
        hidden: folders to cover with empty ones, where mounts can be had.
        disk_mib: size of each folder.
        files: files and folders in each.
    """

    home: str
    user: tuple[int, int] | None
    mounts: Literal["never", "privileged", "any"]
    network: Literal["shared", "own if privileged", "own with loopback"]
    visible: tuple[str, ...]
    hidden: tuple[str, ...]
    disk_mib: int
    files: int


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What the keeper could prepare.

    Args:
        fault: why there is no box; empty when there is one.
        bounded: whether a file system bounds the folders.
        own_shared_memory: whether memory shared by name is the box's own.
        closed: those of ``visible`` that the user of the box cannot reach.
        kept: names in the last folder that lead to those of ``visible`` that it covers.
    """

    fault: str = ""
    bounded: bool = False
    own_shared_memory: bool = False
    closed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def main(number: int) -> NoReturn:
    """Keep a box until the socket with this descriptor ends."""
    link = socket.socket(fileno=number)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1, step="subreaper")
    try:
        texts, _ = _take(link)
    except EOFError:  # there was no box to keep
        os._exit(0)
    plan = parse(Plan, texts["plan"])
    try:
        ready, folders = _prepare(plan)
        _answer(link, ready, folders)
        if folders:
            _serve(link, parse(Walls, texts["walls"]), plan, ready)
    finally:
        link.close()
        tally.end_all(_END_S)
        _remove(plan)
    os._exit(0)


def parse(kind: Callable[..., T], values: dict[str, Any]) -> T:
    """A dataclass from what JSON made of it."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _take(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One message: a byte, with the descriptor of its text and those of what the text is about.

    Raises:
        EOFError: the other side is gone.
    """
    size = array.array("i", [0]).itemsize * _MOST_DESCRIPTORS
    byte, control, _, _ = link.recvmsg(1, socket.CMSG_SPACE(size))
    if not byte:
        raise EOFError
    numbers = array.array("i")
    for _, _, data in control:
        numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    text, *others = (_high(fd) for fd in numbers)
    with os.fdopen(text) as stream:
        stream.seek(0)
        return json.load(stream), others


def _high(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return high


def _answer(link: socket.socket, ready: Ready, folders: Sequence[int]) -> None:
    socket.send_fds(link, [json.dumps(dataclasses.asdict(ready)).encode() + b"\n"], list(folders))


def _serve(link: socket.socket, walls: Walls, plan: Plan, ready: Ready) -> None:
    """Fork a guard for each order until the other side is gone."""
    life, ours = os.pipe()
    more = (_SHARED,) if ready.own_shared_memory else ()
    uncounted = walls.uncounted + _threads_of_ours(plan)
    walls = dataclasses.replace(walls, uncounted=uncounted, writable=(*walls.writable, *more))
    folders = [os.path.join(plan.home, name) for name in FOLDERS]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for guards
    while True:
        try:
            text, descriptors = _take(link)
        except (EOFError, ConnectionResetError):
            return
        streams = Streams(life=life, **dict(zip(_STREAMS, descriptors, strict=False)))
        if os.fork() == 0:
            link.close()
            os.close(ours)
            _guard(parse(Order, text), walls, streams, folders, watch_disk=not ready.bounded)
        for fd in descriptors:
            os.close(fd)


def _guard(order: Order, walls: Walls, streams: Streams, folders: Sequence[str], *, watch_disk: bool) -> NoReturn:
    try:
        run_guard(order, walls, streams, folders, watch_disk=watch_disk)
    except BaseException as error:  # nothing may return into the keeper's loop
        report = Report(fault=f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            os.write(streams.control, json.dumps(dataclasses.asdict(report)).encode() + b"\n")
    os._exit(1)


def _threads_of_ours(plan: Plan) -> int:
    """How many threads of other programs the kernel counts with those of the box, because they are of our user."""
    if plan.user is not None or os.getuid() == 0:
        return 0
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    ours = [number for number in numbers if _owner(number) == os.getuid()]
    return tally.threads(ours)


def _owner(number: int) -> int | None:
    try:
        return os.stat(f"/proc/{number}").st_uid
    except FileNotFoundError:
        return None


def _prepare(plan: Plan) -> tuple[Ready, list[int]]:
    """Make the folders; the descriptors of both, or none and the fault."""
    try:
        _have_network(plan)
        private = _have_mounts(plan)
        if private:
            _open_ways([*plan.visible, plan.home])
            for path in plan.hidden:
                mounts.mount_memory(path, mib=1, options=mounts.READ_ONLY)
        folders = [_make_folder(plan, name, bounded=private) for name in FOLDERS]
        closed = () if plan.user is None else tuple(path for path in plan.visible if closed_above(path))
        own_shared_memory = private and _show_shared_memory(plan)  # from then on only the box's user may pass there
    except OSError as error:
        return Ready(fault=f"cannot prepare a box: {error.strerror}"), []
    kept = tuple(map(os.path.basename, mounts.mount_points(plan.visible, below=_SHARED))) if own_shared_memory else ()
    return Ready(bounded=private, own_shared_memory=own_shared_memory, closed=closed, kept=kept), folders


def _have_network(plan: Plan) -> None:
    """Leave the network of the machine, if that is wanted.

    Raises:
        OSError: a loopback of its own is wanted and not to be had.
    """
    if plan.network == "shared" or (plan.network == "own if privileged" and os.geteuid() != 0):
        return
    try:
        namespaces.unshare(namespaces.NETWORK)
        namespaces.raise_loopback()
    except OSError as error:
        if plan.network == "own with loopback":
            step = "a loopback needs a network of its own, so take network 'none' or a backend with namespaces"
            raise OSError(error.errno, f"{step} ({error.strerror})") from error


def _have_mounts(plan: Plan) -> bool:
    """Get mounts of our own, if they are wanted and can be had."""
    if plan.mounts == "never":
        return False
    if os.geteuid() != 0 and plan.mounts != "any":
        return False
    if not _works(lambda: _new_mounts(plan.home)):
        return False
    _new_mounts(plan.home)
    return True


def _new_mounts(home: str) -> None:
    """A mount namespace of our own in which we may mount."""
    if os.geteuid() != 0:
        namespaces.enter_users()
    namespaces.unshare(namespaces.MOUNTS)
    mounts.mount("none", "/", flags=_PRIVATE | _RECURSIVE)
    mounts.mount_memory(home, mib=1)  # a try, which nobody else sees


def _works(step: Callable[[], None]) -> bool:
    """Try something in a child that may lose itself in it."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(OSError):
            step()
            status = 0
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _open_ways(paths: Sequence[str]) -> None:
    """Cover, for us and our children only, the folders that are closed to others and that lead to these paths."""
    below: dict[str, list[str]] = {}
    for path in paths:
        if (closed := closed_above(path)) not in (None, path):
            below.setdefault(str(closed), []).append(path)
    for closed, inside in below.items():
        places = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in inside]
        mounts.mount_memory(closed, mib=1)
        for path, place in places:
            _show_again(path, place)
            os.close(place)


def _show_again(path: str, place: int) -> None:
    if os.path.lexists(path):
        return  # with one that is above it
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if stat.S_ISDIR(os.fstat(place).st_mode):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))
    mounts.bind(f"/proc/self/fd/{place}", path)


def closed_above(path: str) -> str | None:
    """The uppermost folder on the way to a path that only its owner may pass, or the path when it is closed itself."""
    parts = path.split("/")
    for count in range(2, len(parts) + 1):
        way = "/".join(parts[:count])
        needed = 0o005 if count == len(parts) else 0o001
        if os.stat(way).st_mode & needed != needed:
            return way
    return None


def _make_folder(plan: Plan, name: str, *, bounded: bool) -> int:
    """One of the folders; an open descriptor of it."""
    path = os.path.join(plan.home, name)
    os.mkdir(path, 0o700)
    if bounded:
        mounts.mount_memory(path, mib=plan.disk_mib, files=plan.files, mode="0700")
    if plan.user is not None:
        os.chown(path, *plan.user)
        os.chmod(plan.home, 0o711)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _show_shared_memory(plan: Plan) -> bool:
    """Put the box's folder for shared memory where programs look for it; whether that place exists."""
    if not os.path.isdir(_SHARED) or plan.home.startswith(f"{_SHARED}/"):
        return False
    covered = mounts.hold(plan.visible, below=_SHARED)
    mounts.bind(os.path.join(plan.home, FOLDERS[-1]), _SHARED)
    mounts.show_held(covered, below=_SHARED)
    for folder in covered:
        os.close(folder.place)
    return True


def _remove(plan: Plan) -> None:
    """Remove the folders of the box, wherever they lie."""
    for name in FOLDERS:
        with contextlib.suppress(OSError):
            mounts.unmount(os.path.join(plan.home, name))
    with contextlib.suppress(OSError):
        mounts.unmount(plan.home)
    with contextlib.suppress(OSError):  # the user's process looks whether it is gone
        home = os.open(plan.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        empty(home)
        os.close(home)
        os.rmdir(plan.home)
