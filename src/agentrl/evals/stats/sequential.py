"""Tests and intervals that hold at every moment, so that one may look while an evaluation runs and stop early.

All of them take tasks in an order that was fixed before any result was seen, such as a shuffled task list, and a
finished prefix of it. The order in which attempts finish will not do: easy tasks finish first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln  # type: ignore[import-untyped]

from agentrl.evals.stats.checks import Array, Labels, as_labels, as_values, check_share
from agentrl.evals.stats.intervals import UNIT, check_bounds
from agentrl.evals.stats.proportions import LEVEL

_GRID = 1000
_LARGEST_BET = 0.5
_BLOCK = 1000

Verdict = Literal["above", "below", "within", "undecided"]


class ConfidenceSequence(NamedTuple):
    """Ends after each unit (task or cluster); with chance ``level`` the mean is inside at all times at once."""

    low: Array
    high: Array


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What may be concluded now, with the interval that says so, after ``num_units`` tasks or clusters."""

    verdict: Verdict
    low: float
    high: float
    num_units: int

    @property
    def decided(self) -> bool:
        """Whether the evaluation may stop."""
        return self.verdict != "undecided"


def mixture_e_value(wins: ArrayLike, losses: ArrayLike) -> Array:
    """Evidence against "wins and losses are equally likely", valid at any time.

        e = 2^(b + c) B(b + 1, c + 1)

    Under the null its expectation is 1 at any stopping time, so e >= 1 / alpha happens with chance alpha at most.

    Args:
        wins: discordant pairs won, of any shape; pairs must be independent, one 0 or 1 per task and side.
        losses: discordant pairs lost.

    Raises:
        ValueError: a negative count.

    Source: Ville 1939; Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid inference",
    arXiv 2210.01948; the uniform mixture over the chance of a win.

    >>> round(float(mixture_e_value(12, 3)), 6)
    4.501099
    """
    b, c = np.asarray(wins), np.asarray(losses)
    if (b < 0).any() or (c < 0).any():
        raise ValueError(f"wins {b.min()} and losses {c.min()} (smallest) are counts of pairs, 0 or more")
    with np.errstate(over="ignore"):  # beyond the largest float it is infinite, which is enough to reject
        return np.asarray(np.exp((b + c) * math.log(2) + betaln(b + 1, c + 1)))


def paired_e_process(before: ArrayLike, after: ArrayLike) -> Array:
    """The e-value after each task, from one 0 or 1 per task and side, [tasks] in an order fixed in advance.

    Reject "no difference" as soon as it reaches 1 / alpha; min(1, 1 / largest so far) is a p-value at any time.
    A task missing on one side changes nothing.

    Raises:
        ValueError: sides of different length, or a value that is not 0, 1 or NaN: for means of several attempts
            take ``confidence_sequence`` of the differences.
    """
    first, second = as_values(before, "before"), as_values(after, "after")
    if first.shape != second.shape:
        raise ValueError(
            f"before has {len(first)} tasks and after {len(second)}; put both in the order of one task list"
        )
    for side in (first, second):
        bad = ~np.isnan(side) & (side != 0) & (side != 1)
        if bad.any():
            raise ValueError(
                f"value {side[bad.argmax()]:g} of task {int(bad.argmax())} is neither 0 nor 1; "
                "for means of attempts take confidence_sequence(after - before, bounds=(-1, 1))"
            )
    return mixture_e_value(np.cumsum(second > first), np.cumsum(second < first))


def confidence_sequence(
    values: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    level: float = LEVEL,
    bounds: tuple[float, float] = UNIT,
) -> ConfidenceSequence:
    """Intervals for the mean over tasks after each task (or cluster), valid together at all times.

    Each candidate mean m bets on the next unit with hedged capital; m is out for good once its capital reaches
    1 / alpha. Nothing is assumed of the values but their bounds, and that units are alike and independent.

    Args:
        values: [tasks], each task's mean over its attempts (or difference of two), in an order fixed in advance;
            NaN where a task is not done or was not scored.
        clusters: [tasks] of the whole design, also of tasks not done. A cluster is one unit, so the tasks of one
            belong beside each other and one looks between clusters. The target is then the mean over tasks.
        level: chance that the mean is inside at all times.
        bounds: what a value can be; (-1, 1) for differences of rates.

    Returns:
        Two arrays with one entry per unit done, narrowing; ends lie on a grid of 1/1000 of the width of ``bounds``.

    Raises:
        ValueError: no value, a value outside ``bounds``, or clusters that are no numbers >= 0.

    Source: Waudby-Smith and Ramdas 2023, "Estimating means of bounded random variables by betting", section 4,
    arXiv 2010.09686; for clusters the bet is on (sum - m * size) over the largest size.
    """
    check_share(level)
    unit, labels = _scaled(values, bounds), as_labels(clusters, len(np.asarray(values)))
    sums, sizes = _units(unit, labels)
    bets = _bets(sums, sizes, 1 - level)
    low, high = _survivors(sums, sizes, bets, math.log(2 / (1 - level)))
    span = bounds[1] - bounds[0]
    return ConfidenceSequence(bounds[0] + span * low, bounds[0] + span * high)


