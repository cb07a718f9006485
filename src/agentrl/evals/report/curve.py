"""The learning curve of a run: its training reward in bins of steps, and its held-out evaluations, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.evals import stats

Floats = NDArray[np.float64]
MOST_BINS = 20


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Neighbouring steps, the first and the last counted from 1, and their mean reward.

    The interval is over the steps of the bin, so that a trend within the bin widens it; None where all steps have the
    same reward outside [0, 1].
    """

    first: int
    last: int
    mean: float
    interval: stats.Interval | None


@dataclass(frozen=True, kw_only=True)
class Point:
    """A small evaluation during the run, with the interval that the run kept."""

    step: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningCurve:
    """Training rewards by step [n], in bins, and the evaluations during the run.

    ``skipped`` counts the steps that have no reward, since none of their attempts could be scored.
    """

    rewards: Floats
    bins: tuple[Bin, ...]
    points: tuple[Point, ...]
    skipped: int


def learning_curve(rows: Sequence[Mapping[str, Any]], last: int) -> LearningCurve:
    """From the rows of a run's metrics.

    Args:
        rows: of all phases.
        last: the run's number of steps. The evaluations before and after it are of other tasks than those in between.
    """
    steps = [row for row in rows if row["phase"] == "rl"]
    rewards = np.array([row["reward"] for row in steps if row.get("reward") is not None], dtype=np.float64)
    points = [row for row in rows if row["phase"] == "eval" and 0 < row["step"] < last]
    return LearningCurve(
        rewards=rewards,
        bins=bins(rewards),
        points=tuple(
            Point(step=row["step"], mean=row["pass_rate"], low=row["pass_rate_low"], high=row["pass_rate_high"])
            for row in points
            if row.get("pass_rate_low") is not None
        ),
        skipped=len(steps) - len(rewards),
    )


def bins(rewards: Floats) -> tuple[Bin, ...]:
    """At most `MOST_BINS` bins of neighbouring steps, each of two or more; none for fewer than two steps."""
    if len(rewards) < 2:
        return ()
    size = max(2, -(-len(rewards) // MOST_BINS))
    found, first = [], 1
    for part in np.array_split(rewards, len(rewards) // size):
        found.append(_bin(first, part))
        first += len(part)
    return tuple(found)


def _bin(first: int, part: Floats) -> Bin:
    inside = bool(np.all((part >= 0.0) & (part <= 1.0)))
    shown = inside or float(np.ptp(part)) > 0.0
    interval = stats.interval_of(part, bounds=(0.0, 1.0) if inside else None) if shown else None
    return Bin(first=first, last=first + len(part) - 1, mean=float(part.mean()), interval=interval)
