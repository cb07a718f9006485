"""A line of a data set as a conversation to imitate, in each of the usual forms.

    {"messages": [{"role": "user", ...}, {"role": "assistant", ...}], "tools": [...]}
    {"prompt": [messages], "completion": [messages]}          the replies of the prompt are context
    {"prompt": "2 + 2 =", "completion": " 4"}                 two texts, for a model without a chat format
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}

A message of the assistant is left out of the training by ``"weight": 0`` or ``"train": false`` (or ``"loss": false``):
it is context then. ``tools`` may be a text of JSON. Other fields of a line are not looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.errors import ConfigError, RendererError
from agentrl.tokens.chat import messages_from_chat
from agentrl.tokens.toolcalls import OPEN, Status, read_calls, status_of
from agentrl.types import Message, ToolCall, ToolSpec

_FORMS = (
    '{"messages": [...]}, {"prompt": ..., "completion": ...} or {"conversations": [{"from": ..., "value": ...}]}, with '
    '"tools" beside them where there are any'
)
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
"""Who speaks in ShareGPT's form. A ``function_call`` is a reply that makes one."""
_SWITCHES = ("weight", "train", "loss")
_CALL_KEYS, _FUNCTION_KEYS = {"id", "type", "index", "function"}, {"name", "arguments"}
_TOOL_KEYS = {"name", "description", "parameters"}


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages, the tools that they may call, and which replies of the assistant are trained, in their order.

    ``name`` says where it stands.
    """

    name: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    trained: tuple[bool, ...]

    @property
    def opening(self) -> str:
        """A digest of what is given before the first reply. Conversations that share it are about the same."""
        roles = [message.role for message in self.messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        return _digest((self.tools, self.messages[:first]))


@dataclass(frozen=True, kw_only=True)
class TextPair:
    """A text, and the text that is to follow it."""

    name: str
    prompt: str
    completion: str

    @property
    def opening(self) -> str:
        """A digest of the prompt."""
        return _digest(self.prompt)


def read_conversation(row: Any, name: str) -> Conversation | TextPair:
    """A line as a conversation.

    Args:
        row: what stands in the line.
        name: where it stands, such as ``chat.jsonl, line 3``; begins every message of an error.

    Raises:
        ConfigError: it is none, naming the field and what to write there.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(f"{name}: a line is an object, not {_short(row)}; write one of {_FORMS}")
    if row.get("messages") is not None:
        return _conversation(row, _listed(row["messages"], name, "messages"), name)
    if row.get("conversations") is not None:
        turns = _listed(row["conversations"], name, "conversations")
        chat = [_turn(turn, f"{name}, conversations[{index}]") for index, turn in enumerate(turns)]
        system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        return _conversation(row, [*system, *chat], name)
    if row.get("prompt") is not None and row.get("completion") is not None:
        return _prompt_and_completion(row, name)
    lacks = "a prompt without a completion" if row.get("prompt") is not None else f"only {', '.join(row) or 'nothing'}"
    raise ConfigError(f"{name}: no conversation, but {lacks}; write one of {_FORMS}")


def tool_from_chat(raw: Any, name: str) -> ToolSpec:
    """A tool in the form of servers: ``{"type": "function", "function": {...}}``, or what stands in ``function``.

    Raises:
        ConfigError: it has no name or text, parameters that are no JSON schema of an object, or a field that a tool
            has not.
    """
    spec = raw.get("function", raw) if isinstance(raw, Mapping) else raw
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ConfigError(
            f'{name}: a tool is {{"name": ..., "description": ..., "parameters": ...}}, not {_short(raw)}'
        )
    outside = {key for key in raw if key not in ("type", "function")} if spec is not raw else set()
    surplus = sorted(outside | {key for key in spec if key not in (*_TOOL_KEYS, "type")})
    if surplus:
        raise ConfigError(f"{name}: a tool has no field {surplus[0]!r}, which the model would not see; remove it")
    parameters = spec.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{name}.parameters: write a JSON schema of type object, not {_short(parameters)}")
    return ToolSpec(name=spec["name"], description=str(spec.get("description") or ""), parameters=parameters)


