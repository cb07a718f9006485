"""Algorithms by name. A preset is a sentence: its credit, its objective, its reduction and its filters.

What a name means stands in `agentrl.catalogue`, in words and formulas; here are the parts that do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor

from agentrl.algorithms import sequence, surrogates
from agentrl.algorithms.advantages import group_mean, leave_one_out, max_rl, opo, std_normalized, top_minus_second
from agentrl.algorithms.batch_advantages import Credits, Groups, gpg, lite_ppo, per_group, reinforce_pp
from agentrl.algorithms.batch_advantages import reinforce_pp_baseline as whitened_group_mean
from agentrl.algorithms.filters import Filter, no_signal
from agentrl.algorithms.flat import total_per_token
from agentrl.algorithms.objectives import PolicyLoss, ppo_clip, reinforce
from agentrl.algorithms.reduce import sequence_mean, token_mean
from agentrl.algorithms.returns import Estimate, token_gae, turn_gae
from agentrl.catalogue import CATALOGUE, entry
from agentrl.errors import ConfigError

Credit = Callable[[Groups, Sequence[Sequence[float]]], Credits]
"""(rewards, trained tokens of each attempt), one sequence per group of the step each, to advantages."""
Objective = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], PolicyLoss]
"""(logprobs_T, old_logprobs_T, advantages_T, mask_T, sequence_T) to losses per token."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Which sequence each token of a micro-batch belongs to, whole sequences only, and the totals of the whole step.

    Attributes:
        sequence_T: number of the token's sequence, int64, shape [T].
        total_weight: sum of the token weights of the step.
        num_sequences: sequences of the step that have a trained token.
    """

    sequence_T: Tensor
    total_weight: float
    num_sequences: int


Reduction = Callable[[Tensor, Tensor, Segments], Tensor]
"""(loss_T, weight_T, segments) to this micro-batch's share of the step's loss."""


@dataclass(frozen=True, kw_only=True)
class Critic:
    """How a value head takes part: it spreads an attempt's credit over its tokens, and learns what came of them.

    Attributes:
        gae: `returns.token_gae` or `returns.turn_gae`.
        gamma: discount per step of ``gae``, in [0, 1].
        lam: 1 trusts the rewards alone, 0 the critic alone.
        value_coef: weight of the squared error beside the policy's loss.
    """

    gae: Callable[..., Estimate]
    gamma: float
    lam: float
    value_coef: float


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a name does. Change one part with ``dataclasses.replace``.

    With a ``critic`` the ``credit`` of an attempt is its return, from which the advantages of its tokens are made.
    """

    name: str
    credit: Credit
    objective: Objective
    reduction: Reduction
    filters: tuple[Filter, ...] = ()
    critic: Critic | None = None


def over_tokens(loss_T: Tensor, weight_T: Tensor, segments: Segments) -> Tensor:
    """The mean over all trained tokens of the step: `reduce.token_mean`."""
    return token_mean(loss_T, weight_T, segments.total_weight)


def over_sequences(loss_T: Tensor, weight_T: Tensor, segments: Segments) -> Tensor:
    """The mean over the step's sequences of the token mean within each: `reduce.sequence_mean`."""
    weight_of_sequence_T = total_per_token(weight_T, segments.sequence_T)
    return sequence_mean(loss_T, weight_T, weight_of_sequence_T, segments.num_sequences)


def by_group(rule: Callable[..., tuple[float | None, ...]]) -> Credit:
    """Credit that looks at the rewards of one group at a time."""
    lifted = per_group(rule)
    return lambda rewards, lengths: lifted(rewards)  # noqa: ARG005


def by_step(rule: Callable[..., Credits]) -> Credit:
    """Credit that looks at the rewards of all groups of the step."""
    return lambda rewards, lengths: rule(rewards)  # noqa: ARG005


def by_token(objective: Callable[..., PolicyLoss], **settings: float) -> Objective:
    """An objective that does not need to know which sequence a token is of."""

    def losses(
        logprobs_T: Tensor,
        old_logprobs_T: Tensor,
        advantages_T: Tensor,
        mask_T: Tensor,
        sequence_T: Tensor,  # noqa: ARG001
    ) -> PolicyLoss:
        return objective(logprobs_T, old_logprobs_T, advantages_T, mask_T, **settings)

    return losses


def by_sequence(objective: Callable[..., PolicyLoss], **settings: float) -> Objective:
    """An objective with one weight per sequence."""

    def losses(
        logprobs_T: Tensor, old_logprobs_T: Tensor, advantages_T: Tensor, mask_T: Tensor, sequence_T: Tensor
    ) -> PolicyLoss:
        return objective(logprobs_T, old_logprobs_T, advantages_T, mask_T, sequence_T=sequence_T, **settings)

    return losses


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """The parts of a preset before the parameters of its objective are known."""

    credit: Credit
    objective: Callable[..., Objective]
    reduction: Reduction = over_tokens
    filters: tuple[Filter, ...] = ()
    gae: Callable[..., Estimate] | None = None


