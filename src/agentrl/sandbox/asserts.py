"""Tests without pytest: find test functions, and make ``assert CALL == VALUE`` tell what it compared.

Standard library only; tests run in the forked child. Each such assert of a test file is rewritten to

    assert @equal("CALL", @begin("CALL") or CALL, VALUE)

whose names no program can spell, so that a failure knows the call, what it gave and what was expected.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator
from typing import Any

_LAZY = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


class AssertState:
    """Which rewritten assert runs now, and what it compared."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the last test."""
        self.running: str | None = None
        self.values: tuple[Any, Any] | None = None

    def begin(self, call: str) -> None:
        """An assert starts to evaluate its left side, the call with this source."""
        self.running, self.values = call, None

    def equal(self, call: str, left: Any, right: Any) -> Any:
        """The comparison itself; its verdict is the operands' own."""
        verdict = left == right
        if verdict:
            self.running = None
        else:
            self.running, self.values = call, (left, right)
        return verdict

    def comparison(self) -> dict[str, str]:
        """The failing assert's call, and got and expected when both sides were evaluated."""
        if self.running is None:
            return {}
        told = {"call": self.running}
        if self.values is not None:
            told |= {"got": safe_repr(self.values[0]), "expected": safe_repr(self.values[1])}
        return told


STATE = AssertState()
HELPERS = {"@begin": STATE.begin, "@equal": STATE.equal}


def safe_repr(value: Any) -> str:
    """``repr(value)``, or a stand-in when the candidate's repr raises."""
    try:
        return repr(value)
    except (Exception, SystemExit, KeyboardInterrupt):
        return f"<{type(value).__name__}>"


def compile_tests(source: str, path: str) -> types.CodeType:
    """Compile a test file with its asserts rewritten; it runs in a namespace that holds `HELPERS`."""
    tree = ast.parse(source, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            node.test = _rewritten(node.test)
    return compile(tree, path, "exec", dont_inherit=True)


def _rewritten(test: ast.expr) -> ast.expr:
    match test:
        case ast.Compare(left=ast.Call() as call, ops=[ast.Eq()], comparators=[expected]):
            text = ast.Constant(ast.unparse(call))
            left = ast.BoolOp(ast.Or(), [_helper("@begin", [text]), call])
            helper = ast.copy_location(_helper("@equal", [text, left, expected]), test)
            return ast.fix_missing_locations(helper)
    return test


def _helper(name: str, arguments: list[ast.expr]) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


def find_tests(module: types.ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Test functions and the test methods of test classes, in the order of definition, each with its name."""
    for name, member in list(vars(module).items()):
        if name.startswith("test") and isinstance(member, types.FunctionType):
            yield name, member
        elif name.startswith("Test") and isinstance(member, type):
            yield from _find_methods(name, member)


def _find_methods(class_name: str, cls: type) -> Iterator[tuple[str, Callable[[], object]]]:
    def bound(method: str) -> Callable[[], object]:
        return lambda: getattr(cls(), method)()

    for name, member in list(vars(cls).items()):
        if name.startswith("test") and isinstance(member, types.FunctionType):
            yield f"{class_name}::{name}", bound(name)


def check_ran(result: object) -> None:
    """Refuse a test that only made a coroutine or generator and never ran.

    Raises:
        TypeError: naming what the test returned.
    """
    if isinstance(result, _LAZY):
        raise TypeError(f"the test is a {type(result).__name__} and did not run; write it as a plain function")
