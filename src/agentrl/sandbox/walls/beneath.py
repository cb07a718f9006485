"""Opening what lies in a tree that an adversary has written: never through a link, never outside."""

from __future__ import annotations

import os
import struct

from . import kernel

_BENEATH_WITHOUT_LINKS = 0x08 | 0x04 | 0x02 | 0x01  # RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS, NO_XDEV
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path below a folder's descriptor, in the same file system and without going through any link.

    Raises:
        OSError: missing, a link on the way (ELOOP), outside (EXDEV).
    """
    name = os.fsencode(path) + b"\0"
    how = struct.pack("QQQ", flags | _SAFE, mode, _BENEATH_WITHOUT_LINKS)
    return kernel.call("openat2", folder, name, how, len(how), step=path)