_OWN_REWARD = by_group(tuple)
_CENTERED = by_group(group_mean)
_NORMALIZED = by_group(partial(std_normalized, ddof=1))
_REINFORCE = partial(by_token, reinforce)
_CLIP = partial(by_token, ppo_clip)


def _by_length(rule: Callable[..., Any]) -> Credit:
    return lambda rewards, lengths: rule(rewards, lengths=lengths)


_RECIPES: Mapping[str, _Recipe] = {
    "reinforce": _Recipe(credit=_CENTERED, objective=_REINFORCE),
    "rloo": _Recipe(credit=by_group(leave_one_out), objective=_REINFORCE),
    "ppo": _Recipe(credit=_OWN_REWARD, objective=_CLIP, gae=token_gae),
    "ppo_turn": _Recipe(credit=_OWN_REWARD, objective=_CLIP, gae=turn_gae),
    "grpo": _Recipe(credit=_NORMALIZED, objective=_CLIP, reduction=over_sequences),
    "dr_grpo": _Recipe(credit=_CENTERED, objective=_CLIP, filters=(no_signal,)),
    "dapo": _Recipe(credit=_NORMALIZED, objective=_CLIP, filters=(no_signal,)),
    "lite_ppo": _Recipe(credit=by_step(partial(lite_ppo, ddof=1)), objective=_CLIP),
    "gspo": _Recipe(credit=_NORMALIZED, objective=partial(by_sequence, sequence.gspo), reduction=over_sequences),
    "luspo": _Recipe(credit=_NORMALIZED, objective=partial(by_sequence, sequence.luspo)),
    "gmpo": _Recipe(credit=_NORMALIZED, objective=partial(by_sequence, sequence.gmpo), reduction=over_sequences),
    "cispo": _Recipe(credit=_NORMALIZED, objective=partial(by_token, surrogates.cispo)),
    "sapo": _Recipe(credit=_NORMALIZED, objective=partial(by_token, surrogates.sapo), reduction=over_sequences),
    "two_sided": _Recipe(credit=_NORMALIZED, objective=partial(by_token, surrogates.ppo_two_sided)),
    "dppo": _Recipe(credit=_NORMALIZED, objective=partial(by_token, surrogates.dppo_tv)),
    "reinforce_pp": _Recipe(credit=_by_length(partial(reinforce_pp, ddof=1)), objective=_CLIP),
    "reinforce_pp_baseline": _Recipe(credit=_by_length(partial(whitened_group_mean, ddof=1)), objective=_CLIP),
    "opo": _Recipe(credit=_by_length(per_group(opo)), objective=_REINFORCE),
    "gpg": _Recipe(credit=by_step(gpg), objective=_REINFORCE),
    "maxrl": _Recipe(credit=by_group(max_rl), objective=_REINFORCE),
    "pass_at_k": _Recipe(credit=by_group(top_minus_second), objective=_REINFORCE),
    "topr": _Recipe(credit=_CENTERED, objective=partial(by_sequence, sequence.topr)),
    "vespo": _Recipe(credit=_CENTERED, objective=partial(by_sequence, sequence.vespo)),
    "dro": _Recipe(credit=_CENTERED, objective=partial(by_token, surrogates.dro)),
}


def preset(name: str, **parameters: float) -> Preset:
    """The preset of this name, with some of its parameters set.

    Raises:
        ConfigError: there is none (with the nearest name), or it has no such parameter.

    >>> preset("dr_grpo", clip_high=0.28).credit([[1.0, 0.0]], [[3, 5]])
    [(0.5, -0.5)]
    """
    known = entry(name)
    for key in parameters:
        if key not in known.parameters:
            raise ConfigError(
                f"{name} has no parameter {key!r}; it has {', '.join(known.parameters) or 'no parameters'}"
            )
    recipe = _RECIPES[name]
    settings = {**known.parameters, **parameters}
    critic = None
    if recipe.gae is not None:
        gamma, lam, value_coef = (settings.pop(key) for key in ("gamma", "lam", "value_coef"))
        critic = Critic(gae=recipe.gae, gamma=gamma, lam=lam, value_coef=value_coef)
    return Preset(
        name=name,
        credit=recipe.credit,
        objective=recipe.objective(**settings),
        reduction=recipe.reduction,
        filters=recipe.filters,
        critic=critic,
    )


PRESETS: Mapping[str, Preset] = MappingProxyType({name: preset(name) for name in CATALOGUE})
"""Every preset by name, with its defaults."""
