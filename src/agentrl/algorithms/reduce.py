"""From per-token losses to one scalar: the only place where a loss is divided by anything.

Denominators are totals of the whole optimizer step, counted before the step is cut into micro-batches or spread
over ranks. Each piece gives its share, and the shares add up to the value (and the gradient) of the step in one
piece. A mean within each piece would make a token's weight depend on the company it is packed with.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentrl.errors import TrainerError


def token_mean(loss_T: Tensor, weight_T: Tensor, total_weight: float) -> Tensor:
    """This piece's share of the weighted mean over all trained tokens of the step.

        sum_t w_t loss_t / sum over the step of w_t

    Every trained token counts alike, so a long attempt counts by its length. The size of the gradient does not
    depend on how long the attempts of this step happen to be.

    Args:
        loss_T: losses per token, shape [T].
        weight_T: weights per token, shape [T]; where it is 0 the loss is not read.
        total_weight: sum of the weights over the whole step, not over this piece; above 0.

    Returns:
        A scalar. Summed over the pieces of a step it is the step's loss.

    Raises:
        TrainerError: the total is not a positive number (a step without a trained token), or shapes differ.
    """
    if not (math.isfinite(total_weight) and total_weight > 0):
        raise TrainerError(
            f"total_weight is {total_weight!r}; a step needs at least one trained token, so skip a step without any"
        )
    return _weighted_sum(loss_T, weight_T) / total_weight


def constant(loss_T: Tensor, weight_T: Tensor, num_sequences: int, max_tokens: int) -> Tensor:
    """This piece's share of the step's loss divided by a constant: Dr. GRPO's own reduction.

        sum_t w_t loss_t / (num_sequences * max_tokens)

    Unlike ``token_mean`` the divisor does not follow the lengths of the attempts, so the policy gradient is
    unbiased, and the size of the gradient grows with the length of the attempts.

    Args:
        loss_T: losses per token, shape [T].
        weight_T: weights per token, shape [T]; where it is 0 the loss is not read.
        num_sequences: attempts in the whole step, at least 1.
        max_tokens: the most tokens that one attempt may sample, at least 1.

    Returns:
        A scalar. Summed over the pieces of a step it is the step's loss.

    Raises:
        TrainerError: a count is below 1, or shapes differ.

    Source: Liu et al. 2025, arXiv 2503.20783, section 3.2 and its listing 1.
    """
    if num_sequences < 1 or max_tokens < 1:
        raise TrainerError(f"num_sequences is {num_sequences} and max_tokens {max_tokens}; both must be at least 1")
    return _weighted_sum(loss_T, weight_T) / (num_sequences * max_tokens)


def _weighted_sum(loss_T: Tensor, weight_T: Tensor) -> Tensor:
    if loss_T.shape != weight_T.shape:
        raise TrainerError(
            f"loss_T has shape {tuple(loss_T.shape)} and weight_T {tuple(weight_T.shape)}; "
            "a loss per sequence cannot be weighed per token"
        )
    return (torch.where(weight_T != 0, loss_T, 0.0) * weight_T).sum()
