"""What hidden tests use of pytest. It runs in the judge, and in the box for tests that run inside.

``raises``, ``approx``, ``fail``, ``importorskip``, marks, ``param`` and ``fixture``, with the fixtures ``monkeypatch``,
``capsys`` and ``tmp_path``. `fixtures` gives tests their arguments. Standard library only, in one file.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

_RELATIVE, _ABSOLUTE = 1e-6, 1e-12
_MISSING: Any = object()


class raises:
    """Expects an exception of a class in its block; ``value`` is that exception.

    Given a function and its arguments, it is called in a block at once.

    Args:
        kind: the class, or several.
        match: an expression that its text must contain.
    """

    def __init__(self, kind: Any, *call: Any, match: str | None = None, **keywords: Any) -> None:
        self.kind = kind
        self.pattern = match
        self.value: Any = None
        if call:
            with self:
                call[0](*call[1:], **keywords)

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            raise AssertionError(f"{self.kind} was not raised")
        if not isinstance(error, self.kind):
            return False
        self.value = error
        self.type = type(error)
        return self.pattern is None or self.match(self.pattern)

    def match(self, pattern: str) -> bool:
        """Whether the text of the exception contains an expression; an AssertionError when not."""
        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{str(self.value)!r} does not match {pattern!r}")
        return True


class approx:
    """Equal to numbers, and to lists, tuples and dicts of numbers, that are close.

    Args:
        expected: what is expected.
        rel: largest difference relative to the expected number; 1e-6 when neither is given.
        abs: largest difference; 1e-12 when not given.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self.expected = expected
        self.relative = (_RELATIVE if abs is None else 0.0) if rel is None else rel
        self.absolute = _ABSOLUTE if abs is None else abs

    def __eq__(self, other: object) -> bool:
        return self._close(other, self.expected)

    def _close(self, value: Any, expected: Any) -> bool:
        if type(expected) in (list, tuple):
            pairs = zip(value, expected, strict=False) if type(value) is type(expected) else ()
            return type(value) is type(expected) and len(value) == len(expected) and all(self._close(*p) for p in pairs)
        if type(expected) is dict:
            same_keys = type(value) is dict and value.keys() == expected.keys()
            return same_keys and all(self._close(value[key], item) for key, item in expected.items())
        if type(value) not in (int, float) or type(expected) not in (int, float):
            return bool(type(value) is type(expected) and value == expected)
        return value == expected or math.isclose(value, expected, rel_tol=self.relative, abs_tol=self.absolute)


def fail(reason: str = "", pytrace: bool = True) -> NoReturn:  # noqa: ARG001
    """Fail the test."""
    raise AssertionError(reason)


def importorskip(name: str, **_more: Any) -> Any:
    """The module. One that cannot be imported fails the test: a hidden test that does not run does not pass."""
    return importlib.import_module(name)


class Param(NamedTuple):
    """The values of one run of a test, or the one value of a fixture."""

    values: tuple[Any, ...]


def param(*values: Any, id: str | None = None, marks: Any = ()) -> Param:  # noqa: ARG001
    """A row of `parametrize`; names and marks of rows decide nothing here."""
    return Param(values)


class Mark:
    """A mark, to be put on a test or a class; ``parametrize`` and ``usefixtures`` count, others decide nothing."""

    def __init__(self, name: str, words: tuple[Any, ...] = (), keywords: Any = None) -> None:
        self.name = name
        self.words = words
        self.keywords = keywords or {}

    def __call__(self, *words: Any, **keywords: Any) -> Any:
        if len(words) == 1 and not keywords and (isinstance(words[0], type) or hasattr(words[0], "__code__")):
            words[0].agentrl_marks = [*vars(words[0]).get("agentrl_marks", ()), self]
            return words[0]
        return Mark(self.name, words, keywords)


class _Marks:
    def __getattr__(self, name: str) -> Mark:
        return Mark(name)


mark = _Marks()


def fixture(function: Any = None, *, scope: str = "function", **more: Any) -> Any:
    """Make a function one whose value tests get by its name.

    Args:
        function: the function, where there are no parentheses.
        scope: ``function``, ``class``, ``module``, ``package`` or ``session``: how long a value is kept.
        more: ``params``, ``autouse``, ``name``, ``ids``.
    """
    if function is None:
        return lambda found: fixture(found, scope=scope, **more)
    if more.get("params") is not None:
        more["params"] = [value.values[0] if isinstance(value, Param) else value for value in more["params"]]
    function.agentrl_fixture = {"scope": scope, **more}
    return function


