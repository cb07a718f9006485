"""Any chat template of Hugging Face as a renderer, where it is proved that conversations may grow by appending.

    renderer = TemplateRenderer(Vocabulary.load("some-model"))

A template that writes history anew is refused when it is loaded, with the reason and what to use instead. One that
does so only behind the messages of a role (Qwen3 drops thoughts behind a user's) is taken: `extend` refuses those
messages, and `follow` begins a new branch with what the template writes then, where that is proved to be sound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import accumulate, pairwise, takewhile
from typing import Any

from agentrl.errors import RendererError
from agentrl.tokens.chat import chat_of, check_results
from agentrl.tokens.chatml import Continuation
from agentrl.tokens.jinja import ChatTemplate
from agentrl.tokens.probe import CALL, QUESTION, nearest, prove
from agentrl.tokens.toolcalls import CLOSE, OPEN, THINK, THOUGHT, read_reply, write_call
from agentrl.tokens.vocabulary import Vocabulary, num_common
from agentrl.types import Message, ToolCall, ToolSpec

_REPLY = "A plum."


class TemplateRenderer:
    """Messages to ids and back, by a model's own chat template.

    Args:
        vocabulary: whose configuration holds the template.
        options: variables of the template, such as ``{"enable_thinking": False}``.
        today: the date that some templates print.

    Raises:
        RendererError: no template, or one for which appending is not sound.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, options: Mapping[str, Any] | None = None, today: date | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.options = dict(options or {})
        self._template = ChatTemplate(vocabulary, self.options, today)
        self.proof = prove(self._template)
        ends = {self.proof.stop_id, vocabulary.controls.get(str(self._template.options.get("eos_token")))}
        self.stop_ids = frozenset(index for index in ends if index is not None)
        self._day = today

    @property
    def name(self) -> str:
        """Equal names write and read equally."""
        digest = hashlib.sha256(self._template.source.encode()).hexdigest()[:12]
        return f"template-v1({digest}, {sorted(self.options.items())}, {self._day})"

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[tuple[int, ...], ...]:
        """The ids of a conversation, one tuple a message. What a template writes only once a later message is there
        (a system text within a user's turn) stands in the tuple of that one.

        Raises:
            RendererError: the template cannot write these messages or tools.
        """
        if tools and "tools" in self.proof.refused:
            raise RendererError(f"{self.proof.refused['tools']}; {nearest(self._template)}")
        check_results(messages)
        return self._spans((), messages, tools)

    def extend(self, messages: Sequence[Message], sampled_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The ids that append messages behind a sampled reply, one tuple a message.

        A reply that was cut, or ended in another way than the template's, gets its end of turn there, untrained.

        Raises:
            RendererError: no message, or one that cannot be appended.
        """
        self._check(messages, {})
        return self._appended(messages, sampled_ids)

    def follow(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        sampled_ids: Sequence[int],
        tools: Sequence[ToolSpec],
    ) -> Continuation:
        """Go on as the template does: append, or begin a branch where it writes the conversation anew.

        Args:
            history: the conversation so far; it ends with the reply.
            messages: what is appended.
            sampled_ids: the reply.
            tools: those of the conversation.

        Raises:
            RendererError: no message, or one that can neither be appended nor begin a branch.
        """
        self._check(messages, self.proof.rewrites)
        rewritten = self.rewritten(history, messages)
        if rewritten is None:
            return Continuation(None, self._appended(messages, sampled_ids))
        return Continuation(rewritten, self.render([*history, *messages], tools))

    def rewritten(self, history: Sequence[Message], messages: Sequence[Message]) -> str | None:
        """Why the template writes ``history`` otherwise once ``messages`` follow; None when it only appends."""
        thoughts = any(message.reasoning for message in history)
        roles = [message.role for message in messages]
        found = (role for role in roles if role in self.proof.rewrites and (thoughts or self.proof.rewrites[role]))
        return next((self.proof.refused[role] for role in found), None)

    def _check(self, messages: Sequence[Message], rewrites: Mapping[str, bool]) -> None:
        """Refuse messages that cannot follow a reply; those of the roles that are rewritten can."""
        if not messages:
            raise RendererError("extend() needs at least one message to append")
        for message in messages:
            reason = "it is sampled" if message.role == "assistant" else self.proof.refused.get(message.role)
            if reason is not None and message.role not in rewrites:
                raise RendererError(f"a {message.role} message cannot be appended: {reason}; {nearest(self._template)}")

    def _appended(self, messages: Sequence[Message], sampled_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        num_results = sum(1 for _ in takewhile(lambda message: message.role == "tool", messages))
        reply = Message(role="assistant", content=_REPLY, tool_calls=(CALL,) * num_results)
        first, *others = self._spans((QUESTION, reply), messages, ())
        closed = len(sampled_ids) > 0 and sampled_ids[-1] == self.proof.stop_id
        return ((() if closed else (self.proof.stop_id,)) + first, *others)

    def generation_prompt(self) -> tuple[int, ...]:
        """The ids that open the policy's turn."""
        return self.proof.prompt_ids

    def write_reply(self, message: Message) -> tuple[int, ...]:
        """The ids with which the policy would say a message, stop id included (for demonstrations).

        Thoughts and calls are written as `parse` reads them, with control tokens where the vocabulary has their marks.
        """
        part, (chat,) = self.vocabulary.part, chat_of([message], self.vocabulary)
        thoughts = "" if message.reasoning is None else f"{THINK}\n{part(message.reasoning.strip())}\n{THOUGHT}\n\n"
        said = [thoughts + chat["content"]] if thoughts or message.content else []
        readable = [] if any(call.problem for call in message.tool_calls) else message.tool_calls
        calls = [f"{OPEN}{part(body)}{CLOSE}" for body in map(_body, readable)]
        return (*self.vocabulary.ids_of_parted("\n".join([*said, *calls])), self.proof.stop_id)

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message in a reply. Never raises: what is malformed is said in a call's `problem`."""
        stopped = len(sampled_ids) > 0 and sampled_ids[-1] in self.stop_ids
        return read_reply(self.decode(sampled_ids[:-1] if stopped else sampled_ids), tools).message()

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people, control tokens spelt out."""
        return self.vocabulary.decode(token_ids)

    def _spans(
        self, history: Sequence[Message], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[tuple[int, ...], ...]:
        """The ids of messages behind a history, up to whose last stop id all is left out."""
        whole = self._template.ids((*history, *messages), tools)
        start = _after(whole, self.proof.stop_id, self._count_stops(history)) if history else 0
        cuts = list(accumulate([start, *self._ends(history, messages, tools, whole), len(whole)], max))
        return tuple(whole[a:b] for a, b in pairwise(cuts))

    def _count_stops(self, history: Sequence[Message]) -> int:
        return self._template.ids(history).count(self.proof.stop_id)

    def _ends(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        whole: tuple[int, ...],
    ) -> list[int]:
        """Where each message but the last ends in the whole. What is before it may be written otherwise in the shorter
        conversation, so both are compared behind the last turn that has ended; one of results goes on with the next.
        """
        ends, num_stops = [], 0
        for count in range(1, len(messages)):
            try:
                found = self._template.ids((*history, *messages[:count]), tools)
            except RendererError:  # some templates take no conversation that ends so
                ends.append(0)
                continue
            if messages[count - 1].role != "tool":
                num_stops = found.count(self.proof.stop_id)
            one, other = (_after(ids, self.proof.stop_id, num_stops) for ids in (found, whole))
            ends.append(other + num_common(found[one:], whole[other:]))
        return ends


def _body(call: ToolCall) -> str:
    """What stands between the marks of a call."""
    return write_call(call).removeprefix(OPEN).removesuffix(CLOSE)


def _after(ids: tuple[int, ...], stop: int, count: int) -> int:
    """The place behind the stop id of that number, or behind the last one where there are fewer."""
    places = [place for place, token in enumerate(ids, start=1) if token == stop]
    return ([0, *places])[min(count, len(places))]
