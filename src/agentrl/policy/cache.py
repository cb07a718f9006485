"""The key-value cache of many conversations, and the step that advances them, for any policy.

Conversations are slots of groups: slot (g, n) is the n-th conversation of group g. What a group shares (its prompt)
is stored once; what a conversation adds lies in its own row. Nothing is copied to attend: the queries of all slots
meet the caches where they lie.

Shape suffixes: G groups, N conversations of a group, P prefix length, W the most new tokens that one conversation gets
in a step, M new tokens of a step, B conversations of a step, K heads of keys and values, H heads of queries, E width of
a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from agentrl.errors import SamplerError
from agentrl.policy.base import Attend, Policy
from agentrl.policy.transformer import HIDDEN, attend

Slot = tuple[int, int]

MAX_SCORES = 2**25
"""Attention scores that are held at once, 128 MiB in float32. Prompts that would have more go through torch's fused
attention, which holds none; what is appended later is cut into pieces."""


class _KeysValues(NamedTuple):
    """What one layer keeps: of the prefixes (G, K, P, E), or of the conversations (G, K, N, T, E)."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Where the new tokens of a step lie: group, member, place among the new ones, place in the conversation."""

    group_M: Tensor
    member_M: Tensor
    place_M: Tensor
    own_M: Tensor
    width: int
    used: int
    longest: int
    seen: Tensor
    """Own place of each query, (G, 1, N, W)."""
    bias: Tensor


