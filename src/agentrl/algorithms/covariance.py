"""Clip-Cov and KL-Cov: policy objectives that spare or bind the few tokens on which entropy collapses.

The entropy of a policy falls by the covariance of log-probability and credit, and a few tokens carry most of it:

    c_t = (A_t - mean A) (log pi(a_t) - mean log pi)

``clip_cov`` and ``kl_cov`` take the means over the trained tokens of their call and choose a share of those tokens.
**Give them the whole step.** On a micro-batch they choose other tokens: the means differ, and a share of 0.0002 of
few tokens rounds up to one. ``clip_cov_threshold`` and ``kl_cov_threshold`` take the means and a bound as numbers
that were measured on the whole step beforehand (``step_means``, ``covariance``, ``covariance_bound``), so that what
becomes of a token does not depend on the company it is packed with.

Arguments and errors are those of ``surrogates.py``. Covariances are constants: no gradient goes through a choice.

Source: Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
arXiv 2505.22617.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.algorithms.flat import check_flat, keep
from agentrl.algorithms.objectives import PolicyLoss, _terms, ppo_clip
from agentrl.errors import ConfigError


class StepMeans(NamedTuple):
    """Means over the trained tokens of a step, 0.0 for a step without any."""

    advantage: float
    logprob: float


def step_means(logprobs_T: Tensor, advantages_T: Tensor, mask_T: Tensor) -> StepMeans:
    """The centres of the covariance, over the trained tokens given; every one of the step for the threshold forms.

    Raises:
        TrainerError: shapes differ, or the mask is not boolean.
    """
    check_flat(mask_T, logprobs_T=logprobs_T, advantages_T=advantages_T)
    num_tokens = max(1, int(mask_T.sum()))
    means = (keep(column, mask_T).sum().item() / num_tokens for column in (advantages_T, logprobs_T))
    return StepMeans(*means)


def covariance(logprobs_T: Tensor, advantages_T: Tensor, mask_T: Tensor, means: StepMeans) -> Tensor:
    """``(A_t - means.advantage) (log pi(a_t) - means.logprob)`` without a gradient, minus infinity at untrained tokens.

    Raises:
        TrainerError: shapes differ, or the mask is not boolean.
    """
    check_flat(mask_T, logprobs_T=logprobs_T, advantages_T=advantages_T)
    centred_T = keep(advantages_T, mask_T).detach() - means.advantage
    product_T = centred_T * (keep(logprobs_T, mask_T).detach() - means.logprob)
    return torch.where(mask_T, product_T, -math.inf)


def covariance_bound(covariance_T: Tensor, num_tokens: int, *, share: float = 2e-4) -> float:
    """The least covariance among the top ``share`` of ``num_tokens`` tokens, infinity when there is no candidate.

    Args:
        covariance_T: from ``covariance``, minus infinity where a token is no candidate.
        num_tokens: trained tokens of the step.
        share: part of all trained tokens that is chosen, in (0, 1], rounded down but at least one token. Default of
            the paper's code.

    Raises:
        ConfigError: the share is out of range.
    """
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"share is {share!r}; give a part of the trained tokens in (0, 1], for instance 0.0002")
    candidates_T = covariance_T[covariance_T > -math.inf]
    num_chosen = min(candidates_T.numel(), max(1, int(share * num_tokens)))
    return candidates_T.topk(num_chosen).values[-1].item() if num_chosen else math.inf


def clip_cov(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    share: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    generator: torch.Generator | None = None,
) -> PolicyLoss:
    """The clipped surrogate without some tokens of high covariance; the call is to hold the whole step.

        candidates: tokens that the clip has not cut, with cov_low < c_t < cov_high
        loss_t = 0 at max(1, floor(share N)) of the candidates, that of ``ppo_clip`` elsewhere

    With a generator the tokens are drawn uniformly from the candidates, as in the paper. Without one they are those
    of the highest covariance (all of them at a tie), which makes the loss a function of its arguments. N counts the
    trained tokens of the call. Defaults are those of the paper's code. ``clipped_T`` covers both kinds of cut.

    Source: arXiv 2505.22617.
    """
    means = step_means(logprobs_T, advantages_T, mask_T)
    loss = ppo_clip(logprobs_T, old_logprobs_T, advantages_T, mask_T, clip_low=clip_low, clip_high=clip_high)
    candidates_T = _in_band(logprobs_T, advantages_T, mask_T, means, cov_low, cov_high).masked_fill(
        loss.clipped_T, -math.inf
    )
    bound = covariance_bound(candidates_T, int(mask_T.sum()), share=share)
    if generator is None:
        return _without(loss, candidates_T >= bound)
    places = (candidates_T > -math.inf).nonzero().squeeze(-1)
    order = torch.randperm(places.numel(), generator=generator).to(places.device)
    chosen_T = torch.zeros_like(mask_T)
    chosen_T[places[order[: max(1, int(share * int(mask_T.sum())))]]] = True
    return _without(loss, chosen_T)


def clip_cov_threshold(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    *,
    means: StepMeans,
    clip_low: float,
    clip_high: float,
    cov_low: float,
    cov_high: float = 5.0,
) -> PolicyLoss:
    """``clip_cov`` token by token: every token with ``cov_low <= c_t < cov_high`` loses its gradient.

    ``means`` and ``cov_low`` are numbers of the whole step (``step_means``, ``covariance_bound``), the same for each
    of its micro-batches.
    """
    loss = ppo_clip(logprobs_T, old_logprobs_T, advantages_T, mask_T, clip_low=clip_low, clip_high=clip_high)
    covariance_T = covariance(logprobs_T, advantages_T, mask_T, means)
    return _without(loss, mask_T & (covariance_T >= cov_low) & (covariance_T < cov_high))


def kl_cov(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    *,
    share: float = 2e-4,
    kl_coef: float = 1.0,
) -> PolicyLoss:
    """The surrogate without a clip, and a pull to the old policy at the tokens of highest covariance.

        loss_t = -rho_t A_t + kl_coef |log rho_t|   at the max(1, floor(share N)) tokens of highest c_t
        loss_t = -rho_t A_t                         elsewhere

    The call is to hold the whole step; tokens that tie with the last one chosen are chosen too. The paper writes a KL
    penalty, and ``|log rho|`` is how its code measures it at one sampled token; its gradient is 0 at ratio one.
    Defaults are those of the paper's code; verl ships ``kl_coef`` 0.1.

    Source: arXiv 2505.22617.
    """
    means = step_means(logprobs_T, advantages_T, mask_T)
    covariance_T = covariance(logprobs_T, advantages_T, mask_T, means)
    bound = covariance_bound(covariance_T, int(mask_T.sum()), share=share)
    columns = (logprobs_T, old_logprobs_T, advantages_T, mask_T)
    return kl_cov_threshold(*columns, means=means, cov_low=bound, kl_coef=kl_coef)


def kl_cov_threshold(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    *,
    means: StepMeans,
    cov_low: float,
    kl_coef: float = 1.0,
) -> PolicyLoss:
    """``kl_cov`` token by token: the pull acts at every token with ``c_t >= cov_low``.

    ``means`` and ``cov_low`` are numbers of the whole step (``step_means``, ``covariance_bound``), the same for each
    of its micro-batches.
    """
    if not kl_coef >= 0.0:
        raise ConfigError(f"kl_coef is {kl_coef!r}; give the strength of the pull, at least 0, for instance 1.0")
    terms = _terms(logprobs_T, old_logprobs_T, advantages_T, mask_T)
    bound_T = mask_T & (covariance(logprobs_T, advantages_T, mask_T, means) >= cov_low)
    pull_T = torch.where(bound_T, terms.log_ratio_T, 0.0).abs()
    idle_T = (terms.advantages_T == 0) & terms.ratio_T.isinf()
    surrogate_T = -terms.advantages_T * torch.where(idle_T, 0.0, terms.log_ratio_T).exp()
    loss_T = surrogate_T + kl_coef * pull_T
    return PolicyLoss(loss_T=loss_T, clipped_T=torch.zeros_like(mask_T), ratio_T=terms.ratio_T)


def _in_band(
    logprobs_T: Tensor, advantages_T: Tensor, mask_T: Tensor, means: StepMeans, cov_low: float, cov_high: float
) -> Tensor:
    """Covariances strictly between the bounds, minus infinity elsewhere."""
    if not cov_low < cov_high:
        raise ConfigError(f"cov_low is {cov_low!r} and cov_high {cov_high!r}; give a band, for instance 1.0 and 5.0")
    covariance_T = covariance(logprobs_T, advantages_T, mask_T, means)
    return torch.where((covariance_T > cov_low) & (covariance_T < cov_high), covariance_T, -math.inf)


def _without(loss: PolicyLoss, chosen_T: Tensor) -> PolicyLoss:
    loss_T = torch.where(chosen_T, 0.0, loss.loss_T)
    return PolicyLoss(loss_T=loss_T, clipped_T=loss.clipped_T | chosen_T, ratio_T=loss.ratio_T)
