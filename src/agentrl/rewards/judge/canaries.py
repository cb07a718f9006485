"""Tests that must fail, hidden among those that must pass, for suites that run in the candidate's own process.

A canary is a copy of a test with one expected constant changed. All tests get random names and a random order, so that
whoever makes every test pass (patched asserts, objects that are equal to everything, values read from the caller's
frame, forged answers) makes a canary pass as well. Guessing which of each pair is which succeeds once in 2 ** pairs.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agentrl.rewards.judge.trees import Function, is_test

MAX_CANARIES = 8


class Mixed(NamedTuple):
    """Test files with canaries, and for each id whether it must pass, in the order in which to run them."""

    files: dict[str, str]
    expected: dict[str, bool]


def with_canaries(files: Mapping[str, str], is_test: Mapping[str, bool], rng: random.Random) -> Mixed:
    """The files with their tests renamed and up to `MAX_CANARIES` canaries among them.

    Args:
        files: path to text of test files and their helpers.
        is_test: whether a file's tests are to be run.
        rng: where names and order come from.
    """
    mixed: dict[str, str] = {}
    expected: dict[str, bool] = {}
    left = MAX_CANARIES
    for path, text in files.items():
        if not is_test[path]:
            mixed[path] = text
            continue
        tree = ast.parse(text)
        for prefix, body in _bodies(path, tree):
            left -= _mix(prefix, body, expected, left, rng)
        mixed[path] = ast.unparse(tree)
    return Mixed(mixed, dict(rng.sample(list(expected.items()), len(expected))))


def _bodies(path: str, tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Each list of statements that can hold tests, with the beginning of their ids."""
    yield f"{path}::", tree.body
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield f"{path}::{node.name}::", node.body


def _mix(prefix: str, body: list[ast.stmt], expected: dict[str, bool], most: int, rng: random.Random) -> int:
    """Rename the tests of a body and put canaries between them; how many canaries."""
    count = 0
    for node in list(body):
        if not is_test(node):
            continue
        assert isinstance(node, Function)
        canary = changed(node, rng) if count < most else None
        node.name = _name(rng)
        expected[prefix + node.name] = True
        if canary is not None:
            canary.name = _name(rng)
            expected[prefix + canary.name] = False
            body.insert(body.index(node) + rng.randint(0, 1), canary)
            count += 1
    return count


def _name(rng: random.Random) -> str:
    return f"test_{rng.getrandbits(48):012x}"


def changed(
    test: ast.FunctionDef | ast.AsyncFunctionDef, rng: random.Random
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """A copy of a test that expects something else, or None when it compares nothing with a constant."""
    made = copy.deepcopy(test)
    constants = [node for node in map(_expected, ast.walk(made)) if node is not None]
    if not constants:
        return None
    chosen = rng.choice(constants)
    chosen.value = _other(chosen.value)
    return made


def _expected(node: ast.AST) -> ast.Constant | None:
    """The constant of ``assert x == constant`` or ``assertEqual(x, constant)``."""
    match node:
        case ast.Assert(test=ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant() as found])):
            pass
        case ast.Call(func=ast.Attribute(attr="assertEqual"), args=[_, ast.Constant() as found]):
            pass
        case _:
            return None
    return found if type(found.value) in (bool, int, float, str, bytes) else None


def _other(value: object) -> bool | int | float | str | bytes:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return value + b"a" if isinstance(value, bytes) else f"{value}a"
