"""Before the run: how large a difference can be seen, and how many tasks and attempts that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrik, gammaln, nctdtr, ndtri, stdtrit, xlogy  # type: ignore[import-untyped]

from agentrl.evals.stats.checks import Array, as_scores, check_share
from agentrl.evals.stats.estimators import mean_score
from agentrl.evals.stats.proportions import LEVEL

POWER = 0.8


@dataclass(frozen=True, kw_only=True)
class VarianceSplit:
    """Where the spread of single scores comes from.

    ``task`` is the variance between the tasks' true means, ``attempt`` the mean variance between attempts at one
    task; both unbiased, so ``task`` can come out below zero. ``num_tasks`` tasks had the two attempts that this takes.
    """

    task: float
    attempt: float
    num_tasks: int

    def error(self, *, tasks: int, attempts: float) -> float:
        """Standard error that a mean over ``tasks`` of ``attempts`` each would have (math.inf attempts: the floor)."""
        return math.sqrt((max(0.0, self.task) + self.attempt / attempts) / tasks)


@dataclass(frozen=True, kw_only=True)
class PairedVariance:
    """What a paired comparison has to see through.

    ``task`` is the variance over tasks of the true difference, ``before`` and ``after`` the mean variance between
    attempts at one task on each side. All are in squared units of the score.
    """

    task: float
    before: float
    after: float
    num_tasks: int = 0

    def total(self, attempts_before: float, attempts_after: float) -> float:
        """Variance of one task's measured difference: omega^2 + sigma_A^2 / K_A + sigma_B^2 / K_B."""
        for attempts in (attempts_before, attempts_after):
            if not attempts >= 1:
                raise ValueError(f"attempts is {attempts!r}; give 1 or more a task, math.inf for the limit")
        return max(0.0, self.task) + self.before / attempts_before + self.after / attempts_after


def variance_split(scores: ArrayLike) -> VarianceSplit:
    """Split the variance of scores [tasks, attempts] into task and attempt noise, without bias.

        attempt = mean over tasks of s_i^2            task = Var(mean_i) - mean of s_i^2 / n_i

    Tasks with fewer than two scored attempts say nothing about their noise and are left out.

    Raises:
        ValueError: fewer than two tasks with two attempts.

    Source: the law of total variance; Miller 2024, arXiv 2411.00640, section on resampling.
    """
    means, within, number = _moments(as_scores(scores))
    kept = number >= 2
    if int(kept.sum()) < 2:
        raise ValueError(
            f"{int(kept.sum())} task(s) have two attempts; the split needs 2 such tasks, so run attempts=2 or more"
        )
    task = np.var(means[kept], ddof=1) - (within[kept] / number[kept]).mean()
    return VarianceSplit(task=float(task), attempt=float(within[kept].mean()), num_tasks=int(kept.sum()))


def paired_variance(before: ArrayLike, after: ArrayLike) -> PairedVariance:
    """The variances of a comparison, without bias, from scores [tasks, attempts] of both sides on the same tasks.

    Sides may differ in attempts. Tasks with fewer than two scored attempts on a side are left out.

    Raises:
        ValueError: different numbers of tasks, or fewer than two tasks with two attempts on both sides.
    """
    first, second = _moments(as_scores(before, "before")), _moments(as_scores(after, "after"))
    if first[0].shape != second[0].shape:
        raise ValueError(
            f"before has {len(first[0])} tasks and after {len(second[0])}; give the same tasks in one order"
        )
    kept = (first[2] >= 2) & (second[2] >= 2)
    if int(kept.sum()) < 2:
        raise ValueError(f"{int(kept.sum())} task(s) have two attempts on both sides; at least 2 such tasks are needed")
    noise = sum((within[kept] / number[kept]).mean() for _, within, number in (first, second))
    task = np.var((second[0] - first[0])[kept], ddof=1) - noise
    return PairedVariance(
        task=float(task),
        before=float(first[1][kept].mean()),
        after=float(second[1][kept].mean()),
        num_tasks=int(kept.sum()),
    )


