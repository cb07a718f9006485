"""From a trace to the token sequences that are trained. The only maker of loss masks. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from agentrl.errors import SamplerError, TrainerError
from agentrl.types import Node, Sample, Trace, check_sampled, check_support

Objective = Literal["pg", "ce"]


def samples(
    trace: Trace, advantage: float | tuple[float, ...] | None, *, objective: Objective = "pg", imitate: bool = False
) -> tuple[Sample, ...]:
    """The sequences to train on from one attempt: one for each branch that has tokens of its own to train.

    Weight 1.0 stands at exactly the tokens that the policy sampled, the stop token among them; everything that it
    was given has weight 0.0, no logprob, no version and advantage 0.0. A node that several branches run through is
    trained in the first of them and is context in the others, so that each sampled token is trained once.

    The support of each token that a truncating sampler reported goes along for ``pg``, whose ratios are between
    distributions over it; ``imitate`` then raises the token's probability within it. For ``ce`` alone it is left out:
    a likelihood is that of the whole vocabulary.

    Args:
        trace: the attempt. For ``ce`` it is a demonstration, whose sampled ids a script chose.
        advantage: credit of every sampled token, or one for the tokens of each turn (each node that has sampled
            tokens, in order), in units of reward; None when the attempt has none.
        objective: ``pg`` for a policy gradient; ``ce`` for cross entropy, which takes no advantage.
        imitate: whether the tokens of a ``pg`` sample have weight for ``ce`` as well.

    Returns:
        Samples in the order of the trace's branches. None for ``pg`` when the attempt was not scored or has no
        advantage: it is not a failure of the policy.

    Raises:
        TrainerError: naming the trace, when lists are misaligned, a logprob is NaN or positive, a node's parent does
            not precede it, an advantage is not finite, or there is not one per turn.
    """
    credits = _credit_of_nodes(trace, 0.0 if advantage is None else advantage)
    _check(trace, credits)
    if objective == "pg" and (advantage is None or trace.reward is None):
        return ()
    if objective == "ce":
        credits = [0.0] * len(trace.nodes)
    made: list[Sample] = []
    trained: set[int] = set()
    for branch in trace.branches():
        spans = [_span(trace.nodes[index], credits[index], own=index not in trained) for index in branch]
        trained.update(branch)
        if any(span.trains for span in spans):
            made.append(_join(trace, spans, (objective, "ce") if imitate else (objective,)))
    return tuple(made)


class _Span(NamedTuple):
    token_ids: tuple[int, ...]
    weights: tuple[float, ...]
    logprobs: tuple[float | None, ...]
    advantages: tuple[float, ...]
    versions: tuple[int | None, ...]
    support: tuple[tuple[int, ...] | None, ...]
    trains: bool


def _span(node: Node, advantage: float, *, own: bool) -> _Span:
    """A node's tokens within one branch; ``own`` when the sampled ones are trained there."""
    num_context = len(node.context_ids) + (0 if own else len(node.sampled_ids))
    num_trained = len(node.sampled_ids) if own else 0
    return _Span(
        token_ids=node.context_ids + node.sampled_ids,
        weights=(0.0,) * num_context + (1.0,) * num_trained,
        logprobs=(None,) * num_context + node.logprobs[:num_trained],
        advantages=(0.0,) * num_context + (advantage,) * num_trained,
        versions=(None,) * num_context + node.versions[:num_trained],
        support=(None,) * num_context + (node.support[:num_trained] or (None,) * num_trained),
        trains=num_trained > 0,
    )


def _join(trace: Trace, spans: Sequence[_Span], objectives: Sequence[str]) -> Sample:
    weights = tuple(weight for span in spans for weight in span.weights)
    support = tuple(ids for span in spans for ids in span.support)
    return Sample(
        token_ids=tuple(token for span in spans for token in span.token_ids),
        weights=dict.fromkeys(objectives, weights),
        logprobs=tuple(logprob for span in spans for logprob in span.logprobs),
        advantages=tuple(advantage for span in spans for advantage in span.advantages),
        versions=tuple(version for span in spans for version in span.versions),
        support=support if any(support) and "pg" in objectives else (),
        trace_id=trace.id,
        group_id=trace.group_id,
    )


def _credit_of_nodes(trace: Trace, advantage: float | tuple[float, ...]) -> list[float]:
    """The credit of each node's sampled tokens; 0.0 for a node that has none."""
    turns = [index for index, node in enumerate(trace.nodes) if node.sampled_ids]
    of_turn = advantage if isinstance(advantage, tuple) else (advantage,) * len(turns)
    if len(of_turn) != len(turns):
        raise TrainerError(f"trace {trace.id!r}: {len(of_turn)} advantages for {len(turns)} turns; give one of each")
    found = dict(zip(turns, of_turn, strict=True))
    return [found.get(index, 0.0) for index in range(len(trace.nodes))]


def _check(trace: Trace, credits: Sequence[float]) -> None:
    for advantage in credits:
        if not math.isfinite(advantage):
            raise TrainerError(
                f"trace {trace.id!r}: advantage {advantage!r} is not finite; use None for an unscored attempt"
            )
    for index, node in enumerate(trace.nodes):
        if node.parent is not None and not 0 <= node.parent < index:
            raise TrainerError(
                f"trace {trace.id!r}: node {index} continues node {node.parent}, which does not precede it"
            )
        try:
            check_sampled(f"trace {trace.id!r}, node {index}", node.sampled_ids, node.logprobs, node.versions)
            check_support(f"trace {trace.id!r}, node {index}", node.sampled_ids, node.support)
        except SamplerError as error:
            raise TrainerError(str(error)) from error
