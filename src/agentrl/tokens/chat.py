"""Conversations in the form that servers and data sets of Hugging Face use: a list of mappings.

    [{"role": "user", "content": "go"},
     {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "run", "arguments": "{\\"cmd\\": \\"ls\\"}"}}]},
     {"role": "tool", "tool_call_id": "c1", "content": "a.py"}]

Clients write the same thing in several ways (arguments as JSON or as a text of JSON, no content or null, thoughts in a
key of their own or in the text). All of them become one `Message`; what has no place in one is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, get_args

from agentrl.errors import RendererError
from agentrl.tokens.toolcalls import CLOSE, OPEN, THINK, THOUGHT, split_reasoning
from agentrl.types import Message, Role, ToolCall, ToolSpec

if TYPE_CHECKING:  # real vocabularies need a package that conversations do not
    from agentrl.tokens.vocabulary import Vocabulary

_ROLES: tuple[Role, ...] = get_args(Role)
_MARKS = (THINK, THOUGHT, OPEN, CLOSE, "<tool_response>", "</tool_response>")
"""What a policy may write with control tokens in a reply that cannot be read."""
_READ = {"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name"}


def messages_from_chat(chat: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Messages in the order in which a model reads them: the results of a reply's calls stand in the calls' order.

    Raises:
        RendererError: naming the message and what is wrong with it: another role, a part that is no text, arguments
            that are no JSON object, a key that says something which a message cannot hold, results that do not match
            the calls.
    """
    messages = [_message(raw, f"message {index}") for index, raw in enumerate(chat)]
    ordered = _in_order_of_calls(messages)
    check_results(ordered)
    return ordered


def message_to_chat(message: Message) -> dict[str, Any]:
    """A message as the chat templates of `transformers` take it. Thoughts are a key of their own.

    A malformed reply is its text alone, in which its calls stand as they were written.
    """
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        chat["reasoning_content"] = message.reasoning or ""
    if message.tool_calls and not _is_malformed(message):
        chat["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            | ({} if call.id is None else {"id": call.id})
            for call in message.tool_calls
        ]
    return chat if message.tool_call_id is None else chat | {"tool_call_id": message.tool_call_id}


def chat_of(messages: Sequence[Message], vocabulary: Vocabulary) -> list[Any]:
    """A conversation for programs that write it into one string: what spells a control token in it is parted, so that
    it stays text. A malformed reply is written as the policy wrote it, with the marks of thoughts and calls."""
    return [
        vocabulary.part(message_to_chat(message), keep=_MARKS if _is_malformed(message) else ()) for message in messages
    ]


def tool_to_chat(tool: ToolSpec) -> dict[str, Any]:
    """A tool in the form that chat templates and servers take."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def check_results(messages: Sequence[Message]) -> None:
    """Refuse results that the model would take for those of another call: templates write no ids, only an order.

    Raises:
        RendererError: a result names a call that was not made, or stands in another place than its call.
    """
    pending: list[str | None] = []
    for index, message in enumerate(messages):
        if message.role != "tool":
            pending = [call.id for call in message.tool_calls]
            continue
        expected = pending.pop(0) if pending else None
        if message.tool_call_id is not None and message.tool_call_id != expected:
            due = f"that of {expected!r} is due" if expected else "no call waits for one"
            raise RendererError(
                f"message {index} is the result of call {message.tool_call_id!r}, where {due}; give each call one "
                "result, in the order of the calls"
            )


def _is_malformed(message: Message) -> bool:
    return any(call.problem for call in message.tool_calls)


def _message(raw: Mapping[str, Any], where: str) -> Message:
    role = _role(raw.get("role"), where)
    surplus = [key for key, value in raw.items() if key not in _READ and value]
    if surplus:
        raise RendererError(f"{where}: a message has no place for {surplus[0]!r}; remove it or write it as content")
    content = _text(raw.get("content"), where)
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    if role == "assistant" and not reasoning:
        reasoning, content = _thoughts(content, reasoning)
    calls = tuple(_call(call, where) for call in raw.get("tool_calls") or ())
    if role != "assistant" and (calls or reasoning):
        raise RendererError(f"{where}: only the assistant has thoughts and calls, not {role!r}")
    return Message(
        role=role, content=content, reasoning=reasoning, tool_calls=calls, tool_call_id=raw.get("tool_call_id")
    )


def _role(value: Any, where: str) -> Role:
    for role in _ROLES:
        if value == role:
            return role
    raise RendererError(f"{where}: the role is {value!r}; use one of {', '.join(_ROLES)}")


def _thoughts(content: str, reasoning: str | None) -> tuple[str | None, str]:
    """Thoughts that stand in the text, which must be whole: a text that only mentions a marker stays as it is."""
    found, rest, closed = split_reasoning(content)
    return (found, rest) if found is not None and closed else (reasoning, content)


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Iterable) or isinstance(content, Mapping):
        raise RendererError(f"{where}: the content must be a text or a list of text parts, not {content!r}")
    return "".join(_part(part, where) for part in content)


def _part(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise RendererError(f"{where}: a part of the content is {kind!r}; only parts of type 'text' can be written")
    return text


def _call(raw: Mapping[str, Any], where: str) -> ToolCall:
    function = raw.get("function") or raw
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RendererError(f"{where}: a tool call has no name: {raw!r}")
    return ToolCall(
        name=name, arguments=_arguments(function.get("arguments"), f"{where}, call {name!r}"), id=raw.get("id")
    )


def _arguments(raw: Any, where: str) -> Mapping[str, Any]:
    """None and an empty text are no arguments."""
    if isinstance(raw, str) and raw.strip():
        try:
            raw = json.loads(raw)
        except ValueError as error:
            raise RendererError(f"{where}: the arguments are no JSON ({error}): {raw!r}") from error
    if raw is None or raw == "" or (isinstance(raw, str) and not raw.strip()):
        return {}
    if not isinstance(raw, Mapping):
        raise RendererError(f"{where}: the arguments must be a JSON object, not {raw!r}")
    return raw


def _place_among(call_ids: Sequence[str | None]) -> Callable[[Message], int]:
    """Sorts results as the calls stand; results without an id, or of no call, stay behind each other at the end."""
    places = {call_id: place for place, call_id in enumerate(call_ids) if call_id is not None}
    return lambda result: places.get(result.tool_call_id or "", len(places))


def _in_order_of_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    ordered: list[Message] = []
    for is_result, run in groupby(messages, key=lambda message: message.role == "tool"):
        found = list(run)
        if is_result and ordered:
            found.sort(key=_place_among([call.id for call in ordered[-1].tool_calls]))
        ordered += found
    return tuple(ordered)
