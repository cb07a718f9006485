"""The agent loop for models that take and give messages, not tokens: the same turns, tools and limits.

Its traces have messages and no tokens: every node's ``context_ids``, ``sampled_ids``, ``logprobs`` and ``versions``
are empty, so `tokens.samples` makes no training sample of them and nothing has to be made up. What the endpoint says
about tokens stands in the trace's metadata, under ``usage``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from agentrl.errors import SamplerError
from agentrl.harness.answers import Answerer
from agentrl.harness.loop import AgentLoop
from agentrl.harness.transcript import Transcript, in_time
from agentrl.protocols import Environment, Session
from agentrl.types import Message, Stop, Task, ToolSpec


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


class ChatLoop(AgentLoop):
    """Runs a conversation in messages. ``limits.context`` is held against the endpoint's own count of tokens."""

    name = "chat-loop-v1"

    async def run(self, task: Task, environment: Environment, session: Session, transcript: Transcript) -> None:
        """Play one attempt into ``transcript``; it holds all that happened even when this raises.

        Raises:
            AgentRLError: of the boundary that failed; never for something that the policy did.
        """
        if not isinstance(session, ChatSession):
            raise SamplerError(f"{type(session).__name__} takes tokens and no messages; play it with ToolLoop")
        transcript.unsent.extend(self.prompt(task))
        try:
            await self._play(environment, session, transcript)
        finally:
            transcript.end()

    async def _play(self, environment: Environment, session: ChatSession, transcript: Transcript) -> None:
        tools = environment.tools()
        answerer = Answerer(environment, self.limits, self.malformed, transcript)
        for _ in range(self.limits.turns):
            reply = await self._turn(session, tools, transcript, environment.state())
            if reply is None:
                return
            await answerer.answer(reply)
            if transcript.stop is not None:
                return
        transcript.cut(Stop.MAX_TURNS, "attempt", turns=self.limits.turns)

    async def _turn(
        self, session: ChatSession, tools: Sequence[ToolSpec], transcript: Transcript, state: str | None
    ) -> Message | None:
        """Send what was not sent yet and take the reply. None when the attempt is over."""
        room = self.limits.context - transcript.num_tokens
        if room < self.limits.reserve:
            transcript.cut(Stop.CONTEXT_FULL, "conversation", tokens=transcript.num_tokens, context=self.limits.context)
            return None
        found = await self._reply(session, tools, min(room, self.limits.reply), transcript)
        if found is None:
            return None
        if found.finish == "context":
            transcript.cut(Stop.CONTEXT_FULL, "conversation", context="the endpoint's")
            return None
        for message in transcript.unsent:
            transcript.add(message)
        transcript.unsent.clear()
        transcript.add(found.message)
        transcript.num_tokens = found.usage.get("total_tokens", transcript.num_tokens)
        if state is not None:
            transcript.states.append(state)
        if found.finish == "length":
            stop = Stop.CONTEXT_FULL if room <= self.limits.reply else Stop.MAX_TOKENS
            transcript.cut(stop, "reply", tokens=found.usage.get("completion_tokens"))
            return None
        return found.message

    async def _reply(
        self, session: ChatSession, tools: Sequence[ToolSpec], max_tokens: int, transcript: Transcript
    ) -> ChatReply | None:
        asked = session.reply(tuple(transcript.unsent), tools, max_tokens=max_tokens)
        found = await in_time(asked, transcript, self.limits.total_s)
        if found is not None:
            transcript.seconds["sampling"] -= found.waited_s
            transcript.seconds["waiting"] = transcript.seconds.get("waiting", 0.0) + found.waited_s
            _note(transcript, found)
        return found


def _note(transcript: Transcript, reply: ChatReply) -> None:
    """Add up what the endpoint counted, once a reply. A count that one reply lacks is unknown for the attempt."""
    notes = transcript.notes
    before = notes.get("usage")
    names = reply.usage if before is None else before.keys() & reply.usage.keys()
    notes["usage"] = {name: (before or {}).get(name, 0) + reply.usage[name] for name in sorted(names)}
    notes["served_by"] = sorted({*notes.get("served_by", ()), reply.served_by})
    notes["retries"] = notes.get("retries", 0) + reply.retries
