"""The package `renderers` behind our protocol: hand-written renderers and parsers for over twenty model families.

    renderer = LibraryRenderer(Vocabulary.load("some-model"), "glm-4.5")

It keeps what was sampled as our own renderers do. Text is kept text here too: the library is given a tokenizer in which
the spelling of a control token within a message is an ordinary text. Where it parses calls in another format, our
statuses and our check of arguments stand on top, so that training and evaluation tell the model the same.

A reply of a demonstration is what the library writes behind the ids that open a reply, up to the token that ends it.
Which tokens a policy would sample is decided by that alone; the library's own mask counts thoughts that the opening
holds. What it would write otherwise than it was said (thoughts left out, a call that is read back as another) is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise, zip_longest
from typing import Any

from agentrl.errors import RendererError
from agentrl.tokens.chat import chat_of, check_results, tool_to_chat
from agentrl.tokens.chatml import Continuation
from agentrl.tokens.library_package import create
from agentrl.tokens.toolcalls import Status, checked, malformed
from agentrl.tokens.vocabulary import Vocabulary, num_common
from agentrl.types import Message, ToolCall, ToolSpec

_QUESTION, _RESULT = Message(role="user", content="Which?"), Message(role="tool", content="This.")
_REPLIES = tuple(Message(role="assistant", content="This.", reasoning=thoughts) for thoughts in (None, "It is."))
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", tuple: "array"}
_Behind = Callable[[Sequence[Message]], tuple[int, ...] | None]
_STATUSES = {
    "invalid_json": Status.INVALID_JSON,
    "unclosed_block": Status.UNCLOSED,
    "unknown_tool": Status.UNKNOWN_TOOL,
}


class LibraryRenderer:
    """Messages of a model family to ids and back.

    Args:
        vocabulary: the model's.
        family: the library's name of the family, such as ``qwen3``.
        options: settings of that family, such as ``{"enable_thinking": False}``.

    Raises:
        ImportError: the package is not installed.
        RendererError: no such family or option, or the vocabulary lacks what the family needs.
    """

    def __init__(self, vocabulary: Vocabulary, family: str, options: Mapping[str, Any] | None = None) -> None:
        self.vocabulary = vocabulary
        version, self._library = create(vocabulary, family, options or {})
        self.name = f"renderers-{version}({family}, {sorted((options or {}).items())})"
        self.stop_ids = frozenset(self._library.get_stop_token_ids())
        shorter, longer = (self._ids([_QUESTION], prompt=prompt) for prompt in (False, True))
        self._prompt = longer[len(shorter) :]
        self._opened = longer
        self._reply, self._close = self._usual_reply()

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[tuple[int, ...], ...]:
        """The ids of a conversation, one tuple a message; what stands before the first belongs to it.

        Raises:
            RendererError: the library refuses the conversation.
        """
        check_results(messages)
        found = self._call("render", self._chat(messages), tools=self._specs(tools))
        owners = list(accumulate((index for index in found.message_indices), max, initial=0))[1:]
        cuts = [0, *(sum(1 for owner in owners if owner < index) for index in range(1, len(messages))), len(owners)]
        return tuple(tuple(found.token_ids[a:b]) for a, b in pairwise(cuts))

    def extend(self, messages: Sequence[Message], sampled_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The ids that append messages behind a sampled reply, one tuple a message.

        Raises:
            RendererError: no message, one of the assistant's, or one that makes the library write history anew.
        """
        _check_new(messages)
        found = self._appended(messages, sampled_ids, self._bridged)
        if found is None:
            raise RendererError(f"{_anew(messages)}; start a new branch")
        return found

    def follow(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        sampled_ids: Sequence[int],
        tools: Sequence[ToolSpec],
    ) -> Continuation:
        """Go on as the library does: append, or begin a branch where it writes the conversation anew. Some families
        append no question, since it may drop thoughts; where there are none it is appended.

        Args:
            history: the conversation so far; it ends with the reply.
            messages: what is appended.
            sampled_ids: the reply.
            tools: those of the conversation.

        Raises:
            RendererError: no message, one of the assistant's, or a conversation that the library refuses.
        """
        _check_new(messages)
        found = self._appended(messages, sampled_ids, self._bridged)
        if found is None and self._stays(history, messages, tools):
            found = self._appended(messages, sampled_ids, self._behind_plain)
        if found is not None:
            return Continuation(None, found)
        whole = [*history, *messages]
        spans = self.render(whole, tools)
        if self._ids(whole, prompt=True, tools=tools) != (*chain.from_iterable(spans), *self._prompt):
            raise RendererError("the library opens the reply behind these messages in another way than others")
        return Continuation(_anew(messages), spans)

    def generation_prompt(self) -> tuple[int, ...]:
        """The ids that open the policy's turn."""
        return self._prompt

    def write_reply(self, message: Message) -> tuple[int, ...]:
        """The ids with which the policy would say a message, stop id included (for demonstrations).

        Raises:
            RendererError: the library has no form for it that begins with the opening of a reply, ends with a stop
                token and says what the message says.
        """
        if any(call.problem for call in message.tool_calls):
            raise RendererError("a reply with a malformed call cannot be written; remove it from the demonstrations")
        last = [_QUESTION, message]
        forms = [last] if message.reasoning is not None else [[*last, _QUESTION], last]
        found = next((ids for form in forms if (ids := self._said(form))), None)
        if found is None:
            raise RendererError(
                f"the library opens a reply with {self.decode(self._prompt)!r} and writes none with "
                f"{'thoughts' if message.reasoning else 'no thoughts'} behind it that ends with a stop token; use "
                "another family or enable_thinking, or change the thoughts of the demonstrations"
            )
        self._check_said(message, found)
        return found

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message in a reply. Never raises: what is malformed is said in a call's `problem`."""
        specs = {spec.name: spec for spec in tools}
        found = self._library.parse_response(list(sampled_ids), tools=self._specs(tools), prompt_ids=list(self._prompt))
        calls = tuple(_read_call(call, specs) for call in found.tool_calls)
        stopped = len(sampled_ids) > 0 and sampled_ids[-1] in self.stop_ids
        raw = self.decode(sampled_ids[:-1] if stopped else sampled_ids)
        content = raw if any(call.problem for call in calls) else found.content
        return Message(role="assistant", content=content, reasoning=found.reasoning_content, tool_calls=calls)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people, control tokens spelt out."""
        return self.vocabulary.decode(token_ids)

    def _appended(
        self, messages: Sequence[Message], sampled_ids: Sequence[int], behind: _Behind
    ) -> tuple[tuple[int, ...], ...] | None:
        """What appends messages to a sampled reply, one tuple a message, by what stands ``behind`` another reply."""
        whole = behind(messages)
        if whole is None:
            return None
        ends = [num_common(behind(messages[:count]) or (), whole) for count in range(1, len(messages))]
        first, *others = (whole[a:b] for a, b in pairwise(accumulate([0, *ends, len(whole)], max)))
        closed = len(sampled_ids) > 0 and sampled_ids[-1] == self._close
        return ((() if closed else (self._close,)) + first, *others)

    def _bridged(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """What the library puts between the usual reply and the opening of the next one; None where it does not
        append the messages."""
        return self._bridge((*self._reply, self._close), messages)

    def _bridge(self, reply: tuple[int, ...], messages: Sequence[Message]) -> tuple[int, ...] | None:
        found = self._call("bridge_to_next_turn", list(self._opened), list(reply), self._chat(messages))
        if found is None:
            return None
        before, ids = (*self._opened, *reply), tuple(found.token_ids)
        if ids[: len(before)] != before or ids[len(ids) - len(self._prompt) :] != self._prompt:
            raise RendererError("the library changes what was sampled, or opens the reply behind it in another way")
        return ids[len(before) : len(ids) - len(self._prompt)]

    def _behind_plain(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """What it writes behind a reply without thoughts that messages follow; None where it writes that otherwise."""
        plain = self._said([_QUESTION, _REPLIES[0], _QUESTION])
        head, ids = (*self._opened, *plain), self._ids([_QUESTION, _REPLIES[0], *messages], prompt=False)
        return ids[len(head) :] if plain and ids[: len(head)] == head else None

    def _stays(self, history: Sequence[Message], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        """Whether a history without thoughts is written the same before its last reply, whatever follows."""
        if any(message.reasoning for message in history) or len(history) < 2:
            return False
        before = self._ids(history[:-1], prompt=True, tools=tools)
        return self._ids([*history, *messages], prompt=False, tools=tools)[: len(before)] == before

    def _usual_reply(self) -> tuple[tuple[int, ...], int]:
        """A reply without its last id, and that id, which ends it."""
        for message in _REPLIES:
            said = self._said([_QUESTION, message])
            if said:
                return said[:-1], said[-1]
        text = self.vocabulary.text_ids("This.")
        (close, *_) = self._bridge(text, [_RESULT]) or (None,)
        if close is None or close not in self.stop_ids:
            raise RendererError("the library does not say which token ends a reply")
        return text, close

    def _said(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """What is written of the second message behind the opening of a reply, up to a stop id; nothing where the
        opening is not the library's own there, or no stop id ends it."""
        found = self._call("render", self._chat(messages))
        ids = tuple(found.token_ids)
        ends = [
            place
            for place, (token, owner) in enumerate(zip(ids, found.message_indices, strict=True), start=1)
            if token in self.stop_ids and owner == 1
        ]
        if not ends:
            return ()
        behind = self._behind_opening(ids[: ends[-1]])
        return behind if behind and not self.stop_ids & set(behind[:-1]) else ()

    def _behind_opening(self, ids: tuple[int, ...]) -> tuple[int, ...] | None:
        """What follows the ids that open a reply; None where they do not stand there. A piece that holds the end of
        the opening and more is cut there: the policy is given its first part."""
        length = num_common(self._opened, ids)
        if length == len(self._opened):
            return ids[length:]
        rest, piece = (self.decode(found) for found in (self._opened[length:], ids[length : length + 1]))
        controls = {*self.vocabulary.controls.values()}
        if controls & {*self._opened[length:], *ids[length : length + 1]} or not piece.startswith(rest):
            return None
        return (*self.vocabulary.text_ids(piece.removeprefix(rest)), *ids[length + 1 :])

    def _check_said(self, message: Message, ids: tuple[int, ...]) -> None:
        """Refuse ids that are not read as what the message says."""
        calls = [self._spelt_call(call) for call in message.tool_calls]
        found = self.parse(ids, _specs_of(calls))
        for call, read in zip_longest(calls, found.tool_calls):
            if call is None or read is None or read.problem or _told(call) != _told(read):
                raise RendererError(
                    f"the library writes the call {_shown(call)} so that it is read as {_shown(read)}; use another "
                    "family, or other arguments"
                )
        texts = {"text": (message.content, found.content), "thoughts": (message.reasoning, found.reasoning)}
        for what, (said, heard) in texts.items():
            if self._spelt((said or "").strip()) != (heard or "").strip():
                raise RendererError(
                    f"the library writes {said!r:.60} so that it is read as the {what} {heard!r:.60}; use another "
                    f"family, or change the {what}"
                )

    def _spelt_call(self, call: ToolCall) -> ToolCall:
        name, arguments = json.loads(self._spelt(json.dumps([call.name, call.arguments], ensure_ascii=False)))
        return ToolCall(name=name, arguments=arguments)

    def _spelt(self, text: str) -> str:
        """A text as the tokenizer gives it back."""
        return self.decode(self.vocabulary.ids_of_parted(self.vocabulary.part(text)))

    def _ids(self, messages: Sequence[Message], *, prompt: bool, tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        found = self._call("render_ids", self._chat(messages), tools=self._specs(tools), add_generation_prompt=prompt)
        return tuple(found)

    def _chat(self, messages: Sequence[Message]) -> Any:
        return chat_of(messages, self.vocabulary)

    def _specs(self, tools: Sequence[ToolSpec]) -> Any:
        return self.vocabulary.part([tool_to_chat(tool) for tool in tools]) or None

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._library, method)(*arguments, **options)
        except Exception as error:  # each family raises errors of its own
            raise RendererError(f"the library refuses this conversation: {error}") from error


