"""Samples to tensors. The only place where a token meets the position that predicts it.

The samples of a group begin with the same ids (the prompt, often more). That prefix is laid out once per group
and every sample continues it, so its forward and backward pass are paid once; the result is exact. Tokens of all
prefixes and continuations lie in one flat, unpadded axis; only attention sees padded shapes.

Shape suffixes: M flat tokens, G groups, P prefix length, R continuations of a bucket, T continuation length,
K tokens that are trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.errors import TrainerError
from agentrl.train.support import Support, pack_support
from agentrl.types import Sample


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a whole optimizer step holds, counted before it is cut into micro-batches.

    ``weight`` is the total token weight of each objective, the denominator of a token mean, ``trained`` the number of
    sequences that have a weight for it, and ``trained_groups`` that of groups.
    """

    weight: Mapping[str, float]
    trained: Mapping[str, int]
    trained_groups: Mapping[str, int]
    tokens: int
    sequences: int
    groups: int


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Continuations of like length: their flat positions (R, T), which of those are filled, and each one's group."""

    index_RT: Tensor
    mask_RT: Tensor
    group_R: Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch as tensors, with the counts of the whole step.

    ``previous_ids_M`` is the id before each token in its own sequence (0 before the first), and ``predictor_K`` the
    flat position whose output predicts ``target_K``. ``sampler_logprobs_K`` is NaN where the sampler gave none,
    ``returns_K`` and ``values_K`` where there is no critic and ``reference_logprobs_K`` where there is no reference;
    objectives must mask them before use. ``old_logprobs_K`` are the sampler's where a sample has no others, and
    ``importance_K`` is None when no sample has any. ``support`` is None when every token was drawn from the whole
    vocabulary.
    """

    token_ids_M: Tensor
    previous_ids_M: Tensor
    positions_M: Tensor
    prefix_index_GP: Tensor
    prefix_mask_GP: Tensor
    buckets: tuple[Bucket, ...]
    predictor_K: Tensor
    target_K: Tensor
    advantages_K: Tensor
    sampler_logprobs_K: Tensor
    old_logprobs_K: Tensor
    importance_K: Tensor | None
    returns_K: Tensor
    values_K: Tensor
    reference_logprobs_K: Tensor
    weights_K: Mapping[str, Tensor]
    sequence_K: Tensor
    group_K: Tensor
    counts: Counts
    support: Support | None = None

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; itself where it lies there already."""
        if self.token_ids_M.device == device:
            return self
        moved: Batch = _moved(self, device)
        return moved


