"""Refuses suites that ask for what is not there, when they are made: a right program must not fail for it.

What a suite does can only be read off as far as it is written plainly; a suite is proved by the right program passing.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.errors import TaskError
from agentrl.rewards.judge.trees import Function, is_fixture, is_test, is_test_file, origin, origins, parsed, tests_in

_PYTEST = "raises approx fail importorskip param mark fixture MonkeyPatch CaptureFixture FixtureRequest"
PYTEST = frozenset(_PYTEST.split())
_REQUEST = "param getfixturevalue addfinalizer instance cls scope fixturename"
REQUEST = frozenset(_REQUEST.split())
_SKIPS = (
    "pytest.skip pytest.xfail pytest.mark.skip pytest.mark.skipif pytest.mark.xfail unittest.skip unittest.skipIf "
    "unittest.skipUnless unittest.expectedFailure unittest.SkipTest"
)
SKIPS = frozenset(_SKIPS.split())
OUTSIDE = frozenset(("monkeypatch", "capsys", "request"))
INSIDE = OUTSIDE | {"tmp_path", "tmp_path_factory"}
"""The fixtures that there always are, for tests outside and inside of the candidate's process."""
PATCHES = frozenset(f"unittest.mock.patch{part}" for part in ("", ".object", ".dict", ".multiple"))
_NO_SKIPS = "a hidden test that does not run is no pass, so leave the test or the mark out"
_INSIDE = "which the candidate's process does not see; use InsideSuite"
_OTHERS_ONLY = {
    name: f"fixture {name!r} makes a folder here, {_INSIDE}"
    for name in ("tmp_path", "tmp_path_factory", "tmpdir", "tmpdir_factory")
} | {
    name: f"fixture {name!r} takes in what this process says and not what the candidate's does; use InsideSuite"
    for name in ("capfd", "capfdbinary", "capsysbinary", "caplog", "recwarn")
}
_HERE_ONLY = frozenset(("setenv", "delenv", "chdir", "syspath_prepend"))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A test file with what is known of its suite.

    Attributes:
        path: of the file.
        tree: of its text.
        names: what its imported names stand for.
        modules: names at the top that are the candidate's.
        own: names at the top of the suite's own modules.
        fixtures: names of all fixtures of the suite.
        classes: names of all classes of the suite that have tests.
        inside: whether the tests run in the candidate's process.
    """

    path: str
    tree: ast.Module
    names: dict[str, str]
    modules: frozenset[str]
    own: frozenset[str]
    fixtures: frozenset[str]
    classes: frozenset[str]
    inside: bool


def check_suite(files: Mapping[str, str], *, modules: Sequence[str], inside: bool, task_id: str) -> None:
    """Look for what a suite cannot have.

    Args:
        files: path to text.
        modules: names at the top that are the candidate's.
        inside: whether the tests run in the candidate's process.
        task_id: for the message.

    Raises:
        TaskError: with the task, the file, the line, what it is, and what to write instead.
    """
    trees = {path: parsed(f"hidden test file {path}", text) for path, text in files.items() if path.endswith(".py")}
    fixtures = frozenset(name for tree in trees.values() for name in fixture_names(tree))
    classes = frozenset(name for tree in trees.values() for name in classes_with_tests(tree))
    own = frozenset(path.removesuffix(".py").partition("/")[0] for path in files)
    for path, tree in trees.items():
        place = Place(
            path=path,
            tree=tree,
            names=origins(tree),
            modules=frozenset(modules),
            own=own,
            fixtures=fixtures,
            classes=classes,
            inside=inside,
        )
        for line, problem in problems(place):
            raise TaskError(f"{task_id + ': ' if task_id else ''}hidden test file {path}, line {line}: {problem}")


def fixture_names(tree: ast.Module) -> Iterator[str]:
    """The names under which the fixtures of a file are known."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and is_fixture(node):
            given = [
                keyword.value.value
                for part in node.decorator_list
                if isinstance(part, ast.Call)
                for keyword in part.keywords
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
            ]
            yield str(given[0]) if given else node.name


