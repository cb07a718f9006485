"""Gives tests the values of their fixtures, as pytest does. Standard library only; it runs in the judge and in boxes.

What a function is to pytest stands in its attributes, see `minitest`. Only plain functions are looked at: whatever else
a test module holds may be the candidate's.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

SCOPES = ("function", "class", "module", "package", "session")


class Definition(NamedTuple):
    """A fixture: what makes its value, and whether that is a method."""

    name: str
    function: Callable[..., Any]
    scope: str
    params: Sequence[Any] | None
    autouse: bool
    is_method: bool


Level = Mapping[str, Definition]
"""Fixtures of one place by name. A test sees a list of such, the nearest place first."""


class Run(NamedTuple):
    """One run of a test: what it sees, the values given to it, the parameters of its fixtures, the object that it is
    a method of."""

    levels: Sequence[Level]
    given: Mapping[str, Any]
    params: Mapping[Callable[..., Any], Any]
    instance: Any


class Request:
    """What a fixture can ask about the test that wants it."""

    def __init__(self, values: Values, run: Run, definition: Definition) -> None:
        self._values, self._run, self._definition = values, run, definition
        self.instance = run.instance
        self.cls = type(run.instance) if run.instance is not None else None
        self.scope = definition.scope
        self.fixturename = definition.name

    @property
    def param(self) -> Any:
        """The parameter of this run."""
        if self._definition.function not in self._run.params:
            raise AttributeError(f"fixture {self._definition.name!r} has no parameters in this test")
        return self._run.params[self._definition.function]

    def getfixturevalue(self, name: str) -> Any:
        """The value of another fixture."""
        return self._values.value(name, self._run, self._definition.scope)

    def addfinalizer(self, function: Callable[[], object]) -> None:
        """Have a function called when the value is no longer needed."""
        self._values.undo[self._definition.scope].append(function)


class Values:
    """The values that are kept, by scope."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[Any, tuple[Any, Any]]] = {scope: {} for scope in SCOPES}
        self.undo: dict[str, list[Callable[[], object]]] = {scope: [] for scope in SCOPES}

    def begin(self, run: Run) -> None:
        """Let go of what was made with other parameters than those of a run."""
        for scope in reversed(SCOPES[1:]):
            for function, (param, _) in self.kept[scope].items():
                if function in run.params and run.params[function] is not param:
                    self.end(scope)
                    break

    def value(self, name: str, run: Run, scope: str = "function", levels: Sequence[Level] | None = None) -> Any:
        """The value of a fixture, which is made when there is none.

        Args:
            name: of the fixture.
            run: what wants it.
            scope: of the fixture that wants it.
            levels: where to look for it, when not in all that the run sees.

        Raises:
            LookupError: there is no such fixture, or one that does not last as long as what wants it.
        """
        if name in run.given and levels is None:
            return run.given[name]
        found, outer = find(name, run.levels if levels is None else levels)
        if SCOPES.index(found.scope) < SCOPES.index(scope):
            raise LookupError(f"a fixture of scope {scope} cannot use {name!r}, which is of scope {found.scope}")
        kept = self.kept[found.scope]
        if found.function not in kept:
            made = self.make(found, run, outer)
            kept[found.function] = (run.params.get(found.function), made)
        return kept[found.function][1]

    def make(self, found: Definition, run: Run, outer: Sequence[Level]) -> Any:
        """A new value of a fixture; its end is noted."""
        arguments = {}
        for name in argument_names(found.function, is_method=found.is_method):
            if name == "request":
                arguments[name] = Request(self, run, found)
            else:
                arguments[name] = self.value(name, run, found.scope, outer if name == found.name else None)
        made = found.function(*([run.instance] if found.is_method else []), **arguments)
        if not inspect.isgenerator(made):
            return made
        value = next(made, self)
        if value is self:
            raise AssertionError(f"fixture {found.name!r} yields nothing")
        self.undo[found.scope].append(lambda: end_generator(made, found.name))
        return value

    def end(self, scope: str) -> None:
        """Let go of the values of a scope and of shorter ones, the last first. Raises the first error, after all."""
        errors = []
        for each in SCOPES[: SCOPES.index(scope) + 1]:
            self.kept[each].clear()
            while self.undo[each]:
                try:
                    self.undo[each].pop()()
                except BaseException as error:
                    errors.append(error)
        if errors:
            raise errors[0]


