"""The forward pass of plain decoders while sampling, in a third of the operations.

A step of sampling computes a token for each of some dozens of conversations. In small models the time then goes into
starting operations: a layer of `transformers` starts about seventy. Models that are nothing but RMS norms, rotary
positions, attention and a gated feed-forward are computed here with about twenty-five, by the model's own projections,
so that adapters and biases take part. Whether a model is one is decided by its type and then by its numbers: where they
differ from those of its own layers, its own layers are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from agentrl.policy.base import Attend

PLAIN_TYPES = frozenset({"llama", "qwen2", "qwen3"})
"""Model types whose layers are computed here."""
TOLERANCE = 1e-5
"""Most that hidden states may differ from those of the model's own layers, relative to the largest of them."""

Forward = Callable[[Tensor, Tensor, Attend], Tensor]


def plain_forward(base: Any, own: Forward) -> Forward:
    """The quicker of two forward passes that give the same hidden states (M, D) of ids and positions (M).

    Args:
        base: the model without its output projection.
        own: its own layers.
    """
    if not _is_plain(base):
        return own
    quick = _Plain(base)
    return quick if base.device.type == "meta" or _agree(base, quick, own) else own


def _is_plain(base: Any) -> bool:
    config = base.config
    floats = {parameter.dtype for parameter in base.parameters()} == {torch.float32}
    return config.model_type in PLAIN_TYPES and config.hidden_act == "silu" and floats


@torch.no_grad()
def _agree(base: Any, quick: Forward, own: Forward) -> bool:
    """Compare on a few tokens, each of which attends to itself and the one before, and how far each layer sees."""
    count = min(24, base.config.vocab_size)
    ids = torch.arange(count, device=base.device)
    positions = 3 * ids % 40
    windows: list[tuple[int, int | None]] = []

    def attend(layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:
        windows.append((layer, window))
        shared = q_MHE.shape[1] // k_MKE.shape[1]
        k_MHE, v_MHE = (x.repeat_interleave(shared, 1) for x in (k_MKE, v_MKE))
        share = torch.sigmoid((q_MHE * (k_MHE - k_MHE.roll(1, 0))).sum(-1, keepdim=True))
        return (share * v_MHE + (1 - share) * v_MHE.roll(1, 0)).flatten(1)

    ours, theirs = quick(ids, positions, attend), own(ids, positions, attend)
    near = (ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max()
    return bool(near) and windows[: len(windows) // 2] == windows[len(windows) // 2 :]


class _Plain:
    """See `plain_forward`."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __call__(self, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
        base = self.base
        x_MD = base.embed_tokens(ids_M)
        cos, sin = (x[0, :, None] for x in base.rotary_emb(x_MD[None], positions_M[None]))
        half = cos.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        for number, layer in enumerate(base.layers):
            attention, mlp = layer.self_attn, layer.mlp
            q, k, v = _project(attention, _norm(layer.input_layernorm, x_MD))
            q, k = (x * cos + x.roll(half, -1) * sin for x in (q, k))
            window = getattr(attention, "sliding_window", None)
            x_MD = x_MD + attention.o_proj(attend(number, q * attention.scaling, k, v, window=window))
            hidden = _norm(layer.post_attention_layernorm, x_MD)
            x_MD = x_MD + mlp.down_proj(torch.nn.functional.silu(mlp.gate_proj(hidden)).mul_(mlp.up_proj(hidden)))
        return _norm(base.norm, x_MD)


def _project(attention: Any, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (M, heads, width), normed where the model norms them."""
    q, k, v = (
        project(x_MD).unflatten(-1, (-1, attention.head_dim))
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
    return q, k, v


def _norm(norm: Any, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
