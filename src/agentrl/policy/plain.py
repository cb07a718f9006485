"""The forward pass of plain decoders while sampling, in a fraction of the operations.

A step of sampling computes a token for each of some dozens of conversations. In small models the time then goes into
starting operations: a layer of `transformers` starts about seventy. Models that are nothing but RMS norms, rotary
positions, attention and a gated feed-forward are computed here with about twenty-five, or with a dozen where
`agentrl.policy.native` can be had, by the model's own projections, so that adapters and biases take part. Whether a
model is one is decided by its type and then by its numbers: where they differ from those of its own layers, its own
layers are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from agentrl.policy.base import Attend
from agentrl.policy.native import Kernels, Turns, kernels

PLAIN_TYPES = frozenset({"llama", "qwen2", "qwen3"})
"""Model types whose layers are computed here."""
MANY_TOKENS = 512
"""From here on operations are long enough to be shared by threads, which torch does."""
TOLERANCE = 1e-5
"""Most that hidden states may differ from those of the model's own layers, relative to the largest of them."""

Forward = Callable[[Tensor, Tensor, Attend], Tensor]


def plain_forward(base: Any, own: Forward) -> Forward:
    """The quickest of three forward passes that give the same hidden states (M, D) of ids and positions (M).

    Args:
        base: the model without its output projection.
        own: its own layers.
    """
    if not _is_plain(base):
        return own
    quick = _Plain(base)
    if base.device.type == "meta":
        return quick
    found = kernels(base.layers[0].self_attn.head_dim) if base.device.type == "cpu" else None
    ways: list[Forward] = [*([_Compiled(base, found)] if found else []), quick]
    return next((way for way in ways if _agree(base, way, own)), own)


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


class _Compiled:
    """The same with what lies between matrix products in C."""

    def __init__(self, base: Any, kernels: Kernels) -> None:
        self.base, self.kernels, self.by_torch = base, kernels, _Plain(base)
        self.turns_TE: tuple[Tensor, Tensor] | None = None

    def __call__(self, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
        many = len(ids_M) > MANY_TOKENS and torch.get_num_threads() > 1
        x_MD = self.base.embed_tokens(ids_M)
        if many or x_MD.dtype != torch.float32 or x_MD.device.type != "cpu":  # the model was moved meanwhile
            return self.by_torch(ids_M, positions_M, attend)
        layers, native = self.base.layers, self.kernels
        turns = self._turns(x_MD, positions_M)
        before = [layer.input_layernorm for layer in layers[1:]] + [self.base.norm]
        hidden = self._normed(x_MD, None, layers[0].input_layernorm)
        for number, (layer, norm) in enumerate(zip(layers, before, strict=True)):
            attention, mlp = layer.self_attn, layer.mlp
            q, k, v = _heads(attention, hidden)
            q = self._rotate(q, attention, "q_norm", attention.scaling, turns)
            k = self._rotate(k, attention, "k_norm", 1.0, turns)
            attended = attend(number, q, k, v, window=getattr(attention, "sliding_window", None))
            hidden = self._normed(x_MD, attention.o_proj(attended), layer.post_attention_layernorm)
            gated = native.gate(mlp.gate_proj(hidden), mlp.up_proj(hidden))
            hidden = self._normed(x_MD, mlp.down_proj(gated), norm)
        return hidden

    def _normed(self, x_MD: Tensor, added_MD: Tensor | None, norm: Any) -> Tensor:
        return self.kernels.add_norm(x_MD, added_MD, norm.weight, norm.variance_epsilon)

    def _rotate(self, x_MHE: Tensor, attention: Any, name: str, factor: float, turns: Turns) -> Tensor:
        norm = getattr(attention, name, None)
        weight, epsilon = (None, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
        return self.kernels.rotate(x_MHE, weight, epsilon, factor, turns)

    def _turns(self, x_MD: Tensor, positions_M: Tensor) -> Turns:
        """Of positions as far as they go, computed anew when they go further."""
        longest = int(positions_M.max()) + 1
        if self.turns_TE is None or len(self.turns_TE[0]) < longest:
            every_1T = torch.arange(1 << (longest - 1).bit_length(), device=x_MD.device)[None]
            cosines, sines = (x[0].contiguous() for x in self.base.rotary_emb(x_MD[None], every_1T))
            self.turns_TE = cosines, sines
        return Turns(positions_M=positions_M, cosines_TE=self.turns_TE[0], sines_TE=self.turns_TE[1])


def _heads(attention: Any, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (M, heads, width), as they are projected."""
    q, k, v = (
        project(x_MD).unflatten(-1, (-1, attention.head_dim))
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return q, k, v


def _project(attention: Any, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (M, heads, width), normed where the model norms them."""
    q, k, v = _heads(attention, x_MD)
    if hasattr(attention, "q_norm"):
        q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
    return q, k, v


def _norm(norm: Any, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