def minimum_detectable(
    variance: PairedVariance,
    *,
    tasks: int,
    attempts_before: float = 1,
    attempts_after: float = 1,
    level: float = LEVEL,
    power: float = POWER,
) -> float:
    """Smallest true difference that a two-sided paired test at 1 - level finds with the given power.

        (z_{alpha/2} + z_beta) sqrt((omega^2 + sigma_A^2 / K_A + sigma_B^2 / K_B) / n)

    Raises:
        ValueError: fewer than two tasks, fewer than one attempt, or a level or power that is no share.

    Source: Miller 2024, arXiv 2411.00640, section on power.
    """
    _check_tasks(tasks)
    return _z_sum(level, power) * math.sqrt(variance.total(attempts_before, attempts_after) / tasks)


def tasks_needed(
    variance: PairedVariance,
    *,
    delta: float,
    attempts_before: float = 1,
    attempts_after: float = 1,
    level: float = LEVEL,
    power: float = POWER,
) -> int:
    """Fewest tasks with which a true difference ``delta`` is found with the given power; at least 2.

    The normal formula: below some 50 tasks Student's t costs another point or two of power (``paired_power``).

    Raises:
        ValueError: delta is zero, or as ``minimum_detectable``.
    """
    _check_delta(delta)
    exact = _z_sum(level, power) ** 2 * variance.total(attempts_before, attempts_after) / delta**2
    return max(2, math.ceil(exact - 1e-9))


def attempts_needed(
    variance: PairedVariance, *, delta: float, tasks: int, level: float = LEVEL, power: float = POWER
) -> int:
    """Fewest attempts a task, the same on both sides, with which ``tasks`` tasks show a difference ``delta``.

    Raises:
        ValueError: no number of attempts will do, because the tasks differ too much; it says how many tasks would.
    """
    _check_delta(delta)
    _check_tasks(tasks)
    room = tasks * delta**2 / _z_sum(level, power) ** 2 - max(0.0, variance.task)
    noise = variance.before + variance.after
    if room <= 0 and not (room == 0 and noise == 0):
        most = tasks_needed(
            variance, delta=delta, attempts_before=math.inf, attempts_after=math.inf, level=level, power=power
        )
        raise ValueError(
            f"{tasks} tasks cannot show a difference of {delta:g} with any number of attempts; "
            f"take at least {most + 1} tasks or a larger delta"
        )
    return max(1, math.ceil(noise / room - 1e-9)) if noise else 1


def paired_power(
    variance: PairedVariance,
    *,
    delta: float,
    tasks: int,
    attempts_before: float = 1,
    attempts_after: float = 1,
    level: float = LEVEL,
) -> float:
    """Chance that the paired t test over ``tasks`` tasks rejects at 1 - level when the true difference is ``delta``.

    From the noncentral t distribution, so for few tasks too; exact where task differences are normal.

    Raises:
        ValueError: fewer than two tasks, no variance, fewer than one attempt, or a level that is no share.
    """
    _check_tasks(tasks)
    check_share(level)
    total = variance.total(attempts_before, attempts_after)
    if total <= 0:
        raise ValueError("the variance is 0, so any difference is seen; give the variance of real attempts")
    shift, freedom = abs(delta) / math.sqrt(total / tasks), tasks - 1
    cut = float(stdtrit(freedom, (1 + level) / 2))
    return float(1 - nctdtr(freedom, shift, cut) + nctdtr(freedom, shift, -cut))


def mcnemar_power(tasks: int, *, p10: float, p01: float, level: float = LEVEL, mid_p: bool = False) -> float:
    """Chance that McNemar's exact test (or its mid-p form) rejects at 1 - level, over ``tasks`` independent tasks.

        sum over m of  P(m discordant) P(rejected | m)

    Args:
        p10: chance that a task is passed by the first side only.
        p01: chance that a task is passed by the second side only.

    Raises:
        ValueError: chances that are none or sum above 1, fewer than one task, or a level that is no share.

    >>> round(mcnemar_power(200, p10=0.2, p01=0.1), 6)
    0.703404
    """
    check_share(level)
    either = p10 + p01
    if tasks < 1 or p10 < 0 or p01 < 0 or not 0 < either <= 1:
        raise ValueError(
            f"tasks={tasks}, p10={p10}, p01={p01}: give 1 task or more and chances with 0 < p10 + p01 <= 1"
        )
    discordant = np.arange(tasks + 1)
    cut = _critical(discordant, 1 - level, mid_p=mid_p)
    share = p10 / either
    rejected = _cdf(cut, discordant, share) + _cdf(cut, discordant, 1 - share)
    return float((_pmf(discordant, np.full(tasks + 1, tasks), either) * np.minimum(rejected, 1.0)).sum())


