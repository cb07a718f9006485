"""How sure a mean over tasks is. The unit of evidence is the task, or the cluster of tasks that hang together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit  # type: ignore[import-untyped]

from agentrl.evals.stats.checks import Array, Labels, as_labels, as_values, check_share
from agentrl.evals.stats.proportions import LEVEL, wilson, wilson_ends

_ROUNDING = 1e-12
UNIT = (0.0, 1.0)
_T = {False: "t over tasks", True: "CR1 t over clusters"}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over tasks with its interval, how that was made and from how much.

    ``num_tasks`` tasks in ``num_clusters`` independent clusters and ``num_attempts`` attempts entered the mean.
    ``num_unscored`` counts the attempts that our own machinery failed to score, and ``num_undefined`` the tasks for
    which the statistic has no value; neither is a zero, and neither is in the mean.
    """

    mean: float
    low: float
    high: float
    method: str
    num_tasks: int
    num_attempts: int
    num_unscored: int = 0
    level: float = LEVEL
    num_clusters: int = 0
    num_undefined: int = 0


class ClusterErrors(NamedTuple):
    """Standard errors of a mean by how they treat clusters; ``design_effect`` is (miller / naive) squared."""

    naive: float
    miller: float
    cr0: float
    cr1: float
    design_effect: float


def interval_of(
    values: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    level: float = LEVEL,
    bounds: tuple[float, float] | None = UNIT,
    drop_undefined: bool = False,
    num_attempts: int | None = None,
) -> Interval:
    """Mean of one value per task with the interval that fits the data; ``method`` says which one that was.

    - "wilson": every value is 0 or 1 and no clusters are given, so that tasks are independent trials.
    - "t over tasks" or "CR1 t over clusters": mean +- t * CR1 error, each task its own cluster when none are given,
      with C - 1 degrees of freedom for C clusters of one size and fewer when sizes differ (``degrees_of_freedom``).
    - "wilson, effective tasks" or "wilson, effective clusters": the t interval at 95 % would reach past ``bounds``,
      which says that the mean is too near an end for it. Wilson's interval for the number of independent trials that
      would have the CR1 error, with t in place of z.
    - "wilson over tasks" or "wilson over clusters": all tasks (or clusters) have the same mean, so there is no spread
      to go by. The share of them that may differ is Wilson's upper end for 0 of C, and those may be anywhere in
      ``bounds``.

    Args:
        values: [tasks], such as ``pass_at_k`` gives; NaN where a task has no value.
        clusters: [tasks], whole numbers >= 0; tasks of one number (same repository, same problem reworded) are not
            taken as independent.
        level: chance that the interval covers the mean over all tasks of this kind.
        bounds: what a value can be; None for rewards without bounds.
        drop_undefined: leave tasks without a value out, and count them, instead of refusing.
        num_attempts: how many attempts are behind the values, for the record; the number of values if not said.

    Raises:
        ValueError: fewer than two tasks or clusters, undefined values without ``drop_undefined``, a value outside
            ``bounds``, or equal values and no bounds.

    Source: Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640, with the small-sample factor of CR1 (Cameron
    and Miller 2015) and Satterthwaite's degrees of freedom (Bell and McCaffrey 2002); Bowyer et al. 2025, arXiv
    2503.01747, for Wilson at small numbers of tasks; Korn and Graubard 1998 for effective numbers of trials, by
    Wilson's interval as in Dean and Pagano 2015.

    >>> interval_of([1, 0, 1, 1, 1, 1, 1, 1, 1, 1]).method
    'wilson'
    """
    check_share(level)
    array = as_values(values)
    labels = as_labels(clusters, len(array))
    check_bounds(array, bounds)
    kept = _defined(array, drop_undefined)
    undefined, array, labels = len(array) - int(kept.sum()), array[kept], as_labels(labels[kept], int(kept.sum()))
    low, high, method = _choose(array, labels, level, bounds, clustered=clusters is not None)
    return Interval(
        mean=mean_of(array),
        low=low,
        high=high,
        method=method,
        num_tasks=len(array),
        num_attempts=len(array) if num_attempts is None else num_attempts,
        level=level,
        num_clusters=num_clusters(labels),
        num_undefined=undefined,
    )


def cluster_errors(values: ArrayLike, clusters: ArrayLike) -> ClusterErrors:
    """Four standard errors of the mean of ``values`` [n] in ``clusters`` [n].

        naive   sd / sqrt(n)
        miller  sqrt(naive^2 + sum over clusters of the cross products of residuals / n^2)
        cr0     sqrt(sum over clusters of (sum of residuals)^2) / n
        cr1     cr0 * sqrt(C / (C - 1)), which ``interval_of`` uses

    Raises:
        ValueError: fewer than two values or clusters, or a NaN.

    Source: Miller 2024, arXiv 2411.00640; Cameron and Miller 2015, on cluster-robust inference.
    """
    array = as_values(values)
    labels = as_labels(clusters, len(array))
    naive, cr0, number = standard_error(array), _cr0(array, labels), num_clusters(labels)
    _check_units(number, "cluster")
    within = float(((array - array.mean()) ** 2).sum()) / len(array) ** 2
    miller = math.sqrt(max(0.0, naive**2 + cr0**2 - within))
    effect = (miller / naive) ** 2 if naive > 0 else math.nan
    return ClusterErrors(naive, miller, cr0, cr0 * math.sqrt(number / (number - 1)), effect)


