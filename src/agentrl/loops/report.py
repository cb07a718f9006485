"""The part of a run's report that needs the model: its stored checkpoints on stored attempts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from agentrl.errors import StoreError
from agentrl.evals.report.drift import Kind, Reading, is_faultless
from agentrl.evals.report.sources import Stored, checkpoints
from agentrl.policy.base import Policy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.store import RunFolder
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import WORDS
from agentrl.train.checkpoint import read_checkpoint
from agentrl.train.packing import Batch, micro_batches, packed_order
from agentrl.types import Trace

MAX_TOKENS = 8192
TOLERANCE = 1e-3
"""Largest gap in nats between a stored log-probability and the base's, which differ by rounding alone."""


def readings(run: RunFolder) -> list[Reading]:
    """Every stored attempt of the base and every stored demonstration, under every stored checkpoint of RL.

    Raises:
        StoreError: the run keeps no such checkpoints, one is damaged, or the attempts were not sampled from the base.
    """
    base, *later = checkpoints(run)
    own = list(run.iter_traces("eval_before", 0))
    demonstrations = list(run.iter_traces("warm_start", 0))
    kinds: list[Kind] = ["own"] * len(own)
    kinds += ["retained" if is_faultless(trace) else "other" for trace in demonstrations]
    temperature = run.config.rl.temperature
    before = _model(run, base)
    found: list[Reading] = []
    for one in later:
        scored = compare_models(before, _model(run, one), [*own, *demonstrations], temperature=temperature)
        _check_sampled(run.path, scored[: len(own)])
        found += [_reading(one.step, kind, row) for kind, row in zip(kinds, scored, strict=True)]
    return found


class Compared:
    """Sums over one trace's sampled tokens: KL(first || second), both losses, and the first's gap to the sampler."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.tokens, self.divergence, self.loss, self.loss_base, self.gap = 0, 0.0, 0.0, 0.0, 0.0

    def add(self, values: Sequence[float]) -> None:
        """One token: divergence, log-probability under the first and under the second, gap."""
        divergence, first, second, gap = values
        self.tokens += 1
        self.divergence += divergence
        self.loss_base -= first
        self.loss -= second
        self.gap = max(self.gap, gap)


@torch.no_grad()
def compare_models(
    first: Policy, second: Policy, traces: Sequence[Trace], *, temperature: float = 1.0
) -> list[Compared]:
    """Two models on the sampled tokens of traces, one result a trace.

    Args:
        first: the one whose expectation the divergence is.
        second: the other.
        traces: attempts or demonstrations.
        temperature: of the distributions that are compared.
    """
    cut = [(trace, sample) for trace in traces for sample in samples(trace, None, objective="ce")]
    found = {id(trace): Compared(trace) for trace in traces}
    order = iter(packed_order([sample for _, sample in cut]))
    for batch in micro_batches([sample for _, sample in cut], max_tokens=MAX_TOKENS):
        rows: dict[int, list[list[float]]] = {}
        for row, values in zip(batch.sequence_K.tolist(), _tokens(first, second, batch, temperature), strict=True):
            rows.setdefault(row, []).append(values)
        for of_row in rows.values():
            trace = cut[next(order)][0]
            for token in of_row:
                found[id(trace)].add(token)
    return [found[id(trace)] for trace in traces]


def _tokens(first: Policy, second: Policy, batch: Batch, temperature: float) -> list[list[float]]:
    """Of each trained token: divergence, both log-probabilities, and the first's gap to the sampler's."""
    p_KV, q_KV = (torch.log_softmax(one(batch).logits_KV.double() / temperature, dim=-1) for one in (first, second))
    divergence_K = (p_KV.exp() * (p_KV - q_KV)).sum(-1)
    target_K1 = batch.target_K[:, None]
    p_K, q_K = (scores.gather(1, target_K1).squeeze(1) for scores in (p_KV, q_KV))
    gap_K = (p_K - batch.sampler_logprobs_K).abs()
    rows: list[list[float]] = torch.stack((divergence_K, p_K, q_K, gap_K), dim=1).tolist()
    return rows


def _model(run: RunFolder, stored: Stored) -> TinyTransformer:
    shape = TransformerShape(vocab_size=len(WORDS), **run.config.model.model_dump())
    model = TinyTransformer(shape, seed=0).requires_grad_(False)
    weights = read_checkpoint(stored.path).weights
    model.load_state_dict({name: tensor for name, tensor in weights.items() if ":" not in name})
    return model


def _reading(step: int, kind: Kind, row: Compared) -> Reading:
    return Reading(
        step=step,
        kind=kind,
        unit=str(row.trace.metadata.get("cluster") or row.trace.task_id),
        tokens=row.tokens,
        divergence=row.divergence,
        loss=row.loss,
        loss_base=row.loss_base,
    )


def _check_sampled(path: Path, scored: Sequence[Compared]) -> None:
    worst = max((one.gap for one in scored), default=0.0)
    if worst > TOLERANCE:
        raise StoreError(
            f"{path}: log-probabilities that were stored with the attempts before RL differ by {worst:.3g} nats from "
            f"those of the checkpoint (tolerance {TOLERANCE}), so it is not the policy that made them"
        )
