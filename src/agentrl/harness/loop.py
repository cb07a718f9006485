"""The agent loop: the policy writes, tools answer, until something says stop. Training and evaluation use this one."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import AgentRLError, EnvironmentFault, SamplerError
from agentrl.protocols import Environment, Renderer, Session
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Completion, Message, Node, Observation, Score, Stop, Task, ToolCall, ToolSpec

Span = tuple[Message, tuple[int, ...]]
"""A message and its token ids."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When an attempt is cut. ``context`` bounds the whole conversation and ``reply`` one reply, in tokens."""

    turns: int = 8
    reply: int = 32
    context: int = 256
    call_s: float = 30.0


@dataclass
class Transcript:
    """What an attempt has come to so far."""

    nodes: list[Node] = field(default_factory=list)
    stop: Stop | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"sampling": 0.0, "tools": 0.0})
    states: list[str] = field(default_factory=list)
    num_tokens: int = 0
    num_malformed: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    """Kept in the trace's metadata; JSON-plain."""

    def add(self, message: Message, context_ids: Sequence[int] = (), completion: Completion | None = None) -> None:
        """Append one message's span to the conversation."""
        parent = len(self.nodes) - 1 if self.nodes else None
        if completion is None:
            node = Node(parent=parent, message=message, context_ids=tuple(context_ids))
        else:
            node = Node(
                parent=parent,
                message=message,
                context_ids=tuple(context_ids),
                sampled_ids=completion.token_ids,
                logprobs=completion.logprobs,
                versions=completion.versions,
            )
        self.nodes.append(node)
        self.num_tokens += len(node.context_ids) + len(node.sampled_ids)


class AgentLoop(ABC):
    """What loops share: limits, the carrying out of calls, what malformed ones cost.

    A malformed call is answered with what is wrong with it; ``malformed`` may end the attempt or take from its reward.
    """

    def __init__(
        self,
        limits: Limits,
        malformed: MalformedPolicy = MalformedPolicy(),  # noqa: B008 (frozen)
    ) -> None:
        self.limits = limits
        self.malformed = malformed

    @property
    @abstractmethod
    def name(self) -> str:
        """The kind of loop, with a behaviour version."""

    @property
    def fingerprint(self) -> str:
        """What makes two harnesses the same agent."""
        policy = "" if self.malformed == MalformedPolicy() else f"/{self.malformed}"
        return f"{self.name}/{self.limits}{policy}"

    @abstractmethod
    async def run(self, task: Task, environment: Environment, session: Session, transcript: Transcript) -> None:
        """Play one attempt into ``transcript``; it holds all that happened even when this raises.

        Raises:
            AgentRLError: of the boundary that failed; never for something that the policy did.
        """

    def penalties(self, transcript: Transcript) -> tuple[Score, ...]:
        """What the policy's malformed calls take from its reward; nothing where they cost nothing."""
        count, penalty = transcript.num_malformed, self.malformed.penalty
        if not penalty:
            return ()
        return (Score(name="malformed_calls", value=-penalty * count, explanation=f"{count} at -{penalty} each"),)

    async def _answer(
        self, environment: Environment, calls: Sequence[ToolCall], unsent: list[Span], transcript: Transcript
    ) -> Stop | None:
        """Carry out the calls of a reply, in their order. Says why they ended the attempt, if they did; the answers
        then need no ids."""
        for call in calls:
            if self.malformed.concerns(call):
                transcript.num_malformed += 1
                if self.malformed.end:
                    return Stop.MALFORMED
            observation = await self._call(environment, call, transcript)
            unsent.append((Message(role="tool", content=observation.content, tool_call_id=call.id), ()))
            if observation.done:
                return Stop.DONE
        return None

    async def _call(self, environment: Environment, call: ToolCall, transcript: Transcript) -> Observation:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.limits.call_s):
                return await environment.call(call)
        except TimeoutError:
            raise EnvironmentFault(f"tool {call.name!r} gave no answer within {self.limits.call_s} s") from None
        except AgentRLError:
            raise
        except Exception as error:
            raise EnvironmentFault(f"tool {call.name!r} raised {type(error).__name__}: {error}") from error
        finally:
            transcript.seconds["tools"] += time.perf_counter() - started


class ToolLoop(AgentLoop):
    """Runs a conversation in tokens, in which each reply makes tool calls."""

    def __init__(
        self,
        renderer: Renderer,
        limits: Limits,
        malformed: MalformedPolicy = MalformedPolicy(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(limits, malformed)
        self.renderer = renderer

    @property
    def name(self) -> str:
        """The kind of loop, with a behaviour version, and the renderer."""
        return f"tool-loop-v1/{self.renderer.name}"

    async def run(self, task: Task, environment: Environment, session: Session, transcript: Transcript) -> None:
        """Play one attempt into ``transcript``; it holds all that happened even when this raises.

        Raises:
            AgentRLError: of the boundary that failed; never for something that the policy did.
        """
        tools = environment.tools()
        unsent = list(zip(task.prompt, self.renderer.render(task.prompt, tools), strict=True))
        try:
            for _ in range(self.limits.turns):
                reply = await self._turn(session, unsent, tools, transcript, environment.state())
                if reply is None:
                    return
                transcript.stop = await self._answer(environment, reply.tool_calls, unsent, transcript)
                if transcript.stop is not None:
                    return
                messages = [message for message, _ in unsent]
                spans = self.renderer.extend(messages, transcript.nodes[-1].sampled_ids)
                unsent[:] = zip(messages, spans, strict=True)
            transcript.stop = Stop.MAX_TURNS
        finally:  # for people; the policy never saw them, so they have no ids
            for message, _ in unsent:
                transcript.add(message)

    async def _turn(
        self,
        session: Session,
        unsent: list[Span],
        tools: Sequence[ToolSpec],
        transcript: Transcript,
        state: str | None,
    ) -> Message | None:
        """Send what was not sent yet and take the reply. None when the attempt is over."""
        opening = self.renderer.generation_prompt()
        context_ids = [*(token for _, ids in unsent for token in ids), *opening]
        room = self.limits.context - transcript.num_tokens - len(context_ids)
        if room < 1:
            transcript.stop = Stop.CONTEXT_FULL
            return None
        for message, ids in unsent:
            transcript.add(message, ids)
        unsent.clear()
        completion = await self._reply(session, context_ids, min(room, self.limits.reply), transcript)
        if state is not None:
            transcript.states.append(state)
        reply = self.renderer.parse(completion.token_ids, tools)
        transcript.add(reply, opening, completion)
        if completion.finish_reason == "length":
            transcript.stop = Stop.CONTEXT_FULL if room <= self.limits.reply else Stop.MAX_TOKENS
            return None
        if not reply.tool_calls:
            transcript.stop = Stop.DONE
            return None
        return reply

    async def _reply(
        self, session: Session, context_ids: Sequence[int], max_tokens: int, transcript: Transcript
    ) -> Completion:
        started = time.perf_counter()
        try:
            return await session.sample(context_ids, max_tokens=max_tokens, stop_ids=self.renderer.stop_ids)
        except AgentRLError:
            raise
        except Exception as error:
            raise SamplerError(f"the sampler raised {type(error).__name__}: {error}") from error
        finally:
            transcript.seconds["sampling"] += time.perf_counter() - started