def mcnemar_tasks_needed(
    *, p10: float, p01: float, level: float = LEVEL, power: float = POWER, mid_p: bool = False, most: int = 1_000_000
) -> int:
    """Tasks with which McNemar's test reaches ``power``, found by bisection (power rises with tasks, but for ripples).

    Raises:
        ValueError: p10 equals p01, more than ``most`` tasks would be needed, or as ``mcnemar_power``.
    """
    check_share(power, "power")
    if p10 == p01:
        raise ValueError(f"p10 and p01 are both {p10}; without a difference no number of tasks shows one")
    high = 2
    while mcnemar_power(high, p10=p10, p01=p01, level=level, mid_p=mid_p) < power:
        if high >= most:
            raise ValueError(
                f"more than {most} tasks are needed for p10={p10}, p01={p01}; plan for a larger difference"
            )
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        enough = mcnemar_power(middle, p10=p10, p01=p01, level=level, mid_p=mid_p) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def _moments(scores: Array) -> tuple[Array, Array, Array]:
    """Mean, unbiased variance and number of scored attempts of each task; scores [tasks, attempts]."""
    if scores.ndim != 2:
        raise ValueError(f"scores has shape {scores.shape}; give [tasks, attempts] of one checkpoint")
    present = ~np.isnan(scores)
    number = present.sum(axis=1).astype(np.float64)
    means = mean_score(scores)
    squares = np.where(present, (scores - means[:, None]) ** 2, 0.0).sum(axis=1)
    return means, squares / np.maximum(number - 1, 1), number


def _z_sum(level: float, power: float) -> float:
    check_share(level)
    check_share(power, "power")
    return float(ndtri((1 + level) / 2) + ndtri(power))


def _check_tasks(tasks: int) -> None:
    if tasks < 2:
        raise ValueError(f"tasks is {tasks!r}; a comparison needs at least 2")


def _check_delta(delta: float) -> None:
    if not (math.isfinite(delta) and delta != 0):
        raise ValueError(f"delta is {delta!r}; give the difference that is worth seeing, such as 0.03")


def _critical(number: np.ndarray[tuple[int, ...], np.dtype[np.int64]], alpha: float, *, mid_p: bool) -> Array:
    """For each number of discordant pairs the largest minority that is rejected; -1 where none is."""

    def rejects(cut: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        tail = _cdf(cut, number, 0.5)
        if mid_p:
            tail = tail - 0.5 * _pmf(np.maximum(cut, 0), number, 0.5)
        return (2 * tail <= alpha) & (2 * cut < number)

    cut = np.floor(np.nan_to_num(bdtrik(alpha / 2, np.maximum(number, 1), 0.5), nan=-1.0)) + 1
    for _ in range(3):
        cut = np.where((cut >= 0) & ~rejects(cut), cut - 1, cut)
    return np.asarray(cut)


def _cdf(hits: Array, number: ArrayLike, chance: float) -> Array:
    return np.where(hits < 0, 0.0, bdtr(np.maximum(hits, 0), number, chance))


def _pmf(hits: ArrayLike, number: ArrayLike, chance: float) -> Array:
    hits, total = np.asarray(hits, dtype=np.float64), np.asarray(number, dtype=np.float64)
    safe = np.maximum(total - hits, 0)
    logs = gammaln(total + 1) - gammaln(hits + 1) - gammaln(safe + 1) + xlogy(hits, chance) + xlogy(safe, 1 - chance)
    return np.where(hits <= total, np.exp(logs), 0.0)
