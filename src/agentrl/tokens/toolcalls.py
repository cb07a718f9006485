"""What a tool call looks like: the one parser for training, evaluation and serving.

Models of the Hermes family write each call as JSON between two markers, after whatever they say and think:

    <think>
    the test fails on line 3
    </think>

    I look at it first.
    <tool_call>
    {"name": "read", "arguments": {"path": "a.py"}}
    </tool_call>

The parser reads text, because a server gives text. It never raises: a call that cannot be carried out has a `Status`,
and its `problem` tells the model how to mend it. What is done about it is the harness's `MalformedPolicy`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from agentrl.errors import ConfigError
from agentrl.tokens.schema import wrong_argument
from agentrl.types import Message, ToolCall, ToolSpec, Trace

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
_FORM = f'{OPEN}{{"name": ..., "arguments": {{...}}}}{CLOSE}'
_KEYS = ("name", "arguments")
MAX_CALLS = 64
"""Calls of one reply that are read. A policy that repeats a marker without end must not cost more than that."""


class Status(StrEnum):
    """How a call came out. All but OK are malformed."""

    OK = "ok"
    INVALID_JSON = "invalid_json"
    NOT_A_CALL = "not_a_call"
    UNCLOSED = "unclosed"
    UNKNOWN_TOOL = "unknown_tool"
    WRONG_ARGUMENTS = "wrong_arguments"
    IN_REASONING = "in_reasoning"
    TEXT_AFTER = "text_after"


@dataclass(frozen=True, kw_only=True)
class MalformedPolicy:
    """What the harness does about a malformed call, in training and evaluation alike.

    Args:
        end: end the attempt with ``Stop.MALFORMED`` instead of answering with the error.
        penalty: taken off the reward for each malformed call, in units of reward.
        spared: statuses that are only answered.

    Raises:
        ConfigError: a penalty that is negative or not finite.
    """

    end: bool = False
    penalty: float = 0.0
    spared: frozenset[Status] = frozenset()

    def __post_init__(self) -> None:
        if not 0.0 <= self.penalty < math.inf:
            raise ConfigError(f"the penalty of a malformed call is {self.penalty!r}; write what it costs, 0 or more")

    def concerns(self, call: ToolCall) -> bool:
        """Whether a call is malformed in a way that is not spared."""
        return status_of(call) not in {Status.OK, *self.spared}


class Reply(NamedTuple):
    """A reply taken apart. ``content`` is the reply as it was written, calls included, when any call is malformed."""

    reasoning: str | None
    content: str
    calls: tuple[ToolCall, ...]

    def message(self) -> Message:
        """The assistant's message."""
        return Message(role="assistant", content=self.content, reasoning=self.reasoning, tool_calls=self.calls)


def read_reply(text: str, tools: Sequence[ToolSpec]) -> Reply:
    """Take a reply apart into thoughts, text and calls.

    Args:
        text: the reply without its stop token.
        tools: what may be called; a call of anything else is an unknown tool.
    """
    reasoning, rest, closed = split_reasoning(text)
    if reasoning is not None and OPEN in reasoning and (not closed or not rest.strip()):
        name = _name_within(reasoning)
        ending = f"close it with {THOUGHT} and write the call after that"
        return Reply(reasoning, rest, (malformed(Status.IN_REASONING, f"a call inside the reasoning; {ending}", name),))
    content, calls = read_calls(rest, {spec.name: spec for spec in tools})
    return Reply(reasoning, rest if any(call.problem for call in calls) else content, calls)


def split_reasoning(text: str) -> tuple[str | None, str, bool]:
    """Thoughts, what follows them, and whether they were closed. A text that does not begin with `<think>` has none.

    The newlines that the template puts around thoughts belong to neither part.
    """
    body = text.lstrip()
    if not body.startswith(THINK):
        return None, text, True
    thoughts, mark, rest = body[len(THINK) :].partition(THOUGHT)
    return thoughts.strip("\n"), rest.lstrip("\n"), bool(mark)


