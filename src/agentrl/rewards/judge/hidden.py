"""The kinds of hidden tests that the judge runs, and what it is sent of each. Nothing of it reaches the candidate."""

from __future__ import annotations

import ast
import base64
import builtins
import functools
import marshal
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import TaskError
from agentrl.rewards.judge.canaries import Mixed, with_canaries
from agentrl.rewards.judge.fit import check_suite
from agentrl.rewards.judge.stdio import HiddenPrograms
from agentrl.rewards.judge.suites import CONFTEST
from agentrl.rewards.judge.trees import is_test_file, parsed, tests_in


@dataclass(frozen=True, kw_only=True)
class HiddenSuite:
    """Test files, of functions ``test_*`` and of classes as of unittest or pytest.

    The tests import the candidate's modules as usual and hold proxies instead. Of pytest there is what `minitest` has:
    fixtures, also in ``conftest.py``, parameters, ``raises``, ``approx``, ``monkeypatch`` for the candidate's modules
    and the tests' own objects, ``capsys`` for what the candidate prints. A test that compares with something that the
    candidate made (a constant, a member of an enum, an object from a constructor) only tests that the two agree, so
    compare with data.

    Args:
        files: path to text of the test files, and of their own helpers.
        modules: names of the candidate's modules and packages at the top.
        classes: names of classes whose operators and methods the tests use without naming the class.
        trusting: let objects of the candidate's classes compare themselves and its context managers swallow exceptions.
            A pass can then be forged, so that the tier is 2.
        task_id: for messages.

    Raises:
        TaskError: a test file that does not parse, no test, or what such tests cannot have; see `fit`.
    """

    files: Mapping[str, str]
    modules: tuple[str, ...]
    classes: tuple[str, ...] = ()
    trusting: bool = False
    task_id: str = ""
    ids: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", ids_in(self.files, self.task_id))
        check_suite(self.files, modules=self.modules, inside=False, task_id=self.task_id)

    @property
    def tier(self) -> int:
        """1 when a pass cannot be forged, 2 when a forgery would only be likely to show."""
        return 2 if self.trusting else 1

    def for_judge(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kind": "suite",
            "files": {path: as_code(text, path) for path, text in self.files.items()},
            "wanted": sorted(names_wanted(tuple(self.files.values()))),
            "ids": list(self.ids),
            "modules": list(self.modules),
            "classes": list(self.classes),
            "trusting": self.trusting,
        }


@dataclass(frozen=True, kw_only=True)
class HiddenCheck:
    """A script that must reach its end, such as the ``check`` functions of HumanEval.

    Args:
        module: the candidate's module.
        entry: the function of it that is tested. Every other name is the reference's, so that a candidate cannot help
            itself by changing a helper that the script compares with.
        source: the script.
        reference: source of the right program, which runs in the judge.

    Raises:
        TaskError: the script or the reference does not parse.
    """

    module: str
    entry: str
    source: str
    reference: str = ""
    tier: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        parsed(f"hidden check of {self.module}.{self.entry}", self.source)
        parsed(f"reference of {self.module}.{self.entry}", self.reference)

    @classmethod
    def of_script(cls, *, module: str, source: str, reference: str = "") -> HiddenCheck:
        """The check of a script that ends in ``check(FUNCTION)``, as those of HumanEval do.

        Raises:
            TaskError: it ends otherwise, or does not parse.
        """
        match parsed(f"hidden script of {module}", source).body[-1:]:
            case [ast.Expr(value=ast.Call(args=[ast.Name(id=entry)]))]:
                return cls(module=module, entry=entry, source=source, reference=reference)
        raise TaskError(f"the hidden script of {module} does not end in check(FUNCTION)")

    @property
    def ids(self) -> tuple[str, ...]:
        """The one test."""
        return (self.entry,)

    def for_judge(self) -> dict[str, Any]:
        """As JSON."""
        codes = {name: as_code(getattr(self, name), f"{name}.py") for name in ("source", "reference")}
        return {"kind": "check", "ids": list(self.ids), "module": self.module, "entry": self.entry, **codes}


