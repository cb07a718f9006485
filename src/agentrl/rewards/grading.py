"""From the workspace of an attempt to its score: what counts of it goes to a judge, whose verdict is the score."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Protocol

from agentrl.errors import SandboxError, ScorerError
from agentrl.rewards.judge import Hidden, Judge, Verdict
from agentrl.rewards.programs import HiddenCalls
from agentrl.sandbox.base import BoxLimits
from agentrl.sandbox.pool import Pool
from agentrl.sandbox.together import Runner
from agentrl.types import Score

AnyHidden = Hidden | HiddenCalls
"""Hidden tests of every kind. Calls need no program of tests, so that no judge's process is needed for them."""


class Grader(Protocol):
    """Something that grades, such as a `Judge`."""

    async def grade(self, files: Mapping[str, bytes], hidden: AnyHidden, *, seed: int | None = None) -> Verdict:
        """The verdict on source files. A fault of ours is never raised; the verdict is ``error`` then."""
        ...


class CallGrader:
    """Grades by hidden calls, which need no more than a place where jobs run.

    Args:
        runner: runs the candidates, and may remember what came of them.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def grade(self, files: Mapping[str, bytes], hidden: AnyHidden, *, seed: int | None = None) -> Verdict:  # noqa: ARG002
        """As `Grader.grade`. A file that is no text counts as one that cannot be imported."""
        assert isinstance(hidden, HiddenCalls), "other hidden tests need a Judge"
        started, num_tests = time.monotonic(), len(hidden.calls)
        try:
            result = await self._runner.run(hidden.job({path: _text(content) for path, content in files.items()}))
        except SandboxError as error:
            ms = 1000 * (time.monotonic() - started)
            return Verdict(verdict="error", tier=1, num_passed=0, num_tests=num_tests, wall_ms=ms, why=str(error))
        num_passed = sum(hidden.passes(result))
        return Verdict(
            verdict="pass" if num_passed == num_tests else "fail",
            tier=1,
            num_passed=num_passed,
            num_tests=num_tests,
            wall_ms=1000 * (time.monotonic() - started),
            repeatable=result.repeatable,
        )


class PoolGrader:
    """Grades in the boxes of a pool: hidden calls as jobs, whatever else by a judge.

    Args:
        pool: where candidates run. When it is closed, so is the judge.
        limits: of each box of the judge, as `Judge` has them when None; jobs have those of the pool.
    """

    def __init__(self, pool: Pool, *, limits: BoxLimits | None = None) -> None:
        self._pool = pool
        self._calls = CallGrader(pool)
        self._judge = Judge(pool.backend, limits=limits)
        pool.before_close(self._judge.close)

    async def grade(self, files: Mapping[str, bytes], hidden: AnyHidden, *, seed: int | None = None) -> Verdict:
        """As `Grader.grade`."""
        if isinstance(hidden, HiddenCalls):
            return await self._calls.grade(files, hidden)
        return await self._pool.call(self._judge.grade(files, hidden, seed=seed))


class HiddenTests:
    """Scores a workspace 1.0 when every hidden test passes, else 0.0.

    Args:
        grader: who grades.
        hidden: the tests; they are kept here and nowhere else.
        sources: paths of the files that may count. Whatever else lies in the workspace, tests included, is left out.
        weight: the weight of the score in the reward.
    """

    def __init__(self, grader: Grader, hidden: AnyHidden, *, sources: Collection[str], weight: float = 1.0) -> None:
        self._grader = grader
        self._hidden = hidden
        self._sources = frozenset(sources)
        self._weight = weight

    async def score(self, workspace: Mapping[str, str]) -> Score:
        """The score of a workspace (path -> text).

        Raises:
            ScorerError: there is no verdict. Never raised for what a program does.
        """
        files = {path: text.encode(errors="surrogatepass") for path, text in workspace.items() if path in self._sources}
        verdict = await self._grader.grade(files, self._hidden)
        if verdict.reward is None:
            raise ScorerError(f"hidden tests could not be run: {verdict.why}")
        return Score(name="hidden_tests", value=verdict.reward, weight=self._weight, explanation=_explained(verdict))


def _explained(verdict: Verdict) -> str:
    """For people, such as ``5 of 8``. It does not say which test failed. Where a pass could be forged, it says so."""
    tier = "" if verdict.tier == 1 else f" (tier {verdict.tier})"
    return f"{verdict.num_passed} of {verdict.num_tests}{tier}"


def _text(content: bytes) -> str:
    """A source file as Python reads it, as far as it does."""
    return content.decode("utf-8", errors="surrogateescape")
