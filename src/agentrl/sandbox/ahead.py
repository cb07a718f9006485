"""Test files compiled before the fork, because the tests of a task run on many programs. Standard library only.

No text of a job runs here, and only small and shallow text is compiled, where a parser that runs wild would cost more
than one job; everything else is left to the forked process. So are the programs under test: what one attempt has
written must not be found by the program of another.
"""

from __future__ import annotations

import functools
import re
import types
import warnings
from collections.abc import Mapping

from agentrl.sandbox import asserts

_MAX_TEXT = 8192
_MAX_LINE = 500
_MAX_BRACKETS = 12
_BRACKETS = re.compile(r"[()\[\]{}]")


def compiled_tests(tests: Mapping[str, str]) -> dict[str, types.CodeType]:
    """The code of those test files (path to text) that can be compiled ahead, by path."""
    found = ((path, _test_code(path, text)) for path, text in tests.items())
    return {path: code for path, code in found if code is not None}


@functools.lru_cache(maxsize=512)
def _test_code(path: str, text: str) -> types.CodeType | None:
    if not _is_tame(text):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody would read them
        try:
            return asserts.compile_tests(text, path)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None  # the forked process says what is wrong with it


def _is_tame(text: str) -> bool:
    if len(text) > _MAX_TEXT or any(len(line) > _MAX_LINE for line in text.split("\n")):
        return False
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "([{" else -1
        if depth > _MAX_BRACKETS:
            return False
    return True
