"""Credit per step of an agent's episode, by comparing what followed from the same state. Plain floats, no torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from agentrl.algorithms.advantages import group_mean, std_normalized
from agentrl.algorithms.returns import discounted_returns
from agentrl.errors import ConfigError, TrainerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One attempt as steps. ``rewards[t]`` came for step t, and ``anchors[t]`` names the state in which it was taken.

    Two steps are compared when their anchors are equal, so an anchor is all that the next action should depend on:
    the files as they stand, say, and not how many turns it took to get there.

    Raises:
        TrainerError: there is no step, not one anchor per reward, or a reward is NaN or infinite.
    """

    rewards: tuple[float, ...]
    anchors: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        if not self.rewards or len(self.rewards) != len(self.anchors):
            raise TrainerError(
                f"an episode of {len(self.rewards)} rewards and {len(self.anchors)} anchors; give one of each per "
                "step, or None instead of an episode that has no step"
            )
        for step, reward in enumerate(self.rewards):
            if not math.isfinite(reward):
                raise TrainerError(f"reward {reward!r} of step {step} is not finite; give None for an unscored episode")


def gigpo(
    episodes: Sequence[Episode | None],
    *,
    gamma: float,
    omega: float = 1.0,
    ddof: int | None = None,
    eps: float = 1e-6,
) -> tuple[tuple[float, ...] | None, ...]:
    """GiGPO: credit of the episode within its group, plus credit of the step among steps from the same state.

        A_t = norm(sum of rewards, over the group's episodes) + omega norm(R_t, over all steps of the group with
        the anchor of step t), R_t = r_t + gamma R_(t + 1)

    norm(x) is ``x - mean(x)``, or that over the standard deviation. With one anchor per step, all different, what
    is left is ``group_mean`` or ``std_normalized`` on every step.

    Args:
        episodes: the attempts at one task; None where one was not scored, which stays None and is in no comparison.
        gamma: discount per step, in [0, 1]; 0.95 in the authors' scripts. With 1 and a final reward alone, an early
            and a late visit to a state count alike.
        omega: weight of the step's credit; 1.0 in the paper.
        ddof: None subtracts the mean alone; 0 or 1 divides by the standard deviation plus ``eps`` as well.
        eps: used with ``ddof`` only; 1e-6 as in the authors' code.

    Returns:
        One advantage per step of each episode. A step whose anchor no other step shares has no step credit (0.0),
        and neither have steps with equal returns. An episode that comes back to a state is compared with itself.

    Raises:
        ConfigError: ``gamma`` is not in [0, 1], ``omega`` is not finite, or ``ddof`` or ``eps`` is out of range.

    Source: Feng et al. 2025, "Group-in-Group Policy Optimization", arXiv 2505.10978.

    >>> walk = Episode(rewards=(0.0, 1.0), anchors=("start", "door"))
    >>> stay = Episode(rewards=(0.0,), anchors=("start",))
    >>> gigpo([walk, stay], gamma=1.0)
    ((1.0, 0.5), (-1.0,))
    """
    if not math.isfinite(omega):
        raise ConfigError(f"omega is {omega!r}; give a finite weight of the step's credit, for instance 1.0")
    of_episode = _normalize([None if e is None else math.fsum(e.rewards) for e in episodes], ddof, eps)
    of_step = _step_credit(episodes, gamma, ddof, eps)
    return tuple(
        None if base is None else tuple(base + omega * credit for credit in steps)
        for base, steps in zip(of_episode, of_step, strict=True)
    )


def _step_credit(episodes: Sequence[Episode | None], gamma: float, ddof: int | None, eps: float) -> list[list[float]]:
    """Credit of each step among the steps that share its anchor; no steps for an unscored episode."""
    returns = [
        () if e is None else discounted_returns(e.rewards, (True,) * len(e.rewards), gamma=gamma) for e in episodes
    ]
    credit = [[0.0] * len(steps) for steps in returns]
    for places in _by_anchor(episodes):
        for (episode, step), value in zip(
            places, _normalize([returns[episode][step] for episode, step in places], ddof, eps), strict=True
        ):
            credit[episode][step] = value or 0.0
    return credit


def _by_anchor(episodes: Sequence[Episode | None]) -> list[list[tuple[int, int]]]:
    """The places (episode, step) of each state that was visited."""
    places: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        for step, anchor in enumerate(episode.anchors if episode else ()):
            places[anchor].append((index, step))
    return list(places.values())


def _normalize(values: Sequence[float | None], ddof: int | None, eps: float) -> tuple[float | None, ...]:
    return group_mean(values) if ddof is None else std_normalized(values, ddof=ddof, eps=eps)
