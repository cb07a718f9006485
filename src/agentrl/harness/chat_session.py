"""What the loop for messages asks of a model: replies, and that a conversation can begin again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from agentrl.engine.random import derive_seed
from agentrl.protocols import Session
from agentrl.types import Completion, Message, ToolSpec


@dataclass(frozen=True, kw_only=True)
class ChatReply:
    """One reply of a model that speaks in messages.

    Attributes:
        finish: ``stop``, ``length`` where the limit of tokens cut it, ``context`` where the conversation did not fit
            and there is no reply.
        usage: what the endpoint counted, by name, such as ``completion_tokens``.
        served_by: the model and its build, as the endpoint named them.
        waited_s: for a free place among the requests, in seconds.
        retries: requests that failed before this reply.
    """

    message: Message
    finish: Literal["stop", "length", "context"]
    usage: dict[str, int]
    served_by: str
    waited_s: float = 0.0
    retries: int = 0


@runtime_checkable
class ChatSession(Protocol):
    """One conversation in messages. What was sent and replied before is kept in it."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int) -> ChatReply:
        """Append ``messages`` to the conversation and have the model reply with at most ``max_tokens``.

        Raises:
            SamplerError: no reply could be had. The conversation is then as it was before.
        """
        ...


@runtime_checkable
class Restarting(Protocol):
    """What a `ChatSession` has besides, when compaction may cut its conversation."""

    async def restart(self) -> None:
        """Forget the conversation. The next messages are the whole of another with the same model."""
        ...


class OneConversation(ChatSession, Session, Protocol):
    """A session of an endpoint, which cannot begin again by itself."""


class Conversations:
    """A `ChatSession` that can begin again: each beginning opens a session of its own.

    Args:
        open_session: gives a session with an empty conversation, whose draws depend on a seed.
        seed: of the first; those of the others are derived from it.
    """

    def __init__(self, open_session: Callable[[int], OneConversation], seed: int) -> None:
        self._open, self._seed, self._begun = open_session, seed, 0
        self._session = open_session(seed)

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int) -> ChatReply:
        """That of the conversation of now. Raises SamplerError when there is none to be had."""
        return await self._session.reply(messages, tools, max_tokens=max_tokens)

    async def restart(self) -> None:
        """Forget the conversation. The next messages are the whole of another with the same model."""
        before = self._session
        self._begun += 1
        self._session = self._open(derive_seed(self._seed, "conversation", self._begun))
        await before.close()  # only now: the last that closes would end the connections

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:
        """That of the conversation of now. Raises SamplerError where there are no tokens."""
        return await self._session.sample(context_ids, max_tokens=max_tokens, stop_ids=stop_ids)

    async def rewind(self, num_tokens: int) -> None:
        """That of the conversation of now. Raises SamplerError where there are no tokens."""
        await self._session.rewind(num_tokens)

    async def close(self) -> None:
        """End the conversation. Safe to call twice."""
        await self._session.close()
