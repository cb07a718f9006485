"""Hidden tests that a right program does not pass are a fault of the task: a zero from them says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentrl.rewards.grading import AnyHidden, Grader
from agentrl.rewards.judge import Verdict


async def proved(verdict: Verdict, grader: Grader, hidden: AnyHidden, solution: Mapping[str, bytes]) -> Verdict:
    """The same verdict, or an ``error`` in place of a fail when the task's own solution fails as well.

    Args:
        verdict: on a candidate.
        grader: who gave it.
        hidden: the tests.
        solution: all source files of the right program, path to content.
    """
    if verdict.verdict != "fail":
        return verdict
    right = await grader.grade(solution, hidden, seed=verdict.seed)
    if right.verdict == "pass":
        return verdict
    why = (
        f"the hidden tests do not pass the task's own solution, so that they say nothing: {right.why or right.verdict}"
    )
    return replace(verdict, verdict="error", num_passed=0, why=why, repeatable=False)
