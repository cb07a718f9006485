"""What a model says of the trained tokens of a packed batch: log-probabilities, entropies and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.policy.base import Output, Policy
from agentrl.train.packing import Batch, micro_batches, packed_order, trained_places
from agentrl.train.support import supported_scores
from agentrl.types import Sample


class Scored(NamedTuple):
    """The trained tokens of a micro-batch under the current weights: log-probabilities, entropies, and the value
    before each token where the model has a value head, each (K,)."""

    logprobs_K: Tensor
    entropy_K: Tensor
    values_K: Tensor | None = None


def score_tokens(model: Policy, batch: Batch, temperature: float = 1.0, *, entropy_gradient: bool = False) -> Scored:
    """Log-probability of each trained token and the entropy of the distribution that it was drawn from.

    That distribution is over the token's support where it has one, under these weights and any other. The entropies
    carry a gradient only where ``entropy_gradient`` asks for it, as an entropy bonus does.
    """
    output: Output = model(batch)
    logprobs_K, entropy_K = supported_scores(
        output.hidden_KD,
        output.projection_VD,
        batch.target_K,
        batch.support,
        bias_V=output.bias_V,
        temperature=temperature,
        entropy_gradient=entropy_gradient,
    )
    return Scored(logprobs_K, entropy_K, output.values_K)


def with_reference(
    model: Policy, samples: Sequence[Sample], *, temperature: float = 1.0, max_tokens: int = 8192
) -> list[Sample]:
    """The samples with the log-probabilities of their trained tokens under a reference policy."""
    found = score_samples(model, samples, lambda s: s.logprobs_K, temperature=temperature, max_tokens=max_tokens)
    return [replace(sample, reference_logprobs=row) for sample, row in zip(samples, found, strict=True)]


@torch.no_grad()
def score_samples(
    model: Policy,
    samples: Sequence[Sample],
    pick: Callable[[Scored], Tensor],
    *,
    temperature: float,
    max_tokens: int,
) -> list[tuple[float, ...]]:
    """What ``pick`` takes of the scored tokens, per sample and token in the order given; NaN at untrained tokens."""
    found = [[float("nan")] * len(sample.token_ids) for sample in samples]
    order = iter(packed_order(samples))
    for batch in micro_batches(samples, max_tokens=max_tokens):
        picked = pick(score_tokens(model, batch.to(model.device), temperature)).tolist()
        rows: dict[int, list[float]] = {}
        for row, value in zip(batch.sequence_K.tolist(), picked, strict=True):
            rows.setdefault(row, []).append(value)
        for of_row in rows.values():
            index = next(order)
            for place, value in zip(trained_places(samples[index]), of_row, strict=True):
                found[index][place] = value
    return [tuple(values) for values in found]
