"""What a hidden test holds in place of the candidate's modules, classes and objects.

A class of the candidate becomes a class here, with the same bases, so that ``isinstance``, ``except`` and
``assertRaises`` work. Its objects forward what tests do to them, except for what would let the candidate decide a
comparison. An object is never equal to data; two objects of a dataclass are compared field by field, here; others by
identity unless they bring a comparison of their own. Operators, orderings and the methods that strings and containers
have (``startswith``) are forwarded only for classes that the test itself names: else an object with a ``__sub__`` that
gives 0.0 would pass ``abs(f(x) - 0.33) < 1e-6``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Mapping
from typing import Any, NoReturn

from agentrl.rewards.judge.link import Link, Refused

PLAIN = {"int": int, "str": str, "float": float, "bytes": bytes, "tuple": tuple, "frozenset": frozenset}
PLAIN_METHODS = frozenset(
    name for kind in (*PLAIN.values(), list, dict, set) for name in dir(kind) if not name.startswith("_")
)
_FREE = "len iter next getitem setitem delitem call enter exit bool int float index round abs neg str repr reversed"
FREE = frozenset(f"__{name}__" for name in _FREE.split())
"""Operators that tell the candidate nothing about what a test expects; every object has those of its class."""
READING = FREE - {"__setitem__", "__delitem__", "__call__", "__enter__", "__exit__", "__next__"}
DECIDING = frozenset(("__eq__", "__ne__", "__hash__", "__contains__", "__await__"))
ORDERING = frozenset(("__lt__", "__le__", "__gt__", "__ge__"))


def natural(value: Any) -> int:
    """A number of the candidate's. Raises ValueError for what is none, or is negative."""
    if type(value) is not int or value < 0:
        raise ValueError("a handle that is no number")
    return value


class RemoteType(type):
    """The class of classes that stand for the candidate's."""

    _agentrl: Face

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        face = cls._agentrl
        face.link.constructing = face.fields is not None
        try:
            made = Method(face.link, face.number, None)(*arguments, **keywords)
        finally:
            face.link.constructing = False
        if face.fields is not None and isinstance(made, cls):
            made.__dict__["_agentrl_given"] = {**dict(zip(face.fields, arguments, strict=False)), **keywords}
        return made

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name == "_agentrl":
            raise AttributeError(name)
        return note_named(cls._agentrl.attribute(name))

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("__") or name == "_agentrl":
            type.__setattr__(cls, name, value)
        else:
            cls._agentrl.request("set", name, arguments=(value,))

    def __delattr__(cls, name: str) -> None:
        cls._agentrl.request("delete", name)

    def __iter__(cls) -> Any:
        return cls._agentrl.class_operator("__iter__")

    def __len__(cls) -> int:
        return int(cls._agentrl.class_operator("__len__"))

    def __getitem__(cls, key: Any) -> Any:
        return cls._agentrl.class_operator("__getitem__", key)


class Face:
    """A class of the candidate's, as it described itself, and how to talk with one of its objects.

    Attributes:
        named: whether a test has asked for this class by name, or was told to know it.
    """

    def __init__(self, link: Link, form: Mapping[str, Any]) -> None:
        self.link = link
        self.number = natural(form["id"])
        self.name = str(form["n"])
        self.module = str(form["m"])
        self.operators = frozenset(map(str, form["o"]))
        self.class_operators = frozenset(map(str, form["M"]))
        self.functions = frozenset(map(str, form["f"]))
        self.fields = None if form["d"] is None else [str(name) for name in form["d"]]
        self.container = form["p"]
        self.named = False

    def request(self, operation: str, *rest: Any, arguments: Any = None) -> Any:
        """A request about the class itself."""
        return self.link.request(operation, self.number, *rest, arguments=arguments)

    def attribute(self, name: str) -> Any:
        """An attribute of the class."""
        if name in self.functions:
            return Method(self.link, self.number, name)
        return self.request("get", name)

    def class_operator(self, name: str, *arguments: Any) -> Any:
        """An operator on the class itself, such as those of an enum."""
        if name not in self.class_operators:
            raise TypeError(f"class {self.name!r} has no {name}")
        return self.request("operator", name, arguments=arguments)


