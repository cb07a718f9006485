"""Runs hidden tests in the judge's process, one id after the other, and counts those that reached their end."""

from __future__ import annotations

import base64
import copy
import functools
import io
import itertools
import marshal
import random
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.machinery import ModuleSpec
from typing import Any

from agentrl.rewards.judge import minitest
from agentrl.rewards.judge.faces import Faces, RemoteImporter
from agentrl.rewards.judge.link import TEST_MODULES, Link
from agentrl.rewards.judge.suites import Tests
from agentrl.sandbox.values import Opaque, same


class BrokenTest(Exception):
    """A hidden test cannot be run whatever the candidate is. This is a fault of the task, never a zero."""


class OutOfTime(BaseException):
    """The time of the grading is over.

    Attributes:
        has_come: whether one was raised in this process, whatever a test or its tear-down made of it.
    """

    has_come = False

    def __init__(self) -> None:
        OutOfTime.has_come = True


Report = dict[str, Any]


def run(job: Mapping[str, Any], link: Link) -> Report:
    """Run a job's tests.

    Returns:
        ``passed``: the ids that passed, ``why``: what became of the others, for people only.

    Raises:
        BrokenTest: a test fails by itself.
    """
    kinds = {"suite": run_suite, "check": run_check, "reference": run_reference}
    with redirect_stdout(io.StringIO()):
        return kinds[job["kind"]](job, link)


def run_suite(job: Mapping[str, Any], link: Link) -> Report:
    """Every test of the job's list. One that the files turn out not to have does not pass."""
    link.trusting = job["trusting"]
    faces = Faces(link, known=frozenset(job["classes"]))
    RemoteImporter(faces, frozenset(job["modules"]), frozenset(job["wanted"])).install()
    loader = SuiteLoader(job["files"], frozenset(job["modules"]))
    tests = Tests(minitest, loader.module, job["files"], _finish)
    passed: list[str] = []
    why: dict[str, str] = {}
    for name, then in itertools.pairwise([*job["ids"], ""]):
        attempt(name, functools.partial(tests.run, name, then), link, passed, why)
    return {"passed": passed, "why": why}


def _finish(coroutine: Any) -> Any:
    """Run a coroutine of a test to its end."""
    import asyncio  # a third of what this process would hold, and each grading is a fork

    return asyncio.run(coroutine)


def attempt(name: str, test: Callable[[], object], link: Link, passed: list[str], why: dict[str, str]) -> None:
    """Run one test and note whether it passed.

    Raises:
        BrokenTest: it failed before anything had been asked of the candidate.
        OutOfTime: as it is.
    """
    link.failure = None
    failed: BaseException | None = None
    try:
        test()
    except BrokenTest:
        raise
    except BaseException as error:
        failed = error
    if OutOfTime.has_come:
        raise OutOfTime from failed
    if failed is not None:
        check_blame(name, failed, asked=link.replies > 0 or bool(link.gone))
        why[name] = f"{type(failed).__name__}: {failed}"[:300]
        return
    if link.failure is None:
        passed.append(name)
    else:
        why[name] = f"in a callback: {link.failure}"[:300]


def check_blame(name: str, error: BaseException, *, asked: bool) -> None:
    """Raise BrokenTest when a failure cannot be the candidate's: it has said nothing yet.

    Whatever it could bring about itself must be its failure, or it could escape a zero.
    """
    if not asked and not isinstance(error, AssertionError):
        raise BrokenTest(f"hidden test {name} fails by itself: {type(error).__name__}: {error}")


class SuiteLoader:
    """Imports the test files when the first of their tests is due.

    Args:
        files: path to code.
        roots: names at the top that are the candidate's.
    """

    def __init__(self, files: Mapping[str, str], roots: frozenset[str]) -> None:
        self.roots = roots
        self.modules: dict[str, types.ModuleType | BaseException] = {}
        TEST_MODULES.update(map(_module_name, files))
        sys.meta_path.insert(0, _TestImporter(files))
        sys.modules.setdefault("pytest", minitest)

    def module(self, path: str) -> types.ModuleType:
        """The module of a file. Raises what its import raised, each time again: it fails each of the file's tests.

        Raises:
            BrokenTest: the file imports what is not here and not the candidate's either.
        """
        if path not in self.modules:
            try:
                __import__(_module_name(path))
                self.modules[path] = sys.modules[_module_name(path)]
            except (OutOfTime, BrokenTest):
                raise
            except BaseException as error:
                self.modules[path] = error
        found = self.modules[path]
        if isinstance(found, ModuleNotFoundError) and self._is_missing_here(found):
            raise BrokenTest(f"hidden test file {path} imports {found.name}, which is not installed here")
        if isinstance(found, BaseException):
            raise found
        return found

    def _is_missing_here(self, error: ModuleNotFoundError) -> bool:
        """Whether it was raised here, and not by the candidate, for a module that the candidate cannot have."""
        return not hasattr(error, "_agentrl_id") and str(error.name).partition(".")[0] not in self.roots


