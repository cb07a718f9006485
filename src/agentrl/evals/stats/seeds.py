"""Several training runs on the same tasks: aggregates that one lucky run does not carry, with bootstrap intervals.

Scores are [runs, tasks], normalised as one likes. Resamples are drawn from the runs of each task apart (strata are
tasks), so an interval speaks of other runs on these tasks, not of other tasks.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from agentrl.evals.stats.bootstrap import RESAMPLES, Statistic, bootstrap_interval, percentile, resample, weighted_iqm
from agentrl.evals.stats.checks import Array
from agentrl.evals.stats.intervals import Interval
from agentrl.evals.stats.proportions import LEVEL


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all scores, a quarter (rounded down) cut at both ends.

    Args:
        scores: [runs, tasks] or any shape; no NaN.

    >>> round(iqm([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1]), 6)
    0.35
    """
    flat = _finite(scores).ravel()
    return float(weighted_iqm(flat, np.ones((1, len(flat))))[0])


def optimality_gap(scores: ArrayLike, gamma: float = 1.0) -> float:
    """How far scores fall short of ``gamma`` on average: gamma - mean(min(x, gamma)).

    >>> round(optimality_gap([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1]), 6)
    0.6125
    """
    return float(gamma - np.minimum(_finite(scores), gamma).mean())


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> float:
    """Chance that a run of X beats a run of Y on a task drawn at random: mean over tasks of U / (n_X n_Y), ties half.

    Args:
        x: [runs, tasks] or [runs] of one task.
        y: [runs, tasks] of the same tasks; as many runs as one has.

    Raises:
        ValueError: different tasks, or a NaN.

    >>> round(probability_of_improvement([1, 2, 3], [0, 2, 2]), 6)
    0.666667
    """
    return float(_won(*_both(x, y)).mean())


def iqm_interval(scores: ArrayLike, *, seed: int, resamples: int = RESAMPLES, level: float = LEVEL) -> Interval:
    """``iqm`` of scores [runs, tasks] with the stratified bootstrap interval over runs.

    Raises:
        ValueError: fewer than two runs, a NaN, or not [runs, tasks].
    """
    return _over_runs(scores, weighted_iqm, seed, resamples, level)


def optimality_gap_interval(
    scores: ArrayLike, *, gamma: float = 1.0, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """``optimality_gap`` of scores [runs, tasks] with its interval. Errors as ``iqm_interval``."""

    def gap(values: Array, weights: Array) -> Array:
        return np.asarray(gamma - weights @ np.minimum(values, gamma) / weights.sum(axis=1))

    return _over_runs(scores, gap, seed, resamples, level)


def improvement_interval(
    x: ArrayLike, y: ArrayLike, *, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """``probability_of_improvement`` with its interval: the runs of both sides are resampled, task by task.

    Raises:
        ValueError: fewer than two runs on a side, different tasks, or a NaN.
    """
    first, second = _both(x, y)
    won = _won(first, second)
    seeds = np.random.SeedSequence(seed).generate_state(2)
    width = max(first.size, second.size)
    sides = (_run_weights(side, int(s), resamples, width) for side, s in zip((first, second), seeds, strict=True))
    draws = [np.einsum("btx,bty,xyt->b", a, b, won, optimize=True) for a, b in zip(*sides, strict=True)]
    low, high = percentile(np.concatenate(draws) / won.size, level)
    return _interval(float(won.mean()), low, high, first.shape, len(first) + len(second), (seed, resamples, level))


def _over_runs(scores: ArrayLike, statistic: Statistic, seed: int, resamples: int, level: float) -> Interval:
    array = _runs(_finite(scores))
    tasks = np.repeat(np.arange(array.shape[1]), array.shape[0])
    found = bootstrap_interval(array.T.ravel(), statistic, seed=seed, strata=tasks, resamples=resamples, level=level)
    return _interval(found.mean, found.low, found.high, array.shape, len(array), (seed, resamples, level))


def _interval(
    mean: float, low: float, high: float, shape: tuple[int, ...], runs: int, how: tuple[int, int, float]
) -> Interval:
    seed, resamples, level = how
    return Interval(
        mean=mean,
        low=low,
        high=high,
        method=f"stratified bootstrap over {runs} runs, {resamples} resamples, seed {seed}",
        num_tasks=shape[1],
        num_attempts=runs * shape[1],
        level=level,
        num_clusters=shape[1],
    )


def _run_weights(side: Array, seed: int, resamples: int, width: int) -> Iterator[Array]:
    """Weights [some, tasks, runs] of one side."""
    runs, tasks = side.shape
    drawn = resample(np.repeat(np.arange(tasks), runs), seed=seed, resamples=resamples, width=width)
    return (rows.reshape(-1, tasks, runs) for rows in drawn)


def _won(x: Array, y: Array) -> Array:
    """[runs of x, runs of y, tasks]: 1 where x is above y, one half where they tie."""
    above, same = x[:, None] > y[None], x[:, None] == y[None]
    return np.asarray(above + 0.5 * same)


def _both(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    first, second = (np.atleast_2d(_finite(side).T).T for side in (x, y))
    if first.ndim != 2 or first.shape[1:] != second.shape[1:]:
        raise ValueError(f"x has shape {first.shape} and y {second.shape}; give [runs, tasks] of the same tasks")
    return first, second


def _runs(array: Array) -> Array:
    if array.ndim != 2 or array.shape[0] < 2:
        raise ValueError(f"scores have shape {array.shape}; give [runs, tasks] with at least 2 runs")
    return array


def _finite(scores: ArrayLike) -> Array:
    array = np.asarray(scores, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(array))[0]] if array.size else []
        raise ValueError(f"scores{at or ''} are missing or not finite; every run needs a score on every task")
    return array
