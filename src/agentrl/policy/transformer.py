"""TinyAgent's network: a decoder-only transformer of well under a million parameters.

RMSNorm, rotary positions, causal attention, squared-ReLU feed-forward, output tied to the embedding, and a value
head that can be switched on. One set of weights serves two forward passes: `forward` over a packed training batch,
and `advance` over new tokens of conversations while sampling.

Shape suffixes: M flat tokens, G groups, N conversations of a group, P prefix length, T own length, H heads,
E width of a head, D width, V vocabulary, B rows of a sampling step, W new tokens of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from agentrl.policy.base import Attend, Output, Policy
from agentrl.policy.kernels import pad_rows, rms_norm, rotate, squared_relu, unpad_rows
from agentrl.train.packing import Batch, Bucket

HIDDEN = -1e30
ROTARY_BASE = 100.0
"""Conversations have a hundred or two tokens; the usual base of 10,000 leaves half of the pairs without a turn."""


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """Sizes of the network. ``width`` must be a multiple of ``2 * heads`` (rotary positions turn pairs)."""

    vocab_size: int
    layers: int = 3
    width: int = 96
    heads: int = 4
    mlp_width: int = 384
    context: int = 256
    value_head: bool = False

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


def rotary_table(context: int, head_width: int) -> Tensor:
    """Complex numbers (context, 2, 1, head_width / 2) that turn each pair of a query or key to its position.

    Queries are scaled by the attention's 1 / sqrt(head_width) in the same product. Source: RoFormer (2104.09864),
    section 3.2.2.
    """
    frequency = ROTARY_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * frequency[None, :]
    length = torch.tensor([1.0 / math.sqrt(head_width), 1.0], dtype=torch.float64)[:, None, None]
    return torch.polar(length.expand(context, 2, 1, head_width // 2), angle[:, None, None]).to(torch.complex64)


class Block(nn.Module):
    """One layer, in two halves around an attention that the caller carries out."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.head_width = shape.head_width
        self.norm_attention = nn.Parameter(torch.ones(shape.width))
        self.norm_mlp = nn.Parameter(torch.ones(shape.width))
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.up = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def project(self, x_MD: Tensor, turn_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (scaled) and keys, rotated to their positions, and values, each (M, H, E)."""
        qkv = self.qkv(rms_norm(x_MD, self.norm_attention)).view(-1, 3, self.heads, self.head_width)
        q, k = rotate(qkv[:, :2], turn_M).unbind(1)
        return q, k, qkv[:, 2]

    def finish(self, x_MD: Tensor, attended_MD: Tensor) -> Tensor:
        """Add the attention's result and the feed-forward's."""
        x_MD = torch.addmm(x_MD, attended_MD, self.out.weight.T)
        hidden = squared_relu(self.up(rms_norm(x_MD, self.norm_mlp)))
        return torch.addmm(x_MD, hidden, self.down.weight.T)


class TinyTransformer(Policy):
    """The network. Weights are drawn from ``seed`` alone."""

    turn: Tensor
    sampling_threads = 1  # a step is too small to share, and the other cores run the tools meanwhile

    def __init__(self, shape: TransformerShape, *, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.previous = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.value = nn.Linear(shape.width, 1) if shape.value_head else None
        self.register_buffer("turn", rotary_table(shape.context, shape.head_width), persistent=False)
        self._draw_weights(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw_weights(self, generator: torch.Generator) -> None:
        """Normal weights; what writes to the residual stream starts smaller, by the depth (GPT-2)."""
        residual = 1.0 / math.sqrt(2 * self.shape.layers)
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                continue
            scale = 1.0 / math.sqrt(weight.shape[1])
            if name in ("embedding.weight", "previous.weight"):
                scale = 0.05
            elif name.endswith(("out.weight", "down.weight")):
                scale *= residual
            weight.normal_(0.0, scale, generator=generator)
        if self.value is not None:
            self.value.bias.zero_()

    @property
    def layers(self) -> Iterable[Block]:
        """The blocks, first to last."""
        return cast("Iterable[Block]", self.blocks)

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""
        return self.shape.context

    def advance(
        self, ids_M: Tensor, previous_ids_M: Tensor, positions_M: Tensor, attend: Attend, last_B: Tensor
    ) -> Tensor:
        """The forward pass over new tokens of several conversations; see `Policy.advance`."""
        x_MD = self.embed(ids_M, previous_ids_M)
        turn_M = self.turn[positions_M]
        for layer, block in enumerate(self.layers):
            x_MD = block.finish(x_MD, attend(layer, *block.project(x_MD, turn_M)))
        return self.logits(self.final(x_MD[last_B]))

    def forward(self, batch: Batch) -> Output:
        """What predicts each trained token of a packed batch; exact, each group's prefix paid once."""
        x_MD = self.embed(batch.token_ids_M, batch.previous_ids_M)
        turn_M = self.turn[batch.positions_M]
        attention = _PackedAttention(batch)
        for block in self.layers:
            x_MD = block.finish(x_MD, attention(*block.project(x_MD, turn_M)))
        x_KD = self.final(x_MD.index_select(0, batch.predictor_K))
        values_K = None if self.value is None else self.value(x_KD).squeeze(-1)
        return Output(hidden_KD=x_KD, projection_VD=self.embedding.weight, values_K=values_K)

    def matrices(self) -> list[nn.Parameter]:
        """Those of the blocks, for Muon."""
        return [parameter for block in self.layers for parameter in block.parameters() if parameter.ndim == 2]

    def embed(self, token_ids_M: Tensor, previous_ids_M: Tensor) -> Tensor:
        """Each token's vector, with one for the token before it: copying then takes one layer instead of two, which
        a run of a minute notices (held-out repairs after 33 s of supervised learning rose from 0.52 to 0.71)."""
        x_MD: Tensor = self.embedding(token_ids_M) + self.previous(previous_ids_M)
        return x_MD

    def final(self, x_MD: Tensor) -> Tensor:
        """The last normalisation."""
        return rms_norm(x_MD, self.norm)

    def logits(self, x_MD: Tensor) -> Tensor:
        """Scores of all words (M, V) after the last normalisation."""
        return x_MD @ self.embedding.weight.T


class _PackedAttention:
    """Causal attention in which a continuation sees its group's prefix and itself, and a prefix sees itself.

    The flat axis is laid out once as padded rows: first all prefixes (G, P), then bucket after bucket (R, T).
    """

    def __init__(self, batch: Batch) -> None:
        self.buckets = batch.buckets
        self.groups, self.prefix = batch.prefix_index_GP.shape
        indices = (batch.prefix_index_GP, *(bucket.index_RT for bucket in batch.buckets))
        masks = (batch.prefix_mask_GP, *(bucket.mask_RT for bucket in batch.buckets))
        self.sizes = [index.numel() for index in indices]
        self.index = torch.cat([index.flatten() for index in indices])
        filled = torch.cat([mask.flatten() for mask in masks])
        self.empty = (~filled).nonzero().squeeze(-1)
        self.row_M = torch.empty(len(batch.token_ids_M), dtype=torch.long)
        self.row_M[self.index[filled]] = filled.nonzero().squeeze(-1)
        hidden = ~batch.prefix_mask_GP[:, None, None, :]
        self.prefix_bias = torch.where(hidden | _later(self.prefix), HIDDEN, 0.0)
        self.cross_bias = torch.where(hidden, HIDDEN, 0.0)

    def __call__(self, q_MHE: Tensor, k_MHE: Tensor, v_MHE: Tensor) -> Tensor:
        heads, width = v_MHE.shape[1:]
        padded = (pad_rows(x.flatten(1), self.index, self.row_M) for x in (q_MHE, k_MHE, v_MHE))
        parts = list(zip(*(torch.split(x.view(-1, heads, width), self.sizes) for x in padded), strict=True))
        q, k, v = (x.view(self.groups, self.prefix, heads, width).transpose(1, 2) for x in parts[0])
        out = [attend(q, k, v, self.prefix_bias).transpose(1, 2).reshape(-1, heads * width)]
        for bucket, part in zip(self.buckets, parts[1:], strict=True):
            own = [x.view(*bucket.index_RT.shape, heads, width).transpose(1, 2) for x in part]
            attended = self._continue(bucket, own, k, v)
            out.append(attended.transpose(1, 2).reshape(-1, heads * width))
        return unpad_rows(torch.cat(out), self.index, self.row_M, self.empty)

    def _continue(self, bucket: Bucket, own: Sequence[Tensor], prefix_k: Tensor, prefix_v: Tensor) -> Tensor:
        """Own queries (R, H, T, E) over the keys of the group's prefix (G, H, P, E) and over their own."""
        q, k, v = own
        prefix_k, prefix_v = (x.index_select(0, bucket.group_R) for x in (prefix_k, prefix_v))
        to_prefix = q @ prefix_k.transpose(-1, -2) + self.cross_bias.index_select(0, bucket.group_R)
        to_own = q @ k.transpose(-1, -2) + torch.where(_later(q.shape[2]), HIDDEN, 0.0)
        weight = torch.cat((to_prefix, to_own), dim=-1).softmax(-1)
        return weight[..., : self.prefix] @ prefix_v + weight[..., self.prefix :] @ v


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Softmax attention over the last two axes, ``bias`` added to the scores; queries come scaled."""
    return (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v


def _later(length: int) -> Tensor:
    """True where a key lies after its query, (length, length)."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
