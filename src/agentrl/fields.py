"""What a configuration field allows: dotted keys, nearest names, text read by the type of its field."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentrl.errors import ConfigError

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*(_[0-9]+)*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


def fields_of(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Every field that holds a value, by dotted key, in the order of definition."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        section = _section(field)
        found |= {prefix + name: field} if section is None else fields_of(section, f"{prefix}{name}.")
    return found


def lookup(model: type[BaseModel], key: str, text: str) -> FieldInfo:
    """The field of a dotted key.

    Raises:
        ConfigError: no such key (with the nearest one), a table where a value is set, or a key below a value.
    """
    known = fields_of(model)
    if key in known and not _is_table(known[key]):
        return known[key]
    table, _, name = key.rpartition(".")
    if table in known and _is_table(known[table]) and name:
        return FieldInfo(annotation=_of_table(known[table]))
    below = [name for name in known if name.startswith(f"{key}.")]
    if key in known:
        raise ConfigError(f"{key} is a table and cannot be set to {text!r}; set its values one by one: {key}.NAME")
    if below:
        raise ConfigError(f"{key} is a table and cannot be set to {text!r}; set one of {', '.join(below)}")
    raise ConfigError(f"unknown key {key} (set to {text!r}); {nearest(key, known)}all keys: --print-config")


def nearest(wrong: str, known: Iterable[str]) -> str:
    """``did you mean right? `` when a known name is near (spelling, case and dashes forgiven), else nothing."""
    plain = {name.lower(): name for name in known}
    spelled = wrong.lower().lstrip("+-")
    close = difflib.get_close_matches(spelled, plain, n=1, cutoff=0.6)
    by_last = [name for name in plain if name.split(".")[-1] == spelled.split(".")[-1].replace("-", "_")]
    choice = close or by_last[:1]
    return f"did you mean {plain[choice[0]]}? " if choice else ""


def allowed(field: FieldInfo) -> str:
    """What a field takes, in words: ``an integer >= 1``, ``one of tiny, small, repo``."""
    kind, optional = _kind(field.annotation)
    words = _words(kind) + "".join(_bounds(field))
    return words + (" (or none)" if optional else "")


def parse_text(key: str, text: str, field: FieldInfo) -> Any:
    """Read text by the type of its field: an id of digits stays text, 1e-6 is a number, none only where allowed.

    Raises:
        ConfigError: naming the key, the text and what is allowed.
    """
    kind, optional = _kind(field.annotation)
    if optional and text.lower() == "none":
        return None
    value = _parse(kind, text)
    if value is None:
        raise ConfigError(f"{key} = {text!r} is not allowed; it must be {allowed(field)}")
    return value


def _parse(kind: Any, text: str) -> Any:
    if typing.get_origin(kind) is tuple:
        items = [_parse(typing.get_args(kind)[0], part) for part in text.split(",")] if text else []
        return None if any(item is None for item in items) else items
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    if kind is int:
        return int(text) if _INTEGER.fullmatch(text) else None
    if kind is float:
        return float(text) if _NUMBER.fullmatch(text) else None
    return text


def _kind(annotation: Any) -> tuple[Any, bool]:
    """The type of a value without its ``| None``, and whether it had one."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        assert len(kinds) == 1, f"a field is one type or that type and None, not {annotation}"
        return kinds[0], True
    return annotation, False


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return f"a list of {_words(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is dict:
        return "a table of " + {float: "finite numbers", str: "texts"}[typing.get_args(kind)[1]]
    return {bool: "true or false", int: "an integer", float: "a finite number", str: "text"}[kind]


def _bounds(field: FieldInfo) -> Iterable[str]:
    found = []
    for item in field.metadata:
        found += [f" {sign} {getattr(item, name)}" for name, sign in _BOUNDS if getattr(item, name, None) is not None]
        if getattr(item, "min_length", None):
            found.append(f" of at least {item.min_length} character(s)")
        if getattr(item, "pattern", None):
            found.append(f" that matches {item.pattern}")
    return " and".join(found)


def _is_table(field: FieldInfo) -> bool:
    """Whether the field holds values of one type under names that are not known here."""
    return typing.get_origin(field.annotation) is dict


def _of_table(field: FieldInfo) -> Any:
    """The type of a table's values."""
    return typing.get_args(field.annotation)[1]


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