def _prompt_and_completion(row: Mapping[str, Any], name: str) -> Conversation | TextPair:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        for field, text in (("prompt", prompt), ("completion", completion)):
            if not text:
                raise ConfigError(f"{name}, {field}: the text is empty; write one, or remove the line")
        return TextPair(name=name, prompt=prompt, completion=completion)
    if isinstance(prompt, str) or isinstance(completion, str):
        raise ConfigError(f"{name}: prompt and completion are both texts or both lists of messages; write one kind")
    given, wanted = (_listed(row[field], name, field) for field in ("prompt", "completion"))
    told = [
        {key: value for key, value in message.items() if key not in _SWITCHES} | {"weight": 0}
        if isinstance(message, Mapping) and message.get("role") == "assistant"
        else message
        for message in given
    ]
    return _conversation(row, [*told, *wanted], name)


def _conversation(row: Mapping[str, Any], chat: Sequence[Any], name: str) -> Conversation:
    tools = _tools(row.get("tools"), name)
    plain = [_plain_message(raw, f"{name}, messages[{index}]") for index, raw in enumerate(chat)]
    try:
        messages = messages_from_chat(plain)
    except RendererError as error:
        raise ConfigError(f"{name}: {error}") from error
    messages = tuple(
        _with_calls(message, tools, f"{name}, messages[{index}]") for index, message in enumerate(messages)
    )
    _check_results(messages, name)
    switches = (_is_trained(raw, f"{name}, messages[{index}]") for index, raw in enumerate(chat))
    trained = tuple(switch for switch in switches if switch is not None)
    found = Conversation(name=name, messages=messages, tools=tools, trained=trained)
    _check_replies(found)
    return found


def _listed(value: Any, name: str, field: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name}, {field}: write a list of messages, not {_short(value)}")
    if not value:
        raise ConfigError(f"{name}, {field}: the list is empty; a conversation is a question and its reply")
    return value


def _turn(turn: Any, name: str) -> dict[str, Any]:
    """A turn of ShareGPT's form as a message."""
    if not isinstance(turn, Mapping) or "from" not in turn:
        raise ConfigError(f'{name}: a turn is {{"from": ..., "value": ...}}, not {_short(turn)}')
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if turn["from"] == "function_call":
        return {**rest, "role": "assistant", "content": "", "tool_calls": _calls_of_text(turn.get("value"), name)}
    if turn["from"] not in _ROLES:
        known = ", ".join((*_ROLES, "function_call"))
        raise ConfigError(f"{name}: it is from {turn['from']!r}; use one of {known}")
    return {**rest, "role": _ROLES[turn["from"]], "content": turn.get("value")}


def _calls_of_text(value: Any, name: str) -> list[Any]:
    found = _json(value, f"{name}, value") if isinstance(value, str) else value
    return found if isinstance(found, list) else [found]


def _tools(value: Any, name: str) -> tuple[ToolSpec, ...]:
    if isinstance(value, str):
        value = _json(value, f"{name}, tools") if value.strip() else None
    if not value:
        return ()
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name}, tools: write a list of tools, not {_short(value)}")
    tools = tuple(tool_from_chat(tool, f"{name}, tools[{index}]") for index, tool in enumerate(value))
    names = [tool.name for tool in tools]
    twice = [tool for tool in names if names.count(tool) > 1]
    if twice:
        raise ConfigError(f"{name}, tools: there are two tools {twice[0]!r}; give each a name of its own")
    return tools


