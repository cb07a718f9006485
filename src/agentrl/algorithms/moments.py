"""Mean and spread over the scored attempts: in any order the same to the bit, and exact where all rewards are equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from agentrl.errors import ConfigError, TrainerError


class Scored(NamedTuple):
    """The rewards of the scored attempts, in their order, and how much each counts in a statistic."""

    values: list[float]
    weights: list[float]


def scored(rewards: Sequence[float | None], weights: Sequence[float] | None = None) -> Scored:
    """Take the scored attempts out of a group; the weight of an unscored attempt is not read.

    Raises:
        TrainerError: a reward is not finite, there is not one weight per attempt, a weight is negative or not
            finite, or all scored attempts weigh 0.
    """
    if weights is not None and len(weights) != len(rewards):
        raise TrainerError(f"{len(weights)} weights for {len(rewards)} attempts; give one weight per attempt")
    places = [attempt for attempt, reward in enumerate(rewards) if reward is not None]
    values = [_finite(reward, attempt) for attempt, reward in enumerate(rewards) if reward is not None]
    counts = [1.0] * len(places) if weights is None else [_weight(weights[attempt], attempt) for attempt in places]
    if counts and not any(counts):
        raise TrainerError("every scored attempt has weight 0.0; give at least one of them a weight above 0")
    return Scored(values, counts)


def mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted mean; exactly the value when all values that weigh anything are equal.

    The sums are rounded once (``math.fsum``), so that the order does not matter. Without the first line a mean of
    0.1s could differ from 0.1 in the last bit, and the remainder would pass for a signal.
    """
    counted = {value for value, weight in zip(values, weights, strict=True) if weight}
    return counted.pop() if len(counted) == 1 else fmean(values, weights)


def deviation(values: Sequence[float], weights: Sequence[float], center: float, ddof: int) -> float:
    """Standard deviation around ``center``: the root of ``sum w (x - center)^2 / (sum w - ddof)``.

    A weight is a count: an attempt of weight 2 is an attempt that stands there twice. 0.0 when there are no more
    counts than ``ddof``.

    Raises:
        ConfigError: ``ddof`` is neither 0 nor 1.
    """
    if ddof not in (0, 1):
        raise ConfigError(f"ddof is {ddof!r}; give 0 (divide by the number of attempts) or 1 (by one less)")
    divisor = math.fsum(weights) - ddof
    squares = (w * (x - center) * (x - center) for x, w in zip(values, weights, strict=True))
    return math.sqrt(math.fsum(squares) / divisor) if divisor > 0 else 0.0


def fill(rewards: Sequence[float | None], credit: Iterable[float]) -> tuple[float | None, ...]:
    """Put the credit of the scored attempts, in their order, back in their places."""
    left = iter(credit)
    return tuple(None if reward is None else next(left) for reward in rewards)


def check_eps(eps: float) -> None:
    """Refuse what cannot be added to a standard deviation.

    Raises:
        ConfigError: ``eps`` is negative, NaN or infinite.
    """
    if not 0.0 <= eps < math.inf:
        raise ConfigError(f"eps is {eps!r}; give a small number of at least 0, for instance 1e-6")


def _finite(reward: float, attempt: int) -> float:
    if not math.isfinite(reward):
        raise TrainerError(f"reward {reward!r} of attempt {attempt} is not finite; use None for an unscored attempt")
    return float(reward)


def _weight(weight: float, attempt: int) -> float:
    if not 0.0 <= weight < math.inf:
        raise TrainerError(f"weight {weight!r} of attempt {attempt} is not a count; give a finite number of at least 0")
    return float(weight)