def end_generator(generator: Any, name: str) -> None:
    """Run what stands behind the ``yield`` of a fixture."""
    for _ in generator:
        raise AssertionError(f"fixture {name!r} yields twice")


def argument_names(function: Callable[..., Any], *, is_method: bool) -> list[str]:
    """The arguments of a test or fixture that fixtures are for: without defaults, and not given by ``mock.patch``."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [one.name for one in parameters if one.default is one.empty and one.kind in kinds]
    mock = sys.modules.get("unittest.mock")
    patches = getattr(function, "patchings", ()) if mock is not None else ()
    mocked = sum(patch.attribute_name is None and patch.new is mock.DEFAULT for patch in patches)  # type: ignore[union-attr]
    return names[is_method + mocked :]


def find(name: str, levels: Sequence[Level]) -> tuple[Definition, Sequence[Level]]:
    """The nearest fixture of a name, and the levels behind it. Raises LookupError when there is none."""
    for index, level in enumerate(levels):
        if name in level:
            return level[name], levels[index + 1 :]
    raise LookupError(f"there is no fixture {name!r}")


def level_of(namespace: Mapping[str, Any], *, is_class: bool = False) -> Level:
    """The fixtures among the values of a module or a class."""
    found = {}
    for key, value in namespace.items():
        function = value.__func__ if type(value) is staticmethod else value
        about = vars(function).get("agentrl_fixture") if type(function) is FunctionType else None
        if about is not None:
            name = about.get("name") or key
            is_method = is_class and type(value) is not staticmethod
            params, autouse = about.get("params"), bool(about.get("autouse"))
            found[name] = Definition(name, function, about["scope"], params, autouse, is_method)
    return found


def reached(names: Sequence[str], levels: Sequence[Level], given: Mapping[str, Any]) -> list[Definition]:
    """The fixtures that some names lead to, each once, in the order in which they are met."""
    found: dict[Any, Definition] = {}
    waiting = [(name, levels) for name in names]
    while waiting:
        name, places = waiting.pop(0)
        if name == "request" or (name in given and places is levels):
            continue
        definition, outer = find(name, places)
        if definition.function not in found:
            found[definition.function] = definition
            own = argument_names(definition.function, is_method=definition.is_method)
            waiting += [(other, outer if other == name else levels) for other in own]
    return list(found.values())


def in_order(names: Sequence[str], run: Run) -> list[str]:
    """The fixtures that some names lead to in the order in which they are made: those that last longer first."""
    found = dict.fromkeys((*names, *(one.name for one in reached(names, run.levels, run.given))))
    there = [name for name in found if name not in run.given and name != "request"]
    return sorted(there, key=lambda name: -SCOPES.index(find(name, run.levels)[0].scope))


def automatic(levels: Sequence[Level]) -> list[str]:
    """The names of the fixtures that every test has, those of farther places first."""
    return list(dict.fromkeys(name for level in reversed(levels) for name, one in level.items() if one.autouse))


def runs(
    names: Sequence[str], levels: Sequence[Level], tables: Sequence[tuple[list[dict[str, Any]], Any]]
) -> Iterator[tuple[dict[str, Any], dict[Callable[..., Any], Any]]]:
    """The values given to each run of a test, and the parameters of its fixtures.

    Args:
        names: the fixtures that it uses.
        levels: what it sees.
        tables: the rows of each ``parametrize``, and its ``indirect``.
    """
    combinations = [sorted_out(rows, tables) for rows in itertools.product(*(rows for rows, _ in tables))]
    given, passed = combinations[0]
    choices = [
        [(one.function, value) for value in one.params]
        for one in reached(names, levels, given)
        if one.params is not None and one.name not in passed
    ]
    if not all(choices):
        raise AssertionError("a fixture with no parameters to run with")
    for picked in itertools.product(*choices):
        for given, passed in combinations:
            yield given, dict(picked) | {find(name, levels)[0].function: value for name, value in passed.items()}


def sorted_out(rows: Sequence[dict[str, Any]], tables: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of one combination of rows: those given to a test, and those passed to its fixtures."""
    given: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for row, (_, indirect) in zip(rows, tables, strict=True):
        for name, value in row.items():
            (passed if indirect is True or (indirect and name in indirect) else given)[name] = value
    return given, passed
