"""Runs a test of a suite by its id, with its fixtures, parameters, set-up and tear-down. Standard library only.

The judge does so for suites that run outside of the candidate's process, `inside` for those that run in it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import unittest
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any

from agentrl.rewards.judge.fixtures import (
    Level,
    Run,
    Values,
    argument_names,
    automatic,
    in_order,
    level_of,
    runs,
)

CONFTEST = "conftest.py"
_MODULE_WIDE = (("setUpModule", "tearDownModule"), ("setup_module", "teardown_module"))
_CLASS_WIDE = (("setUpClass", "tearDownClass"), ("setup_class", "teardown_class"))


class Tests:
    """The tests of a suite.

    Args:
        pytest: the module that they know under this name.
        module_of: gives the module of a file, or raises what its import raised.
        paths: of all files of the suite.
        finish: runs a coroutine to its end, such as ``asyncio.run``, which takes long to import.
    """

    __test__ = False

    def __init__(
        self,
        pytest: Any,
        module_of: Callable[[str], types.ModuleType],
        paths: Collection[str],
        finish: Callable[[Any], object],
    ) -> None:
        self.pytest = pytest
        self.module_of = module_of
        self.paths = frozenset(paths)
        self.finish = finish
        self.values = Values()
        self.place: tuple[str, str] = ("", "")
        self.prepared: dict[Any, BaseException | None] = {}
        self.seen: dict[tuple[str, type | None], list[Level]] = {}

    def run(self, name: str, then: str | None = None) -> None:
        """Run a test in all its runs; it has passed when nothing is raised.

        Args:
            name: ``path::function`` or ``path::Class::method``.
            then: the test that comes next, empty when there is none, None when that is not known. What lasts no longer
                than this test ends with it, and an error there is one of this test.
        """
        self.leave_for(name)
        try:
            self.run_all(*name.split("::"))
        finally:
            if then is not None:
                self.leave_for(then)

    def leave_for(self, name: str) -> None:
        """End what the next test does not use any more."""
        place = _place(name)
        before, self.place = self.place, place
        with contextlib.ExitStack() as ends:  # the last that is put here is the first that is called
            if not place[0]:
                ends.callback(self.values.end, "session")
            if before[0] not in ("", place[0]):
                ends.callback(self.tear_down, "module")
            if before[0] and before != place:
                ends.callback(self.tear_down, "class")

    def tear_down(self, scope: str) -> None:
        """End the fixtures of a class or a module, and the class or module itself."""
        try:
            self.values.end(scope)
        finally:
            for owner in [owner for owner in self.prepared if _is_of(owner, scope)]:
                if self.prepared.pop(owner) is None:
                    end_of(owner)

    def run_all(self, path: str, *parts: str) -> None:
        """Run a test with each of its parameters."""
        module = self.module_of(path)
        owner = getattr(module, parts[0]) if len(parts) == 2 else None
        holder = module if owner is None else owner
        test = getattr(holder, parts[-1])
        marks = marks_of(test, owner, module)
        if (path, owner) not in self.seen:
            self.seen[path, owner] = self.levels(path, module, owner)
        levels = self.seen[path, owner]
        others = [*automatic(levels), *(word for mark in marks if mark.name == "usefixtures" for word in mark.words)]
        is_case = owner is not None and issubclass(owner, unittest.TestCase)
        names = argument_names(test, is_method=owner is not None and not _is_static(owner, parts[-1]))
        names = [] if is_case else names
        tables = [self.table(*mark.words, **mark.keywords) for mark in marks if mark.name == "parametrize"]
        self.prepare(module)
        if owner is not None:
            self.prepare(owner)
        for given, params in runs([*others, *names], levels, tables):
            instance = None if owner is None else owner(parts[-1]) if is_case else owner()
            run = Run(levels, given, params, instance)
            if is_case:
                self.run_once(run, others, [], lambda case=instance: run_case(case))
            else:
                bound = test if instance is None else getattr(instance, parts[-1])
                call = functools.partial(run_function, bound, module if instance is None else instance, self.finish)
                self.run_once(run, others, names, call)

    def table(self, names: Any, values: Any, indirect: Any = False, **_more: Any) -> tuple[list[dict[str, Any]], Any]:
        """The rows of a ``parametrize``, and which of its names are of fixtures."""
        return self.pytest.rows(names, values), indirect

    def levels(self, path: str, module: types.ModuleType, owner: type | None) -> list[Level]:
        """The fixtures that a test sees, the nearest first."""
        found: list[Level] = []
        for kind in owner.__mro__ if owner is not None else ():
            found.append(level_of(vars(kind), is_class=True))
        found.append(level_of(vars(module)))
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            near = f"{folder}/{CONFTEST}" if folder else CONFTEST
            if near in self.paths:
                found.append(level_of(vars(self.module_of(near))))
        return [level for level in (*found, level_of(self.pytest.BUILTIN)) if level]

    def prepare(self, owner: Any) -> None:
        """Run the set-up of a module or class, once. Raises what it raised, each time again."""
        if owner not in self.prepared:
            self.prepared[owner] = None
            try:
                for begin, _ in _wide(owner):
                    if hasattr(owner, begin):
                        _call(getattr(owner, begin), owner)
            except BaseException as error:
                self.prepared[owner] = error
        known = self.prepared[owner]
        if known is not None:
            raise known

    def run_once(self, run: Run, others: list[str], names: list[str], call: Callable[..., None]) -> None:
        """One run of a test, with the values of other fixtures made before, and those of its own passed to it."""
        try:
            self.values.begin(run)
            for name in in_order([*others, *names], run):
                self.values.value(name, run)
            call(**{name: self.values.value(name, run) for name in names})
        finally:
            self.values.end("function")


def _place(name: str) -> tuple[str, str]:
    path, *parts = name.split("::")
    return path, parts[0] if len(parts) == 2 else ""


def _is_of(owner: Any, scope: str) -> bool:
    return isinstance(owner, types.ModuleType) == (scope == "module")


def _wide(owner: Any) -> tuple[tuple[str, str], ...]:
    return _MODULE_WIDE if isinstance(owner, types.ModuleType) else _CLASS_WIDE


def _call(function: Any, *words: Any) -> None:
    """Call a set-up or tear-down, with what it is told of if it takes that."""
    function(*words[: len(inspect.signature(function).parameters)])


def end_of(owner: Any) -> None:
    """Run the tear-down of a module or class."""
    for _, end in _wide(owner):
        if hasattr(owner, end):
            _call(getattr(owner, end), owner)
    if isinstance(owner, type) and issubclass(owner, unittest.TestCase):
        owner.doClassCleanups()


def _is_static(owner: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(owner, name), staticmethod)


def marks_of(test: Any, owner: type | None, module: types.ModuleType) -> list[Any]:
    """The marks of a test, those of its class and those of its module."""
    found = [*vars(test).get("agentrl_marks", ())] if type(test) is FunctionType else []
    for kind in owner.__mro__ if owner is not None else ():
        found += vars(kind).get("agentrl_marks", ())
        found += _listed(vars(kind).get("pytestmark", ()))
    return found + _listed(vars(module).get("pytestmark", ()))


def _listed(marks: Any) -> list[Any]:
    return [*marks] if isinstance(marks, list | tuple) else [marks]


def run_function(test: Any, holder: Any, finish: Callable[[Any], object], /, **arguments: Any) -> None:
    """Call a test, between the set-up and the tear-down of its kind.

    Args:
        test: what to call.
        holder: the object whose method it is, or its module.
        finish: runs a coroutine to its end.
        arguments: its arguments.
    """
    kind = "function" if isinstance(holder, types.ModuleType) else "method"
    with contextlib.ExitStack() as ends:
        if hasattr(holder, f"setup_{kind}"):
            _call(getattr(holder, f"setup_{kind}"), test)
        if hasattr(holder, f"teardown_{kind}"):
            ends.callback(_call, getattr(holder, f"teardown_{kind}"), test)
        result = test(**arguments)
        if inspect.iscoroutine(result):
            finish(result)
        elif inspect.isgenerator(result):
            raise AssertionError("a test that yields is not run by anyone")


class FirstError(unittest.TestResult):
    """Keeps the first exception of a test."""

    first: BaseException | None = None

    def addError(self, test: Any, err: Any) -> None:  # noqa: ARG002
        """Note it."""
        self.first = self.first or err[1]

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: ARG002
        """Note what a part of the test raised, if it did."""
        if err is not None:
            self.first = self.first or err[1]


def run_case(case: unittest.TestCase) -> None:
    """Run one test of unittest. Only one that passed is a pass: none that was skipped or was expected to fail."""
    result = FirstError()
    case.run(result)
    if result.first is not None:
        raise result.first
    if result.testsRun != 1 or result.skipped or result.expectedFailures or result.unexpectedSuccesses:
        raise AssertionError("skipped, or expected to fail")