def _plain_message(raw: Any, name: str) -> Mapping[str, Any]:
    """The message without the switches of training. What nobody would read is refused."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f'{name}: a message is {{"role": ..., "content": ...}}, not {_short(raw)}')
    calls = raw.get("tool_calls") or []
    if not isinstance(calls, list | tuple):
        raise ConfigError(f"{name}.tool_calls: write a list of calls, not {_short(calls)}")
    for index, call in enumerate(calls):
        _check_call(call, f"{name}.tool_calls[{index}]")
    return {key: value for key, value in raw.items() if key not in _SWITCHES}


def _check_call(call: Any, name: str) -> None:
    form = '{"type": "function", "function": {"name": ..., "arguments": {...}}}'
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise ConfigError(f"{name}: a call is {form}, not {_short(call)}")
    allowed = _CALL_KEYS | (_FUNCTION_KEYS if function is call else set())
    surplus = [key for key in call if key not in allowed]
    surplus += [] if function is call else [f"function.{key}" for key in function if key not in _FUNCTION_KEYS]
    if surplus:
        raise ConfigError(f"{name}: a call has no field {surplus[0]!r}, which would be lost; write {form}")


def _is_trained(raw: Mapping[str, Any], name: str) -> bool | None:
    """Whether a reply is trained; None for a message that is no reply."""
    told = {key: raw[key] for key in _SWITCHES if raw.get(key) is not None}
    for key, value in told.items():
        if value not in (0, 1):
            raise ConfigError(f"{name}.{key} is {value!r}; write 1 (or true) to train the reply, or 0 (or false)")
    if raw.get("role") != "assistant":
        wanted = [key for key, value in told.items() if value]
        if wanted:
            raise ConfigError(f"{name}.{wanted[0]}: only replies of the assistant are trained; remove it")
        return None
    return all(told.values())


def _with_calls(message: Message, tools: Sequence[ToolSpec], name: str) -> Message:
    """The message with the calls that stand in its text taken out of it, so that they are written with the markers
    that the model knows and not as a text that looks like them."""
    if message.role != "assistant" or message.tool_calls or OPEN not in message.content:
        return message
    content, calls = read_calls(message.content, {tool.name: tool for tool in tools})
    bad = [call for call in calls if status_of(call) not in (Status.OK, Status.UNKNOWN_TOOL, Status.WRONG_ARGUMENTS)]
    if bad:
        raise ConfigError(f"{name}.content has {OPEN} and no call that can be read ({bad[0].problem}); use tool_calls")
    return replace(
        message, content=content, tool_calls=tuple(ToolCall(name=c.name, arguments=c.arguments) for c in calls)
    )


def _check_results(messages: Sequence[Message], name: str) -> None:
    pending = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            pending -= 1
        else:
            pending = len(message.tool_calls)
        if pending < 0:
            raise ConfigError(
                f"{name}, messages[{index}]: the result of a tool without a call before it; add tool_calls to the "
                "reply, or write the text as one of the user"
            )


def _check_replies(found: Conversation) -> None:
    """Something must be trained; what is trained says something, and calls only the tools that there are."""
    if not any(found.trained):
        what = "every reply has weight 0" if found.trained else "there is no reply of the assistant"
        raise ConfigError(f"{found.name}: nothing to train, since {what}; add one, or remove the line")
    known = [tool.name for tool in found.tools]
    replies = [message for message in found.messages if message.role == "assistant"]
    for message, trained in zip(replies, found.trained, strict=True):
        if trained and not (message.content or message.reasoning or message.tool_calls):
            raise ConfigError(
                f"{found.name}: a reply of the assistant has neither content nor tool_calls, and would teach the model "
                'to say nothing; write one, remove the line, or give the reply "weight": 0'
            )
        unknown = [call.name for call in message.tool_calls if trained and known and call.name not in known]
        if unknown:
            raise ConfigError(
                f"{found.name}: a reply calls {unknown[0]!r}, and the tools are {', '.join(known)}; add it to "
                'tools, or give the reply "weight": 0'
            )


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}: the text is no JSON ({error}): {_short(text)}") from error


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
