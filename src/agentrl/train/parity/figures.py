"""How far two log-probabilities of the same tokens are apart, and how far they may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentrl.algorithms.kl import k3
from agentrl.errors import TrainerError
from agentrl.policy.base import Policy
from agentrl.train.packing import packed_order, trained_places
from agentrl.train.scoring import score_samples
from agentrl.types import Sample

ENOUGH = 128
"""The mean difference is judged from so many tokens on; that of fewer is a matter of which tokens they are."""
MAX_LOG_RATIO = 100.0
"""Differences beyond this count as this in k3, which grows with their exponential."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far trainer and sampler may be apart: at any one token, and in the mean of all, in nats."""

    largest: float
    mean: float

    @property
    def of_one(self) -> float:
        """Beyond this a single token is no longer what rounding gives."""
        return min(self.largest, 10 * self.mean)


TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(largest=1e-6, mean=1e-7),
    torch.float32: Tolerance(largest=1e-3, mean=1e-4),
    torch.float16: Tolerance(largest=0.1, mean=0.01),
    torch.bfloat16: Tolerance(largest=1.0, mean=0.05),
}
"""By the type of the weights.

Measured with the engine of this process on a random Qwen3 model of 15 million parameters, 4 layers and the real
vocabulary, over 1,044 tokens of 12 conversations. Weights that spread by 0.3 (perplexity 2,431): in float32 the largest
difference is 2.3e-5, the mean 4.8e-6 and k3 1.8e-11; in bfloat16 0.38, 0.045 and 1.8e-3. Weights that spread by 0.1
(perplexity 92,667): 4.8e-6, 9.8e-7 and 9.0e-13; 0.063, 0.013 and 1.5e-4.
"""


def dtype_of(policy: Policy) -> torch.dtype:
    """The least exact type among a policy's weights, which decides how exact its numbers are.

    Adapters are held in float32 over weights in bfloat16.
    """
    return max({weight.dtype for weight in policy.parameters()} & TOLERANCES.keys(), key=lambda d: torch.finfo(d).eps)


def tolerance_of(policy: Policy) -> Tolerance:
    """The tolerance of a policy whose sampler has weights of the same type."""
    return TOLERANCES[dtype_of(policy)]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the differences ``trainer - sampler`` of many tokens come to, in nats.

    Attributes:
        num_tokens: tokens compared.
        largest: the largest difference of one token, its sign left out.
        mean: of the differences without their signs.
        root_mean_square: of the differences.
        signed_mean: of the differences; above 0 the trainer finds the tokens likelier.
        k3: estimate of the divergence KL(sampler || trainer), see `algorithms.kl`.
        share_beyond: of the tokens whose difference is above what one token's may be.
        sampler_perplexity: exp of minus the sampler's mean log-probability.
        trainer_perplexity: the same of the trainer.
    """

    num_tokens: int
    largest: float
    mean: float
    root_mean_square: float
    signed_mean: float
    k3: float
    share_beyond: float
    sampler_perplexity: float
    trainer_perplexity: float

    def within(self, tolerance: Tolerance) -> bool:
        """Whether trainer and sampler agree."""
        return self.largest <= tolerance.largest and (self.num_tokens < ENOUGH or self.mean <= tolerance.mean)


def figures(trainer_N: np.ndarray, sampler_N: np.ndarray, tolerance: Tolerance) -> Figures:
    """The figures of tokens whose log-probabilities are given, one of each per token.

    Raises:
        TrainerError: no tokens.
    """
    if not len(trainer_N):
        raise TrainerError("no token was sampled, so there is nothing to compare; ask for more conversations or tokens")
    gap_N = trainer_N - sampler_N
    estimate_N = k3(torch.from_numpy(np.clip(-gap_N, -MAX_LOG_RATIO, MAX_LOG_RATIO)))
    return Figures(
        num_tokens=len(gap_N),
        largest=float(np.abs(gap_N).max()),
        mean=float(np.abs(gap_N).mean()),
        root_mean_square=math.sqrt(np.square(gap_N).mean()),
        signed_mean=float(gap_N.mean()),
        k3=max(0.0, float(estimate_N.mean())),
        share_beyond=float((np.abs(gap_N) > tolerance.of_one).mean()),
        sampler_perplexity=_perplexity(sampler_N),
        trainer_perplexity=_perplexity(trainer_N),
    )


def _perplexity(logprobs_N: np.ndarray) -> float:
    return math.exp(min(-float(logprobs_N.mean()), MAX_LOG_RATIO))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Sampled tokens with what both say of them, in the order in which the trainer lays the samples out.

    Attributes:
        samples: those with a trained token.
        trainer_N: the trainer's log-probability of each trained token, one sample after the other.
        sampler_N: the sampler's.
        sample_N: which sample each token is of.
        place_N: where it stands in that sample's ids.
        reply_N: which reply of the sample it is in, from 0.
    """

    samples: tuple[Sample, ...]
    trainer_N: np.ndarray
    sampler_N: np.ndarray
    sample_N: np.ndarray
    place_N: np.ndarray
    reply_N: np.ndarray

    @property
    def gap_N(self) -> np.ndarray:
        """Trainer minus sampler."""
        gap_N: np.ndarray = self.trainer_N - self.sampler_N
        return gap_N

    def figures(self, tolerance: Tolerance) -> Figures:
        """What the differences come to."""
        return figures(self.trainer_N, self.sampler_N, tolerance)


