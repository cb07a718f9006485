"""The agent loop for models that take and give messages, not tokens: the same turns, tools and limits.

Its traces have messages and no tokens: every node's ``context_ids``, ``sampled_ids``, ``logprobs`` and ``versions``
are empty, so `tokens.samples` makes no training sample of them and nothing has to be made up. What the endpoint says
about tokens stands in the trace's metadata, under ``usage``. Compaction begins branches as in the loop for tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.errors import ConfigError, SamplerError
from agentrl.harness.answers import Answerer
from agentrl.harness.chat_dialogue import ChatDialogue, held
from agentrl.harness.chat_session import ChatReply, ChatSession
from agentrl.harness.compaction import Compaction
from agentrl.harness.limits import Limits
from agentrl.harness.loop import AgentLoop
from agentrl.harness.transcript import Transcript
from agentrl.protocols import Environment, Session
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Stop, Task

__all__ = ["ChatLoop", "ChatReply", "ChatSession"]


class ChatLoop(AgentLoop):
    """Runs a conversation in messages.

    ``limits.context`` is held against the endpoint's own count of tokens, and against an estimate of what it has not
    counted: results that are about to be sent, or everything where it counts nothing. Cuts say how much is estimated.

    Args:
        limits: of an attempt.
        malformed: what is done about malformed calls.
        compaction: what is done where the conversation leaves no room, by the limit or because the endpoint refuses it.
        system_prompt: see `AgentLoop`.
        system_prompts: see `AgentLoop`.

    Raises:
        ConfigError: the context has no room for a summary.
    """

    name = "chat-loop-v2"

    def __init__(
        self,
        limits: Limits,
        malformed: MalformedPolicy = MalformedPolicy(),  # noqa: B008 (frozen)
        *,
        compaction: Compaction = Compaction(),  # noqa: B008 (frozen)
        system_prompt: str = "",
        system_prompts: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            limits, malformed, compaction=compaction, system_prompt=system_prompt, system_prompts=system_prompts
        )
        if compaction.kind == "summarize" and held(compaction) >= limits.context:
            raise ConfigError(compaction.too_long(held(compaction), limits.context))

    async def run(self, task: Task, environment: Environment, session: Session, transcript: Transcript) -> None:
        """Play one attempt into ``transcript``; it holds all that happened even when this raises.

        Raises:
            AgentRLError: of the boundary that failed; never for something that the policy did.
        """
        if not isinstance(session, ChatSession):
            raise SamplerError(f"{type(session).__name__} takes tokens and no messages; play it with ToolLoop")
        transcript.unsent.extend(self.prompt(task))
        dialogue = ChatDialogue(
            session, environment.tools(), transcript, limits=self.limits, compaction=self.compaction
        )
        try:
            await self._play(environment, dialogue, transcript)
        finally:
            dialogue.end()
            transcript.end()

    async def _play(self, environment: Environment, dialogue: ChatDialogue, transcript: Transcript) -> None:
        answerer = Answerer(environment, self.limits, self.malformed, transcript)
        for _ in range(self.limits.turns):
            reply = await dialogue.reply(environment.state())
            if reply is None:
                return
            await answerer.answer(reply)
            if transcript.stop is not None:
                return
        transcript.cut(Stop.MAX_TURNS, "attempt", turns=self.limits.turns)
