"""Replies that are being sampled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Literal

from agentrl.errors import SamplerError
from agentrl.types import Completion

if TYPE_CHECKING:
    from agentrl.engine.session import LocalSession

Masking = Callable[[Sequence[int]], Collection[int] | None]
"""The ids that may follow the reply so far; None for all."""
Decode = Callable[[Sequence[int]], str]


@dataclass
class EngineStats:
    """Work done so far.

    Attributes:
        sampled: tokens drawn.
        prefilled: tokens computed as context, each once.
        shared: tokens of prompts that were not computed again for another conversation.
        recomputed: tokens computed again, after a publication or because memory had run out.
        evicted: times that something was dropped to make room.
        on_older_keys: tokens drawn from new weights over keys of old ones.
        steps: forward passes.
        seconds: spent computing.
    """

    sampled: int = 0
    prefilled: int = 0
    shared: int = 0
    recomputed: int = 0
    evicted: int = 0
    on_older_keys: int = 0
    steps: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class Request:
    """A reply that somebody waits for."""

    session: LocalSession
    context_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int]
    future: asyncio.Future[Completion]
    stop_strings: tuple[str, ...] = ()
    masking: Masking | None = None
    decode: Decode | None = None
    start: int | None = None
    """Tokens that the conversation had before; None until its context has been taken."""
    drawn_before: int = 0
    """Tokens that had been drawn for the conversation when its context was taken."""
    next_ids: list[int] | None = None
    """What may come next, ascending, where not everything may."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    support: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why the reply is complete; None while it is not.

        Raises:
            SamplerError: ``decode`` failed.
        """
        if self.token_ids and (self.token_ids[-1] in self.stop_ids or self._says_stop()):
            return "stop"
        return "length" if len(self.token_ids) >= self.max_tokens else None

    @property
    def order(self) -> tuple[int, tuple[int, ...], int, bool]:
        """Conversations that go on, in the order in which they joined; then others, by what they say and their seed."""
        session, conversation = self.session, self.session.conversation
        if conversation.place is not None:
            return conversation.place, (), session.seed, session.greedy
        return sys.maxsize, (*conversation.token_ids, *self.context_ids), session.seed, session.greedy

    def take_context(self, room: int) -> None:
        """Append to the conversation what was given. The reply ends where the room, in tokens, does.

        Raises:
            SamplerError: there is no room for a reply; the conversation is as it was.
        """
        ids = self.session.conversation.token_ids
        wanted = len(ids) + len(self.context_ids)
        if wanted >= room:
            raise SamplerError(f"a conversation of {wanted} tokens leaves no room in the context of {room}")
        self.start, self.drawn_before = len(ids), self.session.num_drawn
        ids += self.context_ids
        self.max_tokens = min(self.max_tokens, room - wanted)

    def restrict(self, vocabulary: int) -> None:
        """Ask the masking what may come next.

        Raises:
            SamplerError: it failed, or nothing may come, or an id that is not in the vocabulary.
        """
        if self.masking is None:
            return
        try:
            found = self.masking(self.token_ids)
            ids = self.next_ids = None if found is None else sorted(map(index, found))
        except Exception as error:  # a caller's own code, which is no reason to fail the others
            raise SamplerError(f"masking failed behind {len(self.token_ids)} tokens: {_told(error)}") from error
        if ids is None:
            return
        if not ids or not 0 <= ids[0] <= ids[-1] < vocabulary:
            what = f"ids from {ids[0]} to {ids[-1]}" if ids else "no id"
            raise SamplerError(
                f"the masking allows {what} behind {len(self.token_ids)} tokens; give ids of the vocabulary of "
                f"{vocabulary}, or None for all"
            )

    def append(self, token: int, logprob: float, version: int) -> None:
        """Take a sampled token."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self.session.num_drawn += 1
        self.session.conversation.token_ids.append(token)

    def answer(self, reason: Literal["stop", "length"]) -> None:
        """Hand out the complete reply. Its last token is given to the network with the next context."""
        completion = Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish_reason=reason,
            support=tuple(self.support),
        )
        if not self.future.done():
            self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        """Say what went wrong, as an error of its own: a raised one collects the traceback of whoever gets it."""
        known = isinstance(error, SamplerError)
        failure = SamplerError(str(error) if known else f"the engine failed: {_told(error)}")
        failure.__cause__ = error
        if not self.future.done():
            self.future.set_exception(failure)

    def _says_stop(self) -> bool:
        """Whether the text has a stop string. A token may spell several letters, and a letter take several tokens; so
        as many tokens as the string has bytes, and a few more, are looked at."""
        if not self.stop_strings or self.decode is None:
            return False
        longest = max(len(text.encode()) for text in self.stop_strings)
        try:
            text = self.decode(self.token_ids[-(longest + 8) :])
        except Exception as error:  # as above
            raise SamplerError(f"decode failed on {len(self.token_ids)} tokens: {_told(error)}") from error
        return any(stop in text for stop in self.stop_strings)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
