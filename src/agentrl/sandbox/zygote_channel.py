"""Our end of the stream of bytes to a program in a zygote box."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

from agentrl.sandbox.base import Finished


class ZygoteChannel:
    """A socket to a program in a box.

    Args:
        ours: our end.
        end: ends the program, if it still runs, and says how it ended.
    """

    def __init__(self, ours: socket.socket, end: Callable[[], Awaitable[Finished]]) -> None:
        self._socket = ours
        self._end = end
        self._finished: Finished | None = None
        self._closing = asyncio.Lock()

    async def send(self, data: bytes) -> None:
        """As `Channel.send`."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            raise EOFError("the program at the other end of the channel is gone") from error

    async def receive(self, count: int) -> bytes:
        """As `Channel.receive`."""
        try:
            return await _exactly(asyncio.get_running_loop(), self._socket, count)
        except OSError as error:
            raise EOFError("the program at the other end of the channel is gone") from error

    def fileno(self) -> int:
        """As `Channel.fileno`."""
        return self._socket.fileno()

    async def close(self) -> Finished:
        """As `Channel.close`."""
        async with self._closing:
            if self._finished is None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for it, before it is closed
                try:
                    self._finished = await self._end()
                finally:
                    self._socket.close()
            return self._finished


async def _exactly(loop: asyncio.AbstractEventLoop, connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = await loop.sock_recv(connection, min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("the other end was closed")
        data += part
    return bytes(data)