class _TestImporter:
    """Imports the test files and their helpers from memory."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = {_module_name(path): code for path, code in files.items()}
        self.packages = {".".join(parts) for name in self.files for parts in _folders(name.split("."))}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """A test file, or a folder of some."""
        if name in self.files or name in self.packages:
            return ModuleSpec(name, self, is_package=name in self.packages)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> None:
        """As usual."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the file."""
        if module.__name__ in self.files:
            exec(loaded(self.files[module.__name__]), module.__dict__)


def _folders(parts: list[str]) -> list[list[str]]:
    return [parts[:count] for count in range(1, len(parts))]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def run_check(job: Mapping[str, Any], link: Link) -> Report:
    """A script, with the candidate's function among the names of the reference."""
    faces = Faces(link)
    TEST_MODULES.add("hidden_check")
    space = _space(job["reference"], "reference")
    space["__name__"] = "hidden_check"
    importer = RemoteImporter(faces, frozenset((job["module"].partition(".")[0],)), frozenset((job["entry"],)))
    importer.install()
    code = loaded(job["source"])

    def script() -> None:
        __import__(job["module"])
        space[job["entry"]] = getattr(sys.modules[job["module"]], job["entry"])
        exec(code, space)

    passed: list[str] = []
    why: dict[str, str] = {}
    attempt(job["entry"], script, link, passed, why)
    return {"passed": passed, "why": why}


def run_reference(job: Mapping[str, Any], link: Link) -> Report:
    """Inputs drawn from the job's seed, and the reference's answers to them. The inputs go over in one message."""
    inputs = _space(job["inputs"], "inputs")["inputs"]
    reference = _space(job["reference"], "reference")[job["function"]]
    rng = random.Random(job["seed"])
    try:
        drawn = [inputs(rng) for _ in range(job["num_inputs"])]
        expected = [reference(*_copied(arguments)) for arguments in drawn]
    except Exception as error:
        raise BrokenTest(f"the reference or its inputs fail: {type(error).__name__}: {error}") from error
    return compare(job, link, [(job["function"], arguments) for arguments in drawn], expected)


def compare(job: Mapping[str, Any], link: Link, calls: list[Any], expected: list[Any]) -> Report:
    """Make all calls in one message and compare the values here."""
    Faces(link)
    link.numbers_encoded = False  # as the agent has it for many calls

    def build() -> list[Any]:
        return [job["module"], [[name, [link.encode(argument) for argument in given]] for name, given in calls]]

    try:
        tag, answers, news = link.exchange("calls", build)
        if tag == "e":
            link.decode_answer(tag, answers, [])
        values = [read_answer(link, answer) for answer in answers]
        link.guarded(link.apply, news)
    except OutOfTime:
        raise
    except BaseException as error:
        return {"passed": [], "why": dict.fromkeys(job["ids"], f"{type(error).__name__}: {error}"[:300])}
    pairs = zip(job["ids"], values, expected, strict=False)
    return {"passed": [n for n, value, wanted in pairs if same(value, wanted, tolerance=job["tolerance"])], "why": {}}


def read_answer(link: Link, answer: Any) -> Any:
    """The value of one of many calls; an `Opaque`, which equals nothing, when there is none that can be read."""
    if type(answer) is not list or len(answer) != 1:
        return Opaque("exception")
    try:
        return link.decode(answer[0])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError):
        return Opaque("unreadable")


def loaded(code: str) -> types.CodeType:
    """The code of a test, which was compiled once for all gradings."""
    found: types.CodeType = marshal.loads(base64.b64decode(code))
    return found


def _copied(arguments: Any) -> Any:
    return copy.deepcopy(arguments)


def _space(source: str, name: str) -> dict[str, Any]:
    """What a trusted source defines. Raises BrokenTest when it cannot be run."""
    space: dict[str, Any] = {"__name__": name}
    try:
        exec(loaded(source), space)
    except Exception as error:
        raise BrokenTest(f"the {name} cannot be run: {type(error).__name__}: {error}") from error
    return space
