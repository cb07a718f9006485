"""Boxes that wait for the next candidate: starting one costs more than emptying it, and that is done meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Backend, Box, Spec

MAX_IDLE = 4
MAX_USES = 200
_AHEAD = 2


@dataclass(eq=False)
class Lent:
    """A box that one candidate has.

    Attributes:
        box: it.
        ends: what is still to be ended in it, by whoever empties it.
    """

    box: Box
    uses: int = 0
    ends: list[Callable[[], Awaitable[None]]] = field(default_factory=list)


class Boxes:
    """Gives each candidate a box with nothing in it but the start files.

    Args:
        backend: starts them.
        spec: what each starts with.
    """

    def __init__(self, backend: Backend, spec: Spec) -> None:
        self._backend = backend
        self._spec = spec
        self._idle: list[Lent] = []
        self._emptied: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def box(self, files: Mapping[str, bytes]) -> AsyncIterator[Lent]:
        """A box with these files as well, which no other candidate has while the block runs.

        Raises:
            SandboxError: none can be had, or it was lost.
        """
        lent = await self._taken()
        try:
            await lent.box.write(files)
            yield lent
        except BaseException:
            await lent.box.close()
            raise
        task = asyncio.create_task(self._put_back(lent))
        self._emptied.add(task)
        task.add_done_callback(self._emptied.discard)

    async def _taken(self) -> Lent:
        """An empty box: one that waits, one that is being emptied when there are some, or a new one."""
        while not self._idle and len(self._emptied) > _AHEAD:
            await asyncio.wait(self._emptied, return_when=asyncio.FIRST_COMPLETED)
        return self._idle.pop() if self._idle else Lent(await self._backend.start(self._spec))

    async def _put_back(self, lent: Lent) -> None:
        try:
            for end in lent.ends:
                await end()
            if lent.uses + 1 < MAX_USES and len(self._idle) < MAX_IDLE:
                await lent.box.reset()
                self._idle.append(Lent(lent.box, lent.uses + 1))
                return
        except SandboxError:
            pass  # it was lost; the next candidate gets another
        except BaseException:
            await lent.box.close()
            raise
        with contextlib.suppress(SandboxError):
            await lent.box.close()

    async def close(self) -> None:
        """Close the boxes that wait, when those that are being emptied are among them."""
        while self._emptied:
            await asyncio.wait(self._emptied)
        while self._idle:
            await self._idle.pop().box.close()
