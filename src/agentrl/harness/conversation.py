"""A conversation as tokens: what the renderer wrote, and what the policy sampled, kept as it was sampled.

A conversation is a row of segments. The first holds the opening messages, as the renderer writes them; each other holds
a reply, as the ids that were sampled, and the messages behind it, as the renderer appends them to those ids. When
messages are replaced, only their own segments are written again: replies stay the ids that they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

from agentrl.errors import RendererError
from agentrl.harness.transcript import Span
from agentrl.protocols import Renderer
from agentrl.types import Message, ToolSpec


class Reply(NamedTuple):
    """A reply as it was sampled, behind the ids that opened it."""

    message: Message
    opening: tuple[int, ...]
    sampled_ids: tuple[int, ...]


class Segment(NamedTuple):
    """What one call of the renderer wrote: the opening messages, or what stands behind a reply."""

    reply: Reply | None
    written: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """All messages of the segment."""
        if self.reply is None:
            return self.written
        return (Span(self.reply.message, self.reply.opening + self.reply.sampled_ids), *self.written)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What the policy sees. The last ``fresh`` messages have not been told in any branch."""

    segments: tuple[Segment, ...]
    fresh: int = 0

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every message with its ids, in order."""
        return tuple(span for segment in self.segments for span in segment.spans)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message, in order."""
        return tuple(span.message for span in self.spans)

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all messages."""
        return sum(len(span.ids) for span in self.spans)

    def replied(self, reply: Reply) -> Conversation:
        """The conversation with a reply behind it."""
        return Conversation(segments=(*self.segments, Segment(reply, ())))


@runtime_checkable
class Rewriter(Protocol):
    """A renderer whose template writes history anew behind some messages, and says so."""

    def follow(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        sampled_ids: Sequence[int],
        tools: Sequence[ToolSpec],
    ) -> tuple[str | None, tuple[tuple[int, ...], ...]]:
        """Why the ids before do not stay, or None; then the ids of the whole conversation, or of the new messages."""
        ...


def ways(messages: Sequence[Message], *, spoken: bool) -> Iterator[Sequence[Message]]:
    """The ways to say the same behind a reply, the plainest first: as it is, and for templates in which turns must
    alternate, with a user's message at the end of the one before it.

    Args:
        messages: of tools and users.
        spoken: also as the user's words alone, for templates that know no tools: what a policy is told there is that
            the tool which it called does not exist.
    """
    yield messages
    if joined := _joined(messages):
        yield joined
    if spoken and any(message.role == "tool" for message in messages):
        yield from ways([replace(message, role="user", tool_call_id=None) for message in messages], spoken=False)


def _joined(messages: Sequence[Message]) -> Sequence[Message]:
    """With each user's message at the end of the one before it; nothing where none stands behind another."""
    found: list[Message] = []
    for message in messages:
        if found and message.role == "user":
            found[-1] = replace(found[-1], content=f"{found[-1].content}\n\n{message.content}")
        else:
            found.append(message)
    return found if len(found) < len(messages) else ()


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes conversations with a renderer and the tools that may be called."""

    renderer: Renderer
    tools: Sequence[ToolSpec]

    @cached_property
    def _rewriter(self) -> Rewriter | None:
        return self.renderer if isinstance(self.renderer, Rewriter) else None

    def open(self, messages: Sequence[Message]) -> Conversation:
        """A conversation that has only begun."""
        return Conversation(segments=(self._written(None, messages),), fresh=len(messages))

    def follow(self, conversation: Conversation, messages: Sequence[Message]) -> tuple[Conversation, str | None]:
        """Append messages to a conversation that ends with a reply, in the first of `ways` that the renderer takes.

        Returns:
            The conversation, and why the template writes what was before otherwise; None where it only appends.

        Raises:
            RendererError: the renderer cannot write the messages there, in any way; it says why not as they are.
        """
        refusal: RendererError | None = None
        for way in ways(messages, spoken=not self.tools):
            try:
                return self._follow(conversation, way)
            except RendererError as error:
                refusal = refusal or error
        assert refusal is not None, "as they are is a way"
        raise refusal

    def _follow(self, conversation: Conversation, messages: Sequence[Message]) -> tuple[Conversation, str | None]:
        *before, last = conversation.segments
        assert last.reply is not None, "a conversation goes on behind a reply"
        if self._rewriter is not None:
            history = conversation.messages
            reason, spans = self._rewriter.follow(history, messages, last.reply.sampled_ids, self.tools)
            if reason is not None:
                whole = Segment(None, tuple(map(Span, (*history, *messages), spans)))
                return Conversation(segments=(whole,), fresh=len(messages)), reason
            grown = Segment(last.reply, tuple(map(Span, messages, spans)))
        else:
            grown = self._written(last.reply, messages)
        return Conversation(segments=(*before, grown), fresh=len(messages)), None

    def replaced(self, conversation: Conversation, new: Callable[[int, Message], Message]) -> Conversation:
        """The conversation with other messages in place of some that the renderer wrote.

        Args:
            conversation: it is not changed.
            new: gives the message that stands at a place of `Conversation.messages`, the same where it stays.
        """
        segments = []
        place = 0
        for segment in conversation.segments:
            start = place + (segment.reply is not None)
            messages = [new(start + offset, span.message) for offset, span in enumerate(segment.written)]
            place = start + len(messages)
            same = all(now is span.message for now, span in zip(messages, segment.written, strict=True))
            segments.append(segment if same else self._written(segment.reply, messages))
        return replace(conversation, segments=tuple(segments))

    def _written(self, reply: Reply | None, messages: Sequence[Message]) -> Segment:
        if reply is None:
            spans = self.renderer.render(messages, self.tools)
        else:
            spans = self.renderer.extend(messages, reply.sampled_ids)
        return Segment(reply, tuple(Span(*one) for one in zip(messages, spans, strict=True)))
