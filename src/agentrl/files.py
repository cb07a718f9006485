"""Files that survive a kill: whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file's content in one step, on the disk before this returns.

    A reader sees the old content or the new one, never a part, also after a kill or a power cut.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def sync_and_digest(path: Path) -> str:
    """Have a file that was just written on the disk. Returns its `digest_of`.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
    _sync_folder(path.parent)
    return digest_of(path)


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