class MonkeyPatch:
    """Sets things for the time of a test."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    @classmethod
    @contextlib.contextmanager
    def context(cls) -> Iterator[MonkeyPatch]:
        """One that is undone after the block."""
        made = cls()
        try:
            yield made
        finally:
            made.undo()

    def setattr(self, target: Any, name: Any, value: Any = _MISSING, raising: bool = True) -> None:
        """Set an attribute, of an object or by its dotted name."""
        if value is _MISSING:
            target, name, value = (*_owner_of(target), name)
        old = vars(target).get(name, _MISSING) if isinstance(target, type) else _MISSING
        if old is _MISSING:
            old = getattr(target, name, _MISSING)
        if old is _MISSING and raising:
            raise AttributeError(f"{target!r} has no attribute {name!r}")
        self._undo.append(lambda: delattr(target, name) if old is _MISSING else setattr(target, name, old))
        setattr(target, name, value)

    def delattr(self, target: Any, name: Any = _MISSING, raising: bool = True) -> None:
        """Delete an attribute, of an object or by its dotted name."""
        if name is _MISSING:
            target, name = _owner_of(target)
        old = getattr(target, name, _MISSING)
        if old is _MISSING and not raising:
            return
        delattr(target, name)
        self._undo.append(lambda: setattr(target, name, old))

    def setitem(self, target: Any, name: Any, value: Any) -> None:
        """Set an item of a dict."""
        old = target.get(name, _MISSING)
        self._undo.append(lambda: target.pop(name, None) if old is _MISSING else target.__setitem__(name, old))
        target[name] = value

    def delitem(self, target: Any, name: Any, raising: bool = True) -> None:
        """Delete an item of a dict."""
        if name not in target and not raising:
            return
        old = target.pop(name)
        self._undo.append(lambda: target.__setitem__(name, old))

    def setenv(self, name: str, value: Any, prepend: str | None = None) -> None:
        """Set a variable of the environment."""
        before = os.environ.get(name, "")
        self.setitem(os.environ, name, f"{value}{prepend}{before}" if prepend and before else str(value))

    def delenv(self, name: str, raising: bool = True) -> None:
        """Delete a variable of the environment."""
        self.delitem(os.environ, name, raising)

    def syspath_prepend(self, path: Any) -> None:
        """Have modules in a folder found first."""
        before = [*sys.path]
        self._undo.append(lambda: sys.path.__setitem__(slice(None), before))
        sys.path.insert(0, str(path))

    def chdir(self, path: Any) -> None:
        """Go to a folder."""
        before = os.getcwd()
        self._undo.append(lambda: os.chdir(before))
        os.chdir(path)

    def undo(self) -> None:
        """Set all back, the last first."""
        while self._undo:
            self._undo.pop()()


def _owner_of(dotted: str) -> tuple[Any, str]:
    """The object that has an attribute, and the attribute's name, by a dotted name."""
    first, *middle, name = dotted.split(".")
    found: Any = importlib.import_module(first)
    for part in middle:
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            raise AttributeError(f"{dotted!r}: no {part!r}")
    return found, name


class Captured(NamedTuple):
    """What was printed."""

    out: str
    err: str


class CaptureFixture:
    """What is printed while a test runs."""

    def __init__(self) -> None:
        self._streams = io.StringIO(), io.StringIO()

    def __class_getitem__(cls, _kind: Any) -> Any:
        return cls

    def readouterr(self) -> Captured:
        """What was printed since the last time."""
        texts = [stream.getvalue() for stream in self._streams]
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return Captured(*texts)

    @contextlib.contextmanager
    def capturing(self) -> Iterator[CaptureFixture]:
        """Within the block it takes in what is printed."""
        with contextlib.redirect_stdout(self._streams[0]), contextlib.redirect_stderr(self._streams[1]):
            yield self


@fixture
def monkeypatch() -> Iterator[MonkeyPatch]:
    """See `MonkeyPatch`."""
    with MonkeyPatch.context() as found:
        yield found


@fixture
def capsys() -> Iterator[CaptureFixture]:
    """See `CaptureFixture`."""
    with CaptureFixture().capturing() as found:
        yield found


@fixture
def tmp_path() -> Iterator[Path]:
    """A new folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


def tmp_path_factory() -> Iterator[Any]:
    """Makes folders that last as long as the suite."""
    with tempfile.TemporaryDirectory() as folder:
        yield _Folders(Path(folder).resolve())


fixture(tmp_path_factory, scope="session")


class _Folders:
    def __init__(self, base: Path) -> None:
        self._base = base

    def getbasetemp(self) -> Path:
        """The folder that they lie in."""
        return self._base

    def mktemp(self, basename: str, numbered: bool = True) -> Path:
        """A new folder with a name that begins so."""
        made = self._base / (f"{basename}{len(os.listdir(self._base))}" if numbered else basename)
        made.mkdir()
        return made


FixtureRequest = Any
BUILTIN: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (monkeypatch, capsys, tmp_path, tmp_path_factory)
}
"""The fixtures that there always are."""


def rows(names: str | Sequence[str], values: Any) -> list[dict[str, Any]]:
    """The runs of one ``parametrize``: name to value.

    Raises:
        AssertionError: there is none, so that nothing would be tested.
    """
    keys = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else [*names]
    found = []
    for value in values:
        is_row = len(keys) > 1 or not isinstance(names, str)
        row = value.values if isinstance(value, Param) else value if is_row else (value,)
        found.append(dict(zip(keys, row, strict=True)))
    if not found:
        raise AssertionError("a test with no parameters to run with")
    return found
