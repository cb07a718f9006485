"""Hidden calls of a program: the sandbox learns the inputs only, and the comparison is made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import TaskError
from agentrl.sandbox.jobs import Calls, Job, JobResult
from agentrl.sandbox.values import NotPlain, encode_plain, same


@dataclass(frozen=True, kw_only=True)
class HiddenCalls:
    """Calls of a module's functions, each with the value that it must return, types included.

    Args:
        module: dotted name, importable from the root of the workspace.
        calls: (function, arguments) with plain arguments.
        expected: one plain value per call.
        tolerance: the largest difference of two floats, relative to the larger of 1 and |expected|.

    Raises:
        TaskError: no calls, a number of expected values other than that of calls, or a value that is not plain.
    """

    module: str
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    expected: tuple[Any, ...]
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not self.calls or len(self.calls) != len(self.expected):
            counts = f"{len(self.calls)} hidden calls and {len(self.expected)} expected values"
            raise TaskError(f"{self.module}: {counts}; there must be one value per call, and one call at least")
        try:
            for value in self.expected:
                encode_plain(value)
        except NotPlain as error:
            raise TaskError(f"{self.module}: an expected value cannot be compared: {error}") from error

    def job(self, files: Mapping[str, str]) -> Job:
        """What the sandbox must run for ``files``. It holds no expected value."""
        return Job(files=files, run=Calls(module=self.module, calls=self.calls))

    def passes(self, result: JobResult) -> tuple[bool, ...]:
        """For each call whether what came back is what it must return."""
        pairs = zip(result.outcomes, self.expected, strict=True)
        return tuple(o.status == "value" and same(o.value, value, tolerance=self.tolerance) for o, value in pairs)
