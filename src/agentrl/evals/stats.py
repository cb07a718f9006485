"""How sure a score is. The unit of evidence is the task: attempts at one task are not independent of each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]

Outcomes = Mapping[str, Sequence[float | None]]
"""Task id to one outcome per attempt, in [0, 1] (False and True will do); None where the attempt was not scored."""

LEVEL = 0.95
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its 95 % interval, how that was made and from how much.

    ``num_tasks`` and ``num_attempts`` count what entered the mean. ``num_unscored`` counts the attempts that our own
    machinery failed to score: they are no zeros, and they are not in the mean.
    """

    mean: float
    low: float
    high: float
    method: str
    num_tasks: int
    num_attempts: int
    num_unscored: int = 0


def pass_at_1(outcomes: Outcomes) -> Interval:
    """Mean over tasks of each task's mean outcome, with an interval clustered by task.

    Every task counts alike, whatever its number of attempts. The interval is mean +- t * sd / sqrt(N) over the N
    means per task, with N - 1 degrees of freedom; with equally many attempts per task this is the CR1
    cluster-robust error. Where all tasks came out the same there is no spread to go by, and the interval is
    Wilson's for N tasks of which none differs. Both are cut to [0, 1].

    Unscored attempts are left out of their task's mean and counted in ``num_unscored``; a task with none scored is
    left out.

    Raises:
        ValueError: fewer than two tasks have a scored attempt, or an outcome is outside [0, 1].

    Source: Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640, with the small-sample factor of CR1.
    """
    means = _task_means(outcomes)
    return _interval(list(means.values()), floor=0.0, name="t over tasks", counts=_count(outcomes, means))


def paired_difference(before: Outcomes, after: Outcomes) -> Interval:
    """Mean over tasks of (after - before), each task against itself, with its interval.

    The interval is mean +- t * sd / sqrt(N) over the N differences, with N - 1 degrees of freedom, cut to [-1, 1].
    Where all differences are the same, the interval is Wilson's for N tasks of which none differs. A task that was
    not scored on both sides is left out; attempts of both sides are counted together.

    Raises:
        ValueError: the two sides were not asked the same tasks, fewer than two tasks were scored on both, or an
            outcome is outside [0, 1].

    Source: Miller 2024, arXiv 2411.00640, section on paired differences.
    """
    if before.keys() != after.keys():
        raise ValueError(_different_tasks(before, after))
    first, second = _task_means(before), _task_means(after)
    shared = [task for task in first if task in second]
    counts = tuple(a + b for a, b in zip(_count(before, shared), _count(after, shared), strict=True))
    differences = [second[task] - first[task] for task in shared]
    return _interval(differences, floor=-1.0, name="paired t over tasks", counts=(counts[0], counts[1]))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k attempts passes, unbiased, from n attempts of which c passed.

        1 - C(n - c, k) / C(n, k)

    Raises:
        ValueError: unless 1 <= k <= n and 0 <= c <= n. With fewer attempts than k there is no unbiased estimate.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, equation 1.

    >>> round(pass_at_k(10, 3, 5), 6)
    0.916667
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {n} attempts; run at least {max(k, 1)} or ask for less")
    if not 0 <= c <= n:
        raise ValueError(f"{c} passes of {n} attempts; passes must be between 0 and the attempts")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def wilson(p: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion ``p`` in [0, 1] seen in ``n`` >= 1 independent trials.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    z = float(ndtri((1 + level) / 2))
    centre = p + z * z / (2 * n)
    reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of one value per task: sd with N - 1, over the root of N.

    Raises:
        ValueError: fewer than two tasks.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} scored task(s) show no spread; an interval over tasks needs at least 2")
    return float(np.std(_array(values), ddof=1)) / math.sqrt(len(values))


def _interval(values: Sequence[float], *, floor: float, name: str, counts: tuple[int, int]) -> Interval:
    error, num_tasks, mean = standard_error(values), len(values), float(_array(values).mean())
    if max(values) - min(values) < _ROUNDING:
        mean, name = values[0], "wilson over tasks"
        low, high = _equal_tasks(mean, num_tasks, floor)
    else:
        reach = float(stdtrit(num_tasks - 1, (1 + LEVEL) / 2)) * error
        low, high = mean - reach, mean + reach
    return Interval(
        mean=mean,
        low=max(floor, low),
        high=min(1.0, high),
        method=name,
        num_tasks=num_tasks,
        num_attempts=counts[0],
        num_unscored=counts[1],
    )


def _equal_tasks(value: float, num_tasks: int, floor: float) -> tuple[float, float]:
    """Interval when no task of N differs from ``value``: the unseen share that may lie anywhere in [floor, 1].

    The share is Wilson's upper end for 0 of N, so for values 0 and 1 this is Wilson's interval itself.
    """
    share = wilson(0.0, num_tasks)[1]
    return value - share * (value - floor), value + share * (1.0 - value)


def _task_means(outcomes: Outcomes) -> dict[str, float]:
    scored = {task: [_unit(task, x) for x in attempts if x is not None] for task, attempts in outcomes.items()}
    return {task: math.fsum(values) / len(values) for task, values in scored.items() if values}


def _unit(task: str, outcome: float) -> float:
    if not 0.0 <= outcome <= 1.0:
        raise ValueError(f"task {task!r}: outcome {outcome!r} is not in [0, 1]; use None for an unscored attempt")
    return float(outcome)


def _count(outcomes: Outcomes, tasks: Mapping[str, float] | Sequence[str]) -> tuple[int, int]:
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


def _array(values: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
