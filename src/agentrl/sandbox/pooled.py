"""Boxes of a pool for whoever lives in another event loop: every request is carried out in the pool's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.sandbox.base import Box, Channel, Finished, Level, Spec, Support
from agentrl.sandbox.pool import Pool


class PooledBackend:
    """The backend of a pool as one that any event loop may use, in any thread.

    Args:
        pool: whose boxes these are; with it they end.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.name = pool.backend.name

    def probe(self) -> Support:
        """As `Backend.probe`."""
        return self._pool.backend.probe()

    async def start(self, spec: Spec) -> Box:
        """As `Backend.start`."""
        return _PooledBox(self._pool, await self._pool.call(self._pool.backend.start(spec)))

    async def close(self) -> None:
        """Nothing: the backend is the pool's."""


class _PooledBox:
    def __init__(self, pool: Pool, box: Box) -> None:
        self._pool = pool
        self._box = box

    @property
    def level(self) -> Level:
        return self._box.level

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        wall_s: float | None = None,
    ) -> Finished:
        return await self._pool.call(self._box.exec(argv, stdin=stdin, env=env, cwd=cwd, wall_s=wall_s))

    async def write(self, files: Mapping[str, bytes]) -> None:
        await self._pool.call(self._box.write(files))

    async def read(self, paths: Sequence[str], *, max_bytes: int = 1 << 20) -> Mapping[str, bytes]:
        return await self._pool.call(self._box.read(paths, max_bytes=max_bytes))

    async def channel(self, argv: Sequence[str], *, wall_s: float | None = None) -> Channel:
        return _PooledChannel(self._pool, await self._pool.call(self._box.channel(argv, wall_s=wall_s)))

    async def reset(self) -> None:
        await self._pool.call(self._box.reset())

    async def close(self) -> None:
        await self._pool.call(self._box.close())


class _PooledChannel:
    def __init__(self, pool: Pool, channel: Channel) -> None:
        self._pool = pool
        self._channel = channel

    async def send(self, data: bytes) -> None:
        await self._pool.call(self._channel.send(data))

    async def receive(self, count: int) -> bytes:
        return await self._pool.call(self._channel.receive(count))

    def fileno(self) -> int:
        return self._channel.fileno()

    async def close(self) -> Finished:
        return await self._pool.call(self._channel.close())
