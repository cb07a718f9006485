"""Reads test files without running them: which tests they have, and what their names stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agentrl.errors import TaskError

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(what: str, source: str) -> ast.Module:
    """The syntax tree of a source of ours. Raises TaskError naming what it was and the line."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0)
        raise TaskError(f"{what} does not parse (line {line}: {error.args[0]})") from error


def is_test_file(path: str) -> bool:
    """Whether a file's tests are run, and not only imported by others."""
    name = path.rpartition("/")[2]
    return name.startswith("test_") or name.endswith("_test.py")


def is_test(node: ast.stmt) -> bool:
    """Whether a statement defines a test, if it stands in a test file or a test class there."""
    return isinstance(node, Function) and node.name.startswith("test") and not is_fixture(node)


def is_fixture(node: Function) -> bool:
    """Whether a function is decorated as a fixture."""
    calls = [part.func if isinstance(part, ast.Call) else part for part in node.decorator_list]
    return any(dotted(call).rpartition(".")[2] == "fixture" for call in calls)


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of such an expression, else an empty text."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def tests_in(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The tests of a file, in their order: name, with that of the class before it, and definition.

    Tests that a class has from another class of the file are its own too. A class without a name or a base of a test
    class, from which others derive, is there for those.
    """
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    bases = {dotted(base) for node in classes.values() for base in node.bases}
    for node in tree.body:
        if is_test(node):
            assert isinstance(node, Function)
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and (node.name not in bases or looks_like_tests(node)):
            yield from ((f"{node.name}::{name}", method) for name, method in methods_of(node, classes).items())


def looks_like_tests(node: ast.ClassDef) -> bool:
    """Whether a class is one of tests by its name or its bases."""
    return node.name.startswith("Test") or any(dotted(base).endswith("TestCase") for base in node.bases)


def methods_of(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, Function]:
    """The tests of a class, those of its bases in the same file included."""
    found: dict[str, Function] = {}
    for base in node.bases:
        if dotted(base) in classes and dotted(base) != node.name:
            others = {name: one for name, one in classes.items() if name != node.name}
            found |= methods_of(classes[dotted(base)], others)
    return found | {part.name: part for part in node.body if isinstance(part, Function) and is_test(part)}


def origins(tree: ast.Module) -> dict[str, str]:
    """What the names that a file imports stand for, wherever in it that is: ``np`` is ``numpy``."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for part in node.names:
                found[part.asname or part.name.partition(".")[0]] = (
                    part.name if part.asname else part.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {part.asname or part.name: f"{node.module}.{part.name}" for part in node.names}
    return found


def origin(node: ast.AST, names: dict[str, str]) -> str:
    """The dotted name that an expression stands for, when its first name is imported, else an empty text."""
    first, dot, rest = dotted(node).partition(".")
    return names[first] + dot + rest if first in names else ""
