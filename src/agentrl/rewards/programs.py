"""Hidden tests of programs. A program passes when every hidden test ran to its end and passed; else it fails.

For `HiddenCalls` the sandbox only learns the inputs; the expected values stay here, where the comparison is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import SandboxError, ScorerError, TaskError
from agentrl.sandbox.jobs import Calls, Job, JobResult, Script
from agentrl.sandbox.together import Runner
from agentrl.sandbox.values import NotPlain, encode_plain, same
from agentrl.types import Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How many of the hidden tests passed."""

    num_passed: int
    num_tests: int

    @property
    def passed(self) -> bool:
        """Whether there were tests and all of them passed."""
        return 0 < self.num_tests == self.num_passed

    @property
    def explanation(self) -> str:
        """For people, such as ``5 of 8``. It does not say which test failed."""
        return f"{self.num_passed} of {self.num_tests}"


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

    def judge(self, result: JobResult) -> Verdict:
        """The verdict on what came back."""
        pairs = zip(result.outcomes, self.expected, strict=True)
        passes = (o.status == "value" and same(o.value, value, tolerance=self.tolerance) for o, value in pairs)
        return Verdict(num_passed=sum(passes), num_tests=len(self.expected))


@dataclass(frozen=True, kw_only=True)
class HiddenScript:
    """Test code that runs with everything from ``module`` in its namespace and must reach its end.

    It runs in the candidate's process, so it is tamper-evident at best; prefer `HiddenCalls`.
    """

    module: str
    source: str

    def job(self, files: Mapping[str, str]) -> Job:
        """What the sandbox must run for ``files``."""
        return Job(files=files, run=Script(module=self.module, source=self.source))

    def judge(self, result: JobResult) -> Verdict:
        """The verdict on what came back."""
        return Verdict(num_passed=int(result.outcomes[0].status == "value"), num_tests=1)


Hidden = HiddenCalls | HiddenScript


async def grade(pool: Runner, files: Mapping[str, str], hidden: Hidden) -> Verdict:
    """Run the hidden tests on ``files`` (sources only, path -> text).

    Raises:
        ScorerError: the sandbox failed, so that there is no verdict. Never raised for what a program does.
    """
    try:
        result = await pool.run(hidden.job(files))
    except SandboxError as error:
        raise ScorerError(f"hidden tests could not be run: {error}") from error
    return hidden.judge(result)


class HiddenTests:
    """Scores a workspace 1.0 when every hidden test passes, else 0.0.

    Args:
        pool: where programs run.
        hidden: the tests; they are kept here and nowhere else.
        sources: paths of the files that may count. Whatever else lies in the workspace, tests included, is left out.
        weight: the weight of the score in the reward.
    """

    def __init__(self, pool: Runner, hidden: Hidden, *, sources: Collection[str], weight: float = 1.0) -> None:
        self._pool = pool
        self._hidden = hidden
        self._sources = frozenset(sources)
        self._weight = weight

    async def score(self, workspace: Mapping[str, str]) -> Score:
        """The verdict on a workspace (path -> text). Raises ScorerError as `grade` does."""
        files = {path: text for path, text in workspace.items() if path in self._sources}
        verdict = await grade(self._pool, files, self._hidden)
        return Score(
            name="hidden_tests",
            value=1.0 if verdict.passed else 0.0,
            weight=self._weight,
            explanation=verdict.explanation,
        )
