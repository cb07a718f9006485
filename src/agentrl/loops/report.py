"""The part of a run's report that needs the model: its stored checkpoints on stored attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from agentrl.errors import StoreError
from agentrl.evals.report.drift import Kind, Reading, is_faultless
from agentrl.evals.report.sources import Stored, checkpoints
from agentrl.loops.agent import make_agent
from agentrl.policy.base import Output, Policy
from agentrl.store import RunFolder
from agentrl.tokens.samples import samples
from agentrl.train.checkpoint import read_checkpoint
from agentrl.train.packing import Batch, micro_batches, packed_order
from agentrl.train.parity.figures import tolerance_of
from agentrl.types import Trace

MAX_TOKENS = 8192
MAX_LOGITS = 2**26
"""Logits of one model that are held at once, 512 MiB in float64."""


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
        if not run.config.rl.sampling.truncates:  # the log-probabilities are then of the whole vocabulary
            _check_sampled(run.path, scored[: len(own)], tolerance_of(before).largest)
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
    placed = batch.to(first.device)
    outputs = [one(placed) for one in (first, second)]
    size = max(1, MAX_LOGITS // len(outputs[0].projection_VD))
    rows: list[list[float]] = []
    for start in range(0, len(placed.target_K), size):
        part = slice(start, start + size)
        p_KV, q_KV = (_logprobs(output, part, temperature) for output in outputs)
        divergence_K = (p_KV.exp() * (p_KV - q_KV)).sum(-1)
        target_K1 = placed.target_K[part, None]
        p_K, q_K = (scores.gather(1, target_K1).squeeze(1) for scores in (p_KV, q_KV))
        gap_K = (p_K - placed.sampler_logprobs_K[part]).abs()
        rows += torch.stack((divergence_K, p_K, q_K, gap_K), dim=1).tolist()
    return rows


def _logprobs(output: Output, part: slice, temperature: float) -> Tensor:
    whole = len(output.hidden_KD)
    found = output if whole <= part.stop and part.start == 0 else replace(output, hidden_KD=output.hidden_KD[part])
    return torch.log_softmax(found.logits_KV.double() / temperature, dim=-1)


def _model(run: RunFolder, stored: Stored) -> Policy:
    model = make_agent(run.config).model
    weights = read_checkpoint(stored.path).weights
    model.load_tensors({name: tensor for name, tensor in weights.items() if ":" not in name})
    return model.requires_grad_(False)


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


def _check_sampled(path: Path, scored: Sequence[Compared], tolerance: float) -> None:
    """What is stored differs from what the base says by rounding alone."""
    worst = max((one.gap for one in scored), default=0.0)
    if worst > tolerance:
        raise StoreError(
            f"{path}: log-probabilities that were stored with the attempts before RL differ by {worst:.3g} nats from "
            f"those of the checkpoint (tolerance {tolerance:g}), so it is not the policy that made them"
        )
