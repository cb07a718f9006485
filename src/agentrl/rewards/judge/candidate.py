"""The candidate's program in a box, as we talk with it: one message, one answer, until a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence

from agentrl.errors import ScorerError
from agentrl.rewards.judge.boxes import Lent
from agentrl.rewards.judge.codec import MAX_MESSAGE
from agentrl.sandbox.base import Channel, Finished

_SETTLE_S = 0.02
_KILLED = 128 + signal.SIGKILL  # how a program inside tells that its child was killed


class NoAnswer(Exception):
    """The candidate has ended, is out of time, or sends what cannot be an answer; the message says which."""


class Candidate:
    """A program of ours in a box, with the candidate's code.

    Attributes:
        has_left: whether it was gone when it should have answered.
        fault: why there is no answer any more, for people; empty while there is.
        repeatable: whether what it did would be the same again, as far as that lies with us: it still answered when we
            were done, or ended by itself with a status. Not so when a limit, a signal or our clock ended it.
    """

    def __init__(self, channel: Channel, wall_s: float) -> None:
        self._channel = channel
        self._wall_s = wall_s
        self.deadline = asyncio.get_running_loop().time() + wall_s
        self.fault = ""
        self.repeatable = True
        self.has_left = False

    async def ready(self) -> None:
        """Wait for the agent, which has run no code of the candidate's by then; its time begins.

        Raises:
            ScorerError: it did not start; that is no fault of the candidate's.
        """
        try:
            async with asyncio.timeout(self._wall_s):
                await self._answer()
        except (EOFError, TimeoutError, ValueError) as error:
            ended = await self._channel.close()
            said = ended.stderr.decode(errors="replace").strip()[-500:]
            raise ScorerError(f"the judge's agent did not start in the box (status {ended.status}): {said}") from error
        self.deadline = asyncio.get_running_loop().time() + self._wall_s

    async def ask(self, request: bytes) -> bytes:
        """The answer to a request, which brings its own length.

        Raises:
            NoAnswer: there is none.
        """
        try:
            async with asyncio.timeout_at(self.deadline):
                await self._channel.send(request)
                return await self._answer()
        except EOFError:
            self.note_its_end(left=True, late=False)
        except TimeoutError:
            self.note_its_end(left=False, late=True)
        except ValueError as error:
            self.fault = str(error)
        raise NoAnswer(self.fault)

    def fileno(self) -> int:
        """The descriptor through which the judge's process talks with it."""
        return self._channel.fileno()

    def note_its_end(self, *, left: bool, late: bool) -> None:
        """Take down that it was gone when it should have answered, or was out of time, if either is so."""
        self.has_left = left
        self.repeatable = self.repeatable and not late
        if left or late:
            self.fault = "the candidate is out of time" if late else "the candidate ended"

    async def _answer(self) -> bytes:
        length = int.from_bytes(await self._channel.receive(4), "big")
        if length > MAX_MESSAGE:
            raise ValueError(f"an answer of {length} bytes")
        return await self._channel.receive(length)

    async def close(self) -> None:
        """End it, and find out how it ended if it did so before."""
        if self.has_left:
            await asyncio.sleep(_SETTLE_S)  # its streams close a little before it ends
        finished = await self._channel.close()
        if self.has_left:
            self.repeatable = _ended_by_itself(finished)
            self.fault = _last_words(finished) or self.fault


@contextlib.asynccontextmanager
async def candidate_in(lent: Lent, argv: Sequence[str], wall_s: float) -> AsyncIterator[Candidate]:
    """The program ``argv`` of ours in a box, ready for requests.

    After the block it is known how it ended if it was gone before; else it is ended when the box is emptied.

    Raises:
        ScorerError: it did not start.
        SandboxError: the box was lost.
    """
    candidate = Candidate(await lent.box.channel(argv), wall_s)
    try:
        await candidate.ready()
        yield candidate
    except BaseException:
        await candidate.close()
        raise
    if candidate.has_left:
        await candidate.close()
    else:
        lent.ends.append(candidate.close)


def _ended_by_itself(finished: Finished) -> bool:
    return finished.killed_for is None and finished.status is not None and finished.status != _KILLED


def _last_words(finished: Finished) -> str:
    if finished.killed_for == "time":
        return f"the candidate is out of {'processor ' * (finished.signal == signal.SIGXCPU)}time"
    return f"the candidate was ended for its {finished.killed_for}" if finished.killed_for else ""
