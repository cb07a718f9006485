"""Plain data across the process boundary: tagged JSON with exact types. Standard library only.

Plain data is None, bool, int, float, str, bytes, list, tuple, dict, set and frozenset, of exactly these types.
Everything else, and whatever is too deep or too large, becomes an `Opaque` that equals nothing, so that no
code of a candidate (``__eq__``, ``__hash__``, ``__reduce__``) ever takes part in a comparison.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 40
MAX_SIZE = 65_536
_NATIVE_INT = 2**64
_INT = frozenset((int,))


class Opaque:
    """Stands for a value that is not plain data. It equals nothing, itself included."""

    __slots__ = ("description",)

    def __init__(self, description: str) -> None:
        self.description = description

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<opaque {self.description}>"


class NotPlain(ValueError):
    """A value, or a part of it, is not plain data."""


def encode(value: Any, *, max_size: int = MAX_SIZE) -> Any:
    """`value` as JSON-ready data; parts that are not plain become opaque tags.

    Args:
        value: anything; only its exact built-in type is looked at.
        max_size: the most parts (containers' items, characters, bytes, hex digits of long ints) in all;
            a larger value becomes opaque as a whole.
    """
    if _is_simple(value, max_size):
        return value if type(value) is int else [*value]
    try:
        return _Encoder(max_size, strict=False).encode(value, 0)
    except NotPlain:
        return {"o": f"{type(value).__name__} of more than {max_size} parts"}


def encode_plain(value: Any, *, max_size: int = MAX_SIZE) -> Any:
    """As `encode`, for data of our own.

    Raises:
        NotPlain: the value is too large, or a part of it is too deep or of another type.
    """
    if _is_simple(value, max_size):
        return value if type(value) is int else [*value]
    return _Encoder(max_size, strict=True).encode(value, 0)


def _is_simple(value: Any, max_size: int) -> bool:
    """Whether a value is, as most are, an int or a list of ints that JSON has as well."""
    if type(value) is int:
        return max_size > 0 and -_NATIVE_INT < value < _NATIVE_INT
    if type(value) is not list or len(value) >= max_size or not {*map(type, value)} <= _INT:
        return False
    return not value or (min(value) > -_NATIVE_INT and max(value) < _NATIVE_INT)


def is_plain(value: Any, *, max_size: int = MAX_SIZE) -> bool:
    """Whether `value` survives the boundary unchanged."""
    try:
        encode_plain(value, max_size=max_size)
    except NotPlain:
        return False
    return True


class _Encoder:
    def __init__(self, max_size: int, *, strict: bool) -> None:
        self.left = max_size
        self.max_size = max_size
        self.strict = strict

    def encode(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self.spend(1)
        if kind is int:
            return self.encode_int(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is str:
            self.spend(len(value))
            return value
        if kind is bytes:
            self.spend(len(value))
            return {"b": value.hex()}
        if depth >= MAX_DEPTH:
            return self.opaque(f"value deeper than {MAX_DEPTH} levels")
        return self.encode_container(value, kind, depth + 1)

    def encode_int(self, value: int) -> Any:
        if -_NATIVE_INT < value < _NATIVE_INT:
            return value
        self.spend(value.bit_length() // 4)
        return {"i": hex(value)}

    def encode_container(self, value: Any, kind: type, depth: int) -> Any:
        if kind is list:
            return [self.encode(item, depth) for item in value]
        if kind is tuple:
            return {"t": [self.encode(item, depth) for item in value]}
        if kind is dict:
            return {"d": [[self.encode(key, depth), self.encode(item, depth)] for key, item in value.items()]}
        if kind is set or kind is frozenset:
            items = sorted((self.encode(item, depth) for item in value), key=json.dumps)
            return {"s" if kind is set else "z": items}
        return self.opaque(kind.__name__)

    def opaque(self, description: str) -> Any:
        if self.strict:
            raise NotPlain(f"{description} is not plain data; use None, bool, int, float, str, bytes or containers")
        return {"o": description}

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise NotPlain(f"a value of more than {self.max_size} parts; make it smaller")


def decode(data: Any) -> Any:
    """The value that `encode` wrote; opaque tags come back as `Opaque`.

    Raises:
        ValueError: `data` was not written by `encode`.
    """
    if type(data) is int:
        return data
    if type(data) is list and {*map(type, data)} <= _INT:
        return [*data]
    return _decode(data, 0)


def _decode(data: Any, depth: int) -> Any:
    if depth > MAX_DEPTH + 1:
        raise ValueError(f"encoded data deeper than {MAX_DEPTH} levels")
    if isinstance(data, list):
        return [_decode(item, depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError(f"an encoded value has one tag, not {len(data)}")
    ((tag, body),) = data.items()
    try:
        return _decode_tagged(tag, body, depth + 1)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"bad body for the tag {tag!r}: {error}") from error


def _decode_tagged(tag: str, body: Any, depth: int) -> Any:
    match tag:
        case "t":
            return tuple(_decode(item, depth) for item in body)
        case "d":
            return {_decode(key, depth): _decode(item, depth) for key, item in body}
        case "s":
            return {_decode(item, depth) for item in body}
        case "z":
            return frozenset(_decode(item, depth) for item in body)
        case "b":
            return bytes.fromhex(body)
        case "i":
            return int(body, 16)
        case "o":
            return Opaque(str(body))
    raise ValueError(f"unknown tag {tag!r}")


def same(actual: Any, expected: Any, *, tolerance: float = 0.0) -> bool:
    """Whether two plain values are the same: equal, with the same exact types throughout.

    True is not 1 and 1 is not 1.0; NaN is NaN; the order of a dict does not matter; Opaque is the same as nothing.

    Args:
        actual: the value that is judged.
        expected: the value that it should be.
        tolerance: the largest allowed difference of two floats, relative to the larger of 1 and |expected|.
            Floats inside of sets and keys are compared exactly.
    """
    if type(actual) is not type(expected):
        return False
    if type(expected) is int:
        return bool(actual == expected)
    if isinstance(expected, float):
        return _same_float(actual, expected, tolerance)
    if isinstance(expected, list | tuple):
        pairs = zip(actual, expected, strict=False)
        return len(actual) == len(expected) and all(same(a, e, tolerance=tolerance) for a, e in pairs)
    if isinstance(expected, dict):
        return _same_dict(actual, expected, tolerance)
    if isinstance(expected, set | frozenset):
        return is_plain(expected) and json.dumps(encode(actual)) == json.dumps(encode(expected))
    return bool(actual == expected)


def _same_float(actual: float, expected: float, tolerance: float) -> bool:
    if math.isnan(expected) or math.isnan(actual):
        return math.isnan(expected) and math.isnan(actual)
    if actual == expected:
        return True
    return math.isfinite(expected) and abs(actual - expected) <= tolerance * max(1.0, abs(expected))


def _same_dict(actual: dict[Any, Any], expected: dict[Any, Any], tolerance: float) -> bool:
    found = {json.dumps(encode(key)): item for key, item in actual.items()}
    wanted = {json.dumps(encode(key)): item for key, item in expected.items()}
    if len(found) != len(actual) or found.keys() != wanted.keys() or not all(map(is_plain, expected)):
        return False
    return all(same(found[key], item, tolerance=tolerance) for key, item in wanted.items())
