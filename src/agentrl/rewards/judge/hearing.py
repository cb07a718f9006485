"""One grading in a child of the judge's process: a job and the candidate's channel go there, the verdict comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.errors import ScorerError
from agentrl.rewards.judge.candidate import Candidate

_GRACE_S = 5.0
"""Longer than the judge's child gives itself, which is `server.GRACE_S`."""


class Hearing:
    """Our end of the line to a child of the judge's process, which we trust.

    Args:
        end: of `JudgeProcess.open`.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._data = bytearray()
        self._heard = False

    async def verdict(self, job: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
        """What the judge's tests come to. It talks with the candidate by itself meanwhile.

        A candidate that is gone, or out of time, is a failed test to the judge. So is one after whose answers a test
        is busy for ever where nothing can interrupt it: else a huge number would be a way out of a zero.

        Raises:
            ScorerError: the judge's process died or does not answer.
        """
        with _judge_is_there():
            try:
                async with asyncio.timeout(job["wall_s"] + _GRACE_S):
                    await self._send(json.dumps(job).encode(), candidate.fileno())
                    report: dict[str, Any] = json.loads(await self._received())
            except TimeoutError:
                if not self._heard:
                    raise
                report = {"passed": [], "why": {}, "left": False, "late": True}
        candidate.note_its_end(left=report.pop("left"), late=report.pop("late"))
        return report

    async def _send(self, body: bytes, descriptor: int) -> None:
        # the first bytes of all always find room
        socket.send_fds(self._end, [len(body).to_bytes(4, "big")], [descriptor])
        await self._loop.sock_sendall(self._end, body)

    async def _received(self) -> bytes:
        while not (length := int.from_bytes(await self._exactly(4), "big")):
            self._heard = True
        return await self._exactly(length)

    async def _exactly(self, count: int) -> bytes:
        while len(self._data) < count:
            part = await self._loop.sock_recv(self._end, 1 << 16)
            if not part:
                raise EOFError
            self._data += part
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken

    def close(self) -> None:
        """Hang up; a child that still waits for its job ends then."""
        self._end.close()


@contextlib.contextmanager
def _judge_is_there() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:  # a timeout is an OSError too
        why = "is silent" if isinstance(error, TimeoutError) else "has died"
        raise ScorerError(f"the judge's process {why}; nothing was graded") from error
