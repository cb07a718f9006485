"""Two policies or checkpoints on the same tasks: each task is compared with itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtri, stdtr, stdtrit  # type: ignore[import-untyped]

from agentrl.evals.stats.checks import Array, Labels, as_labels, as_values, check_share
from agentrl.evals.stats.intervals import (
    UNIT,
    Interval,
    check_bounds,
    cr1_error,
    degrees_of_freedom,
    equal_units,
    interval_of,
    mean_of,
    num_clusters,
)
from agentrl.evals.stats.multiplicity import benjamini_hochberg, holm
from agentrl.evals.stats.proportions import LEVEL, probability_better_paired

Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two sides differ on the tasks that both have a value for.

    Attributes:
        difference: mean of (after - before) with its paired interval; method "paired t over tasks" and the like.
        before: the first side on the shared tasks, with its own interval.
        after: the second side.
        p_value: two-sided, of the null of no difference (by the sign test: wins and losses are equally likely).
        test: "McNemar exact", "paired t", or "sign" over clusters where all of them differ by the same.
        wins: tasks with a higher value after.
        losses: tasks with a lower value after.
        ties: the other shared tasks.
        probability_better: posterior chance that after is better: the exact Dirichlet one beside McNemar, otherwise
            Student's t under a flat prior.
        standard_error: of the mean difference, clustered.
        minimum_detectable: the smallest true difference that these data would have shown at ``power``.
        num_left_out: tasks that lack a value on one side or both.
    """

    difference: Interval
    before: Interval
    after: Interval
    p_value: float
    test: str
    wins: int
    losses: int
    ties: int
    probability_better: float
    standard_error: float
    minimum_detectable: float
    num_left_out: int

    @property
    def different(self) -> bool:
        """Whether the test rejects at 1 - level. The exact test may keep what the interval just excludes."""
        return self.p_value <= 1 - self.difference.level


class Pair(NamedTuple):
    """One of several comparisons: which columns, and its p-value adjusted for the others."""

    first: int
    second: int
    comparison: Comparison
    holm: float
    benjamini_hochberg: float


def compare(
    before: ArrayLike,
    after: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    level: float = LEVEL,
    bounds: Bounds | None = UNIT,
    power: float = 0.8,
) -> Comparison:
    """Compare two sides task by task.

    The test is McNemar's exact one where both sides have one 0 or 1 per task and no clusters are given, and the
    paired t test over clusters (over tasks when none are given) otherwise. Sides may differ in attempts per task.

    Args:
        before: [tasks], one value per task, such as ``mean_score`` or ``pass_at_k`` gives; NaN where there is none.
        after: [tasks], the same tasks in the same order.
        clusters: [tasks], see ``interval_of``.
        level: of the intervals; the test is at 1 - level.
        bounds: what a value can be; None for rewards without bounds.
        power: chance of being seen that ``minimum_detectable`` is meant for.

    Raises:
        ValueError: sides of different length, fewer than two shared tasks or clusters, a value outside ``bounds``.

    Source: Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640, section on paired differences.
    """
    check_share(power, "power")
    first, second = as_values(before, "before"), as_values(after, "after")
    if first.shape != second.shape:
        raise ValueError(
            f"before has {len(first)} tasks and after {len(second)}; put both in the order of one task list"
        )
    for side in (first, second):
        check_bounds(side, bounds)
    shared = ~np.isnan(first) & ~np.isnan(second)
    labels = as_labels(clusters, len(first))[shared]
    first, second = first[shared], second[shared]
    given = None if clusters is None else labels
    sides = [interval_of(side, clusters=given, level=level, bounds=bounds) for side in (first, second)]
    difference = _difference(second - first, given, level, bounds)
    labels = as_labels(labels, len(labels))
    error = _error(second - first, labels, level, bounds)
    verdict = _test(first, second, labels, exact=clusters is None)
    return Comparison(
        difference=difference,
        before=sides[0],
        after=sides[1],
        p_value=verdict.p_value,
        test=verdict.test,
        probability_better=verdict.probability_better,
        wins=int((second > first).sum()),
        losses=int((second < first).sum()),
        ties=int((second == first).sum()),
        standard_error=error,
        minimum_detectable=float(ndtri((1 + level) / 2) + ndtri(power)) * error,
        num_left_out=int((~shared).sum()),
    )


