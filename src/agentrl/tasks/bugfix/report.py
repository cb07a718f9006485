"""What the policy reads after it ran the visible tests: one short line, or a report in full."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from agentrl.sandbox.jobs import CaseOutcome
from agentrl.tokens.tiny import RESULTS

Style = Literal["short", "full"]
_OTHER_EXCEPTION = "RuntimeError"
_SHORT_VALUE = re.compile(r"(None|True|False|[\[\]\d, -]{1,24})")


def format_report(tests: Sequence[CaseOutcome], style: Style) -> str:
    """The result of a test run in the given style; see `short_report` and `full_report`."""
    return short_report(tests) if style == "short" else full_report(tests)


def short_report(tests: Sequence[CaseOutcome]) -> str:
    """One line for a tiny vocabulary, about the first failing test only.

    It is one of ``passed``, ``failed f(3) == 7 expected 8`` (without ``== 7`` when the value is long or no number or
    list of numbers), ``failed f(3) raised ValueError``, ``failed raised SyntaxError`` (where no call is known, such
    as when a module cannot be imported) and ``failed no tests``. An exception that the vocabulary does not name, and
    the death of the process, is a RuntimeError.
    """
    failing = next((test for test in tests if not test.passed), None)
    if failing is None:
        return "passed" if tests else "failed no tests"
    if failing.status == "failed":
        got = f" == {failing.got}" if _SHORT_VALUE.fullmatch(failing.got) else ""
        return f"failed {failing.call}{got} expected {failing.expected}"
    call = f"{failing.call} " if failing.call else ""
    exception = failing.exception if failing.exception in RESULTS else _OTHER_EXCEPTION
    return f"failed {call}raised {exception}"


def full_report(tests: Sequence[CaseOutcome]) -> str:
    """Counts, then each failing test: its name, line, call, what it gave, what was expected, what was raised."""
    failing = [test for test in tests if not test.passed]
    counts = f"{len(tests) - len(failing)} passed, {len(failing)} failed"
    if not tests:
        counts = "no tests were found"
    return "\n\n".join([counts, *map(_describe, failing)])


def _describe(test: CaseOutcome) -> str:
    lines = [f"FAILED {test.name}"]
    if test.line:
        lines.append(f"  at: {test.line}")
    if test.status == "failed":
        lines += [f"  call: {test.call}", f"  got: {test.got}", f"  expected: {test.expected}"]
        if test.message:
            lines.append(f"  message: {test.message}")
        return "\n".join(lines)
    if test.call:
        lines.append(f"  call: {test.call}")
    message = f": {test.message}" if test.message else ""
    where = f" ({test.where})" if test.where else ""
    lines.append(f"  raised: {test.exception}{message}{where}")
    return "\n".join(lines)
