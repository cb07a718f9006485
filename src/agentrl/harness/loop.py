"""The agent loop: the policy writes, tools answer, until something says stop. Training and evaluation use this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

from agentrl.harness.answers import Answerer
from agentrl.harness.compaction import Compaction
from agentrl.harness.conversation import Writer
from agentrl.harness.dialogue import Dialogue
from agentrl.harness.limits import Limits
from agentrl.harness.prompts import SystemPrompts
from agentrl.harness.transcript import Transcript
from agentrl.protocols import Environment, Renderer, Session
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Message, Score, Stop, Task

__all__ = ["AgentLoop", "Limits", "ToolLoop", "Transcript"]


class AgentLoop(ABC):
    """What loops share: limits, system prompts, what malformed calls cost, how room is made.

    A malformed call is answered with what is wrong with it; ``malformed`` may end the attempt or take from its reward.

    Args:
        limits: of an attempt.
        malformed: what is done about malformed calls.
        compaction: what is done where the conversation leaves no room.
        system_prompt: takes the place of a task's own system message, or stands before a task without one; empty leaves
            tasks as they are.
        system_prompts: for the task sets that have one of their own, by the name of the set; see `SystemPrompts`.
    """

    measures = False
    """Whether attempts are evaluated: the scores are then the environment's alone, and malformed calls cost nothing."""

    def __init__(
        self,
        limits: Limits,
        malformed: MalformedPolicy = MalformedPolicy(),  # noqa: B008 (frozen)
        *,
        compaction: Compaction = Compaction(),  # noqa: B008 (frozen)
        system_prompt: str = "",
        system_prompts: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits
        self.malformed = malformed
        self.compaction = compaction
        self.prompts = SystemPrompts(every=system_prompt, by_set=system_prompts or {})

    @property
    @abstractmethod
    def name(self) -> str:
        """The kind of loop, with a behaviour version."""

    @property
    def fingerprint(self) -> str:
        """What makes two harnesses the same agent."""
        policy = "" if self.malformed == MalformedPolicy() else f"/{self.malformed}"
        room = "" if self.compaction == Compaction() else f"/{self.compaction}"
        return f"{self.name}/{self.limits}{policy}{self.prompts.fingerprint}{room}"

    @abstractmethod
    async def run(self, task: Task, environment: Environment, session: Session, transcript: Transcript) -> None:
        """Play one attempt into ``transcript``; it holds all that happened even when this raises.

        Raises:
            AgentRLError: of the boundary that failed; never for something that the policy did.
        """

    def for_evaluation(self) -> Self:
        """The same agent, whose scores are the environment's alone."""
        measuring = copy(self)
        measuring.measures = True
        return measuring

    def prompt(self, task: Task) -> Sequence[Message]:
        """The opening messages of a task."""
        return self.prompts.opening(task)

    def penalties(self, transcript: Transcript) -> tuple[Score, ...]:
        """What the policy's malformed calls take from its reward; nothing where they cost nothing, as in evaluation."""
        count, penalty = transcript.num_malformed, self.malformed.penalty
        if not penalty or self.measures:
            return ()
        said = f"{count} at -{penalty} each"
        return (Score(name="malformed_calls", value=-penalty * count, explanation=said),)


class ToolLoop(AgentLoop):
    """Runs a conversation in tokens, in which each reply makes tool calls or speaks to a user.

    Args:
        renderer: of messages.
        limits: of an attempt.
        malformed: what is done about malformed calls.
        compaction: what is done where the conversation leaves no room.
        system_prompt: see `AgentLoop`.
        system_prompts: see `AgentLoop`.

    Raises:
        RendererError: the renderer cannot write what compaction puts into a conversation.
    """

    def __init__(
        self,
        renderer: Renderer,
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
        self.renderer = renderer
        compaction.check(Writer(renderer=renderer, tools=()), limits.context)

    @property
    def name(self) -> str:
        """The kind of loop, with a behaviour version, and the renderer."""
        return f"tool-loop-v1/{self.renderer.name}"

    async def run(self, task: Task, environment: Environment, session: Session, transcript: Transcript) -> None:
        """Play one attempt into ``transcript``; it holds all that happened even when this raises.

        Raises:
            AgentRLError: of the boundary that failed; never for something that the policy did.
        """
        prompt = self.prompt(task)
        transcript.unsent.extend(prompt)
        try:
            await self._play(prompt, environment, session, transcript)
        finally:
            transcript.end()

    async def _play(
        self, prompt: Sequence[Message], environment: Environment, session: Session, transcript: Transcript
    ) -> None:
        writer = Writer(renderer=self.renderer, tools=environment.tools())
        dialogue = Dialogue(writer, session, transcript, limits=self.limits, compaction=self.compaction, prompt=prompt)
        answerer = Answerer(environment, self.limits, self.malformed, transcript)
        for _ in range(self.limits.turns):
            reply = await dialogue.reply(environment.state())
            if reply is None:
                return
            await answerer.answer(reply)
            if transcript.stop is not None:
                return
            dialogue.hear(transcript.unsent)
        transcript.cut(Stop.MAX_TURNS, "attempt", turns=self.limits.turns)
