"""One attempt's conversation with a policy in tokens: room is kept, branches begin where history does not stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from agentrl.errors import SamplerError
from agentrl.harness.branch import Branch, Sending
from agentrl.harness.compaction import Compaction, drop_results
from agentrl.harness.conversation import Conversation, Reply, Segment, Writer
from agentrl.harness.limits import Limits
from agentrl.harness.transcript import Transcript, in_time
from agentrl.protocols import Session
from agentrl.types import Completion, Message, Stop


class _Said(NamedTuple):
    message: Message
    completion: Completion


class Dialogue:
    """Asks the policy for replies, within the limits, and keeps the branch that it sees.

    Args:
        writer: of the conversation.
        session: of the sampler.
        transcript: where all of it is kept.
        limits: of the attempt.
        compaction: what is done where no room is left.
        prompt: the opening messages.
    """

    def __init__(
        self,
        writer: Writer,
        session: Session,
        transcript: Transcript,
        *,
        limits: Limits,
        compaction: Compaction,
        prompt: Sequence[Message],
    ) -> None:
        self.writer, self.session, self.transcript = writer, session, transcript
        self.limits, self.compaction = limits, compaction
        self._opening = tuple(writer.renderer.generation_prompt())
        self._prompt = writer.open(prompt)
        self._conversation = self._prompt
        self._replied: Conversation | None = None
        self._branch = Branch(transcript)
        self._reasons: list[str] = []
        self._held = compaction.num_held(writer) if compaction.kind == "summarize" else 0

    def hear(self, messages: Sequence[Message]) -> None:
        """Append what was answered to the last reply; nothing is sent yet.

        Raises:
            RendererError: the renderer cannot write it there.
        """
        assert self._replied is not None, "answers follow a reply"
        self._conversation = self._follow(self._replied, messages)

    async def reply(self, state: str | None) -> Message | None:
        """Send what was not sent yet and take the reply. None when the attempt is over; the transcript says why.

        Args:
            state: of the environment; kept with each reply.

        Raises:
            AgentRLError: of the sampler or the renderer.
        """
        if self._room() < self.limits.reserve:
            await self._make_room(state)
        if self.transcript.stop is not None:
            return None
        room = self._room()
        if room < self.limits.reserve:
            tokens = self._conversation.num_tokens + len(self._opening)
            self.transcript.cut(Stop.CONTEXT_FULL, "conversation", tokens=tokens, context=self.limits.context)
            return None
        said = await self._ask(self._conversation, min(room, self.limits.reply), state)
        if said is None:
            return None
        if said.completion.finish_reason == "length":
            stop = Stop.CONTEXT_FULL if room <= self.limits.reply else Stop.MAX_TOKENS
            self.transcript.cut(stop, "reply", tokens=len(said.completion.token_ids))
            return None
        return said.message

    # Room.

    def _room(self) -> int:
        """Tokens that the next reply may have; those of a summary are held back as long as one may be asked for."""
        free = self._free(self._conversation)
        held = free - self._held
        return held if self._replied is not None or held >= self.limits.reserve else free

    def _free(self, conversation: Conversation) -> int:
        return self.limits.context - conversation.num_tokens - len(self._opening)

    async def _make_room(self, state: str | None) -> None:
        if self.compaction.kind == "drop_results":
            self._drop_results()
        elif self.compaction.kind == "summarize" and self._replied is not None:
            await self._summarize(self._replied, state)

    def _drop_results(self) -> None:
        fill = int(self.limits.context * self.compaction.fill)
        found = drop_results(
            self._conversation,
            self.writer,
            marker=self.compaction.marker,
            num_prompt=self._prompt.fresh,
            enough=lambda shorter: shorter.num_tokens <= fill and self._free(shorter) >= self.limits.reserve,
        )
        if found.num_results:
            self._conversation = found.conversation
            self._reasons.append(f"no room in {self.limits.context} tokens: {found.num_results} results dropped")

    # Summaries.

    async def _summarize(self, replied: Conversation, state: str | None) -> None:
        """Have the policy sum up the conversation, and go on from the task and the summary."""
        asked, withheld = self._asked_for_summary(replied)
        room = min(self._free(asked), self.compaction.summary)
        if room < min(self.limits.reserve, self.compaction.summary):
            return
        if withheld is not None:
            self.transcript.note("withheld", **withheld)
        said = await self._ask(asked, room, state)
        if said is None:
            return
        if said.completion.finish_reason == "length":
            self.transcript.cut(Stop.MAX_TOKENS, "summary", tokens=len(said.completion.token_ids))
            return
        if said.message.tool_calls:
            self.transcript.note("ignored", calls=len(said.message.tool_calls), why="they stand in a summary")
        reply = Reply(said.message, self._opening, said.completion.token_ids)
        summed_up = Conversation(segments=(*self._prompt.segments, Segment(reply, ())))
        going_on = [Message(role="user", content=self.compaction.go_on)]
        why = f"no room in {self.limits.context} tokens: summarized"
        self._conversation = self._follow(summed_up, going_on, why)
        self._replied = None

    def _asked_for_summary(self, replied: Conversation) -> tuple[Conversation, dict[str, Any] | None]:
        """The conversation with the request behind it, and what of the answers is withheld, which would leave no room
        for a summary."""
        answers = self._conversation.messages[-self._conversation.fresh :]
        request = Message(role="user", content=self.compaction.request)
        asked = self._follow(replied, [*answers, request])
        if self._free(asked) >= self.compaction.summary:
            return asked, None
        marker = self.compaction.marker
        long = [len(answer.content) > len(marker) for answer in answers]
        marked = [replace(one, content=marker) if cut else one for one, cut in zip(answers, long, strict=True)]
        shorter = self._follow(replied, [*marked, request])
        withheld = [answer.content for answer, cut in zip(answers, long, strict=True) if cut]
        lost = asked.num_tokens - shorter.num_tokens
        return shorter, {"tokens": lost, "messages": withheld} if withheld else None

    def _follow(self, conversation: Conversation, messages: Sequence[Message], *why: str) -> Conversation:
        """The conversation with messages behind it, and the reasons why it begins a branch, if it does."""
        found, reason = self.writer.follow(conversation, messages)
        self._reasons = [*why, *([] if reason is None else [reason])]
        return found

    # Sampling.

    async def _ask(self, conversation: Conversation, max_tokens: int, state: str | None) -> _Said | None:
        """Send a conversation and keep the reply. None when the time was over before there was one."""
        completion = await in_time(
            self._sample(self._lay(conversation), max_tokens), self.transcript, self.limits.total_s
        )
        if completion is None:
            return None
        if state is not None:
            self.transcript.states.append(state)
        message = self.writer.renderer.parse(completion.token_ids, self.writer.tools)
        self._branch.close(message, self._opening, completion)
        if completion.finish_reason == "abort":
            raise SamplerError(f"the sampler gave up a reply behind {len(completion.token_ids)} tokens")
        self._replied = conversation.replied(Reply(message, self._opening, completion.token_ids))
        return _Said(message, completion)

    def _lay(self, conversation: Conversation) -> Sending:
        """Put a conversation on the transcript, and note why it begins a branch, if it does."""
        first, before = len(self.transcript.nodes), self.transcript.num_tokens
        sending = self._branch.lay(conversation, self._opening)
        self.transcript.unsent.clear()
        if sending.kept is not None:
            told = sum(len(span.ids) for span in conversation.spans[: -conversation.fresh])
            self.transcript.note("branches", node=first, why=self._reasons, removed=before - told)
        self._reasons = []
        return sending

    async def _sample(self, sending: Sending, max_tokens: int) -> Completion:
        if sending.kept is not None:
            await self.session.rewind(sending.kept)
        return await self.session.sample(sending.ids, max_tokens=max_tokens, stop_ids=self.writer.renderer.stop_ids)
