"""What the tensor functions of this package share: flat per-token tensors, a mask, and sums over sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.errors import TrainerError


def keep(values_T: Tensor, mask_T: Tensor) -> Tensor:
    """The values at trained tokens and 0 elsewhere, so that what stood there reaches no arithmetic and no gradient."""
    return torch.where(mask_T, values_T, 0.0)


def check_flat(mask_T: Tensor, **tensors: Tensor) -> None:
    """Refuse a mask that is not boolean, and tensors that are not flat with one entry per token of the mask.

    Raises:
        TrainerError: naming the tensor.
    """
    if mask_T.dtype != torch.bool:
        raise TrainerError(f"mask_T has dtype {mask_T.dtype}; give booleans, for instance weight_T != 0")
    for name, tensor in tensors.items():
        if tensor.shape != mask_T.shape or tensor.dim() != 1:
            raise TrainerError(
                f"{name} has shape {tuple(tensor.shape)} and mask_T {tuple(mask_T.shape)}; "
                "give one entry per token, flat, in both"
            )


def total_per_token(values_T: Tensor, segment_T: Tensor) -> Tensor:
    """At each token the sum of the values over its own segment (a sequence, or a group).

    Args:
        values_T: one value per token, shape [T].
        segment_T: which segment a token belongs to, int64 from 0, shape [T]; tokens of a segment in any place.

    Raises:
        TrainerError: shapes differ, or the ids are not int64 from 0.

    >>> total_per_token(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 1]))
    tensor([1.0000, 1.0000, 0.5000])
    """
    if segment_T.shape != values_T.shape or segment_T.dtype != torch.int64:
        raise TrainerError(
            f"the ids of sequences (or groups) have shape {tuple(segment_T.shape)} and dtype {segment_T.dtype}, the "
            f"tokens shape {tuple(values_T.shape)}; give one int64 id per token"
        )
    if not len(segment_T):
        return torch.zeros_like(values_T)
    if int(segment_T.min()) < 0:
        raise TrainerError(f"a sequence (or group) has the id {int(segment_T.min())}; count them from 0")
    # In float64, so that thousands of small terms add up to the same in any order.
    total_N = torch.zeros(int(segment_T.max()) + 1, dtype=torch.float64, device=values_T.device)
    return total_N.index_add(0, segment_T, values_T.double())[segment_T].to(values_T.dtype)


def mean_per_token(values_T: Tensor, mask_T: Tensor, segment_T: Tensor) -> Tensor:
    """At each token the mean over its segment's trained tokens; 0 where a segment has none.

    ``values_T`` is 0 at untrained tokens. Raises as ``total_per_token``.
    """
    count_T = total_per_token(mask_T.to(values_T.dtype), segment_T)
    return total_per_token(values_T, segment_T) / count_T.clamp(min=1)
