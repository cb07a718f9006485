"""How far the sampler and the trained policy are apart, and what a correction did about it.

Sums, so that the report of a step is the sum of its micro-batches' reports, whatever the cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from agentrl.algorithms.corrections import Correction
from agentrl.algorithms.flat import check_flat, keep, total_per_token
from agentrl.errors import TrainerError

MAX_LOG_RATIO = 100.0
"""Ratios beyond e to this power, up or down, are counted as this, so that their squares can be added up."""


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Sums over weights; one weight is a token, or a sequence where sequences were given.

    ``weight`` and ``weight_squared`` are of the ratio before any truncation or mask, the ``corrected`` ones of what
    multiplied the loss. Add the reports of micro-batches, then read the properties.
    """

    num_weights: int
    num_kept: int
    num_capped: int
    weight: float
    weight_squared: float
    corrected: float
    corrected_squared: float
    k3_sum: float
    max_log_ratio: float

    def __add__(self, other: Diagnostics) -> Diagnostics:
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Diagnostics(**sums | {"max_log_ratio": max(self.max_log_ratio, other.max_log_ratio)})

    @property
    def mean_weight(self) -> float:
        """Mean ratio before truncation. Near 1 when the ratio is right: its mean under the sampler is exactly 1."""
        return self._mean(self.weight)

    @property
    def corrected_mean_weight(self) -> float:
        """Mean of what multiplied the loss, rejected ones counted as 0."""
        return self._mean(self.corrected)

    @property
    def share_kept(self) -> float:
        """Share of weights that were not rejected."""
        return self._mean(self.num_kept)

    @property
    def share_capped(self) -> float:
        """Share of weights that were cut down to the cap."""
        return self._mean(self.num_capped)

    @property
    def effective_sample_size(self) -> float:
        """Kish's share ``(sum w)^2 / (n sum w^2)`` in (0, 1] of the ratios before truncation; 1 when all are equal."""
        return self._mean(_squared_share(self.weight, self.weight_squared))

    @property
    def corrected_effective_sample_size(self) -> float:
        """The same of what multiplied the loss; 0 when everything was rejected."""
        return self._mean(_squared_share(self.corrected, self.corrected_squared))

    @property
    def chi_square(self) -> float:
        """Estimate ``mean(w^2) - 1`` of the chi-square divergence of the policy from the sampler."""
        return self._mean(self.weight_squared) - 1.0

    @property
    def max_ratio(self) -> float:
        """The largest ratio before truncation."""
        self._mean(0.0)
        return math.exp(self.max_log_ratio)

    @property
    def k3(self) -> float:
        """Estimate ``mean(w - 1 - log w)`` of KL(sampler || policy), never below 0."""
        return self._mean(self.k3_sum)

    def _mean(self, total: float) -> float:
        if not self.num_weights:
            raise TrainerError("no token was trained, so there is nothing to report; ask for num_weights first")
        return total / self.num_weights


def diagnostics(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    mask_T: Tensor,
    correction: Correction,
    *,
    sequence_T: Tensor | None = None,
) -> Diagnostics:
    """Report on a correction, per token or, with ``sequence_T``, per sequence.

    Per sequence the ratio is the product over trained tokens, what multiplied the loss is the mean of its tokens'
    weights, and a sequence is kept (capped) when any of its tokens is; sequences without a trained token do not count.
    Both reports together tell a broken engine from long sequences: a mean product of 0.06 beside token ratios near 1
    is the length.

    Args:
        old_logprobs_T: as they were given to the correction.
        sampler_logprobs_T: as they were given to the correction.
        mask_T: True at trained tokens.
        correction: what came back.
        sequence_T: which sequence a token belongs to, int64 from 0.

    Raises:
        TrainerError: shapes differ, or the mask is not boolean.

    >>> old, sampler, mask = torch.tensor([-0.4, 2.0, 0.1]), torch.zeros(3), torch.ones(3).bool()
    >>> weight = torch.tensor([0.67032, 2.0, 1.105171])
    >>> report = diagnostics(old, sampler, mask, Correction(weight, mask, weight == 2))
    >>> round(report.mean_weight, 4), round(report.corrected_mean_weight, 4), round(report.share_capped, 4)
    (3.0548, 1.2585, 0.3333)
    """
    check_flat(mask_T, old_logprobs_T=old_logprobs_T, sampler_logprobs_T=sampler_logprobs_T, weight_T=correction[0])
    log_ratio_T = (keep(old_logprobs_T, mask_T) - keep(sampler_logprobs_T, mask_T)).detach().double()
    columns = (log_ratio_T, correction.weight_T.double(), correction.kept_T.double(), correction.capped_T.double())
    if sequence_T is None:
        log_ratio_N, weight_N, kept_N, capped_N = (column[mask_T] for column in columns)
    else:
        log_ratio_N, weight_N, kept_N, capped_N = _one_per_sequence(columns, mask_T, sequence_T)
    log_ratio_N = log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_N = log_ratio_N.exp()
    return Diagnostics(
        num_weights=len(ratio_N),
        num_kept=int((kept_N > 0).sum()),
        num_capped=int((capped_N > 0).sum()),
        weight=float(ratio_N.sum()),
        weight_squared=float(ratio_N.square().sum()),
        corrected=float(weight_N.sum()),
        corrected_squared=float(weight_N.square().sum()),
        k3_sum=float((torch.expm1(log_ratio_N) - log_ratio_N).sum()),
        max_log_ratio=float(log_ratio_N.max()) if len(log_ratio_N) else -MAX_LOG_RATIO,
    )


def _one_per_sequence(columns: tuple[Tensor, ...], mask_T: Tensor, sequence_T: Tensor) -> tuple[Tensor, ...]:
    """Totals over each sequence with a trained token, read at one token of it; of the weights the mean."""
    order_K = sequence_T[mask_T].argsort(stable=True)
    sorted_K = sequence_T[mask_T][order_K]
    first_K = torch.ones_like(sorted_K, dtype=torch.bool)
    first_K[1:] = sorted_K[1:] != sorted_K[:-1]
    at_N = order_K[first_K]
    count_N = total_per_token(mask_T.double(), sequence_T)[mask_T][at_N]
    log_ratio_N, weight_N, *counts = (total_per_token(keep(x, mask_T), sequence_T)[mask_T][at_N] for x in columns)
    return log_ratio_N, weight_N / count_N, *counts


def _squared_share(total: float, total_squared: float) -> float:
    return total * total / total_squared if total_squared else 0.0