@dataclass(frozen=True, kw_only=True)
class HiddenReference:
    """Inputs that are drawn anew at each grading, and a right program to compare with. Both run in the judge.

    Args:
        module: the candidate's module.
        function: the function of it that is tested.
        reference: source of a program that has the same function.
        inputs: source of a program with ``inputs(rng) -> tuple`` of plain arguments, from a `random.Random`.
        num_inputs: how many are drawn.
        tolerance: the largest difference of two floats, relative to the larger of 1 and |expected|.

    Raises:
        TaskError: a source does not parse, or no inputs.
    """

    module: str
    function: str
    reference: str
    inputs: str
    num_inputs: int = 20
    tolerance: float = 0.0
    tier: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        parsed(f"reference of {self.module}.{self.function}", self.reference)
        parsed(f"inputs of {self.module}.{self.function}", self.inputs)
        if self.num_inputs < 1:
            raise TaskError(f"num_inputs is {self.num_inputs}; draw one input at least")

    @property
    def ids(self) -> tuple[str, ...]:
        """One for each input."""
        return tuple(str(index) for index in range(self.num_inputs))

    def for_judge(self) -> dict[str, Any]:
        """As JSON."""
        codes = {name: as_code(getattr(self, name), f"{name}.py") for name in ("reference", "inputs")}
        names = ("module", "function", "num_inputs", "tolerance")
        return {"kind": "reference", "ids": list(self.ids), **{name: getattr(self, name) for name in names}, **codes}


@dataclass(frozen=True, kw_only=True)
class InsideSuite:
    """Test files that run in the candidate's own process, where its objects and patches reach them: tier 2.

    For tests that cannot do with proxies: they derive from the candidate's classes, or replace parts of its modules.
    The files are put over the candidate's; canaries among the tests show most forgeries, see `canaries`.

    Args:
        files: path to text of the test files, and of their own helpers.
        task_id: for messages.

    Raises:
        TaskError: a test file that does not parse, no test, none that a canary can be made of, or what such tests
            cannot have; see `fit`.
    """

    files: Mapping[str, str]
    task_id: str = ""
    tier: int = field(default=2, init=False)
    ids: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", ids_in(self.files, self.task_id))
        check_suite(self.files, modules=(), inside=True, task_id=self.task_id)
        if all(self.mixed(0).expected.values()):
            where = f"{self.task_id}: " if self.task_id else ""
            what = "no test compares with a constant by == or assertEqual; add some"
            raise TaskError(f"{where}{', '.join(self.files)}: {what}")

    def mixed(self, seed: int) -> Mixed:
        """The files with canaries among the tests, and what each test must come to."""
        is_test = {path: is_test_file(path) for path in self.files}
        return with_canaries(self.files, is_test, random.Random(seed))

    @staticmethod
    def laid_over(files: Mapping[str, bytes], tests: Mapping[str, str]) -> dict[str, bytes]:
        """A candidate's files with the tests over them, and without fixtures of its own."""
        kept = {path: content for path, content in files.items() if path.rpartition("/")[2] != CONFTEST}
        return kept | {path: text.encode() for path, text in tests.items()}


Hidden = HiddenSuite | HiddenCheck | HiddenReference | HiddenPrograms | InsideSuite


def test_ids(path: str, text: str) -> list[str]:
    """Names of the tests in a file, in their order: ``path::function`` and ``path::Class::method``."""
    return [f"{path}::{name}" for name, _ in tests_in(parsed(f"hidden test file {path}", text))]


def ids_in(files: Mapping[str, str], task_id: str) -> tuple[str, ...]:
    """Names of the tests in all files. Raises TaskError when there is none, or one twice."""
    found = tuple(name for path, text in files.items() if is_test_file(path) for name in test_ids(path, text))
    before = f"{task_id}: " if task_id else ""
    if not found:
        raise TaskError(f"{before}no test in {', '.join(files)}; name files test_*.py and functions test_*")
    if len({*found}) < len(found):
        raise TaskError(f"{before}two tests have the same name: {next(n for n in found if found.count(n) > 1)}")
    return found


test_ids.__test__ = False  # type: ignore[attr-defined]


@functools.lru_cache(4096)
def as_code(source: str, path: str) -> str:
    """A source of ours, compiled for the judge's process, which has our interpreter."""
    return base64.b64encode(marshal.dumps(compile(source, path, "exec", dont_inherit=True))).decode()


@functools.lru_cache(4096)
def names_wanted(sources: tuple[str, ...]) -> frozenset[str]:
    """The names that ``import *`` of a candidate's module may bind: those used, neither the tests' own nor built in.

    Else a candidate could put something in the place of ``abs``, or of a helper that the tests import.
    """
    used, bound = set[str](), set(dir(builtins))
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, ast.alias):
                bound.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound.add(node.name)
    return frozenset(used - bound)
