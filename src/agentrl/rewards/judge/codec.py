"""Plain data across the line between judge and candidate: tagged JSON with exact types. Standard library only.

Both sides use it; the agent is compiled together with it.
"""

from __future__ import annotations

from _operator import is_  # operator itself is a file of its own to find and load

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would take as long to import as all that the agent needs
    from typing import Any

MAX_MESSAGE = 1 << 20
MAX_DEPTH = 40
SHARED_WINDOW = 64
NATIVE_INT = 2**64
MUTABLE_BASES = (list, dict, set)
SIZED = (list, tuple, dict, set, frozenset)


class Codec:
    """Values as JSON, with exact types. What is not plain data goes through `encode_other` and `decode_other`.

    Lists, dicts and sets that the judge sends are numbered in the order in which they are met, on both sides; a change
    of one of the last `SHARED_WINDOW` is told with the next message, whichever side made it.
    """

    def __init__(self, *, numbers_encoded: bool, numbers_decoded: bool) -> None:
        self.numbers_encoded = numbers_encoded
        self.numbers_decoded = numbers_decoded
        self.count = 0
        self.shared: dict[int, list[Any]] = {}
        self.number_of: dict[int, int] = {}

    def encode(self, value: Any, depth: Any = 0) -> Any:
        """JSON-ready data for a value."""
        kind = type(value)
        if kind is int:
            return value if -NATIVE_INT < value < NATIVE_INT else {"i": hex(value)}
        if value is None or kind is bool or kind is float or kind is str:
            return value
        if kind is bytes:
            return {"b": value.hex()}
        number = self.number_of.get(id(value))
        if number is not None:
            return {"r": number}
        if depth >= MAX_DEPTH:
            return self.encode_deep(value)
        return self.encode_container(value, kind, depth + 1)

    def encode_container(self, value: Any, kind: Any, depth: Any) -> Any:
        """A container of plain kind, a value that has a plain form, or anything else."""
        if self.numbers_encoded and kind in MUTABLE_BASES:
            self.share(value)
        if kind in SIZED and len(value) > MAX_MESSAGE:
            raise OverflowError("a container of more than a million parts")
        if kind is list:
            return [self.encode(item, depth) for item in value]
        if kind is tuple:
            return {"t": [self.encode(item, depth) for item in value]}
        if kind is dict:
            return {"d": [[self.encode(key, depth), self.encode(item, depth)] for key, item in value.items()]}
        if kind is set or kind is frozenset:
            return {"s" if kind is set else "z": [self.encode(item, depth) for item in value]}
        form = plain_form(value, kind)
        if form is not None:
            return {"x": [form[0], self.encode(form[1], depth)]}
        return self.encode_other(value, depth)

    def encode_deep(self, value: Any) -> Any:
        return self.encode_other(value, MAX_DEPTH)

    def encode_other(self, value: Any, depth: Any) -> Any:
        raise NotImplementedError

    def decode(self, data: Any, depth: Any = 0) -> Any:
        """The value behind the data. Raises ValueError or TypeError when it was not written by `encode`."""
        kind = type(data)
        if kind is list:
            return self.decode_items(data, [], depth)
        if kind is not dict:
            return data
        if depth > MAX_DEPTH + 8:
            raise ValueError("encoded data is too deep")
        ((tag, body),) = data.items()
        return self.decode_tagged(tag, body, depth + 1)

    def decode_items(self, data: Any, found: Any, depth: Any) -> Any:
        if depth > MAX_DEPTH + 8:
            raise ValueError("encoded data is too deep")
        if self.numbers_decoded:
            self.share(found)
        found.extend([self.decode(item, depth + 1) for item in data])
        self.settle(found)
        return found

    def decode_tagged(self, tag: Any, body: Any, depth: Any) -> Any:
        if tag == "t":
            return tuple([self.decode(item, depth) for item in body])
        if tag == "d":
            return self.decode_dict(body, depth)
        if tag == "s":
            return self.decode_set(body, depth)
        if tag == "z":
            return frozenset([self.decode(item, depth) for item in body])
        if tag == "b":
            return bytes.fromhex(body)
        if tag == "i":
            return int(body, 16)
        if tag == "r":
            return self.shared[body][0]
        if tag == "x":
            name, form = body
            return from_plain_form(name, self.decode(form, depth))
        return self.decode_other(tag, body, depth)

    def decode_dict(self, body: Any, depth: Any) -> Any:
        found: dict[Any, Any] = {}
        if self.numbers_decoded:
            self.share(found)
        for key, item in body:
            found[self.decode(key, depth)] = self.decode(item, depth)
        self.settle(found)
        return found

    def decode_set(self, body: Any, depth: Any) -> Any:
        found: set[Any] = set()
        if self.numbers_decoded:
            self.share(found)
        found.update([self.decode(item, depth) for item in body])
        self.settle(found)
        return found

    def decode_other(self, tag: Any, body: Any, depth: Any) -> Any:  # noqa: ARG002
        """The value of a tag that is not of plain data. Raises ValueError for an unknown one."""
        raise ValueError(f"unknown tag {tag!r}")

    def share(self, container: Any) -> None:
        """Give a container the next number."""
        self.shared[self.count] = [container, contents(container)]
        self.number_of[id(container)] = self.count
        self.count += 1

    def settle(self, container: Any) -> None:
        """Take the contents of a container that was just filled as known to both sides."""
        if self.numbers_decoded:
            self.shared[self.number_of[id(container)]][1] = contents(container)

    def forget(self) -> None:
        """Drop all numbered containers but the last. Both sides do it before the same messages."""
        for number in [number for number in self.shared if number < self.count - SHARED_WINDOW]:
            del self.number_of[id(self.shared.pop(number)[0])]

    def changes(self) -> Any:
        """What this side has changed in numbered containers since it was last told."""
        found = []
        for number, entry in list(self.shared.items()):
            now = contents(entry[0])
            if len(now) != len(entry[1]) or not all(map(is_, now, entry[1])):
                entry[1] = now
                found.append([number, [self.encode(item, 1) for item in now]])
        return found

    def apply(self, changes: Any) -> None:
        """Make the other side's changes here. Raises KeyError, TypeError or ValueError for what cannot be one."""
        for number, items in changes:
            entry = self.shared[number]
            refill(entry[0], [self.decode(item, 1) for item in items])
            entry[1] = contents(entry[0])