class ConversationCache:
    """Keys and values of conversations in groups, for one version of the weights.

    Args:
        model: computes them.
        prefixes: the ids that each group's conversations begin with, at least one.
        members: conversations of the largest group.
    """

    def __init__(self, model: Policy, prefixes: Sequence[Sequence[int]], members: int) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.groups, self.members, self.length = len(prefixes), members, 0
        self.prefix_length = max(map(len, prefixes))
        self.prefix_lengths = np.array([len(prefix) for prefix in prefixes])
        self.lengths = np.zeros((self.groups, members), dtype=np.int64)
        self.last_ids = np.repeat([[prefix[-1]] for prefix in prefixes], members, axis=1)
        self.prefix: list[_KeysValues] = []
        self.own: list[_KeysValues] = []
        self.query_heads = 0
        padding = np.arange(self.prefix_length) >= self.prefix_lengths[:, None]
        self.prefix_bias = torch.where(self._put(padding), HIDDEN, 0.0)[:, None, None, :]

    @torch.inference_mode()
    def prefill(self, prefixes: Sequence[Sequence[int]]) -> Tensor:
        """Compute each group's prompt once. Returns the logits (G, V) that follow it.

        Raises:
            SamplerError: a prompt longer than the network's context.
        """
        if self.prefix_length > self.model.context:
            raise SamplerError(f"a prompt of {self.prefix_length} tokens exceeds the context of {self.model.context}")
        ids_GP = np.zeros((self.groups, self.prefix_length), dtype=np.int64)
        for g, prefix in enumerate(prefixes):
            ids_GP[g, : len(prefix)] = prefix
        previous_GP = np.pad(ids_GP[:, :-1], ((0, 0), (1, 0)))
        position_GP = np.tile(np.arange(self.prefix_length), (self.groups, 1))
        last = np.arange(self.groups) * self.prefix_length + self.prefix_lengths - 1
        rows = (self._put(rows.ravel()) for rows in (ids_GP, previous_GP, position_GP))
        ids_M, previous_M, position_M = rows
        return self.model.advance(ids_M, previous_M, position_M, _Prefill(self), self._put(last))

    @torch.inference_mode()
    def advance(self, slots: Sequence[Slot], new_ids: Sequence[Sequence[int]]) -> Tensor:
        """Append new ids to some conversations. Returns the logits (B, V) after the last id of each.

        Raises:
            SamplerError: a conversation would exceed the network's context.
        """
        groups, members = np.array(slots).T
        longest = self.lengths[groups, members] + np.array([len(ids) for ids in new_ids])
        if (self.prefix_lengths[groups] + longest).max() > self.model.context:
            raise SamplerError(f"a conversation exceeds the network's context of {self.model.context} tokens")
        wide = max(map(len, new_ids))
        most = self._widest(int(longest.max()))
        if wide <= most:
            return self._advance(slots, new_ids)
        return self._in_pieces(slots, new_ids, range(0, wide, most), most)

    def rewind(self, slot: Slot, length: int, last_id: int) -> None:
        """Forget what a conversation holds behind its first tokens.

        Args:
            slot: the conversation.
            length: tokens behind the prefix that are kept, at most those that there are.
            last_id: the last token that is kept, of the prefix when ``length`` is 0.
        """
        self.lengths[slot] = length
        self.last_ids[slot] = last_id

    def keep(self, slots: Sequence[Slot]) -> list[Slot]:
        """Drop all other conversations when that frees a quarter of the rows. Returns the new slots, in order."""
        of_group: dict[int, list[int]] = {}
        for group, member in slots:
            of_group.setdefault(group, []).append(member)
        members = max(map(len, of_group.values()))
        if 4 * len(of_group) * members > 3 * self.groups * self.members:
            return list(slots)
        groups = list(of_group)
        rows = np.array([kept + [kept[0]] * (members - len(kept)) for kept in of_group.values()])
        at = np.array(groups)
        self.groups, self.members = len(groups), members
        self.prefix_lengths = self.prefix_lengths[at]
        self.lengths, self.last_ids = self.lengths[at[:, None], rows], self.last_ids[at[:, None], rows]
        at_T, rows_T = self._put(at), self._put(rows)
        self.prefix_bias = self.prefix_bias[at_T]
        self.prefix = [_KeysValues(*(x[at_T] for x in layer)) for layer in self.prefix]
        self.own = [
            _KeysValues(*(x[at_T[:, None], :, rows_T].transpose(1, 2).contiguous() for x in layer))
            for layer in self.own
        ]
        return [(groups.index(group), of_group[group].index(member)) for group, member in slots]

    def hold(self, layer: int, keys: Tensor, values: Tensor, query_heads: int) -> None:
        """Take the keys and values (G, K, P, E) of all prefixes in a layer; layers come in their order."""
        assert layer == len(self.prefix), f"layer {layer} came after {len(self.prefix)} others"
        self.query_heads = max(self.query_heads, query_heads)
        self.prefix.append(_KeysValues(keys.contiguous(), values.contiguous()))
        none_yet = (x.new_zeros(self.groups, x.shape[1], self.members, self.length, x.shape[3]) for x in (keys, values))
        self.own.append(_KeysValues(*none_yet))

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _widest(self, used: int) -> int:
        """New tokens that a conversation may get at once, so that the scores stay bounded."""
        rows = self.groups * self.query_heads * self.members
        return max(16, MAX_SCORES // (rows * (self.prefix_length + used)))

    def _in_pieces(
        self, slots: Sequence[Slot], new_ids: Sequence[Sequence[int]], starts: Sequence[int], most: int
    ) -> Tensor:
        logits: list[Tensor] = [torch.empty(0)] * len(slots)
        for start in starts:
            places = [place for place, ids in enumerate(new_ids) if len(ids) > start]
            piece = [new_ids[place][start : start + most] for place in places]
            for place, row in zip(places, self._advance([slots[place] for place in places], piece), strict=True):
                logits[place] = row
        return torch.stack(logits)

    def _advance(self, slots: Sequence[Slot], new_ids: Sequence[Sequence[int]]) -> Tensor:
        widths = np.array([len(ids) for ids in new_ids])
        groups, members = np.array(slots).T
        ids_M = np.concatenate([np.asarray(ids) for ids in new_ids])
        ends = np.cumsum(widths)
        previous_M = np.concatenate(([0], ids_M[:-1]))
        previous_M[ends - widths] = self.last_ids[groups, members]
        step, position_M = self._plan(groups, members, widths)
        rows = (self._put(rows) for rows in (ids_M, previous_M, position_M))
        ids, previous, positions = rows
        logits_BV = self.model.advance(ids, previous, positions, self._attention_of(step), self._put(ends - 1))
        self.lengths[groups, members] += widths
        self.last_ids[groups, members] = ids_M[ends - 1]
        return logits_BV

    def _plan(self, groups: np.ndarray, members: np.ndarray, widths: np.ndarray) -> tuple[_Step, np.ndarray]:
        start = self.lengths[groups, members]
        width, used = int(widths.max()), int((start + widths).max())
        place_M = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
        group_M, member_M = np.repeat(groups, widths), np.repeat(members, widths)
        own_M = np.repeat(start, widths) + place_M
        position_M = self.prefix_lengths[group_M] + own_M
        self._grow(used)
        seen = np.zeros((self.groups, 1, self.members, width), dtype=np.int64)
        seen[group_M, 0, member_M, place_M] = own_M
        seen_GNW = self._put(seen)
        later = torch.arange(used, device=self.device) > seen_GNW[..., None]
        where = (self._put(index) for index in (group_M, member_M, place_M, own_M))
        return _Step(
            **dict(zip(("group_M", "member_M", "place_M", "own_M"), where, strict=True)),
            width=width,
            used=used,
            longest=int(position_M.max()) + 1,
            seen=seen_GNW,
            bias=torch.where(later, HIDDEN, 0.0),
        ), position_M

    def _grow(self, length: int) -> None:
        """Make room for ``length`` tokens after the prompt, in steps of doubling."""
        if length <= self.length:
            return
        room = max(32, 2 * self.length, length) - self.length
        self.length += room
        self.own = [_KeysValues(*(pad(x, (0, 0, 0, room)) for x in layer)) for layer in self.own]

    def _attention_of(self, step: _Step) -> Attend:
        def attend_cached(
            layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None
        ) -> Tensor:
            for kept, new in zip(self.own[layer], (k_MKE, v_MKE), strict=True):
                kept[step.group_M, :, step.member_M, step.own_M] = new
            return self._attend(layer, q_MHE, step, window)

        return attend_cached

    def _attend(self, layer: int, q_MHE: Tensor, step: _Step, window: int | None) -> Tensor:
        """Attention of the new tokens (M, H * E); queries of conversations that are not in the step stay zero.

        The query heads of one head of keys lie beside each other, as further queries of it.
        """
        prefix, own = self.prefix[layer], self.own[layer]
        heads, head_width = prefix.keys.shape[1], q_MHE.shape[2]
        shared = q_MHE.shape[1] // heads
        batch = self.groups * heads
        q = q_MHE.new_zeros(self.groups, heads, self.members, step.width, shared, head_width)
        q[step.group_M, :, step.member_M, step.place_M] = q_MHE.view(-1, heads, shared, head_width)
        prefix_k, prefix_v = (x.flatten(0, 1) for x in prefix)
        own_k, own_v = (x.flatten(0, 2)[:, : step.used] for x in own)
        to_prefix = torch.bmm(q.view(batch, -1, head_width), prefix_k.transpose(1, 2))
        to_own = torch.bmm(q.view(-1, step.width * shared, head_width), own_k.transpose(1, 2))
        split = self.prefix_length
        bias, prefix_bias = self._biases(step, shared, window)
        scores = torch.cat(
            (
                to_prefix.view(self.groups, heads, -1, split).add_(prefix_bias),
                to_own.view(*q.shape[:3], step.width * shared, step.used).add_(bias).flatten(2, 3),
            ),
            dim=-1,
        )
        weight = _softmax(scores).view(batch, -1, split + step.used)
        out = torch.bmm(weight[..., :split], prefix_v)
        own_weight = weight[..., split:].view(batch, self.members, step.width * shared, step.used).flatten(0, 1)
        out = out.view(-1, step.width * shared, prefix_v.shape[-1]) + torch.bmm(own_weight, own_v)
        return out.view(*q.shape[:-1], -1)[step.group_M, :, step.member_M, step.place_M].flatten(1)

    def _biases(self, step: _Step, shared: int, window: int | None) -> tuple[Tensor, Tensor]:
        """What hides keys: of the conversation (G, 1, N, W * shared, used), of the prefix (G, 1, 1 or queries, P)."""
        bias, prefix_bias = step.bias, self.prefix_bias
        if window is not None and step.longest > window:
            far = step.seen[..., None] - torch.arange(step.used, device=self.device) >= window
            bias = torch.where(far, HIDDEN, bias)
            ends = self._put(self.prefix_lengths)[:, None, None, None, None]
            behind = ends + step.seen[..., None] - torch.arange(self.prefix_length, device=self.device) >= window
            hidden = torch.where(behind, HIDDEN, prefix_bias[:, :, :, None])
            prefix_bias = hidden.repeat_interleave(shared, 3).flatten(2, 3)
        if shared > 1:
            bias = bias.repeat_interleave(shared, 3)
        return bias, prefix_bias


class _Prefill:
    """Attention of the prompts of all groups, (G, P) padded at their ends, over themselves."""

    def __init__(self, cache: ConversationCache) -> None:
        self.cache = cache
        length = cache.prefix_length
        self.later = torch.ones(length, length, dtype=torch.bool, device=cache.device).triu(1)
        self.bias = cache.prefix_bias + torch.where(self.later, HIDDEN, 0.0)

    def __call__(self, layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:
        """See `agentrl.policy.base.Attend`."""
        cache = self.cache
        groups, length = cache.groups, cache.prefix_length
        q, k, v = (x.view(groups, length, *x.shape[1:]).transpose(1, 2) for x in (q_MHE, k_MKE, v_MKE))
        cache.hold(layer, k, v, q.shape[1])
        shared = q.shape[1] // k.shape[1]
        if shared > 1:
            k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
        near = window is None or window >= length
        if q.shape[0] * q.shape[1] * length**2 <= MAX_SCORES:
            bias = self.bias if near else torch.where(self._far(window), HIDDEN, self.bias)
            out = _attend(q, k, v, bias)
        elif near:  # padding lies at the ends, where no query of a prompt sees it
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        else:
            out = scaled_dot_product_attention(q, k, v, ~(self.later | self._far(window)), scale=1.0)
        return out.transpose(1, 2).reshape(len(q_MHE), -1)

    def _far(self, window: int | None) -> Tensor:
        place = torch.arange(len(self.later), device=self.later.device)
        return place[:, None] - place >= (window or len(self.later))


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    if q.dtype in (torch.float32, torch.float64):
        return attend(q, k, v, bias)
    return _softmax((q @ k.transpose(-1, -2)).add_(bias)) @ v


def _softmax(scores: Tensor) -> Tensor:
    """In float32 where the scores have half precision."""
    if scores.dtype in (torch.float32, torch.float64):
        return scores.softmax(-1)
    return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