class Method:
    """A function of an object or a class of the candidate's; without a name, what is called itself."""

    def __init__(self, link: Link, number: int, name: str | None) -> None:
        self._link, self._number, self._name = link, number, name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._link.request("call", self._number, self._name, arguments=arguments, keywords=keywords)

    def _agentrl_value(self) -> Any:
        """The bound method itself, for when it is passed on or looked at."""
        return self._link.request("get", self._number, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agentrl_value(), name)

    def __eq__(self, other: object) -> bool:
        pair = (Method, self._number, self._name)
        return isinstance(other, Method) and (Method, other._number, other._name) == pair

    def __hash__(self) -> int:
        return hash((self._number, self._name))


class Remote(metaclass=RemoteType):
    """An object of the candidate's."""

    _agentrl: Face
    _agentrl_id: int

    def __getattr__(self, name: str) -> Any:
        face, number = type(self)._agentrl, self._agentrl_id
        if name.startswith("__"):
            raise AttributeError(name)
        if name in PLAIN_METHODS and not face.named:
            if name in face.functions:
                raise unknown(face, f".{name}")
            raise AttributeError(name)
        if name in face.functions:
            self.__dict__.pop("_agentrl_given", None)
            return Method(face.link, number, name)
        return face.link.request("get", number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        type(self)._agentrl.link.request("set", self._agentrl_id, name, arguments=(value,))
        self.__dict__.get("_agentrl_given", {})[name] = value

    def __delattr__(self, name: str) -> None:
        type(self)._agentrl.link.request("delete", self._agentrl_id, name)


class RemoteObject(Remote):
    """An object that is no data."""

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    def __ne__(self, other: object) -> bool:
        return not equal(self, other)

    def __hash__(self) -> int:
        face = type(self)._agentrl
        if face.fields is not None and "__hash__" in face.operators:
            return hash(tuple(_fields(self)))
        if "__eq__" in face.operators:
            raise Refused(f"a test hashes an object of {face.name}, which compares itself")
        return hash(("remote", self._agentrl_id))


def equal(one: RemoteObject, other: object) -> bool:
    """Whether two things are equal, decided here.

    Raises:
        Refused: it could only be decided by the candidate.
    """
    face = type(one)._agentrl
    if face.container is not None and not isinstance(other, RemoteObject):
        return bool(face.link.request("contents", one._agentrl_id) == other)
    if other is None:
        return False
    if not isinstance(other, RemoteObject):
        raise Refused(f"a test compares an object of {face.name} with a {type(other).__name__}")
    if one._agentrl_id == other._agentrl_id:
        return True
    if face.fields is not None and type(one) is type(other):
        return bool(_fields(one) == _fields(other))
    if face.container is not None and type(one) is type(other):
        return equal(one, face.link.request("contents", other._agentrl_id))
    if "__eq__" in face.operators and face.fields is None:
        if face.link.trusting:
            return bool(face.link.request("operator", one._agentrl_id, "__eq__", arguments=(other,)))
        raise Refused(f"a test compares two objects of {face.name}, which compare themselves")
    return False


def _fields(value: RemoteObject) -> list[Any]:
    """The fields of an object of a dataclass.

    Raises:
        Refused: it does not hold what the test itself has just made it of, so that any two of them could be equal.
    """
    face = type(value)._agentrl
    found = face.link.request("fields", value._agentrl_id)
    if type(found) is not list or len(found) != len(face.fields or ()):
        raise Refused(f"{face.name} does not have the fields that it named")
    given = value.__dict__.get("_agentrl_given", {})
    for name, held in zip(face.fields or (), found, strict=True):
        if name in given and not face.link.trusting and not (held is given[name] or held == given[name]):
            raise Refused(f"{face.name} holds another {name} than the test gave it")
    return found


def unknown(face: Face, what: str) -> Refused:
    """Why something is not done to an object of a class that the test does not name."""
    return Refused(f"a test uses {what} of an object of {face.name}, a class that it does not name")


def operator(name: str) -> Callable[..., Any]:
    """The method of a proxy for an operator of its class."""

    def forward(self: Any, *arguments: Any) -> Any:
        face = type(self)._agentrl
        if name not in FREE and not face.named:
            raise unknown(face, name)
        face.link.count_item(name)
        if name not in READING:
            self.__dict__.pop("_agentrl_given", None)
        return face.link.request("operator", self._agentrl_id, name, arguments=arguments)

    return forward


def value_operator(name: str) -> Callable[..., Any]:
    """As `operator` for a class that derives from a plain one: that one's operator, unless a test names the class."""

    def forward(self: Any, *arguments: Any) -> Any:
        face = type(self)._agentrl
        if face.named or name in ("__str__", "__repr__"):
            return face.link.request("operator", self._agentrl_id, name, arguments=arguments)
        base = next(base for base in PLAIN.values() if isinstance(self, base))
        return getattr(base, name, lambda *_: NotImplemented)(self, *arguments)

    return forward


def contains(self: Any, item: Any) -> bool:
    """``in``: asked of a class that the test names, else found out by going through the items here."""
    face = type(self)._agentrl
    if face.named and "__contains__" in face.operators:
        return bool(face.link.request("operator", self._agentrl_id, "__contains__", arguments=(item,)))
    return any(item is other or item == other for other in self)


def called(self: Any, *arguments: Any, **keywords: Any) -> Any:
    """``__call__``."""
    return Method(type(self)._agentrl.link, self._agentrl_id, None)(*arguments, **keywords)


def leave(self: Any, _kind: Any, error: Any, _trace: Any) -> bool:
    """``__exit__``. What it swallows would be the rest of the test, so that it may not, unless the suite says so.

    Raises:
        Refused: it swallows an exception.
    """
    face = type(self)._agentrl
    if error is None:
        face.link.request("operator", self._agentrl_id, "__exit__", arguments=(None, None, None))
        return False
    if isinstance(error, AssertionError) or not isinstance(error, Exception):
        return False
    swallows = bool(face.link.request("leave", self._agentrl_id, arguments=(error,)))
    if swallows and not face.link.trusting:
        raise Refused(f"{face.name}.__exit__ swallows {type(error).__name__}")
    return swallows


def awaited(self: Any) -> Generator[None, None, Any]:
    """``__await__``: the candidate runs it to its end in a loop of its own."""
    yield from ()
    return type(self)._agentrl.link.request("run", self._agentrl_id)


def sent(self: Any, _value: Any) -> NoReturn:
    """``send`` of a coroutine, which never waits for anything here."""
    raise StopIteration(type(self)._agentrl.link.request("run", self._agentrl_id))


class RemoteModule(types.ModuleType):
    """A module of the candidate's. Its functions and classes came with it; other attributes are asked for each time."""

    def __init__(self, name: str, link: Link, number: int, own: Mapping[str, Any], public: list[str]) -> None:
        super().__init__(name)
        self.__dict__.update(_agentrl_link=link, _agentrl_id=number, _agentrl_own=dict(own))
        self.__dict__.update(__all__=public, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__version__", "__author__"):
            raise AttributeError(name)
        if name in self._agentrl_own:
            return note_named(self._agentrl_own[name])
        return note_named(self._agentrl_link.request("get", self._agentrl_id, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, RemoteModule):
            super().__setattr__(name, value)
            return
        self._agentrl_link.request("set", self._agentrl_id, name, arguments=(value,))
        self._agentrl_own.pop(name, None)

    def __delattr__(self, name: str) -> None:
        self._agentrl_link.request("delete", self._agentrl_id, name)
        self._agentrl_own.pop(name, None)


def note_named(value: Any) -> Any:
    """A value that a test asked for by name; a class becomes one whose objects it knows."""
    if isinstance(value, RemoteType):
        value._agentrl.named = True
    return value
