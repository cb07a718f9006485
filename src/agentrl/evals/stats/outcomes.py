"""The two numbers that a training run reports, from outcomes by task id."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agentrl.evals.stats.intervals import Interval, interval_of

Outcomes = Mapping[str, Sequence[float | None]]
"""Task id to one outcome per attempt, in [0, 1] (False and True will do); None where the attempt was not scored."""


Clusters = Mapping[str, str]
"""Task id to what it shares with others, such as its program; a task that is not in it is a cluster of its own."""


def pass_at_1(outcomes: Outcomes, clusters: Clusters | None = None) -> Interval:
    """Mean over tasks of each task's mean outcome, with the interval of ``interval_of``: clustered by task.

    Every task counts alike, whatever its number of attempts. Unscored attempts are left out of their task's mean and
    counted in ``num_unscored``; a task with none scored is left out.

    Args:
        outcomes: of all tasks.
        clusters: of tasks that are not independent. Where all are in one, nothing is known of others: the interval is
            all of [0, 1].

    Raises:
        ValueError: fewer than two tasks have a scored attempt, or an outcome is outside [0, 1].

    Source: Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640.
    """
    means = _task_means(outcomes)
    return _counted(_interval(means, clusters, (0.0, 1.0)), *_count(outcomes, means))


def paired_difference(before: Outcomes, after: Outcomes, clusters: Clusters | None = None) -> Interval:
    """Mean over tasks of (after - before), each task against itself, with its interval.

    A task that was not scored on both sides is left out; attempts of both sides are counted together. ``clusters`` are
    as in `pass_at_1`.

    Raises:
        ValueError: the two sides were not asked the same tasks, fewer than two tasks were scored on both, or an
            outcome is outside [0, 1].

    Source: Miller 2024, arXiv 2411.00640, section on paired differences.
    """
    if before.keys() != after.keys():
        raise ValueError(_different_tasks(before, after))
    first, second = _task_means(before), _task_means(after)
    shared = {task: second[task] - first[task] for task in first if task in second}
    interval = _interval(shared, clusters, (-1.0, 1.0))
    scored, unscored = (a + b for a, b in zip(_count(before, shared), _count(after, shared), strict=True))
    name = interval.method.replace("CR1 t over", "t over").replace("t over", "paired t over")
    return replace(_counted(interval, scored, unscored), method=name)


def _interval(values: Mapping[str, float], clusters: Clusters | None, bounds: tuple[float, float]) -> Interval:
    """The interval of one value per task."""
    numbers = list(values.values())
    if not clusters or not numbers:
        return interval_of(numbers, bounds=bounds)
    named = [("cluster", clusters[task]) if task in clusters else ("task", task) for task in values]
    places = {name: place for place, name in enumerate(dict.fromkeys(named))}
    if len(places) == 1 and len(numbers) > 1:
        alone = replace(interval_of(numbers, bounds=bounds), num_clusters=1)
        return replace(alone, low=bounds[0], high=bounds[1], method="one cluster, which says nothing of others")
    return interval_of(numbers, clusters=[places[name] for name in named], bounds=bounds)


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
