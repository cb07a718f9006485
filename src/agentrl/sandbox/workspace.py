"""Folders that an adversary may have written: put files in, take files out, remove it all, and follow no link.

Every name is looked up from an open descriptor of the folder above it, so that nothing that a program swaps while we
look can lead outside. Standard library only: the process that keeps a box uses it too.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agentrl.errors import SandboxError
from agentrl.sandbox.base import BoxFull, check_path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = ".agentrl-new"


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A folder that is known by an open descriptor.

    Args:
        fd: the open folder.
        owner: user and group that files are given to, or None to leave them as they are.
        kept: names in it that `clear` leaves, because something is mounted there for the box.
    """

    fd: int
    owner: tuple[int, int] | None = None
    kept: tuple[str, ...] = ()

    def write(self, files: Mapping[str, bytes | memoryview]) -> None:
        """Put files in. What stands in the way (a link, a device, a folder of that name) is removed, never followed.

        Raises:
            BoxFull: no room.
            SandboxError: a path outside, or another refusal.
        """
        for path in files:
            check_path(path)
        for path, content in files.items():
            try:
                self._write(path.split("/"), content)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise BoxFull(f"cannot write {path!r}: the workspace is full ({error.strerror})") from error
                raise SandboxError(f"cannot write {path!r} into the workspace: {error.strerror}") from error

    def read(self, paths: Sequence[str], *, max_bytes: int) -> dict[str, bytes]:
        """The contents of those that are regular files of at most ``max_bytes``, reached without a link.

        Raises:
            SandboxError: a path outside.
        """
        contents = ((path, self._read(check_path(path).split("/"), max_bytes)) for path in paths)
        return {path: content for path, content in contents if content is not None}

    def paths(self, *, most: int) -> list[str]:
        """The paths of the regular files, sorted, of at most ``most`` files and folders that are looked at."""
        found: list[str] = []
        waiting = [""]
        while waiting and most > 0:
            above = waiting.pop()
            for name, kind in self._entries(above)[:most]:
                most -= 1
                if kind == stat.S_IFDIR:
                    waiting.append(f"{above}{name}/")
                elif kind == stat.S_IFREG:
                    found.append(above + name)
        return sorted(found)

    def clear(self) -> None:
        """Remove everything in the folder, and what was made of the folder itself: its mode, times and attributes.

        The programs that write there must have ended.

        Raises:
            SandboxError: something cannot be removed.
        """
        try:
            _undo_changes(self.fd)
            empty(self.fd, kept=self.kept)
        except OSError as error:
            raise SandboxError(f"cannot empty the workspace: {error.strerror}") from error

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self.fd)

    def _write(self, parts: Sequence[str], content: bytes | memoryview) -> None:
        with self._folder(parts[:-1], make=True) as folder:
            _remove(folder, _TEMPORARY)
            try:
                self._write_new(folder, content)
                _put_in_place(folder, parts[-1])
            except OSError:
                _remove(folder, _TEMPORARY)
                raise

    def _write_new(self, folder: int, content: bytes | memoryview) -> None:
        fd = os.open(_TEMPORARY, _NEW, 0o644, dir_fd=folder)
        try:
            _write_all(fd, content)
            if self.owner is not None:
                os.fchown(fd, *self.owner)
        finally:
            os.close(fd)

    def _read(self, parts: Sequence[str], max_bytes: int) -> bytes | None:
        try:
            with self._folder(parts[:-1]) as folder:
                fd = os.open(parts[-1], _PLAIN, dir_fd=folder)
                try:
                    return _content(fd, max_bytes)
                finally:
                    os.close(fd)
        except OSError:  # missing, a link, a socket, no right to it: none of them is a file to be had
            return None

    def _entries(self, above: str) -> list[tuple[str, int]]:
        try:
            with self._folder(above.split("/")[:-1]) as folder, os.scandir(folder) as entries:
                return [(entry.name, stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)) for entry in entries]
        except OSError:
            return []

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """The descriptor of a folder below, for as long as the block runs."""
        fd = os.dup(self.fd)
        try:
            for part in parts:
                if make:
                    self._make(fd, part)
                inner = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def _make(self, folder: int, name: str) -> None:
        """Have a folder that we can use under this name, whatever was there."""
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                _open_up(folder, name)
                return
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        os.mkdir(name, 0o755, dir_fd=folder)
        if self.owner is not None:
            os.chown(name, *self.owner, dir_fd=folder, follow_symlinks=False)


def _undo_changes(folder: int) -> None:
    """Make the folder itself as it was new."""
    os.fchmod(folder, 0o700)  # first, or its own user could not do the rest
    os.utime(folder)
    if sys.platform == "linux":
        for name in os.listxattr(folder):
            if name.startswith("user."):
                os.removexattr(folder, name)


def empty(top: int, *, kept: tuple[str, ...] = ()) -> None:
    """Remove everything in the folder that this descriptor is of, however deep it is, without following a link.

    Names in ``kept`` stay.

    Folders in folders are moved up to the top first, so that no depth costs a descriptor or a frame.

    Raises:
        OSError: something cannot be removed.
    """
    while names := [name for name in os.listdir(top) if name not in kept]:
        for name in names:
            if _unlinked(top, name):
                continue
            _open_up(top, name)
            inner = os.open(name, _FOLDER, dir_fd=top)
            try:
                for child in os.listdir(inner):
                    if not _unlinked(inner, child):
                        _open_up(inner, child)
                        os.rename(child, f".agentrl-old-{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _remove(folder: int, name: str) -> None:
    """Remove whatever has this name, if anything has."""
    try:
        if _unlinked(folder, name):
            return
    except FileNotFoundError:
        return
    _open_up(folder, name)
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        empty(inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _put_in_place(folder: int, name: str) -> None:
    """Give the new file its name, whatever has it now."""
    try:
        os.replace(_TEMPORARY, name, src_dir_fd=folder, dst_dir_fd=folder)
    except (IsADirectoryError, NotADirectoryError):
        _remove(folder, name)
        os.replace(_TEMPORARY, name, src_dir_fd=folder, dst_dir_fd=folder)


def _unlinked(folder: int, name: str) -> bool:
    """Remove the name unless it is of a folder; whether it was removed."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=folder)
    return True


def _open_up(folder: int, name: str) -> None:
    """Give ourselves the rights to a folder whose owner took them away; never to what a link leads to."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if mode & 0o700 == 0o700:
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o755)  # a descriptor of a path only cannot be given to fchmod
    finally:
        os.close(fd)


def _content(fd: int, max_bytes: int) -> bytes | None:
    """What is in the file, unless it is not a regular one, or is or grows larger."""
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode) or state.st_size > max_bytes:
        return None
    with os.fdopen(os.dup(fd), "rb") as stream:
        content = stream.read(max_bytes + 1)
    return content if len(content) <= max_bytes else None


def _write_all(fd: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