def standard_error(values: ArrayLike) -> float:
    """Standard error of the mean of one value per task: sd with N - 1, over the root of N.

    Raises:
        ValueError: fewer than two tasks, or a NaN.
    """
    array = as_values(values)
    if np.isnan(array).any():
        raise ValueError(f"values[{int(np.isnan(array).argmax())}] is NaN; leave out the tasks without a value")
    _check_units(len(array), "scored task")
    return float(np.std(array, ddof=1)) / math.sqrt(len(array))


def cr1_error(values: Array, labels: Labels) -> float:
    """The CR1 error of a mean, from values [n] and labels [n] in 0 .. C - 1; 0.0 where all clusters have one mean."""
    number = num_clusters(labels)
    _check_units(number, "scored task" if number == len(values) else "cluster")
    error = _cr0(values, labels) * math.sqrt(number / (number - 1))
    return error if error > _ROUNDING * max(1.0, float(np.abs(values).max())) else 0.0


def degrees_of_freedom(labels: Labels) -> float:
    """Satterthwaite's degrees of freedom of the CR1 variance: C - 1 for clusters of one size, fewer otherwise.

    With shares w of the tasks and independent cluster means of one variance, CR1 is proportional to u'Mu with
    M = (I - 1w')' diag(w^2) (I - 1w'), and (tr M)^2 / tr(M^2) are the degrees of freedom. Ten clusters, one of them
    ten times as large as the others, are worth 1.6 and not 9; t with 9 would cover 78 %.

    Source: Bell and McCaffrey 2002, "Bias reduction in standard errors for linear regression with multi-stage samples".
    """
    sizes = np.bincount(labels)
    if (sizes == sizes[0]).all():
        return float(len(sizes) - 1)
    w = sizes / sizes.sum()
    d, square = w**2, float((w**2).sum())
    trace = float((d * (1 - 2 * w + square)).sum())
    d0, d1, d2 = (float((d * w**power).sum()) for power in (0, 1, 2))
    off = square**2 * d0**2 + 2 * d0 * d2 - 4 * square * d0 * d1 + 2 * d1**2
    return trace**2 / (float((d**2 * (1 + 2 * (square - 2 * w))).sum()) + off)


def mean_of(values: Array) -> float:
    """The mean; to the bit the common value where all values agree but for rounding."""
    return float(values[0]) if float(np.ptp(values)) < _ROUNDING else float(values.mean())


def check_bounds(values: Array, bounds: tuple[float, float] | None) -> None:
    """Raise ValueError for a value of [tasks] outside ``bounds``; NaN and None bounds pass."""
    if bounds is None:
        return
    outside = (values < bounds[0] - _ROUNDING) | (values > bounds[1] + _ROUNDING)
    if outside.any():
        at = int(outside.argmax())
        raise ValueError(
            f"value {values[at]:g} of task {at} is outside [{bounds[0]:g}, {bounds[1]:g}]; "
            "give bounds=(low, high), or bounds=None for rewards without bounds"
        )


def num_clusters(labels: Labels) -> int:
    """How many clusters labels in 0 .. C - 1 name."""
    return int(labels.max()) + 1 if len(labels) else 0


def equal_units(value: float, units: int, level: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Interval when none of ``units`` differs from ``value``: Wilson's share of unseen ones may be anywhere."""
    share = wilson(0.0, units, level)[1]
    return value - share * (value - bounds[0]), value + share * (bounds[1] - value)


def _choose(
    values: Array, labels: Labels, level: float, bounds: tuple[float, float] | None, *, clustered: bool
) -> tuple[float, float, str]:
    units, over = num_clusters(labels), "clusters" if clustered else "tasks"
    _check_units(units, "cluster" if clustered else "scored task")
    mean, error = mean_of(values), cr1_error(values, labels)
    if error == 0.0:
        if bounds is None:
            raise ValueError(
                f"every one of {units} {over} has the mean {mean:g}; without spread give bounds=(low, high)"
            )
        return *equal_units(mean, units, level, bounds), f"wilson over {over}"
    if bounds == UNIT and not clustered and bool(np.isin(values, UNIT).all()):
        return *wilson(mean, units, level), "wilson"
    freedom = degrees_of_freedom(labels)
    t, usual = (float(stdtrit(freedom, (1 + share) / 2)) for share in (level, LEVEL))
    if bounds is None:
        return mean - t * error, mean + t * error, _T[clustered]
    if mean - usual * error < bounds[0] or mean + usual * error > bounds[1]:
        return *_effective(mean, error, t, bounds), f"wilson, effective {over}"
    return max(bounds[0], mean - t * error), min(bounds[1], mean + t * error), _T[clustered]


def _effective(mean: float, error: float, t: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Wilson's interval for p (1 - p) / error^2 trials, which would have this error; in the unit of ``bounds``."""
    low, span = bounds[0], bounds[1] - bounds[0]
    p = min(1.0, max(0.0, (mean - low) / span))
    ends = wilson_ends(p, p * (1 - p) / (error / span) ** 2, t)
    return low + span * ends[0], low + span * ends[1]


def _cr0(values: Array, labels: Labels) -> float:
    sums = np.bincount(labels, weights=values - values.mean())
    return float(np.sqrt((sums**2).sum())) / len(values)


def _defined(values: Array, drop: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    kept = ~np.isnan(values)
    if not drop and not kept.all():
        raise ValueError(
            f"{int(kept.sum())} of {len(kept)} tasks are defined (task {int((~kept).argmax())} is NaN); a mean over "
            "the others is another quantity: ask for it with drop_undefined=True, or run the missing attempts"
        )
    return kept


def _check_units(number: int, what: str) -> None:
    if number < 2:
        raise ValueError(f"{number} {what}(s) show no spread; an interval needs at least 2")