def compare_all(
    values: ArrayLike,
    *,
    pairs: Iterable[tuple[int, int]] | None = None,
    clusters: ArrayLike | None = None,
    level: float = LEVEL,
    bounds: Bounds | None = UNIT,
    power: float = 0.8,
) -> tuple[Pair, ...]:
    """Compare the columns of ``values`` [tasks, checkpoints] with each other, p-values adjusted for all that is asked.

    Args:
        pairs: which columns, as (before, after); every pair of columns when not said.

    Raises:
        ValueError: as ``compare``, or fewer than two columns.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(f"values has shape {array.shape}; give [tasks, checkpoints] with at least 2 checkpoints")
    number = array.shape[1]
    asked = list(pairs) if pairs is not None else [(i, j) for i in range(number) for j in range(i + 1, number)]
    found = [
        compare(array[:, i], array[:, j], clusters=clusters, level=level, bounds=bounds, power=power) for i, j in asked
    ]
    p_values = [comparison.p_value for comparison in found]
    columns = zip(asked, found, holm(p_values), benjamini_hochberg(p_values), strict=True)
    return tuple(Pair(i, j, comparison, float(h), float(bh)) for (i, j), comparison, h, bh in columns)


def mcnemar_exact(wins: int, losses: int) -> float:
    """Two-sided p of McNemar's exact test: 2 P(X <= min(wins, losses)), X binomial(wins + losses, 1/2), at most 1.

    Args:
        wins: tasks that only the second side passes.
        losses: tasks that only the first side passes.

    Raises:
        ValueError: a negative count.

    >>> round(mcnemar_exact(12, 3), 6)
    0.035156
    """
    lower, number = _discordant(wins, losses)
    return min(1.0, 2 * float(bdtr(lower, number, 0.5)))


def mcnemar_mid_p(wins: int, losses: int) -> float:
    """McNemar's test with half the chance of the outcome itself: less conservative, and close to its level.

    Raises:
        ValueError: a negative count.

    Source: Fagerland, Lydersen and Laake 2013, "The McNemar test for binary matched-pairs data".

    >>> round(mcnemar_mid_p(12, 3), 6)
    0.021271
    """
    lower, number = _discordant(wins, losses)
    if wins == losses:
        return 1.0
    below = float(bdtr(lower - 1, number, 0.5)) if lower else 0.0
    return float(bdtr(lower, number, 0.5)) + below


class _Verdict(NamedTuple):
    p_value: float
    test: str
    probability_better: float


def _discordant(wins: int, losses: int) -> tuple[int, int]:
    if wins < 0 or losses < 0:
        raise ValueError(f"wins {wins} and losses {losses} are counts of tasks, 0 or more")
    return min(wins, losses), wins + losses


def _difference(differences: Array, clusters: Labels | None, level: float, bounds: Bounds | None) -> Interval:
    interval = interval_of(differences, clusters=clusters, level=level, bounds=_widest(bounds))
    return replace(interval, method=f"paired {interval.method}", num_attempts=2 * len(differences))


def _widest(bounds: Bounds | None) -> Bounds | None:
    return None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])


def _error(differences: Array, labels: Labels, level: float, bounds: Bounds | None) -> float:
    """The clustered error; without spread, the one that a t interval of the same width would have had."""
    error, widest = cr1_error(differences, labels), _widest(bounds)
    if error > 0 or widest is None:
        return error
    low, high = equal_units(mean_of(differences), num_clusters(labels), level, widest)
    return (high - low) / 2 / float(stdtrit(degrees_of_freedom(labels), (1 + level) / 2))


def _test(first: Array, second: Array, labels: Labels, *, exact: bool) -> _Verdict:
    differences, units = second - first, num_clusters(labels)
    if exact and bool(np.isin(first, UNIT).all() and np.isin(second, UNIT).all()):
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        return _Verdict(mcnemar_exact(wins, losses), "McNemar exact", probability_better_paired(wins, losses))
    mean, error = mean_of(differences), cr1_error(differences, labels)
    if error > 0:
        t, freedom = mean / error, degrees_of_freedom(labels)
        return _Verdict(2 * float(stdtr(freedom, -abs(t))), "paired t", float(stdtr(freedom, t)))
    wins, losses = (units * (mean > 1e-12), units * (mean < -1e-12))
    return _Verdict(mcnemar_exact(wins, losses), "sign", probability_better_paired(wins, losses))
