"""Attention over a packed batch in which each group's shared prefix is computed once.

The flat axis holds, group after group, the prefix and then each continuation. A prefix attends to itself; a
continuation attends to the prefix of its group and to itself. Both parts of a continuation's attention are computed
by torch's fused kernel on slices of the flat axis, without padding, masks or copies of the prefix, and are merged by
their log-sums: with l1, l2 the log-sums of the two sets of keys and l = log(e^l1 + e^l2), the result is
e^(l1 - l) out1 + e^(l2 - l) out2. The backward pass of each part is that of the kernel with the merged result and
log-sum in place of its own, since the weight of a key is exp(score - l) whatever part it is in.

Sources: FlashAttention-2 (2307.08691), section 3.1, for the backward pass; the same merging of a shared prefix while
sampling is in Hydragen (2402.05099).

In the last layer only the tokens that predict others are asked for. Where these are few, `chosen_attention` has queries
at them alone.

Shape suffixes: H heads, M flat tokens, E width of a head; R continuations of T tokens each; K chosen tokens, N of one
continuation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from agentrl.train.packing import Batch

_HIDDEN = -1e30
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, kw_only=True)
class Run:
    """Neighbouring continuations of one length: ``rows`` times ``length`` tokens from ``start``."""

    start: int
    rows: int
    length: int

    def of(self, x_HM: Tensor) -> Tensor:
        """These tokens of (H, M, ...) as (R, H, T, ...), without a copy and as one operation."""
        (heads, _, *width), (of_head, of_token, *within) = x_HM.shape, x_HM.stride()
        shape, strides = (self.rows, heads, self.length), (self.length * of_token, of_head, of_token)
        first = x_HM.storage_offset() + self.start * of_token
        return x_HM.as_strided((*shape, *width), (*strides, *within), first)


@dataclass(frozen=True, kw_only=True)
class GroupSpan:
    """Where a group lies on the flat axis: its prefix, its continuations and its end."""

    start: int
    continues: int
    stop: int
    runs: tuple[Run, ...]


def group_spans(batch: Batch) -> tuple[GroupSpan, ...]:
    """The groups of a batch in their order on the flat axis."""
    continuations: list[list[tuple[int, int]]] = [[] for _ in batch.prefix_mask_GP]
    for bucket in batch.buckets:
        starts, lengths = bucket.index_RT[:, 0].tolist(), bucket.mask_RT.sum(1).tolist()
        for group, start, length in zip(bucket.group_R.tolist(), starts, lengths, strict=True):
            continuations[group].append((start, length))
    spans, begin = [], 0
    for prefix, parts in zip(batch.prefix_mask_GP.sum(1).tolist(), map(sorted, continuations), strict=True):
        stop = sum(parts[-1])
        spans.append(GroupSpan(start=begin, continues=begin + prefix, stop=stop, runs=tuple(_runs(parts))))
        begin = stop
    return tuple(spans)


def _runs(parts: list[tuple[int, int]]) -> Iterator[Run]:
    for length, same in groupby(parts, key=lambda part: part[1]):
        starts = [start for start, _ in same]
        yield Run(start=starts[0], rows=len(starts), length=length)


def packed_attention(
    q_HME: Tensor, k_HME: Tensor, v_HME: Tensor, groups: tuple[GroupSpan, ...], scale: float
) -> Tensor:
    """Causal attention (H, M, E) of a packed batch on the CPU; ``scale`` is multiplied into the scores."""
    return _PackedAttention.apply(q_HME, k_HME, v_HME, groups, scale)  # type: ignore[no-any-return, no-untyped-call]


class _PackedAttention(Function):
    @staticmethod
    def forward(
        ctx: Any, q_HME: Tensor, k_HME: Tensor, v_HME: Tensor, groups: tuple[GroupSpan, ...], scale: float
    ) -> Tensor:
        out_HME = _flat_like(q_HME)
        log_sum_HM = q_HME.new_empty(q_HME.shape[:2], dtype=_log_sum_type(q_HME))
        for group in groups:
            _forward_group((q_HME, k_HME, v_HME), out_HME, log_sum_HM, group, scale)
        ctx.save_for_backward(q_HME, k_HME, v_HME, out_HME, log_sum_HM)
        ctx.groups, ctx.scale = groups, scale
        return out_HME

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_HME: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_HME, k_HME, v_HME, out_HME, log_sum_HM = ctx.saved_tensors
        grads = _flat_like(q_HME), _flat_like(k_HME), _flat_like(v_HME)
        for group in ctx.groups:
            _backward_group((q_HME, k_HME, v_HME), (grad_HME, out_HME, log_sum_HM), grads, group, ctx.scale)
        return *grads, None, None


def _flat_like(x_HME: Tensor) -> Tensor:
    """Empty, (H, M, E), with the heads of a token next to each other in memory, as projections want them."""
    heads, tokens, width = x_HME.shape
    return x_HME.new_empty(tokens, heads, width).transpose(0, 1)


def _log_sum_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _forward_group(
    qkv: tuple[Tensor, Tensor, Tensor], out_HME: Tensor, log_sum_HM: Tensor, group: GroupSpan, scale: float
) -> None:
    own, prefix = slice(group.continues, group.stop), slice(group.start, group.continues)
    for run in group.runs:
        out, log_sum = _attend(*map(run.of, qkv), 0.0, True, scale=scale)
        run.of(out_HME).copy_(out)
        run.of(log_sum_HM).copy_(log_sum)
    if group.continues == group.start:
        return
    q, k, v = (x[None, :, prefix] for x in qkv)
    out, log_sum = _attend(q, k, v, 0.0, True, scale=scale)
    out_HME[:, prefix], log_sum_HM[:, prefix] = out[0], log_sum[0]
    out, log_sum = _attend(qkv[0][None, :, own], k, v, 0.0, False, scale=scale)
    _merge(out_HME[:, own], log_sum_HM[:, own], out[0], log_sum[0])


def _merge(out_HNE: Tensor, log_sum_HN: Tensor, other_HNE: Tensor, other_log_sum_HN: Tensor) -> None:
    """Take attention over further keys into a result in place."""
    share_HN1 = torch.sigmoid(other_log_sum_HN - log_sum_HN)[..., None].to(out_HNE.dtype)
    out_HNE.add_((other_HNE - out_HNE).mul_(share_HN1))  # lerp_ with a share per token is twenty times slower
    torch.logaddexp(log_sum_HN, other_log_sum_HN, out=log_sum_HN)


def _backward_group(
    qkv: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor, Tensor],
    grads: tuple[Tensor, ...],
    group: GroupSpan,
    scale: float,
) -> None:
    grad_HME, out_HME, log_sum_HM = results
    own, prefix = slice(group.continues, group.stop), slice(group.start, group.continues)
    for run in group.runs:
        parts = _attend_backward(*map(run.of, (grad_HME, *qkv, out_HME, log_sum_HM)), 0.0, True, scale=scale)
        for grad, part in zip(grads, parts, strict=True):
            run.of(grad).copy_(part)
    if group.continues == group.start:
        return
    k, v = (x[None, :, prefix] for x in qkv[1:])
    of_own = (x[None, :, own] for x in (grad_HME, qkv[0]))
    of_prefix = (x[None, :, prefix] for x in (grad_HME, *qkv, out_HME, log_sum_HM))
    cross = _attend_backward(*of_own, k, v, out_HME[None, :, own], log_sum_HM[None, :, own], 0.0, False, scale=scale)
    for grad, part in zip(grads, _attend_backward(*of_prefix, 0.0, True, scale=scale), strict=True):
        grad[:, prefix] = part[0]
    grads[0][:, own] += cross[0][0]
    for grad, part in zip(grads[1:], cross[1:], strict=True):
        grad[:, prefix] += part[0]


# Some of the tokens.


@dataclass(frozen=True, kw_only=True)
class ChosenRow:
    """The chosen tokens of a continuation: their places in K, those of its tokens in M, and what is added to the scores
    (1, 1, N, T) to hide what comes later."""

    queries: slice
    keys: slice
    mask: Tensor


@dataclass(frozen=True, kw_only=True)
class ChosenGroup:
    """The chosen tokens of a group: their places in K, those of its prefix in M, and those of each continuation."""

    queries: slice
    prefix: slice
    rows: tuple[ChosenRow, ...]


def chosen_groups(batch: Batch, groups: tuple[GroupSpan, ...], dtype: torch.dtype) -> tuple[ChosenGroup, ...]:
    """The predictors of a batch, which lie group after group and sequence after sequence."""
    counts = iter(torch.bincount(batch.sequence_K).tolist())
    found, first = [], 0
    for group in groups:
        rows, begin = [], first
        for run in group.runs:
            for start in range(run.start, run.start + run.rows * run.length, run.length):
                places = batch.predictor_K[first : first + next(counts)]
                first += len(places)
                own = places[places >= start]  # the first may be the last of the prefix
                keys = torch.arange(start, start + run.length)
                mask = torch.where(keys <= own[:, None], 0.0, _HIDDEN).to(dtype)[None, None]
                rows.append(
                    ChosenRow(queries=slice(first - len(own), first), keys=slice(start, start + run.length), mask=mask)
                )
        prefix = slice(group.start, group.continues)
        found.append(ChosenGroup(queries=slice(begin, first), prefix=prefix, rows=tuple(rows)))
    return tuple(found)


def chosen_attention(
    q_HKE: Tensor, k_HME: Tensor, v_HME: Tensor, groups: tuple[ChosenGroup, ...], scale: float
) -> Tensor:
    """Causal attention (H, K, E) at some tokens of a packed batch on the CPU."""
    return _ChosenAttention.apply(q_HKE, k_HME, v_HME, groups, scale)  # type: ignore[no-any-return, no-untyped-call]


class _ChosenAttention(Function):
    @staticmethod
    def forward(
        ctx: Any, q_HKE: Tensor, k_HME: Tensor, v_HME: Tensor, groups: tuple[ChosenGroup, ...], scale: float
    ) -> Tensor:
        out_HKE = _flat_like(q_HKE)
        log_sum_HK = q_HKE.new_empty(q_HKE.shape[:2], dtype=_log_sum_type(q_HKE))
        for queries, keys, mask, first in _pieces(groups):
            q, k, v = q_HKE[None, :, queries], k_HME[None, :, keys], v_HME[None, :, keys]
            out, log_sum = _attend(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
            if first:
                out_HKE[:, queries], log_sum_HK[:, queries] = out[0], log_sum[0]
            else:
                _merge(out_HKE[:, queries], log_sum_HK[:, queries], out[0], log_sum[0])
        ctx.save_for_backward(q_HKE, k_HME, v_HME, out_HKE, log_sum_HK)
        ctx.groups, ctx.scale = groups, scale
        return out_HKE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_HKE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_HKE, k_HME, v_HME, out_HKE, log_sum_HK = ctx.saved_tensors
        grad_q, grad_k, grad_v = (_flat_like(x).zero_() for x in (q_HKE, k_HME, v_HME))
        for queries, keys, mask, _ in _pieces(ctx.groups):
            grad, q, out, log_sum = (x[None, :, queries] for x in (grad_HKE, q_HKE, out_HKE, log_sum_HK))
            k, v = k_HME[None, :, keys], v_HME[None, :, keys]
            parts = _attend_backward(grad, q, k, v, out, log_sum, 0.0, False, attn_mask=mask, scale=ctx.scale)
            grad_q[:, queries] += parts[0][0]
            grad_k[:, keys], grad_v[:, keys] = parts[1][0], parts[2][0]
        return grad_q, grad_k, grad_v, None, None


def _pieces(groups: tuple[ChosenGroup, ...]) -> Iterator[tuple[slice, slice, Tensor | None, bool]]:
    """Queries, keys that nothing else looks at, what hides some of them, and whether these are their first keys."""
    for group in groups:
        shared = group.prefix.stop > group.prefix.start
        if shared:
            yield group.queries, group.prefix, None, True
        for row in group.rows:
            if row.queries.stop > row.queries.start:
                yield row.queries, row.keys, row.mask, not shared
