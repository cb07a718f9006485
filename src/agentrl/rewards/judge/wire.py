"""The judge's end of the candidate's channel: whole messages, a deadline, and no more than was agreed on."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from agentrl.rewards.judge.codec import MAX_MESSAGE

_CHUNK = 1 << 16
_LEAST_S = 0.001


class Ended(Exception):
    """There will be no more answers."""


class Wire:
    """Messages behind a length of four bytes, over a socket at whose other end is an adversary.

    Args:
        end: the socket.
        wall_s: how long the candidate may take for all of them together.
        on_first: called when its first message has come.

    Attributes:
        left: whether the candidate was gone when it should have answered.
        late: whether it was out of time.
    """

    def __init__(self, end: socket.socket, wall_s: float, on_first: Callable[[], object] = lambda: None) -> None:
        self._end = end
        self._on_first: Callable[[], object] | None = on_first
        self._deadline = time.monotonic() + wall_s
        self._held = b""
        self.left = False
        self.late = False

    def send(self, body: bytes) -> None:
        """Send a message. Raises Ended when the candidate is gone or out of time."""
        try:
            self._wait_no_longer()
            self._end.sendall(len(body).to_bytes(4, "big") + body)
        except OSError as error:
            raise self._ended(error) from None

    def receive(self) -> bytes:
        """The next message. Raises Ended when there is none in time, or when it is too long."""
        try:
            length = int.from_bytes(self._exactly(4), "big")
            if length > MAX_MESSAGE:
                raise Ended(f"an answer of {length} bytes")
            body = self._exactly(length)
        except (OSError, EOFError) as error:
            raise self._ended(error) from None
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        return body

    def _ended(self, error: Exception) -> Ended:
        self.late = isinstance(error, TimeoutError)
        self.left = not self.late
        return Ended(f"the candidate {'is out of time' if self.late else 'ended'}")

    def _exactly(self, count: int) -> bytes:
        while len(self._held) < count:
            self._wait_no_longer()
            part = self._end.recv(_CHUNK)
            if not part:
                raise EOFError
            self._held += part
        data, self._held = self._held[:count], self._held[count:]
        return data

    def _wait_no_longer(self) -> None:
        self._end.settimeout(max(_LEAST_S, self._deadline - time.monotonic()))
