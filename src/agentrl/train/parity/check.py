"""The whole check: sample conversations, score exactly these tokens with the trainer, report, explain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agentrl.policy.base import Policy
from agentrl.protocols import Renderer, Sampler
from agentrl.tokens.samples import samples
from agentrl.train.parity.case import Case, Weights
from agentrl.train.parity.conversations import Conversation, converse
from agentrl.train.parity.diagnosis import Diagnosis, diagnose
from agentrl.train.parity.figures import Compared, Figures, Tolerance, compare, dtype_of, tolerance_of
from agentrl.types import Sample, Sampling


@dataclass(frozen=True, kw_only=True)
class TokenDifference:
    """One token: where it stands (its place among the ids of its trace, which reply), what it is, what both say."""

    trace_id: str
    place: int
    reply: int
    token_id: int
    text: str
    trainer: float
    sampler: float


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Whether trainer and sampler agree, and where not.

    Attributes:
        figures: over all sampled tokens.
        tolerance: what they are held to.
        dtype: of the trainer's weights, which decides the tolerance.
        num_conversations: traces that were sampled.
        num_replies: replies in them.
        worst: the tokens that differ most, the largest difference first.
        diagnosis: None where they agree.
    """

    figures: Figures
    tolerance: Tolerance
    dtype: str
    num_conversations: int
    num_replies: int
    worst: tuple[TokenDifference, ...]
    diagnosis: Diagnosis | None = None

    @property
    def within(self) -> bool:
        """Whether they agree within the tolerance."""
        return self.diagnosis is None

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {"within": self.within, **asdict(self), "worst": [asdict(one) for one in self.worst]}


def parity(
    policy: Policy,
    sampler: Sampler,
    renderer: Renderer,
    conversations: Sequence[Conversation],
    *,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    attempts: int = 4,
    max_tokens: int = 32,
    context: int | None = None,
    seed: int = 0,
    worst: int = 10,
    tolerance: Tolerance | None = None,
    earlier: Iterable[tuple[str, Weights]] = (),
    reencode: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> Parity:
    """Sample conversations over several turns and score their tokens with the trainer's forward over packed batches.

    Args:
        policy: the trainer's.
        sampler: what is to have the same weights and settings.
        renderer: of the model.
        conversations: what the policy is told; each is held ``attempts`` times, as a group that shares its prompt.
        sampling: what the sampler was told to do; the trainer scores at its temperature.
        attempts: at each conversation.
        max_tokens: of the longest replies.
        context: the longest conversation in tokens; that of the policy when None.
        seed: of the draws.
        worst: how many of the tokens that differ most are listed.
        tolerance: that of the policy's type when None.
        earlier: names and weights of policies that the sampler may have instead, for the diagnosis.
        reencode: writes sampled ids anew from their text, for the diagnosis.

    Raises:
        SamplerError: the sampler failed, or a prompt leaves no room for a reply.
        TrainerError: nothing was sampled, or the trainer's numbers are no numbers.
    """
    traces = asyncio.run(
        converse(
            sampler,
            renderer,
            conversations,
            attempts=attempts,
            max_tokens=max_tokens,
            context=policy.context if context is None else context,
            seed=seed,
        )
    )
    made = [sample for trace in traces for sample in samples(trace, 0.0)]
    return rescore(
        policy,
        made,
        temperature=sampling.temperature,
        tolerance=tolerance,
        decode=renderer.decode,
        worst=worst,
        earlier=earlier,
        opening=tuple(renderer.generation_prompt()),
        reencode=reencode,
    )


def rescore(
    policy: Policy,
    made: Sequence[Sample],
    *,
    temperature: float,
    tolerance: Tolerance | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    worst: int = 10,
    earlier: Iterable[tuple[str, Weights]] = (),
    opening: tuple[int, ...] = (),
    reencode: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> Parity:
    """The check on tokens that have been sampled already; see `parity`.

    Args:
        policy: the trainer's.
        made: samples with the sampler's log-probabilities, trained where they were sampled.
        temperature: of the sampler.
        tolerance: that of the policy's type when None.
        decode: ids to text, for the list of the worst; their numbers stand there without it.
        worst: how many of the tokens that differ most are listed.
        earlier: names and weights of policies that the sampler may have instead.
        opening: the ids that open a reply.
        reencode: writes sampled ids anew from their text.

    Raises:
        TrainerError: no token was sampled, or the trainer's numbers are no numbers.
    """
    held_to = tolerance_of(policy) if tolerance is None else tolerance
    found = compare(policy, made, temperature=temperature)
    measured = found.figures(held_to)
    case = Case(
        policy=policy,
        compared=found,
        temperature=temperature,
        tolerance=held_to,
        earlier=earlier,
        opening=opening,
        reencode=reencode,
    )
    return Parity(
        figures=measured,
        tolerance=held_to,
        dtype=str(dtype_of(policy)).removeprefix("torch."),
        num_conversations=len(made),
        num_replies=len(np.unique(np.stack((found.sample_N, found.reply_N)), axis=1).T),
        worst=_worst(found, decode, worst),
        diagnosis=None if measured.within(held_to) else diagnose(case),
    )


def _worst(found: Compared, decode: Callable[[Sequence[int]], str] | None, count: int) -> tuple[TokenDifference, ...]:
    order = np.argsort(-np.abs(found.gap_N), kind="stable")[:count]
    return tuple(_difference(found, int(index), decode) for index in order)


def _difference(found: Compared, index: int, decode: Callable[[Sequence[int]], str] | None) -> TokenDifference:
    sample, place = found.samples[found.sample_N[index]], int(found.place_N[index])
    token = sample.token_ids[place]
    return TokenDifference(
        trace_id=sample.trace_id,
        place=place,
        reply=int(found.reply_N[index]),
        token_id=token,
        text=f"{token}" if decode is None else decode((token,)),
        trainer=float(found.trainer_N[index]),
        sampler=float(found.sampler_N[index]),
    )