def contents(container: Any) -> Any:
    """The parts of a list, set or dict, keys and values of a dict in turn."""
    if type(container) is dict:
        return [part for pair in container.items() for part in pair]
    return list(container)


def refill(container: Any, parts: Any) -> None:
    """The reverse of `contents`, in place."""
    if type(container) is list:
        container[:] = parts
        return
    container.clear()
    if type(container) is dict:
        container.update(zip(parts[::2], parts[1::2], strict=True))
    else:
        container.update(parts)


def plain_form(value: Any, kind: Any) -> Any:
    """(name, plain data) of a value of the standard library that is data, or None."""
    module, name = kind.__module__, kind.__name__
    if module == "builtins":
        if kind is bytearray:
            return "bytearray", bytes(value)
        if kind is complex:
            return "complex", (value.real, value.imag)
        return ("range", (value.start, value.stop, value.step)) if kind is range else None
    if module == "collections":
        return collection_form(value, name)
    if module == "decimal" and name == "Decimal":
        return "Decimal", str(value)
    if module == "fractions" and name == "Fraction":
        return "Fraction", (value.numerator, value.denominator)
    if module == "datetime":
        return time_form(value, name)
    return None


def collection_form(value: Any, name: Any) -> Any:
    if name == "deque":
        return "deque", (list(value), value.maxlen)
    if name in ("OrderedDict", "Counter", "defaultdict"):
        return name, [(key, item) for key, item in value.items()]
    return None


def time_form(value: Any, name: Any) -> Any:
    if name == "timedelta":
        return name, (value.days, value.seconds, value.microseconds)
    if name in ("date", "datetime", "time") and getattr(value, "tzinfo", None) is None:
        return name, value.isoformat()
    return None


def from_plain_form(name: Any, form: Any) -> Any:
    """The value of the standard library behind `plain_form`. Raises ValueError for an unknown name."""
    if name == "bytearray" and type(form) is bytes:
        return bytearray(form)
    if name in ("complex", "range"):
        return (complex if name == "complex" else range)(*form)
    if name in ("deque", "OrderedDict", "Counter", "defaultdict"):
        return to_collection(name, form)
    if name in ("date", "datetime", "time", "timedelta"):
        kind = getattr(__import__("datetime"), name)
        return kind(*form) if name == "timedelta" else kind.fromisoformat(form)
    if name == "Decimal" and type(form) is str and len(form) < 10_000:
        found = __import__("decimal").Decimal(form)
        if abs(found.adjusted()) < 10_000:
            return found
    if name == "Fraction" and all(type(part) is int for part in form):
        return __import__("fractions").Fraction(*form)
    raise ValueError(f"unknown form {name!r}")


def to_collection(name: Any, form: Any) -> Any:
    kind = getattr(__import__("collections"), name)
    if name == "deque":
        if type(form[0]) is not list:
            raise ValueError("a deque of what is no list")
        return kind(form[0], form[1])
    return kind(None, form) if name == "defaultdict" else kind(dict(form))