def decided(
    values: ArrayLike,
    *,
    against: float = 0.0,
    margin: float = 0.0,
    clusters: ArrayLike | None = None,
    level: float = LEVEL,
    bounds: tuple[float, float] = UNIT,
) -> Decision:
    """Whether the mean is known to lie above or below ``against``, or within ``margin`` of it. May be asked often.

    For a comparison give the differences per task, ``bounds=(-1, 1)`` and ``against=0``.

    Args:
        margin: a mean inside against +- margin is "within" and ends the evaluation too; never at 0. The others as
            for ``confidence_sequence``.

    Raises:
        ValueError: a negative margin, or as ``confidence_sequence``.
    """
    if not margin >= 0:
        raise ValueError(f"margin is {margin!r}; give the difference that does not matter, 0 or more")
    sequence = confidence_sequence(values, clusters=clusters, level=level, bounds=bounds)
    low, high = float(sequence.low[-1]), float(sequence.high[-1])
    verdict: Verdict = "undecided"
    if low >= against and low > bounds[0]:  # an end inside the bounds is itself ruled out
        verdict = "above"
    elif high <= against and high < bounds[1]:
        verdict = "below"
    elif margin > 0 and against - margin <= low and high <= against + margin:
        verdict = "within"
    return Decision(verdict=verdict, low=low, high=high, num_units=len(sequence.low))


def _scaled(values: ArrayLike, bounds: tuple[float, float]) -> Array:
    array = as_values(values)
    low, high = bounds
    if not low < high:
        raise ValueError(f"bounds are {bounds!r}; give (low, high) with low < high")
    check_bounds(array, bounds)
    if np.isnan(array).all():
        raise ValueError(f"none of {len(array)} tasks has a value yet; wait for the first")
    return np.clip((array - low) / (high - low), 0.0, 1.0)


def _units(values: Array, labels: Labels) -> tuple[Array, Array]:
    """Sum and size of each unit that has a value, both over the largest size of the design."""
    done = ~np.isnan(values)
    largest = np.bincount(labels).max()
    number = int(labels.max()) + 1
    sizes = np.bincount(labels, weights=done, minlength=number)
    sums = np.bincount(labels, weights=np.where(done, values, 0.0), minlength=number)
    return sums[sizes > 0] / largest, sizes[sizes > 0] / largest


def _bets(sums: Array, sizes: Array, alpha: float) -> Array:
    """The stake on each unit, from the units before it only: sqrt(2 log(2 / alpha) / (variance * t log(t + 1)))."""
    t = np.arange(1, len(sums) + 1)
    means = (0.5 + np.cumsum(sums)) / (1 + np.cumsum(sizes))
    variances = (0.25 + np.cumsum((sums - means * sizes) ** 2)) / (t + 1)
    earlier = np.concatenate([[0.25], variances[:-1]])
    return np.sqrt(2 * math.log(2 / alpha) / (earlier * t * np.log(t + 1)))


def _survivors(sums: Array, sizes: Array, bets: Array, limit: float) -> tuple[Array, Array]:
    """Ends of the candidates whose capital never reached the limit, after each unit.

    Capital of a candidate falls with m where one bets on more and rises where one bets on less, so what survives is
    an interval; its ends are moved out to the next grid point that is surely out. When nothing survives, which has
    chance alpha at most, the last ends stay.
    """
    grid = np.linspace(0.0, 1.0, _GRID + 1)
    up_most, down_most = _LARGEST_BET / np.maximum(grid, 1e-12), _LARGEST_BET / np.maximum(1 - grid, 1e-12)
    logs = np.zeros((2, len(grid)))
    alive = np.ones(len(grid), dtype=bool)
    ends, some = np.empty((2, len(sums))), np.empty(len(sums), dtype=bool)
    for start in range(0, len(sums), _BLOCK):
        block = slice(start, start + _BLOCK)
        gain = sums[block, None] - grid * sizes[block, None]
        up = logs[0] + np.cumsum(np.log1p(np.minimum(bets[block, None], up_most) * gain), axis=0)
        down = logs[1] + np.cumsum(np.log1p(-np.minimum(bets[block, None], down_most) * gain), axis=0)
        logs = np.stack([up[-1], down[-1]])
        living = alive & (np.maximum.accumulate(np.maximum(up, down), axis=0) < limit)
        alive = living[-1]
        ends[0, block] = np.maximum(living.argmax(axis=1) - 1, 0)
        ends[1, block] = np.minimum(_GRID - living[:, ::-1].argmax(axis=1) + 1, _GRID)
        some[block] = living.any(axis=1)
    last = np.maximum.accumulate(np.where(some, np.arange(len(sums)), 0))
    return ends[0, last] / _GRID, ends[1, last] / _GRID