def classes_with_tests(tree: ast.Module) -> Iterator[str]:
    """The classes of a file that have functions named as tests are."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(map(is_test, node.body)):
            yield node.name


def problems(place: Place) -> Iterator[tuple[int, str]]:
    """Line and description of each thing that cannot be had, with what to write instead."""
    for node in ast.walk(place.tree):
        problem = ""
        if isinstance(node, ast.Name | ast.Attribute):
            problem = _of_name(node, place)
        elif isinstance(node, ast.Call):
            problem = _of_call(node, place)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete) and not place.inside:
            problem = _of_assignment(node, place)
        elif isinstance(node, ast.ClassDef):
            problem = _of_bases(node, place)
        elif isinstance(node, ast.AsyncFunctionDef) and is_fixture(node):
            problem = "a fixture cannot be a coroutine; run it in the fixture by asyncio.run"
        if problem:
            yield getattr(node, "lineno", 0), problem
    yield from _of_arguments(place)


def _of_name(node: ast.Name | ast.Attribute, place: Place) -> str:
    name = origin(node, place.names)
    if name in SKIPS or (isinstance(node, ast.Attribute) and node.attr == "skipTest"):
        return f"{name or 'skipTest'}: {_NO_SKIPS}"
    first, _, rest = name.partition(".")
    if first == "pytest" and rest and rest.partition(".")[0] not in PYTEST:
        return f"pytest.{rest} is not there; these are: {', '.join(sorted(PYTEST))}"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id == "request" and "request" not in place.names and node.attr not in REQUEST:
            return f"request.{node.attr} is not there; these are: {', '.join(sorted(REQUEST))}"
        if node.value.id == "monkeypatch" and node.attr in _HERE_ONLY and not place.inside:
            return f"monkeypatch.{node.attr} changes this process, {_INSIDE}"
    return ""


def _of_call(node: ast.Call, place: Place) -> str:
    name = origin(node.func, place.names)
    first = node.args[0] if node.args else None
    if name == "pytest.importorskip" and isinstance(first, ast.Constant):
        return _of_import(str(first.value), place)
    if place.inside:
        return ""
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "monkeypatch":
        is_patch = node.func.attr in ("setattr", "delattr", "setitem", "delitem")
        return _of_patch(node.func.attr.endswith("item"), first, place) if is_patch else ""
    if name in PATCHES:
        return _of_patch(name.endswith(".dict"), first, place)
    if name in ("random.seed", "os.chdir", "os.putenv", "os.umask") and first is not None:
        return f"{name} changes this process, {_INSIDE}"
    return ""


def _of_import(name: str, place: Place) -> str:
    root = name.partition(".")[0]
    if root in place.modules or root in place.own or importlib.util.find_spec(root) is not None:
        return ""
    return f"importorskip({name!r}): it is not installed here, and {_NO_SKIPS}"


def _of_patch(is_item: bool, target: ast.expr | None, place: Place) -> str:
    """Why a patch of this target would have no effect on the candidate."""
    if target is None:
        return ""
    name = str(target.value) if isinstance(target, ast.Constant) else origin(target, place.names)
    root = name.partition(".")[0]
    if name and root not in place.modules and root not in place.own:
        return f"patching {name} changes this process, {_INSIDE}"
    if is_item and root in place.modules:
        return f"{name} is a copy here if it is a dict, {_INSIDE}, or set the whole attribute by setattr"
    return ""


def _of_assignment(node: ast.Assign | ast.AugAssign | ast.Delete, place: Place) -> str:
    for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
        if not isinstance(target, ast.Attribute | ast.Subscript):
            continue
        name = origin(target.value, place.names)
        root = name.partition(".")[0]
        if name and root not in place.modules and root not in place.own:
            return f"setting a part of {name} changes this process, {_INSIDE}"
    return ""


def _of_bases(node: ast.ClassDef, place: Place) -> str:
    for base in node.bases:
        name = origin(base, place.names)
        root, last = name.partition(".")[0], name.rpartition(".")[2]
        if root in place.own and last in place.classes:
            return f"class {node.name} has tests from another file, {name}; put the two into one file"
        if root in place.modules and not place.inside:
            return f"class {node.name} derives from {name}, which is not in this process; use InsideSuite"
    return ""


def _of_arguments(place: Place) -> Iterator[tuple[int, str]]:
    """The fixtures that tests and fixtures want, which must be there."""
    there = place.fixtures | (INSIDE if place.inside else OUTSIDE)
    for function, is_method in _functions(place):
        if any("patch" in ast.unparse(part) for part in function.decorator_list):
            continue  # its first arguments are given by the patches
        for name in _wanted(function, is_method=is_method) - _parametrized(function, place.tree) - there:
            known = "" if place.inside else _OTHERS_ONLY.get(name, "")
            problem = known or f"there is no fixture {name!r}; these are: {', '.join(sorted(there))}"
            yield function.lineno, problem
        if not place.inside and "capsys" in _wanted(function, is_method=is_method) and _reads_errors(function):
            yield function.lineno, "what the candidate writes to sys.stderr does not come here; use InsideSuite"


def _functions(place: Place) -> Iterator[tuple[Function, bool]]:
    """The tests and fixtures of a file, and whether they are methods."""
    if is_test_file(place.path):
        yield from ((function, "::" in name) for name, function in tests_in(place.tree))
    for node in place.tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from ((f, f is not node) for f in inner if isinstance(f, Function) and is_fixture(f))


def _wanted(function: Function, *, is_method: bool) -> set[str]:
    """The arguments that have no default."""
    given = function.args
    places = [*given.posonlyargs, *given.args]
    places = places[: len(places) - len(given.defaults)]
    is_static = any(ast.unparse(part) == "staticmethod" for part in function.decorator_list)
    keywords = [one for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return {one.arg for one in [*places[is_method and not is_static :], *keywords]}


def _parametrized(function: Function, tree: ast.Module) -> set[str]:
    """The arguments that ``parametrize`` gives, to a function or to all in its class or module."""
    holders = [node for node in tree.body if isinstance(node, ast.ClassDef) and function in node.body]
    marks = [part for holder in (function, *holders) for part in holder.decorator_list]
    marks += [node.value for node in [*tree.body, *(n for h in holders for n in h.body)] if _is_pytestmark(node)]  # type: ignore[attr-defined]
    found = set[str]()
    for call in (call for mark in marks for call in ast.walk(mark) if isinstance(call, ast.Call) and call.args):
        if ast.unparse(call.func).endswith("parametrize"):
            found |= _words(call.args[0], function)
    return found


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets)


def _words(names: ast.expr, function: Function) -> set[str]:
    """The names in the first argument of ``parametrize``; all that a function has when they cannot be read off."""
    try:
        value = ast.literal_eval(names)
    except ValueError:
        return {one.arg for one in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]}
    return {name.strip() for name in (value.split(",") if isinstance(value, str) else value)}


def _reads_errors(function: Function) -> bool:
    """Whether a test looks at the second part of what was captured."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr == "err":
            return True
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith("readouterr()"):
            seconds = [target.elts[1] for target in node.targets if isinstance(target, ast.Tuple) and target.elts[1:]]
            if any(not ast.unparse(second).startswith("_") for second in seconds):
                return True
    return False
