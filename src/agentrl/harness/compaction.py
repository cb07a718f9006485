"""What is done when the conversation leaves no room for a reply: end the attempt, drop results, or summarise.

Whatever is done begins a new branch of the trace, whose tokens are exact: nodes are shared as far as it begins like
the branch before, replies that stay are the ids that were sampled, and a summary is sampled from the policy and trained
like any reply.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from agentrl.errors import ConfigError, RendererError
from agentrl.harness.conversation import Conversation, Reply, Writer
from agentrl.types import Message

Kind = Literal["none", "drop_results", "summarize"]
KINDS: tuple[Kind, ...] = ("drop_results", "summarize", "none")
"""The nearest to any other first."""

MARKER = "[This result was removed to make room. Call the tool again if you need it.]"
REQUEST = (
    "The conversation has grown too long and will be cut. Write a summary of it, without calling a tool: what was "
    "asked, what you did and found out, and what is left to do. You will go on from your summary alone."
)
GO_ON = "The earlier messages were removed; what stands above is your own summary of them. Go on."


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """How room is made.

    Attributes:
        kind: ``none`` ends the attempt with ``context_full``; ``drop_results`` puts ``marker`` in the place of the
            oldest results of tools; ``summarize`` asks the policy for a summary, from which and the task it goes on.
        fill: share of the context that may be filled when results have been dropped, in (0, 1]. More are dropped than
            would do, so that the next reply does not begin a branch again; what the policy has not read stays.
        summary: tokens of a summary, at least 1. Replies leave room for it.
        marker: stands in the place of a result.
        request: the user's message that asks for a summary.
        go_on: the user's message behind a summary.

    Raises:
        ConfigError: a value outside its bounds.
    """

    kind: Kind = "none"
    fill: float = 0.5
    summary: int = 512
    marker: str = MARKER
    request: str = REQUEST
    go_on: str = GO_ON

    def __post_init__(self) -> None:
        if not 0.0 < self.fill <= 1.0:
            raise ConfigError(f"fill is {self.fill!r}; write a share of the context above 0 and at most 1")
        if self.summary < 1:
            raise ConfigError(f"summary is {self.summary}; a summary has at least 1 token")

    def check(self, writer: Writer, context: int) -> None:
        """Refuse what could not work, before anything is played.

        Raises:
            RendererError: the renderer cannot write what is put into a conversation; what works instead is said.
            ConfigError: a summary that does not fit into so many tokens of context.
        """
        refusal = self._refusal(writer)
        if refusal is not None:
            others = [replace(self, kind=kind) for kind in KINDS if kind != self.kind]
            instead = next(other.kind for other in others if other._refusal(writer) is None)
            raise RendererError(f"{refusal}; or set compaction to {instead}") from refusal
        if self.kind == "summarize" and (held := self.num_held(writer)) >= context:
            raise ConfigError(self.too_long(held, context))

    def _refusal(self, writer: Writer) -> RendererError | None:
        """Why the renderer cannot write what is put into a conversation; None where it can."""
        try:
            if self.kind == "drop_results":
                writer.renderer.extend([Message(role="tool", content=self.marker)], ())
            if self.kind == "summarize":
                self.num_held(writer)
                writer.follow(_silent(), [Message(role="user", content=self.go_on)])
        except RendererError as error:
            return error
        return None

    def too_long(self, held: int, context: int) -> str:
        """What is wrong with a summary for which so many tokens are held back of a context that has no more."""
        return (
            f"a summary of {self.summary} tokens and its request need {held} tokens, and the context has {context}; "
            "set summary lower"
        )

    def num_held(self, writer: Writer) -> int:
        """Tokens that must be left to ask for a summary and to take it, one withheld result included.

        Raises:
            RendererError: the renderer cannot write the request or the marker.
        """
        texts = (Message(role="tool", content=self.marker), Message(role="user", content=self.request))
        asked, _ = writer.follow(_silent(), texts)
        return asked.num_tokens + len(writer.renderer.generation_prompt()) + self.summary


def _silent() -> Conversation:
    """A reply that says nothing."""
    return Conversation(segments=()).replied(Reply(Message(role="assistant"), (), ()))


class Dropped(NamedTuple):
    """A conversation without some results, and how many of them."""

    conversation: Conversation
    num_results: int


def drop_results(
    conversation: Conversation,
    writer: Writer,
    *,
    marker: str,
    num_prompt: int,
    enough: Callable[[Conversation], bool],
) -> Dropped:
    """Put a marker in the place of the oldest results.

    Args:
        conversation: it is not changed.
        writer: of the conversation.
        marker: results that are no longer than this stay.
        num_prompt: messages of the task, which stay.
        enough: whether a conversation is short enough.

    Returns:
        The fewest results that are enough, or all of them but those that the policy has not read.
    """
    messages = conversation.messages
    old = [
        place
        for place, message in enumerate(messages[: len(messages) - conversation.fresh])
        if place >= num_prompt and message.role == "tool" and len(message.content) > len(marker)
    ]
    markers = {place: replace(messages[place], content=marker) for place in old}

    def without(count: int) -> Conversation:
        dropped: Mapping[int, Message] = {place: markers[place] for place in old[:count]}
        return writer.replaced(conversation, lambda place, message: dropped.get(place, message))

    count = bisect_left(range(len(old)), True, key=lambda number: enough(without(number)))
    return Dropped(without(count), count)
