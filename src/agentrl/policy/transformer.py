"""TinyAgent's network: a decoder-only transformer of well under a million parameters.

RMSNorm, rotary positions, causal attention, squared-ReLU feed-forward, output tied to the embedding, and a value
head that can be switched on. One set of weights serves two forward passes: `forward` over a packed training batch,
and `advance` over a key-value cache while sampling.

Shape suffixes: M flat tokens, G groups, N conversations of a group, P prefix length, T own length, H heads,
E width of a head, D width, V vocabulary, B rows of a sampling step, W new tokens of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentrl.train.packing import Batch


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


class Output(NamedTuple):
    """What a training forward gives for the trained tokens: logits (K, V), and values (K,) where there is a head."""

    logits_KV: Tensor
    values_K: Tensor | None


def rotary_table(context: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (context, head_width / 2). Source: RoFormer (2104.09864), section 3.2.2."""
    frequency = 10000.0 ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * frequency[None, :]
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the two halves of the last axis of ``x`` by the angles of each position (broadcast over heads)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Block(nn.Module):
    """One layer, in two halves around an attention that the caller carries out."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.head_width = shape.head_width
        self.norm_attention = nn.RMSNorm(shape.width, eps=1e-6)
        self.norm_mlp = nn.RMSNorm(shape.width, eps=1e-6)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.up = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def project(self, x_MD: Tensor, cos_ME: Tensor, sin_ME: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (scaled), keys and values, each (M, H, E), queries and keys rotated to their positions."""
        qkv = self.qkv(self.norm_attention(x_MD)).view(-1, 3, self.heads, self.head_width)
        turned = rotate(qkv[:, :2], cos_ME[:, None, None], sin_ME[:, None, None])
        return turned[:, 0] / math.sqrt(self.head_width), turned[:, 1], qkv[:, 2]

    def finish(self, x_MD: Tensor, attended_MD: Tensor) -> Tensor:
        """Add the attention's result and the feed-forward's."""
        x_MD = x_MD + self.out(attended_MD)
        return x_MD + self.down(F.relu(self.up(self.norm_mlp(x_MD))).square())


class TinyTransformer(nn.Module):
    """The network. Weights are drawn from ``seed`` alone."""

    def __init__(self, shape: TransformerShape, *, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.value = nn.Linear(shape.width, 1) if shape.value_head else None
        cos, sin = rotary_table(shape.context, shape.head_width)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._draw_weights(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw_weights(self, generator: torch.Generator) -> None:
        """Normal weights; what writes to the residual stream starts smaller, by the depth (GPT-2)."""
        residual = 1.0 / math.sqrt(2 * self.shape.layers)
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                continue
            scale = 1.0 / math.sqrt(weight.shape[1])
            if name == "embedding.weight":
                scale = 0.05
            elif name.endswith(("out.weight", "down.weight")):
                scale *= residual
            weight.normal_(0.0, scale, generator=generator)

    @property
    def num_parameters(self) -> int:
        """Trainable numbers, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, batch: Batch) -> Output:
        """Logits (K, V) that predict each trained token of a packed batch; exact, each group's prefix paid once."""
        x_MD = self.embedding(batch.token_ids_M)
        cos_ME, sin_ME = self.cos[batch.positions_M], self.sin[batch.positions_M]
        attention = _PackedAttention(batch)
        for block in self.blocks:
            x_MD = block.finish(x_MD, attention(*block.project(x_MD, cos_ME, sin_ME)))
        x_KD = self.norm(x_MD[batch.predictor_K])
        return Output(x_KD @ self.embedding.weight.T, None if self.value is None else self.value(x_KD).squeeze(-1))


class _PackedAttention:
    """Causal attention in which a continuation sees its group's prefix and itself, and a prefix sees itself."""

    def __init__(self, batch: Batch) -> None:
        self.prefix_index, self.own_index = batch.prefix_index_GP, batch.own_index_GNT
        self.groups, self.members, self.length = self.own_index.shape
        prefix_length = self.prefix_index.shape[1]
        self.prefix_causal = _causal(prefix_length)
        prefix_hidden = ~batch.prefix_mask_GP[:, None, None, :]
        self.prefix_bias = torch.where(prefix_hidden | self.prefix_causal, -1e30, 0.0)
        self.own_prefix_bias = torch.where(prefix_hidden, -1e30, 0.0)
        self.own_bias = torch.where(_causal(self.length), -1e30, 0.0)
        flat = torch.zeros(len(batch.token_ids_M), dtype=torch.long)
        slots = self.prefix_index.numel() + torch.arange(self.own_index.numel()).view(self.own_index.shape)
        flat[self.prefix_index[batch.prefix_mask_GP]] = torch.arange(self.prefix_index.numel()).view(
            self.prefix_index.shape
        )[batch.prefix_mask_GP]
        flat[self.own_index[batch.own_mask_GNT]] = slots[batch.own_mask_GNT]
        self.back_M = flat

    def __call__(self, q_MHE: Tensor, k_MHE: Tensor, v_MHE: Tensor) -> Tensor:
        heads, width = q_MHE.shape[1:]
        qp, kp, vp = (x[self.prefix_index].transpose(1, 2) for x in (q_MHE, k_MHE, v_MHE))
        prefix = (qp @ kp.transpose(-1, -2) + self.prefix_bias).softmax(-1) @ vp
        own_shape = (self.groups, self.members * self.length, heads, width)
        qo = q_MHE[self.own_index].view(own_shape).transpose(1, 2)
        ko, vo = (x[self.own_index].transpose(2, 3) for x in (k_MHE, v_MHE))
        to_prefix = qo @ kp.transpose(-1, -2) + self.own_prefix_bias
        qn = qo.view(self.groups, heads, self.members, self.length, width).transpose(1, 2)
        to_own = (qn @ ko.transpose(-1, -2) + self.own_bias).transpose(1, 2).flatten(2, 3)
        weight = torch.cat((to_prefix, to_own), dim=-1).softmax(-1)
        split = to_prefix.shape[-1]
        own_weight = weight[..., split:].unflatten(2, (self.members, self.length)).transpose(1, 2)
        own = weight[..., :split] @ vp + (own_weight @ vo).transpose(1, 2).flatten(2, 3)
        padded = torch.cat((prefix.transpose(1, 2).reshape(-1, heads * width), own.transpose(1, 2).reshape(-1, heads * width)))
        return padded[self.back_M]


def _causal(length: int) -> Tensor:
    """True where a key lies after its query, (length, length)."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
