"""The judge's end of the line to the candidate: asks, waits, checks the form of each answer, serves callbacks.

Whatever comes in was written by an adversary. An answer that is not of the form that was agreed on ends the talk.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import unittest
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, ValuesView
from types import FunctionType
from typing import Any

from agentrl.rewards.judge.codec import MAX_DEPTH, MAX_MESSAGE, NATIVE_INT, Codec
from agentrl.rewards.judge.wire import Ended, Wire

MAX_NESTING = 50
MAX_INT_DIGITS = 16_384
MAX_ITEMS = 20_000


class Refused(BaseException):
    """The judge does not do what a test, or the candidate, asked of it. No ``except Exception`` swallows it."""


class CandidateGone(Refused):
    """The candidate has ended, hangs, or spoke out of turn; every later request raises this as well."""


class Link(Codec):
    """Requests to the candidate, and what it may ask back.

    Attributes:
        replies: how many answers have come so far.
        failure: an assertion that failed in a callback, which the candidate may have swallowed.
        constructing: whether what is asked is an object of a dataclass, which keeps what it is given.
        trusting: whether the candidate's objects may compare themselves and swallow exceptions.
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__(numbers_encoded=True, numbers_decoded=False)
        self._wire = wire
        self._lock = threading.RLock()
        self._nesting = 0
        self.replies = 0
        self.gone = ""
        self.failure: AssertionError | None = None
        self.trusting = False
        self.constructing = False
        self._items = 0
        self.callbacks: list[Any] = []
        self.callback_of: dict[int, int] = {}
        self.raised: list[BaseException] = []
        self.encode_remote: Callable[[Any], Any] = _no_remote
        self.decode_remote: Callable[[str, Any], Any] = _no_remote_tag
        self.decode_error: Callable[[Any], BaseException] = _no_error

    def request(
        self,
        operation: str,
        *rest: Any,
        arguments: Sequence[Any] | None = None,
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Ask for one operation and give its value, or raise what the candidate raised.

        Args:
            operation: a name of the agent's ``do_`` methods.
            rest: what it takes, as JSON.
            arguments: values of the test to pass on after these.
            keywords: more of them, for a call.

        Raises:
            CandidateGone: there is no answer, or none that can be read.
        """

        def build() -> list[Any]:
            asked = [*rest] if arguments is None else [*rest, [self.encode(argument) for argument in arguments]]
            return asked if keywords is None else [*asked, [[n, self.encode(value)] for n, value in keywords.items()]]

        with self._lock:
            return self.decode_answer(*self.exchange(operation, build))

    def request_raw(self, operation: str, *rest: Any) -> Any:
        """As `request`, but the value is left as JSON."""
        with self._lock:
            tag, body, news = self.exchange(operation, lambda: [*rest])
            if tag == "e":
                self.decode_answer(tag, body, news)
            return body

    def count_item(self, name: str) -> None:
        """Count what iterators give. Raises Refused past `MAX_ITEMS`: one that never ends."""
        self._items += name == "__next__"
        if self._items > MAX_ITEMS:
            raise Refused(f"more than {MAX_ITEMS} items from the candidate's iterators")

    def exchange(self, operation: str, build: Callable[[], list[Any]]) -> tuple[str, Any, Any]:
        """The answer to a request, undecoded: its tag (v, e), its body, and the changes that came with it.

        Args:
            operation: a name of the agent's ``do_`` methods.
            build: gives what follows it, as JSON; called after the changes of this side were taken.
        """
        self.forget()
        message = {"m": self.changes(), "q": [operation]}
        message["q"] += build()
        self._send(message)
        while True:
            tag, body, news = self._receive()
            if tag != "c":
                return tag, body, news
            self._serve(body, news)

    def decode_answer(self, tag: str, body: Any, news: Any) -> Any:
        """The value of an answer, or its exception raised, after the changes that came with it."""
        value = self.guarded(self.decode if tag == "v" else self.decode_error, body)
        self.guarded(self.apply, news)
        if tag == "e":
            raise value
        return value

    def guarded(self, read: Callable[[Any], Any], body: Any) -> Any:
        """What ``read`` makes of the candidate's JSON. Raises CandidateGone when it makes nothing of it."""
        try:
            return read(body)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError) as error:
            raise self.give_up(f"an answer that cannot be read ({type(error).__name__})") from None

    def _serve(self, body: Any, news: Any) -> None:
        """Run something of the test's own, with plain data and handles, and send back what came of it."""
        number, how, arguments, keywords = self.guarded(self._decode_callback, body)
        self.guarded(self.apply, news)
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self.give_up(f"callbacks nested more than {MAX_NESTING} deep")
        try:
            answer = ("v", act(self.callbacks[number], how, arguments, keywords))
        except Exception as error:
            answer = ("e", error)
            if isinstance(error, AssertionError):
                self.failure = error
        finally:
            self._nesting -= 1
        message = {"m": self.changes()}
        tag, value = answer
        self._send({**message, tag: self._encode_error(value) if tag == "e" else self.encode(value)})

    def _decode_callback(self, body: Any) -> tuple[int, str, list[Any], dict[str, Any]]:
        number, how, arguments, keywords = body
        if type(number) is not int or not 0 <= number < len(self.callbacks) or how not in CALLBACK_ACTIONS:
            raise ValueError("no such callback")
        if how not in allowed_actions(self.callbacks[number]):
            raise ValueError("not what this callback is for")
        named = {_text(name): self.decode(value) for name, value in keywords}
        return number, how, [self.decode(argument) for argument in arguments], named

    def _send(self, message: Any) -> None:
        if self.gone:
            raise CandidateGone(self.gone)
        body = json.dumps(message, separators=(",", ":"), check_circular=False).encode()
        try:
            self._wire.send(body)
        except Ended as error:
            raise self.give_up(str(error)) from None

    def _receive(self) -> tuple[str, Any, Any]:
        try:
            body = self._wire.receive()
        except Ended as error:
            raise self.give_up(str(error)) from None
        self.replies += 1
        message = self.guarded(parsed_answer, body)
        (tag,) = message.keys() - {"m", "o"}
        if printed := message.get("o"):
            sys.stdout.write(printed)
        return tag, message[tag], message.get("m", ())

    def give_up(self, why: str) -> CandidateGone:
        """Note that nothing more will come, and why; gives the exception to raise."""
        self.gone = self.gone or why
        return CandidateGone(self.gone)

    def encode_deep(self, value: Any) -> Any:  # noqa: ARG002
        raise TypeError(f"hidden tests can pass data of {MAX_DEPTH} levels at most")

    def encode_other(self, value: Any, depth: int) -> Any:
        known = self.encode_remote(value)
        if known is not None:
            return known
        if isinstance(value, BaseException):
            return {"E": self._encode_error(value)}
        if isinstance(value, type) and value.__module__ == "builtins":
            return {"B": value.__name__}
        for kind in (int, float, str, bytes):  # an enum of the test's, say
            if isinstance(value, kind):
                return self.encode(kind(value), depth)  # type: ignore[arg-type]
        if isinstance(value, KeysView | ValuesView | ItemsView):
            return self.encode(list(value), depth)
        return {"c": [self._callback(value), callback_kind(value)]}

    def _callback(self, value: Any) -> int:
        number = self.callback_of.get(id(value))
        if number is None:
            number = self.callback_of[id(value)] = len(self.callbacks)
            self.callbacks.append(value)
        return number

    def _encode_error(self, error: BaseException) -> list[Any]:
        handle = getattr(error, "_agentrl_id", None)
        name = type(error).__name__ if type(error).__module__ == "builtins" else "Exception"
        self.raised.append(error)
        return [handle, name, [self.encode(argument) for argument in error.args], len(self.raised) - 1]

    def decode_other(self, tag: str, body: Any, depth: int) -> Any:  # noqa: ARG002
        if tag == "c":
            if type(body) is not int or not 0 <= body < len(self.callbacks):
                raise ValueError("no such callback")
            return self.callbacks[body]
        return self.decode_remote(tag, body)

    def decode_tagged(self, tag: str, body: Any, depth: int) -> Any:
        if tag == "i" and len(body) > MAX_INT_DIGITS:
            raise ValueError("an int that is too long")
        return super().decode_tagged(tag, body, depth)


