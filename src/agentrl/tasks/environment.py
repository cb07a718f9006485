"""The smallest way to make an environment: a class whose typed, documented methods are the tools."""

from __future__ import annotations

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from agentrl.errors import TaskError
from agentrl.tokens.toolcalls import checked
from agentrl.types import Observation, Score, Task, ToolCall, ToolSpec, Trace

F = TypeVar("F", bound=Callable[..., Any])
_JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


def tool(method: F) -> F:
    """Mark a method of an environment as a tool; its type hints and docstring become the schema.

    The method may be a coroutine function. It returns what is observed: a text, an Observation, or what JSON can hold,
    which is then shown as JSON. None is an empty text, and bytes are decoded, with a note where they are no text.
    """
    method.__is_tool__ = True  # type: ignore[attr-defined]
    return method


class ToolEnvironment:
    """Base class of an environment: mark methods with ``@tool``, write ``score``, and that is all.

    Bad calls of the policy (unknown tool, missing, surplus or mistyped argument) come back as observations that
    say how to mend the call; they never raise. An exception inside a tool is the environment's fault. A tool that is no
    coroutine function must be quick, or be marked with `agentrl.tasks.blocking.blocking`: nothing else runs meanwhile,
    and no deadline can end it.
    """

    parallel_tools: ClassVar[frozenset[str]] = frozenset()
    """Tools whose calls do not depend on each other: those of one reply may run at the same time."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @classmethod
    @functools.cache
    def tool_specs(cls) -> tuple[ToolSpec, ...]:
        """The schemas of the class's tools, in the order of definition."""
        found: dict[str, Callable[..., Any]] = {}
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                if getattr(member, "__is_tool__", False):
                    found[name] = getattr(cls, name)
        return tuple(_spec(name, method) for name, method in found.items())

    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the policy may call in this attempt."""
        return self.tool_specs()

    async def call(self, call: ToolCall) -> Observation:
        """Carry out one call."""
        problem = call.problem or checked(call, {spec.name: spec for spec in self.tools()}).problem
        if problem is not None:
            return Observation(content=f"error: {problem}", error=True)
        result = getattr(self, call.name)(**call.arguments)
        if inspect.isawaitable(result):
            result = await result
        return _observed(call.name, result)

    def state(self) -> str | None:
        """A name of the state in which the policy acts next, by which turns of several attempts are compared (GiGPO).

        It should hold all that the next action should depend on and nothing else. None, as here, when it has no name.
        """
        return None

    async def score(self, trace: Trace) -> Sequence[Score]:  # noqa: ARG002
        """Judge the finished attempt; every environment writes its own."""
        raise TaskError(f"{type(self).__name__} has no score(); add `async def score(self, trace)` returning Scores")

    async def close(self) -> None:
        """Release what the attempt held."""


def _observed(name: str, result: Any) -> Observation:
    """What a tool gave back, as the policy sees it."""
    if isinstance(result, Observation):
        return result
    if isinstance(result, str):
        return Observation(content=result)
    if result is None:
        return Observation(content="")
    if isinstance(result, bytes | bytearray):
        return Observation(content=_text_of(bytes(result)))
    try:
        return Observation(content=json.dumps(result, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        kind = type(result).__name__
        return Observation(content=f"error: {name} returned a {kind} that cannot be shown ({error})", error=True)


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace") + "\n[not all bytes were text]"


def _spec(name: str, method: Callable[..., Any]) -> ToolSpec:
    doc = inspect.getdoc(method)
    if not doc:
        raise TaskError(f"tool {name!r} has no docstring; the model reads it to learn what the tool does")
    hints = typing.get_type_hints(method)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name not in hints:
            hint = f"write e.g. `{parameter.name}: str`"
            raise TaskError(f"tool {name!r}: argument {parameter.name!r} has no type hint; {hint}")
        properties[parameter.name] = _schema(name, parameter.name, hints[parameter.name])
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        else:
            properties[parameter.name]["default"] = parameter.default
    schema = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(name=name, description=doc, parameters=schema)


def _schema(tool_name: str, argument: str, hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    of = functools.partial(_schema, tool_name, argument)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return {"type": "null"}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (typing.Union, types.UnionType):
        return _any_of([of(one) for one in inner])
    kind = _JSON_TYPES.get(origin or hint)
    if kind is None:
        allowed = "str, int, float, bool, list or dict"
        raise TaskError(f"tool {tool_name!r}: argument {argument!r} is a {hint!r}; tools take {allowed}")
    if kind == "array" and inner:
        return {"type": kind, "items": of(inner[0])}
    if kind == "object" and inner:
        return {"type": kind, "additionalProperties": of(inner[1])}
    return {"type": kind}


def _any_of(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One of several schemas; several plain types are one list of types."""
    if all(list(schema) == ["type"] for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": list(schemas)}
