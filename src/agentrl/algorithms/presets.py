"""Algorithms by name. A preset is a sentence: its credit, its objective, its reduction and its filters."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from agentrl.algorithms.advantages import group_mean
from agentrl.algorithms.filters import Filter, no_signal
from agentrl.algorithms.objectives import PolicyLoss, ppo_clip, reinforce
from agentrl.algorithms.reduce import token_mean
from agentrl.errors import ConfigError

Credit = Callable[[Sequence[float | None]], tuple[float | None, ...]]
"""Rewards of one group to advantages."""
Objective = Callable[[Tensor, Tensor, Tensor, Tensor], PolicyLoss]
"""(logprobs_T, old_logprobs_T, advantages_T, mask_T) to losses per token."""
Reduction = Callable[[Tensor, Tensor, float], Tensor]
"""(loss_T, weight_T, total weight of the step) to this piece's share of the step's loss."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a name means. Change one part with ``dataclasses.replace``."""

    name: str
    credit: Credit
    objective: Objective
    reduction: Reduction
    filters: tuple[Filter, ...] = ()


DR_GRPO = Preset(
    name="dr_grpo",
    credit=group_mean,
    objective=partial(ppo_clip, clip_low=0.2, clip_high=0.2),
    reduction=token_mean,
    filters=(no_signal,),
)
"""Dr. GRPO: group-mean baseline without a standard deviation, clipped surrogate, no KL term.

    A_i = r_i - mean of the group's scored rewards
    loss = sum_t -min(rho_t A, clip(rho_t, 0.8, 1.2) A) / (trained tokens of the step)

Where this differs from the paper: it divides by the constant ``num_sequences * max_tokens`` (``reduce.constant``),
here the divisor is the number of trained tokens of the whole step (as in DAPO, arXiv 2503.14476). Within a step
both weigh every token alike, so the gradient has the same direction and no attempt is favoured for its length; only
its size differs, by the mean length over ``max_tokens``. That keeps the learning rate's meaning when attempts grow
from 40 tokens to 4,000, at the price of a ratio estimator: between steps, a token of a step with shorter attempts
weighs more.

Groups whose scored attempts all earned the same have no gradient. They are left out whole, of the sum and of the
divisor, and counted.

Edge cases: a group with one scored attempt has advantage 0; an unscored attempt is neither trained nor in the baseline.

Source: Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective", arXiv 2503.20783.
"""

REINFORCE = Preset(name="reinforce", credit=group_mean, objective=reinforce, reduction=token_mean)
"""REINFORCE with the group's mean as the baseline, for data that the policy in training has just sampled.

    A_i = r_i - mean of the group's scored rewards
    loss = sum_t -A log pi(a_t) / (trained tokens of the step)

No clip and no importance ratio: a second pass over the same data is biased. Groups of equal rewards stay in the
divisor. With G attempts a group the expected gradient is (G - 1) / G of the exact one, since each attempt is part
of its own baseline.

Source: Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
"""

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (DR_GRPO, REINFORCE)}
"""Every preset by name."""


def preset(name: str) -> Preset:
    """The preset of this name.

    Raises:
        ConfigError: there is none; the message has the nearest name.

    >>> preset("dr_grpo").credit([1.0, 0.0])
    (0.5, -0.5)
    """
    if name not in PRESETS:
        nearest = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.0)[0]
        raise ConfigError(f"no preset {name!r}; did you mean {nearest!r}? The presets are {', '.join(PRESETS)}")
    return PRESETS[name]
