"""Arguments against a JSON schema, for tool calls: the part of JSON Schema that describes the inputs of tools.

Read are ``type`` (one or several), ``enum``, ``const``, ``properties``, ``required``, ``additionalProperties``,
``items`` and ``anyOf``. Other keywords (formats, ranges) are left to the tool. An argument that the schema does not
name is wrong unless ``additionalProperties`` allows it: no tool could take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def wrong_argument(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """The first argument that does not fit, in words that help to mend it; None when all do.

    Args:
        arguments: by name.
        schema: of type object.
    """
    return _wrong_object(arguments, schema, "")


def _wrong(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    if "anyOf" in schema:
        found = [_wrong(value, choice, where) for choice in schema["anyOf"]]
        if all(found):
            return (
                found[0]
                if len(found) == 1
                else f"{where} fits none of its {len(found)} forms: {'; '.join(map(str, found))}"
            )
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None and not any(_same(value, choice) for choice in choices):
        return f"{where} must be one of {', '.join(map(repr, choices))}, not {_short(value)}"
    kinds = _kinds(schema)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{where} must be {' or '.join(map(_with_article, kinds))}, not {_short(value)}"
    if isinstance(value, Mapping) and ("properties" in schema or "additionalProperties" in schema):
        return _wrong_object(value, schema, where)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return next(
            filter(None, (_wrong(item, schema["items"], f"{where}[{i}]") for i, item in enumerate(value))), None
        )
    return None


def _wrong_object(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> str | None:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", False)
    for name in schema.get("required", ()):
        if name not in value:
            return f"the argument {_path(where, name)} is missing{_described(properties.get(name, {}))}"
    for name, item in value.items():
        if name not in properties and others is False:
            return f"there is no argument {_path(where, name)}; {where or 'it'} takes {', '.join(properties) or 'none'}"
        rule = properties.get(name, others)
        found = _wrong(item, rule, _path(where, name)) if isinstance(rule, Mapping) else None
        if found is not None:
            return found
    return None


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _described(schema: Mapping[str, Any]) -> str:
    kinds = _kinds(schema)
    return f" ({' or '.join(map(_with_article, kinds))})" if kinds else ""


def _kinds(schema: Mapping[str, Any]) -> Sequence[str]:
    kind = schema.get("type", ())
    return (kind,) if isinstance(kind, str) else tuple(kind)


def _is(value: Any, kind: str) -> bool:
    """JSON's types. An integer may be written as 3.0 in JSON, but a tool that takes an int would not get one."""
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
    types: dict[str, type] = {"string": str, "boolean": bool, "array": list, "object": Mapping, "null": type(None)}
    return isinstance(value, types.get(kind, object))


def _same(value: Any, other: Any) -> bool:
    """Equality of JSON, where true is not 1."""
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


def _with_article(noun: str) -> str:
    if noun == "null":
        return noun
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
