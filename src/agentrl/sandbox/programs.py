"""What the worker makes before the fork because many children need it: test files compiled, modules imported.

Standard library only. No text of a job runs here, and only small and shallow text is compiled here, where a parser
that runs wild would cost more than one job; everything else is left to the child.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import re
import sys
import types
import warnings
from typing import Any

from agentrl.sandbox import asserts

Code = types.CodeType | SyntaxError | None

_MAX_TEXT = 8192
_MAX_LINE = 500
_MAX_BRACKETS = 12
_BRACKETS = re.compile(r"[()\[\]{}]")
_IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
# fmt: off
_TRUSTED_MODULES = frozenset((
    "abc", "ast", "bisect", "calendar", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math",
    "numbers", "operator", "re", "statistics", "string", "textwrap", "time", "typing",
))
# fmt: on


def import_random() -> None:
    """Import `random` with a fixed state. Its own hook would seed it from the system's noise in every child."""
    register = os.register_at_fork
    os.register_at_fork = lambda **_hooks: None
    try:
        importlib.import_module("random").seed(0)
    finally:
        os.register_at_fork = register


def prepare(job: dict[str, Any]) -> dict[str, Code]:
    """The code of each test file, or its syntax error, or None where the child has to compile it itself.

    Standard modules that the files import are imported here first, so that no child has to. The programs under
    test are compiled by the child: what one attempt has written must not be found by the program of another.
    """
    for part in job.get("parts", (job,)):
        _warm_up(part["files"])
    return {path: _test_code(path, job["files"][path]) for path in job.get("paths", ())}


@functools.lru_cache(maxsize=512)
def _test_code(path: str, text: str) -> Code:
    if not _is_tame(text):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody would read them
        try:
            return asserts.compile_tests(text, path)
        except SyntaxError as error:
            return error.with_traceback(None)
        except (ValueError, RecursionError, MemoryError):
            return None


def _warm_up(files: dict[str, str]) -> None:
    texts = [text for text in files.values() if "import" in text]
    names = {name for text in texts for name in _IMPORTED.findall(text)}
    new = sorted(name for name in names & _TRUSTED_MODULES if name not in sys.modules)
    for name in new:
        importlib.import_module(name)
    if new:
        gc.freeze()


def _is_tame(text: str) -> bool:
    if len(text) > _MAX_TEXT or any(len(line) > _MAX_LINE for line in text.split("\n")):
        return False
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "([{" else -1
        if depth > _MAX_BRACKETS:
            return False
    return True