def read_calls(text: str, specs: Mapping[str, ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
    """The text before the first call, and the calls. A closing marker inside of a JSON text closes nothing.

    Behind the 64th, one malformed call stands for all others.
    """
    content, mark, rest = text.partition(OPEN)
    calls: list[ToolCall] = []
    while mark:
        if len(calls) == MAX_CALLS:
            calls.append(malformed(Status.NOT_A_CALL, f"a reply makes at most {MAX_CALLS} calls; wait for results", ""))
            break
        body = _read_body(rest)
        between, mark, following = body.rest.partition(OPEN)
        calls.append(_call(body, between, specs))
        rest = following
    return (content.removesuffix("\n") if calls else content), tuple(calls)


def checked(call: ToolCall, specs: Mapping[str, ToolSpec]) -> ToolCall:
    """A call that could be read, with its problem where no tool takes it so."""
    if call.name not in specs:
        advice = f"there is no tool {call.name!r}; the tools are {', '.join(specs) or 'none'}"
        return malformed(Status.UNKNOWN_TOOL, advice, call.name, call.arguments)
    wrong = wrong_argument(call.arguments, specs[call.name].parameters)
    return (
        call if wrong is None else malformed(Status.WRONG_ARGUMENTS, f"{call.name}: {wrong}", call.name, call.arguments)
    )


def status_of(call: ToolCall) -> Status:
    """How a call came out. A problem that another parser named counts as invalid."""
    if call.problem is None:
        return Status.OK
    word = call.problem.partition(":")[0]
    return Status(word) if word in Status._value2member_map_ else Status.NOT_A_CALL


def count_statuses(trace: Trace) -> Counter[Status]:
    """How many calls of an attempt came out how."""
    return Counter(status_of(call) for node in trace.events for call in node.message.tool_calls)


def write_call(call: ToolCall) -> str:
    """The text of a well-formed call."""
    return f'{OPEN}\n{{"name": "{call.name}", "arguments": {dump(call.arguments)}}}\n{CLOSE}'


def dump(value: Any) -> str:
    """JSON as the templates of `transformers` write it: no escapes of other alphabets, keys in their order."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


class _Body(NamedTuple):
    """What stands behind an opening marker."""

    value: Any
    error: str | None
    closed: bool
    rest: str


def _read_body(text: str) -> _Body:
    """Read one JSON value and the closing marker behind it; where it is no JSON, up to the next closing marker."""
    start = len(text) - len(text.lstrip())
    try:
        value, end = _DECODER.raw_decode(text, start)
        _check_unicode(text[start:end], value)
    except (ValueError, RecursionError) as error:
        _, mark, rest = text.partition(CLOSE)
        if mark and OPEN not in text[: text.index(CLOSE)]:
            return _Body(None, _reason(error), True, rest)
        _, mark, after = text.partition(OPEN)
        return _Body(None, _reason(error), False, mark + after if mark else "")
    rest = text[end:].lstrip()
    if rest.startswith(CLOSE):
        return _Body(value, None, True, rest[len(CLOSE) :])
    if CLOSE in rest.partition(OPEN)[0]:
        surplus, _, rest = rest.partition(CLOSE)
        return _Body(None, f"{_short(surplus.strip())} stands behind the object", True, rest)
    return _Body(value, None, False, rest)


def _call(body: _Body, text_after: str, specs: Mapping[str, ToolSpec]) -> ToolCall:
    name = body.value.get("name") if isinstance(body.value, dict) else None
    name = name if isinstance(name, str) else ""
    if not body.closed:
        return malformed(Status.UNCLOSED, f"the call has no {CLOSE}; write {_FORM}", name)
    if body.error is not None:
        return malformed(Status.INVALID_JSON, f"the call is not JSON ({body.error}); write {_FORM}", name)
    wrong = _wrong_form(body.value)
    if wrong is not None:
        return malformed(Status.NOT_A_CALL, f"{wrong}; write {_FORM}", name)
    call = checked(ToolCall(name=name, arguments=body.value.get("arguments", {})), specs)
    if call.problem is None and text_after.strip():
        advice = f"nothing may follow {CLOSE}, and {_short(text_after.strip())} does; the call was not carried out"
        return malformed(Status.TEXT_AFTER, advice, name, call.arguments)
    return call


def _wrong_form(value: Any) -> str | None:
    """Why a JSON value is no call."""
    if not isinstance(value, dict):
        return f"a call is an object, not {_short(value)}"
    surplus = [key for key in value if key not in _KEYS]
    if surplus:
        return f"a call has no key {surplus[0]!r}"
    if not isinstance(value.get("name"), str):
        return f"the name must be a text, not {_short(value.get('name'))}"
    if not isinstance(value.get("arguments", {}), dict):
        return f"the arguments must be an object, not {_short(value['arguments'])}"
    return None


def malformed(status: Status, advice: str, name: str, arguments: Mapping[str, Any] | None = None) -> ToolCall:
    """A call that cannot be carried out, with what the model is told."""
    return ToolCall(name=name, arguments=arguments or {}, problem=f"{status}: {advice}")


def _name_within(text: str) -> str:
    """The name that the first call of a text seems to have."""
    found = re.search(r'"name"\s*:\s*"([^"\\]*)"', text.partition(OPEN)[2])
    return found[1] if found else ""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, in which no key may stand twice: one of the two values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_once)


def _check_unicode(text: str, value: Any) -> None:
    """Refuse half of a surrogate pair, which JSON can spell (``\\ud800``) and no file or tool can take."""
    if "\\u" in text:
        dump(value).encode("utf-8")


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        return "half of a surrogate pair in a text"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    return str(error)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plain(value: Any) -> Any:
    """Mappings and tuples that a frozen message may hold."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as JSON")
