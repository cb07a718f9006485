"""The key-value cache of many conversations, and the step that advances them.

Conversations are slots of groups: slot (g, n) is the n-th conversation of group g. What a group shares (its prompt)
is stored once; what a conversation adds lies in its own row. Nothing is copied to attend: queries of all slots meet
the caches where they lie.

Shape suffixes as in transformer.py; S = G * N slots, B rows of one step, W new tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.errors import SamplerError
from agentrl.policy.transformer import TinyTransformer


class ConversationCache:
    """Keys and values of ``groups * members`` conversations, for one version of the weights."""

    def __init__(self, model: TinyTransformer, *, groups: int, members: int, prefix_length: int) -> None:
        shape = model.shape
        self.model = model
        self.groups, self.members = groups, members
        self.prefix_length, self.length = prefix_length, 0
        weight = model.embedding.weight
        prefix = (shape.layers, groups, shape.heads, prefix_length, shape.head_width)
        own = (shape.layers, groups * members, shape.heads, 0, shape.head_width)
        self.prefix_k, self.prefix_v = weight.new_zeros(prefix), weight.new_zeros(prefix)
        self.own_k, self.own_v = weight.new_zeros(own), weight.new_zeros(own)
        self.prefix_lengths_G = torch.zeros(groups, dtype=torch.long)
        self.lengths_S = torch.zeros(groups * members, dtype=torch.long)
        self.prefix_bias = weight.new_zeros(groups, 1, 1, prefix_length)

    @torch.inference_mode()
    def prefill_prefixes(self, prefixes: Sequence[Sequence[int]]) -> Tensor:
        """Compute each group's prompt once. Returns the logits (G, V) that follow it.

        Raises:
            SamplerError: a prompt longer than the network's context.
        """
        if self.prefix_length > self.model.shape.context:
            raise SamplerError(f"a prompt of {self.prefix_length} tokens exceeds the context of {self.model.shape.context}")
        ids_GP = torch.zeros(self.groups, self.prefix_length, dtype=torch.long)
        for g, prefix in enumerate(prefixes):
            ids_GP[g, : len(prefix)] = torch.tensor(prefix)
        self.prefix_lengths_G = torch.tensor([len(prefix) for prefix in prefixes])
        column_P = torch.arange(self.prefix_length)
        padding = column_P >= self.prefix_lengths_G[:, None]
        self.prefix_bias = torch.where(padding, -1e30, 0.0)[:, None, None, :]
        bias = self.prefix_bias + torch.where(column_P[None, :] > column_P[:, None], -1e30, 0.0)
        model, shape = self.model, self.model.shape
        x_MD = model.embedding(ids_GP.flatten())
        cos, sin = (t[: self.prefix_length].repeat(self.groups, 1) for t in (model.cos, model.sin))
        split = (self.groups, self.prefix_length, shape.heads, shape.head_width)
        for layer, block in enumerate(model.blocks):
            q, k, v = (t.reshape(split).transpose(1, 2) for t in block.project(x_MD, cos, sin))
            self.prefix_k[layer], self.prefix_v[layer] = k, v
            attended = (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v
            x_MD = block.finish(x_MD, attended.transpose(1, 2).reshape(-1, shape.width))
        last = torch.arange(self.groups) * self.prefix_length + self.prefix_lengths_G - 1
        return model.norm(x_MD[last]) @ model.embedding.weight.T

    @torch.inference_mode()
    def advance(self, slots: Tensor, ids_BW: Tensor, widths_B: Tensor) -> Tensor:
        """Append ``widths_B`` new tokens to each slot. Returns the logits (B, V) after the last new token.

        Raises:
            SamplerError: a conversation would exceed the network's context.
        """
        rows, width = ids_BW.shape
        start_B = self.lengths_S[slots]
        model, shape = self.model, self.model.shape
        group_B = slots // self.members
        used = int((start_B + widths_B).max())
        if int((self.prefix_lengths_G[group_B] + start_B + widths_B).max()) > shape.context:
            raise SamplerError(f"a conversation exceeds the network's context of {shape.context} tokens")
        self._grow(used)
        own_BW = start_B[:, None] + torch.arange(width)
        own_BW = own_BW.clamp(max=self.length - 1)
        position_BW = self.prefix_lengths_G[group_B][:, None] + own_BW
        cos, sin = model.cos[position_BW].flatten(0, 1), model.sin[position_BW].flatten(0, 1)
        valid_BW = torch.arange(width) < widths_B[:, None]
        slot_M, own_M = slots.repeat_interleave(width)[valid_BW.flatten()], own_BW[valid_BW]
        hidden = torch.arange(used)[None, None, :] > own_BW[:, :, None]
        bias_BWT = torch.where(hidden, -1e30, 0.0)
        x_MD = model.embedding(ids_BW.flatten())
        attend = self._attend_all if 3 * rows >= self.groups * self.members else self._attend_rows
        for layer, block in enumerate(model.blocks):
            q, k, v = block.project(x_MD, cos, sin)
            keep = valid_BW.flatten()
            self.own_k[layer][slot_M, :, own_M] = k[keep]
            self.own_v[layer][slot_M, :, own_M] = v[keep]
            attended = attend(layer, q.view(rows, width, shape.heads, shape.head_width), slots, group_B, bias_BWT, used)
            x_MD = block.finish(x_MD, attended)
        self.lengths_S[slots] = start_B + widths_B
        last = torch.arange(rows) * width + widths_B - 1
        return model.norm(x_MD[last]) @ model.embedding.weight.T

    def _grow(self, length: int) -> None:
        """Make room for ``length`` tokens after the prompt, in steps of doubling."""
        if length <= self.length:
            return
        self.length = max(32, 2 * self.length, length)
        for name in ("own_k", "own_v"):
            old = getattr(self, name)
            new = old.new_zeros((*old.shape[:3], self.length, old.shape[4]))
            new[:, :, :, : old.shape[3]] = old
            setattr(self, name, new)

    def _attend_rows(
        self, layer: int, q_BWHE: Tensor, slots: Tensor, group_B: Tensor, bias_BWT: Tensor, used: int
    ) -> Tensor:
        """Attention of several new tokens a row, over gathered caches."""
        q = q_BWHE.transpose(1, 2)
        own_k = self.own_k[layer][slots, :, :used]
        own_v = self.own_v[layer][slots, :, :used]
        to_prefix = q @ self.prefix_k[layer][group_B].transpose(-1, -2) + self.prefix_bias[group_B]
        to_own = q @ own_k.transpose(-1, -2) + bias_BWT[:, None]
        weight = torch.cat((to_prefix, to_own), dim=-1).softmax(-1)
        split = self.prefix_length
        out = weight[..., :split] @ self.prefix_v[layer][group_B] + weight[..., split:] @ own_v
        return out.transpose(1, 2).flatten(2).flatten(0, 1)

    def _attend_all(
        self, layer: int, q_BWHE: Tensor, slots: Tensor, group_B: Tensor, bias_BWT: Tensor, used: int  # noqa: ARG002
    ) -> Tensor:
        """Attention with the queries put at their slots, so that no cache is copied."""
        size, (_, width, heads, head_width) = self.groups * self.members, q_BWHE.shape
        q = q_BWHE.new_zeros(size, heads, width, head_width)
        q[slots] = q_BWHE.transpose(1, 2)
        bias = q.new_zeros(size, 1, width, used)
        bias[slots, 0] = bias_BWT
        to_own = q @ self.own_k[layer][:, :, :used].transpose(-1, -2) + bias
        to_prefix = self._by_group(q) @ self.prefix_k[layer].transpose(-1, -2) + self.prefix_bias
        weight = torch.cat((self._by_slot(to_prefix, width), to_own), dim=-1).softmax(-1)
        split = self.prefix_length
        from_prefix = self._by_group(weight[..., :split]) @ self.prefix_v[layer]
        out = self._by_slot(from_prefix, width) + weight[..., split:] @ self.own_v[layer][:, :, :used]
        return out[slots].transpose(1, 2).flatten(2).flatten(0, 1)

    def _by_group(self, x_SHWE: Tensor) -> Tensor:
        """(S, H, W, E) to (G, H, N * W, E)."""
        return x_SHWE.unflatten(0, (self.groups, self.members)).transpose(1, 2).flatten(2, 3)

    def _by_slot(self, x: Tensor, width: int) -> Tensor:
        """(G, H, N * W, E) to (S, H, W, E)."""
        return x.unflatten(2, (self.members, width)).transpose(1, 2).flatten(0, 1)
