"""The branch of the trace that a session holds: what stays of it, and what has to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import NamedTuple

from agentrl.harness.conversation import Conversation
from agentrl.harness.transcript import Span, Transcript
from agentrl.types import Completion, Message


class Sending(NamedTuple):
    """What the session is sent. ``kept`` is None where the conversation goes on as it was; where a branch begins, the
    session first forgets all but so many ids."""

    kept: int | None
    ids: tuple[int, ...]


class Branch:
    """The spans that were sent and sampled, and the nodes that stand for them."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._spans: list[Span] = []
        self._nodes: list[int] = []

    def lay(self, conversation: Conversation, opening: tuple[int, ...]) -> Sending:
        """Put a conversation on the transcript, sharing the nodes that it begins with.

        Args:
            conversation: where it does not begin with what the session holds, a branch is begun.
            opening: the ids that open the reply.
        """
        spans = conversation.spans
        shared = _num_common(self._spans, spans)
        before = sum(len(span.ids) for span in spans[:shared])
        old, new = _ids(self._spans[shared:]), (*_ids(spans[shared:]), *opening)
        kept = _num_common(old, new[:-1])
        forks = shared < len(self._spans)
        if forks:
            self.transcript.fork(self._nodes[shared - 1] if shared else None, before)
            del self._spans[shared:], self._nodes[shared:]
        num_told = len(spans) - conversation.fresh
        for place, span in enumerate(spans[shared:], start=shared):
            self._add(span.message, span.ids, copied=place < num_told)
        return Sending(before + kept if forks else None, new[kept:])

    def close(self, message: Message, opening: tuple[int, ...], completion: Completion) -> None:
        """Put the reply behind it."""
        self._add(message, opening, completion)

    def _add(
        self, message: Message, ids: tuple[int, ...], completion: Completion | None = None, *, copied: bool = False
    ) -> None:
        self._nodes.append(len(self.transcript.nodes))
        self._spans.append(Span(message, ids + (completion.token_ids if completion else ())))
        self.transcript.add(message, ids, completion, copied=copied)


def _ids(spans: Sequence[Span]) -> tuple[int, ...]:
    return tuple(token for span in spans for token in span.ids)


def _num_common(first: Sequence[object], second: Sequence[object]) -> int:
    """How many items two sequences begin with alike."""
    return sum(1 for _ in takewhile(bool, map(eq, first, second)))
