"""The frames that the zygote's processes and we exchange: a small JSON head and plain bytes behind it.

A frame is two lengths of four bytes, the head, the bytes. Neither side is the program's: it never sees these sockets.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from agentrl.sandbox.walls.apart import Memory

LENGTHS = struct.Struct(">II")
_CHUNK = 1 << 20
Data = TypeVar("Data", bytes, memoryview)


def pack(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A frame."""
    text = json.dumps(head).encode()
    return LENGTHS.pack(len(text), len(body)) + text + body


def pack_files(files: Mapping[str, bytes]) -> tuple[list[tuple[str, int]], bytes]:
    """Files as a list of path and size, for a head, and their contents one after another, for a body."""
    return [(path, len(data)) for path, data in files.items()], b"".join(files.values())


def unpack_files(sizes: list[tuple[str, int]], body: Data) -> dict[str, Data]:
    """The reverse of `pack_files`, from bytes or from a view of them."""
    files, start = {}, 0
    for path, size in sizes:
        files[path] = body[start : start + size]
        start += size
    return files


class Line:
    """The blocking side of a socket that carries frames and descriptors; inside the zygote."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, head: Mapping[str, Any], *bodies: bytes | memoryview) -> None:
        """Send a frame with all of these as its bytes."""
        text = json.dumps(head).encode()
        self.socket.sendall(LENGTHS.pack(len(text), sum(map(len, bodies))) + text)
        for body in bodies:
            self.socket.sendall(body)

    def receive(self) -> tuple[dict[str, Any], Memory, list[int]]:
        """A frame with the descriptors that came along. Whoever takes it closes its bytes.

        Raises:
            EOFError: the other side is gone.
        """
        start, descriptors = self._receive_with_descriptors(LENGTHS.size)
        head_size, body_size = LENGTHS.unpack(start + self._exactly(LENGTHS.size - len(start)))
        head = json.loads(self._exactly(head_size))
        body = Memory(body_size)
        body.take_all(self.socket.fileno())
        return head, body, descriptors

    def _receive_with_descriptors(self, count: int) -> tuple[bytes, list[int]]:
        space = socket.CMSG_SPACE(4)
        data, extras, _, _ = self.socket.recvmsg(count, space, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError("the connection was closed")
        descriptors = array.array("i")
        for level, kind, content in extras:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        return data, list(descriptors)

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, _CHUNK))
            if not part:
                raise EOFError("the connection was closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor of this process but these."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the one that listed the folder
