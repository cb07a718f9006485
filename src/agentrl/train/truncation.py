"""Which tokens a truncated distribution keeps.

The sampler says which ids it drew each token from (its support), and the trainer renormalises over exactly these, under
the weights of any moment. It does not decide again with its own weights what top-p keeps: at the edge of the nucleus
a token would fall out of the distribution that it was drawn from, and its probability would be 0; and where the sets
of two policies differ, their ratio is not that of two distributions over one set, and its mean under the sampler is
not 1.

Shape suffixes: B rows, V vocabulary, N the likeliest of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.errors import TrainerError
from agentrl.types import Sample, Sampling

FIRST_RANKED = 512
"""So many of the likeliest tokens are sorted first where top-p is not preceded by top-k; most nuclei are smaller."""


def kept(scaled_BV: Tensor, sampling: Sampling) -> Tensor:
    """The tokens that can be drawn, as a mask (B, V): top-k, then top-p of what is left, then min-p.

    Every rule keeps what is at least as likely as some token, so that equals are kept or dropped together: top-k
    keeps more than k where the last of them has equals, and top-p more than it needs. The likeliest token is always
    kept.

    The order is that of `transformers`, which keeps equals at top-k and min-p too and drops some of them at top-p.
    vLLM takes min-p first, so that top-p is a share of less, and may keep fewer. It does not matter to the trainer.

    Args:
        scaled_BV: logits, already divided by the temperature.
        sampling: its temperature is not read.
    """
    lowest_B1 = scaled_BV.new_full((len(scaled_BV), 1), torch.finfo(scaled_BV.dtype).min)
    ranked_BN = None
    if 0 < sampling.top_k < scaled_BV.shape[1]:
        ranked_BN = _top_k(scaled_BV, sampling.top_k)
        lowest_B1 = torch.maximum(lowest_B1, ranked_BN[:, sampling.top_k - 1, None])
    if sampling.top_p < 1.0:
        lowest_B1 = torch.maximum(lowest_B1, _lowest_of_nucleus(scaled_BV, ranked_BN, sampling.top_p))
    if sampling.min_p > 0.0:
        lowest_B1 = torch.maximum(lowest_B1, scaled_BV.amax(1, keepdim=True) + math.log(sampling.min_p))
    return scaled_BV >= lowest_B1


def _top_k(scaled_BV: Tensor, top_k: int) -> Tensor:
    """The logits that top-k keeps, largest first; where a row has fewer than others, -inf follows."""
    num_ranked = top_k + 1
    while True:
        ranked_BN = scaled_BV.topk(min(num_ranked, scaled_BV.shape[1])).values
        lowest_B1 = ranked_BN[:, top_k - 1, None]
        if ranked_BN.shape[1] == scaled_BV.shape[1] or (ranked_BN[:, -1:] < lowest_B1).all():
            return ranked_BN.masked_fill(ranked_BN < lowest_B1, -math.inf)
        num_ranked *= 2  # the last of them has equals, and how many is not known yet


def _lowest_of_nucleus(scaled_BV: Tensor, ranked_BN: Tensor | None, top_p: float) -> Tensor:
    """The logit (B, 1) of the last token that top-p needs, among those of ``ranked_BN`` or, without it, all."""
    if ranked_BN is not None:
        return _cut(ranked_BN, ranked_BN.logsumexp(1, keepdim=True), top_p)[0]
    return _search(scaled_BV, scaled_BV.logsumexp(1, keepdim=True), top_p, FIRST_RANKED)


def _search(scaled_BV: Tensor, log_total_B1: Tensor, top_p: float, num_ranked: int) -> Tensor:
    """Rows whose nucleus is not among the first ``num_ranked`` tokens are ranked again, further down."""
    ranked_BN = scaled_BV.topk(min(num_ranked, scaled_BV.shape[1])).values
    lowest_B1, beyond_B = _cut(ranked_BN, log_total_B1, top_p)
    if ranked_BN.shape[1] < scaled_BV.shape[1] and beyond_B.any():
        lowest_B1[beyond_B] = _search(scaled_BV[beyond_B], log_total_B1[beyond_B], top_p, 16 * num_ranked)
    return lowest_B1


def _cut(ranked_BN: Tensor, log_total_B1: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The logit of the last token that is needed, and in which rows those ranked here are not enough."""
    mass_BN = (ranked_BN - log_total_B1).double().exp()
    reached_BN = mass_BN.cumsum(1)
    num_needed_B1 = (reached_BN - mass_BN < top_p).sum(1, keepdim=True).clamp(min=1)
    return ranked_BN.gather(1, num_needed_B1 - 1), reached_BN[:, -1] < top_p


def check_reported(samples: Sequence[Sample], sampling: Sampling) -> None:
    """Refuse tokens of a sampler that truncates but does not say what it drew from.

    The trainer would take them for draws from the whole vocabulary: their ratio would not be 1 at the weights that
    sampled them, and where little is cut off, nothing else would notice.

    Args:
        samples: with the tokens to train a policy gradient on.
        sampling: how their sampler was told to draw.

    Raises:
        TrainerError: such a token has no support, naming its trace and place.
    """
    if not sampling.truncates:
        return
    for sample in samples:
        support = sample.support or (None,) * len(sample.token_ids)
        for place, (weight, ids) in enumerate(zip(sample.weights.get("pg", ()), support, strict=False)):
            if weight and ids is None:
                raise TrainerError(
                    f"trace {sample.trace_id}: token {place} has no support, though tokens are drawn with {sampling}; "
                    "take a sampler that reports what it draws from, or set top_p 1, top_k 0 and min_p 0"
                )
