"""Samples to tensors. The only place where a token meets the position that predicts it.

The samples of a group begin with the same ids (the prompt, often more). That prefix is laid out once per group
and every sample continues it, so its forward and backward pass are paid once; the result is exact. Tokens of all
prefixes and continuations lie in one flat, unpadded axis; only attention sees padded shapes.

Shape suffixes: M flat tokens, G groups, P prefix length, N samples of a group, T continuation length,
K tokens that are trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.errors import TrainerError
from agentrl.types import Sample


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a whole optimizer step holds, counted before it is cut into micro-batches.

    ``weight`` is the total token weight of each objective: the denominator of a token mean.
    """

    weight: Mapping[str, float]
    tokens: int
    sequences: int
    groups: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch as tensors, with the counts of the whole step.

    ``previous_ids_M`` is the id before each token in its own sequence (0 before the first), and ``predictor_K`` the
    flat position whose output predicts ``target_K``. ``old_logprobs_K`` is NaN where the sampler gave none;
    objectives must mask it before use.
    """

    token_ids_M: Tensor
    previous_ids_M: Tensor
    positions_M: Tensor
    prefix_index_GP: Tensor
    prefix_mask_GP: Tensor
    own_index_GNT: Tensor
    own_mask_GNT: Tensor
    predictor_K: Tensor
    target_K: Tensor
    advantages_K: Tensor
    old_logprobs_K: Tensor
    weights_K: Mapping[str, Tensor]
    sequence_K: Tensor
    counts: Counts


def count(samples: Sequence[Sample]) -> Counts:
    """The counts of a whole step. Packing order and micro-batches do not change them."""
    weight: dict[str, float] = defaultdict(float)
    for sample in samples:
        for objective, weights in sample.weights.items():
            weight[objective] += float(sum(weights))
    return Counts(
        weight=dict(weight),
        tokens=sum(len(sample.token_ids) for sample in samples),
        sequences=len(samples),
        groups=len({sample.group_id for sample in samples}),
    )


def micro_batches(samples: Sequence[Sample], *, max_tokens: int) -> Iterator[Batch]:
    """Cut a step into micro-batches of whole groups with at most ``max_tokens`` tokens each (a larger group stands
    alone). Every batch carries the counts of the whole step.

    Raises:
        TrainerError: a sample whose per-token lists are not aligned, naming its trace.
    """
    counts = count(samples)
    pending: list[list[Sample]] = []
    size = 0
    for group in _by_group(samples):
        tokens = sum(len(sample.token_ids) for sample in group)
        if pending and size + tokens > max_tokens:
            yield pack(pending, counts)
            pending, size = [], 0
        pending.append(group)
        size += tokens
    if pending:
        yield pack(pending, counts)


def pack(groups: Sequence[Sequence[Sample]], counts: Counts) -> Batch:
    """Lay out groups of samples on one flat axis, each group's shared prefix once."""
    return _tensors([_rows(group) for group in groups], counts)


@dataclass(frozen=True, kw_only=True)
class _Row:
    sample: Sample
    token_ids: np.ndarray
    trained: np.ndarray