def _moved(value: Any, device: torch.device) -> Any:
    """A value with all tensors that it holds on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _moved(getattr(value, field.name), device) for field in fields(value)})
    return value


def count(samples: Sequence[Sample]) -> Counts:
    """The counts of a whole step. Packing order and micro-batches do not change them."""
    weight: dict[str, float] = defaultdict(float)
    trained: dict[str, int] = defaultdict(int)
    groups: dict[str, set[str]] = defaultdict(set)
    for sample in samples:
        for objective, weights in sample.weights.items():
            weight[objective] += float(sum(weights))
            trained[objective] += any(weights)
            groups[objective] |= {sample.group_id} if any(weights) else set()
    return Counts(
        weight=dict(weight),
        trained=dict(trained),
        trained_groups={objective: len(names) for objective, names in groups.items()},
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
    pending: list[list[_Row]] = []
    size = 0
    for group in _by_group(samples):
        rows = _rows(group)
        if not rows:
            continue
        tokens = sum(len(row.token_ids) for row in rows) - (len(rows) - 1) * _shared(rows)
        if pending and size + tokens > max_tokens:
            yield _tensors(pending, counts)
            pending, size = [], 0
        pending.append(rows)
        size += tokens
    if pending:
        yield _tensors(pending, counts)


def packed_order(samples: Sequence[Sample]) -> list[int]:
    """The indices of the samples that train anything, in the order in which `micro_batches` lays them out."""
    places = {id(sample): index for index, sample in enumerate(samples)}
    return [places[id(sample)] for group in _by_group(samples) for sample in group if len(trained_places(sample))]


def trained_places(sample: Sample) -> np.ndarray:
    """Where a sample has a weight for any objective, ascending."""
    return np.flatnonzero(np.any([np.asarray(weights) != 0.0 for weights in sample.weights.values()], axis=0))


def pack(groups: Sequence[Sequence[Sample]], counts: Counts) -> Batch:
    """Lay out groups of samples on one flat axis, each group's shared prefix once.

    Raises:
        TrainerError: a sample whose per-token lists are not aligned, naming its trace, or no trained token at all.
    """
    groups_of_rows = [rows for rows in map(_rows, groups) if rows]
    if not groups_of_rows:
        raise TrainerError(f"none of the {len(groups)} groups has a trained token; leave them out of the step")
    return _tensors(groups_of_rows, counts)


@dataclass(frozen=True, kw_only=True)
class _Row:
    sample: Sample
    token_ids: np.ndarray
    previous_ids: np.ndarray
    trained: np.ndarray


def _by_group(samples: Sequence[Sample]) -> list[list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    return list(groups.values())


def _rows(group: Sequence[Sample]) -> list[_Row]:
    """The samples of a group that train anything, up to their last trained token: what follows changes nothing."""
    rows = []
    for sample in group:
        _check_aligned(sample)
        trained = trained_places(sample)
        if len(trained) and trained[0] == 0:
            raise TrainerError(f"trace {sample.trace_id}: the first token is trained, but no token precedes it")
        if len(trained):
            ids = np.asarray(sample.token_ids[: trained[-1] + 1], dtype=np.int64)
            previous_ids = np.concatenate(([0], ids[:-1]))
            rows.append(_Row(sample=sample, token_ids=ids, previous_ids=previous_ids, trained=trained))
    return rows


_OPTIONAL = ("returns", "values", "reference_logprobs", "old_logprobs", "importance", "support")
"""Fields of a sample that are empty or have one entry per token."""


def _check_aligned(sample: Sample) -> None:
    lengths = {"logprobs": len(sample.logprobs), "advantages": len(sample.advantages)}
    if any(sample.weights.get("value", ())):
        lengths["returns"] = len(sample.returns)
    lengths |= {name: len(values) for name in _OPTIONAL if (values := getattr(sample, name))}
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


class _Layout:
    """Fills the flat axis group by group: what a group shares, then what each of its samples adds."""

    def __init__(self, groups: Sequence[Sequence[_Row]]) -> None:
        prefixes = [_shared(rows) for rows in groups]
        self.prefix_index = np.zeros((len(groups), max(prefixes)), dtype=np.int64)
        self.prefix_mask = np.zeros(self.prefix_index.shape, dtype=bool)
        self.token_ids: list[np.ndarray] = []
        self.previous_ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.predictors: list[np.ndarray] = []
        self.continuations: list[tuple[int, np.ndarray]] = []
        self.size = 0
        for g, (rows, prefix) in enumerate(zip(groups, prefixes, strict=True)):
            self._add_group(g, rows, prefix)

    def _add_group(self, g: int, rows: Sequence[_Row], prefix: int) -> None:
        self.prefix_index[g, :prefix] = self._add_span(rows[0], 0, prefix)
        self.prefix_mask[g, :prefix] = True
        last_of_prefix = self.size - 1
        for row in rows:
            flat = self._add_span(row, prefix, len(row.token_ids))
            self.continuations.append((g, flat))
            before = row.trained - 1
            self.predictors.append(np.where(before < prefix, last_of_prefix, flat[0] + before - prefix))

    def buckets(self) -> tuple[Bucket, ...]:
        """The continuations, shortest first, cut where padding to the longest of a bucket would cost much."""
        cut: list[list[tuple[int, np.ndarray]]] = []
        for group, flat in sorted(self.continuations, key=lambda continuation: len(continuation[1])):
            if not cut or len(flat) > 1.25 * len(cut[-1][0][1]) + 6:
                cut.append([])
            cut[-1].append((group, flat))
        return tuple(_bucket(continuations) for continuations in cut)

    def _add_span(self, row: _Row, start: int, stop: int) -> np.ndarray:
        """Append the tokens of a sample from ``start`` to ``stop``. Returns their places on the flat axis."""
        self.token_ids.append(row.token_ids[start:stop])
        self.previous_ids.append(row.previous_ids[start:stop])
        self.positions.append(np.arange(start, stop))
        self.size += stop - start
        return np.arange(self.size - (stop - start), self.size)


def _bucket(continuations: Sequence[tuple[int, np.ndarray]]) -> Bucket:
    index = np.zeros((len(continuations), len(continuations[-1][1])), dtype=np.int64)
    mask = np.zeros(index.shape, dtype=bool)
    for row, (_, flat) in enumerate(continuations):
        index[row, : len(flat)] = flat
        mask[row, : len(flat)] = True
    groups = np.array([group for group, _ in continuations])
    return Bucket(index_RT=torch.from_numpy(index), mask_RT=torch.from_numpy(mask), group_R=torch.from_numpy(groups))


def _shared(rows: Sequence[_Row]) -> int:
    """Length of the prefix that is laid out once: common to all, and before anything is trained."""
    return shared_prefix([row.token_ids for row in rows], min(int(row.trained[0]) for row in rows))


def _tensors(groups: Sequence[Sequence[_Row]], counts: Counts) -> Batch:
    layout = _Layout(groups)
    rows = [row for group in groups for row in group]
    tokens = [len(row.trained) for row in rows]
    return Batch(
        token_ids_M=torch.from_numpy(np.concatenate(layout.token_ids)),
        previous_ids_M=torch.from_numpy(np.concatenate(layout.previous_ids)),
        positions_M=torch.from_numpy(np.concatenate(layout.positions)),
        prefix_index_GP=torch.from_numpy(layout.prefix_index),
        prefix_mask_GP=torch.from_numpy(layout.prefix_mask),
        buckets=layout.buckets(),
        predictor_K=torch.from_numpy(np.concatenate(layout.predictors)),
        target_K=torch.from_numpy(np.concatenate([row.token_ids[row.trained] for row in rows])),
        advantages_K=_gather(rows, lambda sample: sample.advantages),
        sampler_logprobs_K=_gather(rows, lambda sample: sample.logprobs),
        old_logprobs_K=_gather(rows, lambda sample: sample.old_logprobs or sample.logprobs),
        importance_K=_importance(rows),
        returns_K=_gather(rows, lambda sample: sample.returns),
        values_K=_gather(rows, lambda sample: sample.values),
        reference_logprobs_K=_gather(rows, lambda sample: sample.reference_logprobs),
        weights_K=_weights(rows),
        sequence_K=torch.from_numpy(np.repeat(np.arange(len(rows)), tokens)),
        group_K=torch.from_numpy(np.repeat(np.repeat(np.arange(len(groups)), list(map(len, groups))), tokens)),
        counts=counts,
        support=pack_support((row.sample, row.trained) for row in rows),
    )


def _weights(rows: Sequence[_Row]) -> dict[str, Tensor]:
    """One weight per trained token for each objective that any sample has; 0 where a sample lacks it."""

    def of(name: str) -> Tensor:
        return _gather(rows, lambda sample: sample.weights.get(name, ()), missing=0.0)

    return {name: of(name) for name in dict.fromkeys(name for row in rows for name in row.sample.weights)}


def _importance(rows: Sequence[_Row]) -> Tensor | None:
    if not any(row.sample.importance for row in rows):
        return None
    return _gather(rows, lambda sample: sample.importance, missing=1.0)


def _gather(
    rows: Sequence[_Row], field: Callable[[Sample], Sequence[float | None]], missing: float = float("nan")
) -> Tensor:
    """One float per trained token, ``missing`` in samples whose field is empty; None becomes NaN, which no objective
    may use."""
    values = [_trained(row, field(row.sample), missing) for row in rows]
    return torch.from_numpy(np.concatenate(values))


def _trained(row: _Row, field: Sequence[float | None], missing: float) -> np.ndarray:
    if not field:
        return np.full(len(row.trained), missing, dtype=np.float32)
    found: np.ndarray = np.asarray(field, dtype=np.float32)[row.trained]
    return found
