"""Losses per token: pure functions of one flat sequence of tokens.

Shapes: every argument that ends in ``_T`` is a tensor of shape [T], and entry t of each describes the same
token. ``mask_T`` is boolean, True at the tokens that this objective trains. What stands at the other places
(NaN, infinity, 1e9) cannot reach a value or a gradient: it is replaced before any arithmetic. NaN at a trained
token is not hidden: it comes out as NaN.

Nothing here averages; ``reduce.py`` owns every denominator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.errors import ConfigError, TrainerError


class PolicyLoss(NamedTuple):
    """What a policy objective gives back. Statistics carry no gradient; at untrained tokens they say nothing happened.

    ``loss_T`` is 0 at untrained tokens, ``clipped_T`` is True where the clip took the gradient away, and
    ``ratio_T`` is the importance ratio before any clip, 1 at untrained tokens.
    """

    loss_T: Tensor
    clipped_T: Tensor
    ratio_T: Tensor


def reinforce(logprobs_T: Tensor, old_logprobs_T: Tensor, advantages_T: Tensor, mask_T: Tensor) -> PolicyLoss:
    """Score-function policy gradient, without a correction for stale data.

        loss_t = -A_t log pi(a_t)

    Args:
        logprobs_T: log-probabilities of the sampled tokens under the policy in training, natural log.
        old_logprobs_T: the same under the policy that sampled them; only ``ratio_T`` is made of it.
        advantages_T: credit per token, taken as constant.
        mask_T: True at trained tokens.

    Raises:
        TrainerError: shapes differ, or the mask is not boolean.

    Source: Williams 1992, "Simple statistical gradient-following algorithms", section 3.
    """
    _check(mask_T, logprobs_T=logprobs_T, old_logprobs_T=old_logprobs_T, advantages_T=advantages_T)
    logprobs_T = _keep(logprobs_T, mask_T)
    ratio_T = (logprobs_T.detach() - _keep(old_logprobs_T, mask_T)).exp()
    loss_T = -_keep(advantages_T, mask_T).detach() * logprobs_T
    return PolicyLoss(loss_T=loss_T, clipped_T=torch.zeros_like(mask_T), ratio_T=ratio_T)


def ppo_clip(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """The clipped surrogate: no gain from moving a token's ratio further than the clip in the direction of its credit.

        rho_t = exp(log pi(a_t) - log pi_old(a_t))
        loss_t = -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)

    Args:
        logprobs_T: log-probabilities of the sampled tokens under the policy in training, natural log.
        old_logprobs_T: the same under the policy that sampled them, taken as constant.
        advantages_T: credit per token, taken as constant.
        mask_T: True at trained tokens.
        clip_low: how far the ratio may fall below 1, in [0, 1].
        clip_high: how far the ratio may rise above 1, at least 0.

    Raises:
        TrainerError: shapes differ, or the mask is not boolean.
        ConfigError: a clip is out of range.

    Source: Schulman et al. 2017, arXiv 1707.06347, equation 7; separate clips from DAPO, arXiv 2503.14476,
    equation 10.
    """
    _check(mask_T, logprobs_T=logprobs_T, old_logprobs_T=old_logprobs_T, advantages_T=advantages_T)
    _check_clip(clip_low, clip_high)
    log_ratio_T = _keep(logprobs_T, mask_T) - _keep(old_logprobs_T, mask_T).detach()
    advantages_T = _keep(advantages_T, mask_T).detach()
    ratio_T = log_ratio_T.detach().exp()
    clipped_T = ((advantages_T > 0) & (ratio_T > 1 + clip_high)) | ((advantages_T < 0) & (ratio_T < 1 - clip_low))
    # Clipped tokens leave before exp, so that a ratio that overflows there gives a zero gradient and not 0 * inf.
    free_ratio_T = torch.where(clipped_T, 0.0, log_ratio_T).exp()
    bound_T = ratio_T.clamp(1 - clip_low, 1 + clip_high)
    loss_T = -advantages_T * torch.where(clipped_T, bound_T, free_ratio_T)
    return PolicyLoss(loss_T=loss_T, clipped_T=clipped_T, ratio_T=ratio_T)


def cross_entropy(logprobs_T: Tensor, mask_T: Tensor) -> Tensor:
    """Supervised fine-tuning: ``loss_t = -log pi(a_t)`` at the demonstrated tokens, in nats, 0 elsewhere.

    Raises:
        TrainerError: shapes differ, or the mask is not boolean.
    """
    _check(mask_T, logprobs_T=logprobs_T)
    return -_keep(logprobs_T, mask_T)


def value_loss(values_T: Tensor, returns_T: Tensor, mask_T: Tensor) -> Tensor:
    """Squared error of a value head, ``loss_t = (V_t - R_t)^2`` with no factor of one half, 0 elsewhere.

    Args:
        values_T: predictions, in units of return.
        returns_T: targets, taken as constant.
        mask_T: True at trained tokens.

    Raises:
        TrainerError: shapes differ, or the mask is not boolean.
    """
    _check(mask_T, values_T=values_T, returns_T=returns_T)
    return (_keep(values_T, mask_T) - _keep(returns_T, mask_T).detach()).square()


def _keep(values_T: Tensor, mask_T: Tensor) -> Tensor:
    return torch.where(mask_T, values_T, 0.0)


def _check(mask_T: Tensor, **tensors: Tensor) -> None:
    if mask_T.dtype != torch.bool:
        raise TrainerError(f"mask_T has dtype {mask_T.dtype}; give booleans, for instance weight_T != 0")
    for name, tensor in tensors.items():
        if tensor.shape != mask_T.shape or tensor.dim() != 1:
            raise TrainerError(
                f"{name} has shape {tuple(tensor.shape)} and mask_T {tuple(mask_T.shape)}; "
                "give one entry per token, flat, in both"
            )


def _check_clip(clip_low: float, clip_high: float) -> None:
    if not 0.0 <= clip_low <= 1.0:
        raise ConfigError(f"clip_low is {clip_low!r}; give a distance below ratio 1 in [0, 1], for instance 0.2")
    if not clip_high >= 0.0:
        raise ConfigError(f"clip_high is {clip_high!r}; give a distance above ratio 1 of at least 0, for instance 0.2")