def _check_new(messages: Sequence[Message]) -> None:
    """Refuse what cannot be put behind a reply."""
    if not messages:
        raise RendererError("extend() needs at least one message to append")
    if any(message.role == "assistant" for message in messages):
        raise RendererError("the assistant's messages are sampled; extend() appends those of tools, users and system")


def _anew(messages: Sequence[Message]) -> str:
    roles = ", ".join(message.role for message in messages)
    return f"the library writes earlier turns anew when {roles} follow a reply"


def _told(call: ToolCall) -> str:
    return json.dumps([call.name, call.arguments], sort_keys=True)


def _shown(call: ToolCall | None) -> str:
    return "none" if call is None else f"{call.problem or call.name + ' ' + json.dumps(call.arguments):.200}"


def _specs_of(calls: Sequence[ToolCall]) -> list[ToolSpec]:
    """Tools that take the arguments of the calls, from which a reader learns their types."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for call in calls:
        properties = found.setdefault(call.name, {})
        for key, value in call.arguments.items():
            kind = {} if value is None else {"type": _TYPES.get(type(value), "object")}
            properties[key] = kind if properties.get(key, kind) == kind else {}
    return [
        ToolSpec(name=name, description="", parameters={"type": "object", "properties": properties})
        for name, properties in found.items()
    ]


def _read_call(found: Any, specs: Mapping[str, ToolSpec]) -> ToolCall:
    """A call as the library read it, in our terms."""
    name, status = found.name or "", str(found.status)
    if status != "ok":
        return malformed(_STATUSES.get(status, Status.NOT_A_CALL), f"the call cannot be read: {found.raw[:60]!r}", name)
    arguments = found.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            return malformed(Status.INVALID_JSON, f"the arguments are not JSON ({error})", name)
    if not isinstance(arguments, dict):
        return malformed(Status.NOT_A_CALL, f"the arguments must be an object, not {arguments!r}", name)
    return checked(ToolCall(name=name, arguments=arguments, id=found.id), specs)
