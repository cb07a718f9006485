"""From the rewards of a group to credit. Plain floats, no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from agentrl.errors import TrainerError


def group_mean(rewards: Sequence[float | None]) -> tuple[float | None, ...]:
    """Credit each attempt of one group with its reward minus the mean of the group's scored rewards.

        A_i = r_i - mean(r)

    There is no division by the standard deviation, which would weigh a group by how hard its task is.

    Args:
        rewards: one number per attempt at the same task, in any unit; None where the attempt was not scored.

    Returns:
        One advantage per attempt, in the same order and unit. None stays None and is out of the baseline.
        Equal rewards give exactly 0.0 each, and so does a single scored attempt, which is its own baseline.
        When nothing was scored, all are None.

    Raises:
        TrainerError: a reward is NaN or infinite.

    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training", arXiv 2503.20783, section 3.2 (Dr. GRPO).

    >>> group_mean([1.0, 0.0, 0.0, 1.0])
    (0.5, -0.5, -0.5, 0.5)
    >>> group_mean([1.0, None, 0.0])
    (0.5, None, -0.5)
    """
    scored = [_finite(reward, attempt) for attempt, reward in enumerate(rewards) if reward is not None]
    if not scored:
        return (None,) * len(rewards)
    # statistics.mean rounds once, so that equal rewards cancel to exactly zero and order does not matter.
    baseline = statistics.mean(scored)
    return tuple(None if reward is None else reward - baseline for reward in rewards)


def _finite(reward: float, attempt: int) -> float:
    if not math.isfinite(reward):
        raise TrainerError(f"reward {reward!r} of attempt {attempt} is not finite; use None for an unscored attempt")
    return float(reward)
