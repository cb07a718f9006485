"""Credit against a baseline that moves from step to step, one for each role of a game. Plain floats, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agentrl.algorithms.moments import scored
from agentrl.errors import ConfigError, TrainerError


@dataclass(frozen=True, kw_only=True)
class RoleBaselines:
    """The moving baselines of ``rae``, to be kept from step to step and saved with a checkpoint.

    ``baselines`` maps a role to its baseline, in units of reward; a role that is not there has 0.0. ``decay`` is
    the share of a baseline that stays when a reward comes in, 0.95 as in SPIRAL's code.

    Raises:
        ConfigError: ``decay`` is not in [0, 1].
    """

    baselines: Mapping[str, float] = field(default_factory=dict)
    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay <= 1.0:
            raise ConfigError(f"decay is {self.decay!r}; give the share of the baseline that stays, in [0, 1]")


class RoleCredit(NamedTuple):
    """Advantages, and the baselines after these rewards."""

    advantages: tuple[float | None, ...]
    state: RoleBaselines


def rae(rewards: Sequence[float | None], *, roles: Sequence[str], state: RoleBaselines) -> RoleCredit:
    """Role-conditioned advantage estimation: a moving baseline for each role of a game that is played with itself.

        A_i = r_i - b_role; then b_role <- decay b_role + (1 - decay) r_i

    The baseline is used before it is updated, so that no reward is part of its own baseline. Rewards are taken in
    the order given, so unlike the rules over groups this one depends on it.

    Args:
        rewards: one number per attempt, in the order in which they were played; None where it was not scored,
            which leaves the baseline as it is.
        roles: the role that each attempt had.
        state: the baselines so far; it is not changed.

    Raises:
        TrainerError: a reward is NaN or infinite, or there is not one role per attempt.

    Source: Liu et al. 2025, "SPIRAL", arXiv 2506.24119, and its ``train_spiral.py``.

    >>> rae([1.0, -1.0], roles=["first", "first"], state=RoleBaselines()).advantages
    (1.0, -1.05)
    """
    scored(rewards)
    if len(roles) != len(rewards):
        raise TrainerError(f"{len(roles)} roles for {len(rewards)} rewards; give the role that each attempt had")
    baselines, advantages = dict(state.baselines), list[float | None]()
    for reward, role in zip(rewards, roles, strict=True):
        baseline = baselines.get(role, 0.0)
        advantages.append(None if reward is None else reward - baseline)
        if reward is not None:
            baselines[role] = state.decay * baseline + (1.0 - state.decay) * reward
    return RoleCredit(tuple(advantages), replace(state, baselines=baselines))
