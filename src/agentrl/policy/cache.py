"""The key-value cache of many conversations, and the step that advances them.

Conversations are slots of groups: slot (g, n) is the n-th conversation of group g. What a group shares (its prompt)
is stored once; what a conversation adds lies in its own row. Nothing is copied to attend: the queries of all slots
meet the caches where they lie.

Shape suffixes as in transformer.py; M new tokens of a step, W the most that one conversation gets in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.errors import SamplerError
from agentrl.policy.transformer import HIDDEN, TinyTransformer, attend

Slot = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Where the new tokens of a step lie: group, member, place among the new ones, place in the conversation."""

    group_M: Tensor
    member_M: Tensor
    place_M: Tensor
    own_M: Tensor
    width: int
    used: int
    bias: Tensor


class ConversationCache:
    """Keys and values of conversations in groups, for one version of the weights.

    Args:
        model: computes them.
        prefixes: the ids that each group's conversations begin with, at least one.
        members: conversations of the largest group.
    """

    def __init__(self, model: TinyTransformer, prefixes: Sequence[Sequence[int]], members: int) -> None:
        shape = model.shape
        self.model = model
        self.groups, self.members, self.length = len(prefixes), members, 0
        self.prefix_length = max(map(len, prefixes))
        self.prefix_lengths = np.array([len(prefix) for prefix in prefixes])
        self.lengths = np.zeros((self.groups, members), dtype=np.int64)
        self.last_ids = np.repeat([[prefix[-1]] for prefix in prefixes], members, axis=1)
        weight = model.embedding.weight
        prefix_shape = (2, self.groups, shape.heads, self.prefix_length, shape.head_width)
        self.prefix = [weight.new_zeros(prefix_shape) for _ in range(shape.layers)]
        own_shape = (2, self.groups, shape.heads, members, 0, shape.head_width)
        self.own = [weight.new_zeros(own_shape) for _ in range(shape.layers)]
        padding = torch.arange(self.prefix_length) >= torch.from_numpy(self.prefix_lengths)[:, None]
        self.prefix_bias = torch.where(padding, HIDDEN, 0.0)[:, None, None, :]

    @torch.inference_mode()
    def prefill(self, prefixes: Sequence[Sequence[int]]) -> Tensor:
        """Compute each group's prompt once. Returns the logits (G, V) that follow it.

        Raises:
            SamplerError: a prompt longer than the network's context.
        """
        model, shape = self.model, self.model.shape
        if self.prefix_length > shape.context:
            raise SamplerError(f"a prompt of {self.prefix_length} tokens exceeds the context of {shape.context}")
        ids_GP = np.zeros((self.groups, self.prefix_length), dtype=np.int64)
        for g, prefix in enumerate(prefixes):
            ids_GP[g, : len(prefix)] = prefix
        previous_GP = np.pad(ids_GP[:, :-1], ((0, 0), (1, 0)))
        later = torch.ones(self.prefix_length, self.prefix_length, dtype=torch.bool).triu(1)
        bias = self.prefix_bias + torch.where(later, HIDDEN, 0.0)
        x_MD = model.embed(torch.from_numpy(ids_GP.ravel()), torch.from_numpy(previous_GP.ravel()))
        turn = model.turn[: self.prefix_length].repeat(self.groups, 1, 1, 1)
        split = (self.groups, self.prefix_length, shape.heads, shape.head_width)
        for layer, block in enumerate(model.layers):
            q, k, v = (t.reshape(split).transpose(1, 2) for t in block.project(x_MD, turn))
            self.prefix[layer][0], self.prefix[layer][1] = k, v
            x_MD = block.finish(x_MD, attend(q, k, v, bias).transpose(1, 2).reshape(-1, shape.width))
        last = np.arange(self.groups) * self.prefix_length + self.prefix_lengths - 1
        return model.logits(model.final(x_MD[torch.from_numpy(last)]))

    @torch.inference_mode()
    def advance(self, slots: Sequence[Slot], new_ids: Sequence[Sequence[int]]) -> Tensor:
        """Append new ids to some conversations. Returns the logits (B, V) after the last id of each.

        Raises:
            SamplerError: a conversation would exceed the network's context.
        """
        widths = np.array([len(ids) for ids in new_ids])
        groups, members = np.array(slots).T
        ids_M = np.concatenate([np.asarray(ids) for ids in new_ids])
        ends = np.cumsum(widths)
        previous_M = np.concatenate(([0], ids_M[:-1]))
        previous_M[ends - widths] = self.last_ids[groups, members]
        step, position_M = self._plan(groups, members, widths)
        model = self.model
        x_MD = model.embed(torch.from_numpy(ids_M), torch.from_numpy(previous_M))
        turn_M = model.turn[torch.from_numpy(position_M)]
        for layer, block in enumerate(model.layers):
            q, k, v = block.project(x_MD, turn_M)
            own = self.own[layer]
            own[0][step.group_M, :, step.member_M, step.own_M] = k
            own[1][step.group_M, :, step.member_M, step.own_M] = v
            x_MD = block.finish(x_MD, self._attend(layer, q, step))
        self.lengths[groups, members] += widths
        self.last_ids[groups, members] = ids_M[ends - 1]
        return model.logits(model.final(x_MD if step.width == 1 else x_MD[torch.from_numpy(ends - 1)]))

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
        at_T, rows_T = torch.from_numpy(at), torch.from_numpy(rows)
        self.prefix_bias = self.prefix_bias[at_T]
        self.prefix = [prefix[:, at_T] for prefix in self.prefix]
        self.own = [own[:, at_T[:, None], :, rows_T].permute(2, 0, 3, 1, 4, 5).contiguous() for own in self.own]
        return [(groups.index(group), of_group[group].index(member)) for group, member in slots]

    def _plan(self, groups: np.ndarray, members: np.ndarray, widths: np.ndarray) -> tuple[_Step, np.ndarray]:
        start = self.lengths[groups, members]
        width, used = int(widths.max()), int((start + widths).max())
        place_M = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
        group_M, member_M = np.repeat(groups, widths), np.repeat(members, widths)
        own_M = np.repeat(start, widths) + place_M
        position_M = self.prefix_lengths[group_M] + own_M
        if position_M.max() >= self.model.shape.context:
            raise SamplerError(f"a conversation exceeds the network's context of {self.model.shape.context} tokens")
        self._grow(used)
        seen = np.zeros((self.groups, 1, self.members, width), dtype=np.int64)
        seen[group_M, 0, member_M, place_M] = own_M
        bias = torch.where(torch.arange(used) > torch.from_numpy(seen)[..., None], HIDDEN, 0.0)
        where = (torch.from_numpy(index) for index in (group_M, member_M, place_M, own_M))
        return _Step(
            **dict(zip(("group_M", "member_M", "place_M", "own_M"), where, strict=True)),
            width=width,
            used=used,
            bias=bias,
        ), position_M

    def _grow(self, length: int) -> None:
        """Make room for ``length`` tokens after the prompt, in steps of doubling."""
        if length <= self.length:
            return
        room = max(32, 2 * self.length, length) - self.length
        self.length += room
        self.own = [torch.nn.functional.pad(own, (0, 0, 0, room)) for own in self.own]

    def _attend(self, layer: int, q_MHE: Tensor, step: _Step) -> Tensor:
        """Attention of the new tokens (M, D); queries of conversations that are not in the step stay zero."""
        heads, head_width = q_MHE.shape[1:]
        batch = self.groups * heads
        q = q_MHE.new_zeros(self.groups, heads, self.members, step.width, head_width)
        q[step.group_M, :, step.member_M, step.place_M] = q_MHE
        prefix_k, prefix_v = self.prefix[layer].flatten(1, 2)
        own_k, own_v = self.own[layer].flatten(1, 3)[:, :, : step.used]
        to_prefix = torch.bmm(q.view(batch, -1, head_width), prefix_k.transpose(1, 2))
        to_own = torch.bmm(q.view(-1, step.width, head_width), own_k.transpose(1, 2))
        split = self.prefix_length
        scores = torch.cat(
            (
                to_prefix.view(self.groups, heads, -1, split).add_(self.prefix_bias),
                to_own.view(*q.shape[:4], step.used).add_(step.bias).flatten(2, 3),
            ),
            dim=-1,
        )
        weight = scores.softmax(-1).view(batch, -1, split + step.used)
        out = torch.bmm(weight[..., :split], prefix_v)
        own_weight = weight[..., split:].view(batch, self.members, step.width, step.used).flatten(0, 1)
        out = out.view(-1, step.width, head_width) + torch.bmm(own_weight, own_v)
        return out.view(q.shape)[step.group_M, :, step.member_M, step.place_M].flatten(1)
