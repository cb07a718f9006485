"""Conversations that are sampled to see whether the trainer scores their tokens as the sampler did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.engine.random import derive_seed
from agentrl.errors import SamplerError
from agentrl.protocols import Renderer, Sampler, Session
from agentrl.types import Completion, Message, Node, Score, Stop, ToolSpec, Trace


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What a policy is told: a prompt, and after each reply but the last what comes back, whatever it replied.

    Attributes:
        name: of the prompt.
        prompt: the opening messages.
        tools: those that the prompt offers.
        answers: the messages (results of tools, a user) behind the first reply, behind the second, ...
    """

    name: str
    prompt: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    answers: tuple[tuple[Message, ...], ...] = ()


async def converse(
    sampler: Sampler,
    renderer: Renderer,
    conversations: Sequence[Conversation],
    *,
    attempts: int,
    max_tokens: int,
    context: int,
    seed: int,
) -> list[Trace]:
    """Hold each conversation several times, all at the same time. Their lengths differ: one attempt has all turns, the
    next one fewer, and some replies may be longer than others.

    Args:
        sampler: what is tested.
        renderer: of its model.
        conversations: each is a group of ``attempts``, which share its prompt.
        attempts: at each.
        max_tokens: of the longest replies.
        context: the longest conversation in tokens; one that would be longer ends before.
        seed: of the draws.

    Returns:
        One trace for each attempt, those of a conversation side by side.

    Raises:
        SamplerError: the sampler failed, or a prompt leaves no room for a reply.
        RendererError: messages cannot be written.
    """
    talks = [
        _Talk(renderer, conversation, attempt, derive_seed(seed, "parity", conversation.name, attempt))
        for conversation in conversations
        for attempt in range(attempts)
    ]
    sessions = [sampler.session(talk.seed) for talk in talks]
    held = (talk.hold(session, max_tokens, context) for talk, session in zip(talks, sessions, strict=True))
    found = await asyncio.gather(*held, return_exceptions=True)
    traces = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        traces.append(one)
    return traces


class _Talk:
    """One attempt at a conversation."""

    def __init__(self, renderer: Renderer, conversation: Conversation, attempt: int, seed: int) -> None:
        self.renderer, self.conversation, self.attempt, self.seed = renderer, conversation, attempt, seed
        self.nodes: list[Node] = []
        self.num_tokens = 0

    async def hold(self, session: Session, max_tokens: int, context: int) -> Trace:
        """Say everything, and close the session."""
        try:
            messages = self.conversation.prompt
            spans = self.renderer.render(messages, self.conversation.tools)
            for answer in (*self.conversation.answers[: self._num_turns() - 1], None):
                limit = max_tokens * (4, 2, 3)[(self.attempt + len(self.nodes)) % 3] // 4
                reply = await self._turn(session, messages, spans, max(1, limit), context)
                if answer is None or reply is None:
                    break
                messages, spans = answer, self.renderer.extend(answer, reply.token_ids)
        finally:
            await session.close()
        if not self.nodes:
            raise SamplerError(
                f"the prompt of {self.conversation.name} leaves no room for a reply in a context of {context} tokens; "
                "take a model with a longer context, or shorter prompts"
            )
        return self._trace()

    async def _turn(
        self,
        session: Session,
        messages: Sequence[Message],
        spans: Sequence[tuple[int, ...]],
        limit: int,
        context: int,
    ) -> Completion | None:
        """Send messages and take the reply; None where there is no room for one."""
        opening = self.renderer.generation_prompt()
        context_ids = [*(token for ids in spans for token in ids), *opening]
        room = context - self.num_tokens - len(context_ids)
        if room < 1:
            return None
        for message, ids in zip(messages, spans, strict=True):
            self._add(message, ids)
        reply = await session.sample(context_ids, max_tokens=min(room, limit), stop_ids=self.renderer.stop_ids)
        self._add(self.renderer.parse(reply.token_ids, self.conversation.tools), opening, reply)
        return reply

    def _num_turns(self) -> int:
        most = len(self.conversation.answers) + 1
        return most - self.attempt % most

    def _add(self, message: Message, ids: tuple[int, ...], reply: Completion | None = None) -> None:
        node = Node(parent=len(self.nodes) - 1 if self.nodes else None, message=message, context_ids=ids)
        if reply is not None:
            node = replace(
                node,
                sampled_ids=reply.token_ids,
                logprobs=reply.logprobs,
                versions=reply.versions,
                support=reply.support,
            )
        self.nodes.append(node)
        self.num_tokens += len(node.context_ids) + len(node.sampled_ids)

    def _trace(self) -> Trace:
        name = self.conversation.name
        return Trace(
            id=f"{name}-{self.attempt}",
            task_id=name,
            group_id=name,
            attempt=self.attempt,
            seed=self.seed,
            nodes=tuple(self.nodes),
            stop=Stop.DONE,
            scores=(Score(name="parity", value=0.0, explanation="nothing is judged"),),
        )
