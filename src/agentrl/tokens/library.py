"""The package `renderers` behind our protocol: hand-written renderers and parsers for over twenty model families.

    renderer = LibraryRenderer(Vocabulary.load("some-model"), "glm-4.5")

It keeps what was sampled as our own renderers do. Text is kept text here too: the library is given a tokenizer in which
the spelling of a control token within a message is an ordinary text. Where it parses calls in another format, our
statuses and our check of arguments stand on top, so that training and evaluation tell the model the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentrl.errors import RendererError
from agentrl.tokens.chat import check_results, message_to_chat, tool_to_chat
from agentrl.tokens.toolcalls import Status, checked, malformed
from agentrl.tokens.vocabulary import Vocabulary, num_common
from agentrl.types import Message, ToolCall, ToolSpec

_QUESTION, _RESULT = Message(role="user", content="Which?"), Message(role="tool", content="This.")
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
        version, self._library = _create(vocabulary, family, options or {})
        self.name = f"renderers-{version}({family}, {sorted((options or {}).items())})"
        self.stop_ids = frozenset(self._library.get_stop_token_ids())
        shorter, longer = (self._ids([_QUESTION], prompt=prompt) for prompt in (False, True))
        self._prompt = longer[len(shorter) :]
        self._close = self._bridged([_RESULT], ())[0]

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
        if not messages:
            raise RendererError("extend() needs at least one message to append")
        whole = self._bridged(messages, (self._close,))
        ends = [self._end(messages[:count], whole) for count in range(1, len(messages))]
        first, *others = (whole[a:b] for a, b in pairwise(accumulate([0, *ends, len(whole)], max)))
        closed = len(sampled_ids) > 0 and sampled_ids[-1] == self._close
        return ((() if closed else (self._close,)) + first, *others)

    def generation_prompt(self) -> tuple[int, ...]:
        """The ids that open the policy's turn."""
        return self._prompt

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

    def _bridged(self, messages: Sequence[Message], closing: tuple[int, ...]) -> tuple[int, ...]:
        """What stands between a reply (of one piece) and the opening of the next one."""
        before, said = list(self._ids([_QUESTION], prompt=True)), [*self.vocabulary.text_ids("x"), *closing]
        found = self._call("bridge_to_next_turn", before, said, self._chat(messages))
        if found is None:
            roles = ", ".join(message.role for message in messages)
            raise RendererError(
                f"the library writes earlier turns anew when {roles} follow a reply; start a new branch"
            )
        return tuple(found.token_ids[len(before) + len(said) : len(found.token_ids) - len(self._prompt)])

    def _end(self, messages: Sequence[Message], whole: tuple[int, ...]) -> int:
        """How many ids of the whole are those of its first messages."""
        return num_common(self._bridged(messages, (self._close,)), whole)

    def _ids(self, messages: Sequence[Message], *, prompt: bool) -> tuple[int, ...]:
        return tuple(self._call("render_ids", self._chat(messages), add_generation_prompt=prompt))

    def _chat(self, messages: Sequence[Message]) -> Any:
        return self.vocabulary.part([message_to_chat(message) for message in messages])

    def _specs(self, tools: Sequence[ToolSpec]) -> Any:
        return self.vocabulary.part([tool_to_chat(tool) for tool in tools]) or None

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._library, method)(*arguments, **options)
        except Exception as error:  # each family raises errors of its own
            raise RendererError(f"the library refuses this conversation: {error}") from error


class _Tokenizer:
    """Our vocabulary in the form that the library takes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.name_or_path = "vocabulary"
        self.unk_token_id = None
        self.eos_token_id = vocabulary.end_id

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self.vocabulary.ids_of_parted(text))

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        return self.vocabulary.decode(token_ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.vocabulary.controls.get(token)


def _create(vocabulary: Vocabulary, family: str, options: Mapping[str, Any]) -> tuple[str, Any]:
    """The library's version and its renderer."""
    try:  # optional: it brings clients of servers and other tokenizers
        import renderers
        from renderers import configs
    except ImportError as error:
        raise ImportError(f"this needs the package renderers: pip install 'agentrl[renderers]' ({error})") from error
    try:
        config = TypeAdapter(configs.RendererConfig).validate_python({"name": family, **options})
        return renderers.__version__, renderers.create_renderer(_Tokenizer(vocabulary), config)
    except ValidationError as error:
        raise RendererError(f"the library has no renderer {family!r} with {dict(options)}: {error}") from error
    except Exception as error:  # each family raises errors of its own
        raise RendererError(f"the library's renderer {family!r} cannot use this vocabulary: {error}") from error


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
