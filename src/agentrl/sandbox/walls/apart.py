"""Memory apart from all other: for what an adversary has handed in or printed, in a process that will fork another one.

A forked process can read the memory of the one that it comes from as it was, freed memory too. What is only ever held
here, and closed before the next fork, it does not find. Standard library only.
"""

from __future__ import annotations

import mmap
import os

_CHUNK = 1 << 16


class Memory:
    """Bytes in pages that nothing else has had or will have.

    Args:
        size: how many there is room for.
    """

    def __init__(self, size: int) -> None:
        self._held = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._size = size
        self.used = 0

    def take(self, descriptor: int) -> int | None:
        """Read once; how many bytes have come, 0 at the end, None when nothing is there now."""
        try:
            count = os.readv(descriptor, [memoryview(self._held)[self.used : self._size]])
        except BlockingIOError:
            return None
        self.used += count
        return count

    def take_all(self, descriptor: int) -> None:
        """Read until it is full.

        Raises:
            EOFError: there is less.
        """
        while self.used < self._size:
            if not self.take(descriptor):
                raise EOFError("the connection was closed")

    def starts_with(self, data: bytes) -> bool:
        """Whether these bytes are the first."""
        return self.used >= len(data) and self._held[: len(data)] == data

    def first_line(self) -> bytes:
        """The bytes before the first line end."""
        return self._held[: self._held.find(b"\n", 0, self.used)]

    def other_lines(self) -> memoryview:
        """The bytes behind the first line end; none when there is no such."""
        return memoryview(self._held)[self._held.find(b"\n", 0, self.used) + 1 or self.used : self.used]

    @property
    def view(self) -> memoryview:
        """All that has come."""
        return memoryview(self._held)[: self.used]

    def close(self) -> None:
        """Give the pages back. Safe to call twice."""
        try:
            self._held.close()
        except BufferError:  # someone still has a view, who then finds zeros
            self._held[:] = bytes(len(self._held))


class KeptApart(Memory):
    """The first and the last bytes of a stream, ``limit`` in all, as `output.Kept`; ``total`` counts what came."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit + _CHUNK)
        self._limit, self._head_size = limit, (limit + 1) // 2
        self.total = 0

    def take(self, descriptor: int) -> int | None:
        """As `Memory.take`."""
        before = self.used
        count = super().take(descriptor)
        self.total += self.used - before
        if (surplus := self.used - self._limit) > 0:
            end = self._head_size + surplus
            self._held.move(self._head_size, end, self.used - end)
            self.used = self._limit
        return count

    @property
    def cut(self) -> int:
        """The bytes that were left out of the middle."""
        return self.total - self.used