def compare(policy: Policy, samples: Sequence[Sample], *, temperature: float, max_tokens: int = 8192) -> Compared:
    """Score sampled tokens with the trainer's forward pass over packed batches, beside what the sampler said.

    Args:
        policy: the trainer's.
        samples: trained where they were sampled; every such token has the sampler's log-probability.
        temperature: that of the sampler.
        max_tokens: of a micro-batch.

    Raises:
        TrainerError: a token without a log-probability of the sampler, or one of the trainer that is no number.
    """
    ordered = tuple(samples[index] for index in packed_order(samples))
    rows = score_samples(policy, ordered, lambda s: s.logprobs_K, temperature=temperature, max_tokens=max_tokens)
    places = [trained_places(sample) for sample in ordered]
    trainer_N = flat([np.asarray(row)[at] for row, at in zip(rows, places, strict=True)])
    found = Compared(
        samples=ordered,
        trainer_N=trainer_N,
        sampler_N=flat([_sampler(sample, at) for sample, at in zip(ordered, places, strict=True)]),
        sample_N=flat([np.full(len(at), index) for index, at in enumerate(places)]).astype(np.int64),
        place_N=flat(places).astype(np.int64),
        reply_N=flat([np.cumsum(np.diff(at, prepend=at[:1]) > 1) for at in places]).astype(np.int64),
    )
    _check_numbers(found)
    return found


def flat(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows one after the other, as float64."""
    whole: np.ndarray = np.concatenate([np.asarray(row, dtype=np.float64) for row in rows]) if rows else np.zeros(0)
    return whole


def _sampler(sample: Sample, places: np.ndarray) -> np.ndarray:
    said = [sample.logprobs[place] for place in places]
    if None in said:
        raise TrainerError(
            f"trace {sample.trace_id}: token {places[said.index(None)]} has no log-probability of the sampler, so "
            "there is nothing to compare with; take tokens that were sampled"
        )
    return np.array(said, dtype=np.float64)


def _check_numbers(found: Compared) -> None:
    for index in np.flatnonzero(~np.isfinite(found.trainer_N))[:1]:
        sample = found.samples[found.sample_N[index]]
        raise TrainerError(
            f"trace {sample.trace_id}: the trainer's log-probability of token {found.place_N[index]} is "
            f"{found.trainer_N[index]}; the weights or the forward pass are broken"
        )
