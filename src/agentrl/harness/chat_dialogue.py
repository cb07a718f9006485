"""One attempt's conversation with a policy in messages: room is kept, and made where compaction says how.

There are no ids, so a branch of the trace shares the nodes whose messages it begins with. Room is reckoned with what
the endpoint counts and an estimate of what it has not counted; where it refuses a conversation, the size of that is the
limit from then on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from operator import is_
from typing import Any

from agentrl.errors import SamplerError
from agentrl.harness.chat_count import ChatCount, Count
from agentrl.harness.chat_session import ChatReply, ChatSession, Restarting
from agentrl.harness.compaction import Compaction
from agentrl.harness.limits import Limits
from agentrl.harness.transcript import Transcript, in_time
from agentrl.types import Message, Stop, ToolSpec


class ChatDialogue:
    """Asks the policy for replies, within the limits, and keeps the branch that it sees.

    What is to be sent next stands in ``transcript.unsent``: the opening messages when it is made, answers later.

    Args:
        session: of the model.
        tools: that may be called.
        transcript: where all of it is kept.
        limits: of the attempt.
        compaction: what is done where no room is left.

    Raises:
        SamplerError: a session that cannot begin again, with a compaction that needs it to.
    """

    def __init__(
        self,
        session: ChatSession,
        tools: Sequence[ToolSpec],
        transcript: Transcript,
        *,
        limits: Limits,
        compaction: Compaction,
    ) -> None:
        if compaction.kind != "none" and not isinstance(session, Restarting):
            raise SamplerError(
                f"{type(session).__name__} cannot begin a conversation again, as compaction {compaction.kind} does; "
                "give harness.chat_session.Conversations"
            )
        self.session, self.tools, self.transcript = session, tools, transcript
        self.limits, self.compaction = limits, compaction
        self.count = ChatCount(tools)
        self._context = limits.context
        self._prompt = tuple(transcript.unsent)
        self._told: list[Message] = []
        self._nodes: list[int] = []
        self._num_sent = 0
        self._replied = False
        self._refused = False
        self._held = held(compaction) if compaction.kind == "summarize" else 0

    async def reply(self, state: str | None) -> Message | None:
        """Send what was not sent yet and take the reply. None when the attempt is over; the transcript says why.

        Args:
            state: of the environment; kept with each reply.

        Raises:
            AgentRLError: of the sampler.
        """
        if self._room() < self.limits.reserve:
            await self._make_room(state)
        while self.transcript.stop is None:
            room = self._room()
            if room < self.limits.reserve:
                self._cut_conversation()
                break
            found = await self._ask(min(room, self.limits.reply), state)
            if found is None:
                break
            if found.finish == "stop":
                return found.message
            if found.finish == "length":
                stop = Stop.CONTEXT_FULL if room <= self.limits.reply else Stop.MAX_TOKENS
                self.transcript.cut(stop, "reply", tokens=found.usage.get("completion_tokens"))
            elif not await self._after_refusal(state) and self.transcript.stop is None:
                self._cut_conversation()
        return None

    def end(self) -> None:
        """Say how tokens were counted, where the endpoint did not."""
        if self.count.num_uncounted:
            self.transcript.note("counts", replies_without=self.count.num_uncounted, estimated_at=self.count.how)

    # Room.

    def _room(self) -> int:
        """Tokens that the next reply may have; those of a summary are held back as long as one may be asked for."""
        free = self._free(self._going_on())
        held_back = free - self._held
        return held_back if self._replied or held_back >= self.limits.reserve else free

    def _free(self, messages: Sequence[Message]) -> int:
        return self._context - self.count.of(messages).tokens

    def _going_on(self) -> list[Message]:
        return [*self._told, *self.transcript.unsent]

    def _cut_conversation(self) -> None:
        size: Count = self.count.of(self._going_on())
        context = "the endpoint's" if self._refused else self._context
        self.transcript.cut(Stop.CONTEXT_FULL, "conversation", **size._asdict(), context=context)

    async def _make_room(self, state: str | None) -> bool:
        """Compact; says whether the conversation is another now."""
        if self.compaction.kind == "drop_results":
            return await self._drop_results()
        return self.compaction.kind == "summarize" and self._replied and await self._summarize(state)

    async def _after_refusal(self, state: str | None) -> bool:
        """The endpoint has less room than was thought: what it refused is too long from now on. Says whether there is a
        shorter conversation to go on with."""
        self._context = min(self._context, self.count.of(self._going_on()).tokens)
        self._refused = True
        return await self._make_room(state)

    async def _drop_results(self) -> bool:
        """Put the marker in the place of the fewest of the oldest results that are enough; says whether some are."""
        old = self._old_results()
        fill = int(self._context * self.compaction.fill)

        def enough(number: int) -> bool:
            size = self._size_after(self._without(old[:number]))
            return size <= fill and self._context - size >= self.limits.reserve

        number = bisect_left(range(len(old)), True, key=enough)
        shorter = self._without(old[:number])
        if not old or self._context - self._size_after(shorter) < self.limits.reserve:
            return False
        await self._begin_again(shorter, f"{number} results dropped")
        return True

    def _old_results(self) -> list[int]:
        """Where results stand that the policy has read, and that are longer than the marker."""
        longer = [len(message.content) > len(self.compaction.marker) for message in self._told]
        prompt = len(self._prompt)
        return [n for n, one in enumerate(self._told) if n >= prompt and one.role == "tool" and longer[n]]

    def _without(self, places: Sequence[int]) -> list[Message]:
        dropped = set(places)
        marker = self.compaction.marker
        return [replace(one, content=marker) if n in dropped else one for n, one in enumerate(self._told)]

    def _size_after(self, told: Sequence[Message]) -> int:
        """Tokens with other messages in place of those that were told."""
        return self.count.rewritten(self._told, told).of([*told, *self.transcript.unsent]).tokens

    # Summaries.

    async def _summarize(self, state: str | None) -> bool:
        """Have the policy sum up the conversation, and go on from the task and the summary; says whether it did."""
        answers, withheld = self._answers_that_fit()
        room = min(self._free([*self._told, *answers]), self.compaction.summary)
        if room < min(self.limits.reserve, self.compaction.summary):
            return False
        if withheld:
            self.transcript.note("withheld", **withheld)
        self.transcript.unsent[:] = answers
        found = await self._ask(room, state)
        if found is None:
            return False
        if found.finish != "stop":
            self._cut_summary(found)
            return False
        if found.message.tool_calls:
            self.transcript.note("ignored", calls=len(found.message.tool_calls), why="they stand in a summary")
        summary = replace(found.message, tool_calls=())
        await self._begin_again([*self._prompt, summary], "summarized")
        self.transcript.unsent[:] = [Message(role="user", content=self.compaction.go_on)]
        self._replied = False
        return True

    def _answers_that_fit(self) -> tuple[list[Message], dict[str, Any] | None]:
        """What follows the last reply, the request for a summary behind it; and what of it is withheld, which would
        leave no room for one."""
        request = Message(role="user", content=self.compaction.request)
        answers = list(self.transcript.unsent)
        if self._free([*self._told, *answers, request]) >= self.compaction.summary:
            return [*answers, request], None
        marker = self.compaction.marker
        long = [len(answer.content) > len(marker) for answer in answers]
        marked = [replace(one, content=marker) if cut else one for one, cut in zip(answers, long, strict=True)]
        withheld = [one.content for one, cut in zip(answers, long, strict=True) if cut]
        lost = self.count.estimate(answers) - self.count.estimate(marked)
        return [*marked, request], {"tokens": lost, "messages": withheld} if withheld else None

    def _cut_summary(self, found: ChatReply) -> None:
        if found.finish == "length":
            self.transcript.cut(Stop.MAX_TOKENS, "summary", tokens=found.usage.get("completion_tokens"))
        else:
            self.transcript.cut(Stop.CONTEXT_FULL, "summary", context="the endpoint's")

    # Sending.

    async def _ask(self, max_tokens: int, state: str | None) -> ChatReply | None:
        """Send what the session does not have, and keep the reply. None when the time was over before there was one; a
        refused conversation is as it was."""
        sending = (*self._told[self._num_sent :], *self.transcript.unsent)
        asked = self.session.reply(sending, self.tools, max_tokens=max_tokens)
        found = await in_time(asked, self.transcript, self.limits.total_s)
        if found is None:
            return None
        _note(self.transcript, found)
        if found.finish == "context":
            return found
        sent = self._going_on()
        for message in (*self.transcript.unsent, found.message):
            self._tell(message)
        self.transcript.unsent.clear()
        self._num_sent, self._replied = len(self._told), True
        self.count.learn(sent, found.message, found.usage)
        self.transcript.num_tokens = self.count.of(self._told).tokens
        if state is not None:
            self.transcript.states.append(state)
        return found

    def _tell(self, message: Message, *, copied: bool = False) -> None:
        self._nodes.append(len(self.transcript.nodes))
        self._told.append(message)
        self.transcript.add(message, copied=copied)

    async def _begin_again(self, told: Sequence[Message], what: str) -> None:
        """Begin a branch with messages of which some were told before, and note why, and what that removes."""
        assert isinstance(self.session, Restarting), "it was asked for in the beginning"
        await self.session.restart()
        before, self.count = self.count.of(self._told).tokens, self.count.rewritten(self._told, told)
        shared = sum(1 for _ in takewhile(bool, map(is_, told, self._told)))
        why = f"no room in {'about ' if self._refused else ''}{self._context} tokens: {what}"
        self.transcript.fork(self._nodes[shared - 1] if shared else None, 0)
        first = len(self.transcript.nodes)
        del self._told[shared:], self._nodes[shared:]
        for message in told[shared:]:
            self._tell(message, copied=True)
        self._num_sent = 0
        self.transcript.num_tokens = now = self.count.of(self._told).tokens
        self.transcript.note("branches", node=first, why=[why], removed=before - now, **self._unread_calls())

    def _unread_calls(self) -> dict[str, Any]:
        """Calls that could not be read have no arguments to be sent again."""
        number = sum(call.problem is not None for message in self._told for call in message.tool_calls)
        return {"calls_without_arguments": number} if number else {}


def held(compaction: Compaction) -> int:
    """Tokens, as estimated before anything is counted, that must be left to ask for a summary and to take it, one
    withheld result included."""
    texts = (Message(role="tool", content=compaction.marker), Message(role="user", content=compaction.request))
    return ChatCount(()).estimate(texts) + compaction.summary


def _note(transcript: Transcript, reply: ChatReply) -> None:
    """Add up what the endpoint counted, once a reply. A count that one reply lacks is unknown for the attempt."""
    transcript.seconds["sampling"] -= reply.waited_s
    transcript.seconds["waiting"] = transcript.seconds.get("waiting", 0.0) + reply.waited_s
    notes = transcript.notes
    notes["served_by"] = sorted({*notes.get("served_by", ()), reply.served_by})
    notes["retries"] = notes.get("retries", 0) + reply.retries
    if reply.finish == "context":
        return
    before = notes.get("usage")
    names = reply.usage if before is None else before.keys() & reply.usage.keys()
    notes["usage"] = {name: (before or {}).get(name, 0) + reply.usage[name] for name in sorted(names)}