TEST_MODULES: set[str] = set()
"""Names of the modules that are hidden tests."""
CALLBACK_ACTIONS = ("call", "get", "set", "next", "enter", "exit")


def callback_kind(value: Any) -> str:
    """How the candidate may use something of the test's: ``call``, ``function``, ``iterator`` or ``context``.

    Raises:
        TypeError: it is none of what may be passed.
    """
    if hasattr(value, "__next__"):
        return "iterator"
    if hasattr(type(value), "__enter__"):
        return "context"
    if type(value) is FunctionType:
        return "function"
    if callable(value) or may_be_asked(value):
        return "call"
    raise TypeError(f"hidden tests cannot pass a {type(value).__name__} to the candidate; pass data or a function")


def may_be_asked(value: Any) -> bool:
    """Whether the public attributes of an object may be looked at: one of a test's own classes, or a text stream."""
    kind = type(value)
    if kind.__module__ in TEST_MODULES:
        return not isinstance(value, unittest.TestCase)
    return kind in (io.StringIO, io.BytesIO)


def allowed_actions(value: Any) -> Sequence[str]:
    """The actions that `act` may do on something of the test's."""
    actions = ["next"] if hasattr(value, "__next__") else []
    actions += ["enter", "exit"] if hasattr(type(value), "__enter__") else []
    actions += ["call"] if callable(value) else []
    return [*actions, "get", "set"] if may_be_asked(value) else actions


def act(value: Any, how: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Carry out what the candidate asks of something that the test passed to it."""
    if how == "call":
        return value(*arguments, **keywords)
    if how == "next":
        return next(value)
    if how == "enter":
        return value.__enter__()
    if how == "exit":
        error = arguments[0]
        return value.__exit__(type(error) if error is not None else None, error, None)
    name = _text(arguments[0])
    if name.startswith("_"):
        raise AttributeError(name)
    return setattr(value, name, arguments[1]) if how == "set" else getattr(value, name)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"a name that is {type(value).__name__}")
    return value


def parsed_answer(body: bytes) -> dict[str, Any]:
    """A message of the candidate's. Raises ValueError or RecursionError when it is not of the form agreed on."""
    if len(body) > MAX_MESSAGE:
        raise ValueError("a message that is too long")
    message = json.loads(body.decode(), parse_int=_bounded)
    if type(message) is not dict or len(message.keys() & {"v", "e", "c"}) != 1 or message.keys() - set("vecmo"):
        raise ValueError("not an answer")
    if type(message.get("o", "")) is not str:
        raise ValueError("printed text that is none")
    return message


def _bounded(text: str) -> int:
    value = int(text) if len(text) <= 20 else NATIVE_INT
    if not -NATIVE_INT < value < NATIVE_INT:
        raise ValueError("an int that is too long")
    return value


def _no_remote(_value: Any) -> Any:
    return None


def _no_remote_tag(tag: str, _body: Any) -> Any:
    raise ValueError(f"unknown tag {tag!r}")


def _no_error(body: Any) -> BaseException:
    return RuntimeError(str(body))
