"""Bootstrap intervals for statistics without a closed form: resampled within strata, seeded, vectorised.

A resample is a row of weights, how often each value was drawn (multinomial counts), and a statistic turns values [n]
and weights [resamples, n] into [resamples] numbers. The original data are a row of ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.evals.stats.checks import Array, Labels, as_labels, as_values, check_share
from agentrl.evals.stats.intervals import Interval, num_clusters
from agentrl.evals.stats.proportions import LEVEL

Statistic = Callable[[Array, Array], Array]
RESAMPLES = 2000
_NUMBERS_AT_ONCE = 1_000_000


def bootstrap_interval(
    values: ArrayLike,
    statistic: Statistic,
    *,
    seed: int,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Percentile interval of any statistic of weighted values. The same seed gives the same interval.

    Args:
        values: [tasks]; no NaN.
        statistic: ``weighted_mean``, ``weighted_iqm``, ``weighted_median`` or one of your own, see above.
        seed: of the resamples.
        strata: [tasks], such as the task family; as many are drawn from each stratum as it has.
        clusters: [tasks]; whole clusters are drawn. Every cluster lies in one stratum.
        resamples: how many; 2000 leave the width uncertain by about 2 %.

    Raises:
        ValueError: a NaN, fewer than two tasks or clusters, a stratum of one, a cluster in two strata, fewer than
            100 resamples.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife".
    """
    array = as_values(values)
    if np.isnan(array).any():
        raise ValueError(f"value of task {int(np.isnan(array).argmax())} is NaN; leave out the tasks without a value")
    if clusters is None and strata is None:
        array = np.sort(array)  # spares statistics of ranks the work
    labels = as_labels(clusters, len(array))
    drawn = resample(_strata_of_clusters(labels, strata), seed=seed, resamples=resamples, width=len(array))
    weights = drawn if clusters is None else (np.take(rows, labels, axis=1) for rows in drawn)
    low, high = percentile(np.concatenate([statistic(array, rows) for rows in weights]), level)
    name = "bootstrap" if strata is None else "stratified bootstrap"
    return Interval(
        mean=float(statistic(array, np.ones((1, len(array))))[0]),
        low=low,
        high=high,
        method=f"{name} over {'tasks' if clusters is None else 'clusters'}, {resamples} resamples, seed {seed}",
        num_tasks=len(array),
        num_attempts=len(array),
        level=level,
        num_clusters=num_clusters(labels),
    )


def resample(strata: Labels, *, seed: int, resamples: int, width: int | None = None) -> Iterator[Array]:
    """Weights of resamples, [some, units] at a time: how often each unit was drawn within its stratum.

    Args:
        strata: [units], the stratum of each in 0 .. S - 1.
        width: numbers that each row of weights will cost in memory; the number of units if not said.

    Raises:
        ValueError: a stratum of one unit, or fewer than 100 resamples.
    """
    if resamples < 100:
        raise ValueError(f"resamples is {resamples}; an interval at 95 % needs 100 at least, 2000 do well")
    sizes = np.bincount(strata)
    if (sizes < 2).any():
        raise ValueError(f"stratum {int(sizes.argmin())} has one unit, which cannot vary; merge it with another")
    draw, generator, number = _drawing(strata, sizes), np.random.default_rng(seed), len(strata)
    rows = max(1, _NUMBERS_AT_ONCE // max(number, width or 0))
    for done in range(0, resamples, rows):
        drawn = draw(generator, min(rows, resamples - done))
        weights = np.empty(drawn.shape)
        for row, units in zip(weights, drawn, strict=True):
            row[:] = np.bincount(units, minlength=number)
        yield weights


def percentile(draws: Array, level: float = LEVEL) -> tuple[float, float]:
    """The middle ``level`` of bootstrap draws."""
    check_share(level)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def weighted_mean(values: Array, weights: Array) -> Array:
    """Mean of values [n] under weights [resamples, n]."""
    return np.asarray(weights @ values / weights.sum(axis=1))


def weighted_iqm(values: Array, weights: Array) -> Array:
    """Mean of the middle half: a quarter of the draws, rounded down, is cut off at both ends.

    With running weights W_i cut to [lowest, highest], the sum over draws inside is
    highest * x_(n) - lowest * x_(1) - sum of W_i * (x_(i+1) - x_(i)).
    """
    ascending, running = _ranked(values, weights)
    total = running[:, -1].copy()
    cut = np.floor(total * 0.25)
    edges = (total - cut) * ascending[-1] - cut * ascending[0]
    np.clip(running, cut[:, None], (total - cut)[:, None], out=running)
    return np.asarray((edges - running[:, :-1] @ np.diff(ascending)) / (total - 2 * cut))


def weighted_median(values: Array, weights: Array) -> Array:
    """Median; the mean of the two middle draws where their number is even."""
    ascending, running = _ranked(values, weights)
    half = running[:, -1:] / 2
    lower, upper = (running < half).sum(axis=1), (running <= half).sum(axis=1)
    return np.asarray((ascending[lower] + ascending[np.minimum(upper, len(values) - 1)]) / 2)


def _ranked(values: Array, weights: Array) -> tuple[Array, Array]:
    """Values in rising order, and the running sum of their weights."""
    if (values[1:] >= values[:-1]).all():
        return values, np.cumsum(weights, axis=1)
    order = np.argsort(values, kind="stable")
    return values[order], np.cumsum(np.take(weights, order, axis=1), axis=1)


def _drawing(strata: Labels, sizes: NDArray[np.int64]) -> Callable[[np.random.Generator, int], NDArray[np.int64]]:
    """How to draw rows of units, each unit's place filled by one of its stratum; fast where strata have one size."""
    order = np.argsort(strata, kind="stable")
    in_order = bool((order == np.arange(len(order))).all())
    starts, spans = np.repeat(np.cumsum(sizes) - sizes, sizes), np.repeat(sizes, sizes)
    alike = bool((sizes == sizes[0]).all())

    def draw(generator: np.random.Generator, many: int) -> NDArray[np.int64]:
        shape = (many, len(strata))
        drawn = generator.integers(0, int(sizes[0]), shape) if alike else generator.integers(0, spans, shape)
        if len(sizes) > 1:
            drawn += starts
        return drawn if in_order else order[drawn]

    return draw


def _strata_of_clusters(labels: Labels, strata: ArrayLike | None) -> NDArray[np.int64]:
    number = num_clusters(labels)
    if number < 2:
        raise ValueError(f"{number} independent unit(s) show no spread; a bootstrap needs at least 2")
    if strata is None:
        return np.zeros(number, dtype=np.int64)
    per_task = as_labels(strata, len(labels), "strata")
    result = np.empty(number, dtype=np.int64)
    result[labels] = per_task
    split = result[labels] != per_task
    if split.any():
        raise ValueError(
            f"the cluster of task {int(split.argmax())} lies in two strata; put each cluster into one stratum"
        )
    return result
