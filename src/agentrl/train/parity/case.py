"""What is known of a disagreement between trainer and sampler, and what an explanation of it is.

An explanation scores the tokens as a sampler with the fault would have; how far its numbers are from the sampler's is
the evidence. Nothing is guessed: `diagnosis` takes an explanation only where what is left is rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agentrl.policy.base import Output, Policy
from agentrl.train.packing import Batch, micro_batches
from agentrl.train.parity.figures import Compared, Tolerance
from agentrl.train.support import supported_scores
from agentrl.types import Sample

Fault = Literal[
    "temperature",
    "truncation",
    "shift",
    "tokens",
    "stale weights",
    "half-published weights",
    "changed midway",
    "precision",
    "unknown",
]
Weights = Mapping[str, Tensor]
_LOGITS_AT_ONCE = 2**24
"""64 MiB in float32."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is known of a disagreement.

    Attributes:
        policy: the trainer's.
        compared: tokens on which trainer and sampler disagree; all of them, or the worst samples.
        temperature: at which the trainer scored them.
        tolerance: of trainer and sampler.
        earlier: names and weights of policies that the sampler may still have.
        opening: the ids that open a reply, where they are known.
        reencode: writes sampled ids anew from their text, where a tokenizer is at hand.
    """

    policy: Policy
    compared: Compared
    temperature: float
    tolerance: Tolerance
    earlier: Iterable[tuple[str, Weights]] = ()
    opening: tuple[int, ...] = ()
    reencode: Callable[[Sequence[int]], Sequence[int]] | None = None

    @cached_property
    def forward(self) -> Forward:
        """The trainer's forward pass over all samples."""
        return Forward(self.policy, self.compared.samples)

    @property
    def has_support(self) -> bool:
        """Whether the sampler said which part of the vocabulary it drew from."""
        return any(any(sample.support) for sample in self.compared.samples)


class Explanation(NamedTuple):
    """A fault, in words that name its size, and what it leaves unexplained of each token that it speaks of.

    ``covers`` is the share of tokens that it speaks of; a shift, say, cannot speak of the ends of replies.
    """

    fault: Fault
    words: str
    rest_N: np.ndarray
    covers: float = 1.0


class Forward:
    """The trainer's forward pass over samples, kept to be read at several settings.

    Rows stand in the order of the samples, one for each trained token.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy, samples: Sequence[Sample], *, max_tokens: int = 8192) -> None:
        self.parts: list[tuple[Output, Batch]] = []
        for batch in micro_batches(samples, max_tokens=max_tokens):
            on_device = batch.to(policy.device)
            self.parts.append((policy(on_device), on_device))

    @torch.no_grad()
    def scores(self, temperature: float, *, support: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities and entropies at a temperature, over each token's support or over all words."""
        found = [
            supported_scores(
                output.hidden_KD,
                output.projection_VD,
                batch.target_K,
                batch.support if support else None,
                bias_V=output.bias_V,
                temperature=temperature,
            )
            for output, batch in self.parts
        ]
        columns = zip(*((scores.logprobs_K, scores.entropy_K) for scores in found), strict=True)
        logprobs_N, entropy_N = (torch.cat(column).double().cpu().numpy() for column in columns)
        return logprobs_N, entropy_N

    @torch.no_grad()
    def logits(self, temperature: float) -> Iterator[Tensor]:
        """Logits (R, V) divided by the temperature, some rows after the other."""
        for output, _ in self.parts:
            hidden_KD, projection_VD = output.hidden_KD.float(), output.projection_VD
            for rows_RD in torch.split(hidden_KD, max(1, _LOGITS_AT_ONCE // len(projection_VD))):
                logits_RV = rows_RD @ projection_VD.to(rows_RD.dtype).T
                yield (logits_RV if output.bias_V is None else logits_RV + output.bias_V.float()) / temperature
