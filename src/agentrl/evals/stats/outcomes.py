"""The two numbers that a training run reports, from outcomes by task id."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agentrl.evals.stats.intervals import Interval, interval_of

Outcomes = Mapping[str, Sequence[float | None]]
"""Task id to one outcome per attempt, in [0, 1] (False and True will do); None where the attempt was not scored."""


def pass_at_1(outcomes: Outcomes) -> Interval:
    """Mean over tasks of each task's mean outcome, with the interval of ``interval_of``: clustered by task.

    Every task counts alike, whatever its number of attempts. Unscored attempts are left out of their task's mean and
    counted in ``num_unscored``; a task with none scored is left out.

    Raises:
        ValueError: fewer than two tasks have a scored attempt, or an outcome is outside [0, 1].

    Source: Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640.
    """
    means = _task_means(outcomes)
    return _counted(interval_of(list(means.values())), *_count(outcomes, means))


def paired_difference(before: Outcomes, after: Outcomes) -> Interval:
    """Mean over tasks of (after - before), each task against itself, with its interval.

    A task that was not scored on both sides is left out; attempts of both sides are counted together.

    Raises:
        ValueError: the two sides were not asked the same tasks, fewer than two tasks were scored on both, or an
            outcome is outside [0, 1].

    Source: Miller 2024, arXiv 2411.00640, section on paired differences.
    """
    if before.keys() != after.keys():
        raise ValueError(_different_tasks(before, after))
    first, second = _task_means(before), _task_means(after)
    shared = [task for task in first if task in second]
    interval = interval_of([second[task] - first[task] for task in shared], bounds=(-1.0, 1.0))
    scored, unscored = (a + b for a, b in zip(_count(before, shared), _count(after, shared), strict=True))
    name = interval.method.replace("t over", "paired t over")
    return replace(_counted(interval, scored, unscored), method=name)


def _counted(interval: Interval, scored: int, unscored: int) -> Interval:
    return replace(interval, num_attempts=scored, num_unscored=unscored)


def _task_means(outcomes: Outcomes) -> dict[str, float]:
    scored = {task: [_unit(task, x) for x in attempts if x is not None] for task, attempts in outcomes.items()}
    return {task: math.fsum(values) / len(values) for task, values in scored.items() if values}


def _unit(task: str, outcome: float) -> float:
    if not 0.0 <= outcome <= 1.0:
        raise ValueError(f"task {task!r}: outcome {outcome!r} is not in [0, 1]; use None for an unscored attempt")
    return float(outcome)


def _count(outcomes: Outcomes, tasks: Iterable[str]) -> tuple[int, int]:
    """Scored attempts at ``tasks``, and unscored attempts at all tasks."""
    scored = sum(outcome is not None for task in tasks for outcome in outcomes[task])
    unscored = sum(outcome is None for attempts in outcomes.values() for outcome in attempts)
    return scored, unscored


def _different_tasks(before: Outcomes, after: Outcomes) -> str:
    only = [sorted(a.keys() - b.keys()) for a, b in ((before, after), (after, before))]
    named = "; ".join(f"only {side}: {_some(ids)}" for side, ids in zip(("before", "after"), only, strict=True) if ids)
    return f"a paired difference needs the same tasks on both sides ({named}); evaluate both on one task list"


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:3])
    return shown if len(ids) <= 3 else f"{shown} and {len(ids) - 3} more"