def _by_group(samples: Sequence[Sample]) -> list[list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    return list(groups.values())


def _rows(group: Sequence[Sample]) -> list[_Row]:
    """The samples of a group that train anything."""
    rows = []
    for sample in group:
        _check_aligned(sample)
        trained = np.flatnonzero(np.any([np.asarray(weights) != 0.0 for weights in sample.weights.values()], axis=0))
        if len(trained) and trained[0] == 0:
            raise TrainerError(f"trace {sample.trace_id}: the first token is trained, but no token precedes it")
        if len(trained):
            rows.append(_Row(sample=sample, token_ids=np.asarray(sample.token_ids), trained=trained))
    return rows


def _check_aligned(sample: Sample) -> None:
    lengths = {"logprobs": len(sample.logprobs), "advantages": len(sample.advantages)}
    lengths |= {f"weights[{name!r}]": len(weights) for name, weights in sample.weights.items()}
    for name, length in lengths.items():
        if length != len(sample.token_ids):
            raise TrainerError(
                f"trace {sample.trace_id}: {name} has {length} entries for {len(sample.token_ids)} token ids"
            )


def shared_prefix(rows: Sequence[np.ndarray], limit: int) -> int:
    """Length of the common prefix of several id arrays, at most ``limit``."""
    first = rows[0][:limit]
    agree = np.ones(limit, dtype=bool)
    for row in rows[1:]:
        agree &= row[:limit] == first
    return limit if agree.all() else int(np.argmin(agree))


def _tensors(groups: Sequence[Sequence[_Row]], counts: Counts) -> Batch:
    groups = [rows for rows in groups if rows]
    prefixes = [
        shared_prefix([row.token_ids for row in rows], min(int(row.trained[0]) for row in rows)) for rows in groups
    ]
    rows = [row for group in groups for row in group]
    shape = (
        len(groups),
        max(map(len, groups)),
        max(len(r.token_ids) - p for g, p in zip(groups, prefixes, strict=True) for r in g),
    )
    prefix_index = np.zeros((len(groups), max(prefixes)), dtype=np.int64)
    prefix_mask = np.zeros(prefix_index.shape, dtype=bool)
    own_index = np.zeros(shape, dtype=np.int64)
    own_mask = np.zeros(shape, dtype=bool)
    token_ids: list[np.ndarray] = []
    previous_ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    predictors: list[np.ndarray] = []
    size = 0
    for g, (group, prefix) in enumerate(zip(groups, prefixes, strict=True)):
        token_ids.append(group[0].token_ids[:prefix])
        previous_ids.append(np.concatenate(([0], group[0].token_ids[: prefix - 1])))
        positions.append(np.arange(prefix))
        prefix_index[g, :prefix] = np.arange(size, size + prefix)
        prefix_mask[g, :prefix] = True
        last_of_prefix = size + prefix - 1
        size += prefix
        for n, row in enumerate(group):
            own = len(row.token_ids) - prefix
            token_ids.append(row.token_ids[prefix:])
            previous_ids.append(row.token_ids[prefix - 1 : -1])
            positions.append(np.arange(prefix, len(row.token_ids)))
            own_index[g, n, :own] = np.arange(size, size + own)
            own_mask[g, n, :own] = True
            before = row.trained - 1
            predictors.append(np.where(before < prefix, last_of_prefix, size + before - prefix))
            size += own
    return Batch(
        token_ids_M=torch.from_numpy(np.concatenate(token_ids)),
        previous_ids_M=torch.from_numpy(np.concatenate(previous_ids)),
        positions_M=torch.from_numpy(np.concatenate(positions)),
        prefix_index_GP=torch.from_numpy(prefix_index),
        prefix_mask_GP=torch.from_numpy(prefix_mask),
        own_index_GNT=torch.from_numpy(own_index),
        own_mask_GNT=torch.from_numpy(own_mask),
        predictor_K=torch.from_numpy(np.concatenate(predictors)),
        target_K=torch.from_numpy(np.concatenate([row.token_ids[row.trained] for row in rows])),
        advantages_K=_gather(rows, lambda sample: sample.advantages),
        old_logprobs_K=_gather(rows, lambda sample: sample.logprobs),
        weights_K={
            name: _gather(rows, lambda sample, name=name: sample.weights[name]) for name in rows[0].sample.weights
        },
        sequence_K=torch.from_numpy(np.repeat(np.arange(len(rows)), [len(row.trained) for row in rows])),
        counts=counts,
    )


def _gather(rows: Sequence[_Row], field: Callable[[Sample], Sequence[float | None]]) -> Tensor:
    """One float per trained token; None becomes NaN, which no objective may use."""
    values = [np.asarray(field(row.sample), dtype=np.float32)[row.trained] for row in rows]
    return torch.from_numpy(np.concatenate(values))
