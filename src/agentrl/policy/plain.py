"""The forward pass of plain decoders while sampling, in a fraction of the operations.

A step of sampling computes a token for each of some dozens of conversations. In small models the time then goes into
starting operations: a layer of `transformers` starts about seventy. Models that are nothing but RMS norms, rotary
positions, attention and a gated feed-forward are computed here with about twenty-five, or with a dozen where
`agentrl.policy.native` can be had, by the model's own projections, so that adapters and biases take part. Whether a
model is one is decided by its type and then by its numbers: where they differ from those of its own layers, its own
layers are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from agentrl.policy.base import Attend
from agentrl.policy.compiled import refuse
from agentrl.policy.native import SOURCE, Kernels, Turns, kernels
from agentrl.policy.segments import NotPlain, segments

PLAIN_TYPES = frozenset({"llama", "qwen2", "qwen3"})
"""Model types whose layers are computed here."""
PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
"""Of a layer; adapters stand in their place."""
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
    if not is_plain(base):
        return own
    if base.device.type == "meta":
        return _Plain(base)
    for way in plain_ways(base):
        if _agree(base, way, own):
            return way
        if isinstance(way, _Compiled):
            refuse(SOURCE, "the model's own layers")
    return own


def plain_ways(base: Any) -> list[_Plain | _Compiled]:
    """The forward passes that can be had for a model that `is_plain`, the quickest first."""
    here = base.device.type == "cpu" and base.dtype == torch.float32
    found = kernels(base.layers[0].self_attn.head_dim) if here else None
    return [*([_Compiled(base, found)] if found else []), _Plain(base)]


def is_plain(base: Any, dtypes: frozenset[torch.dtype] = frozenset({torch.float32})) -> bool:
    """Whether a decoder's type is one of those that are computed here, with weights of these types alone."""
    config, found = base.config, {parameter.dtype for parameter in base.parameters()}
    return config.model_type in PLAIN_TYPES and config.hidden_act == "silu" and found <= dtypes


def uncalled(base: Any) -> Iterator[nn.Module]:
    """The modules that are computed here without being called, so that hooks on them would not be: all but embeddings,
    rotary positions and projections."""
    yield from (base, base.norm)
    for layer in base.layers:
        yield layer
        for parent in (layer, layer.self_attn, layer.mlp):
            yield from (part for name, part in parent.named_children() if name not in PROJECTIONS)


def is_bare(module: nn.Module) -> bool:
    """No hooks on what it is given and gives, and no other forward pass than that of its type."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _agree(base: Any, quick: Forward, own: Forward) -> bool:
    ours, theirs = probe(base, quick), probe(base, own)
    return same_numbers(ours.hidden_MD, theirs.hidden_MD) and ours.windows == theirs.windows


def same_numbers(ours: Tensor, theirs: Tensor) -> bool:
    """Within `TOLERANCE`; never of what is not finite."""
    return bool((ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max())


class Probe(NamedTuple):
    """What a forward pass gave.

    Attributes:
        hidden_MD: the hidden states.
        windows: each layer in the order in which it attended, and how far it saw.
    """

    hidden_MD: Tensor
    windows: list[tuple[int, int | None]]


@torch.no_grad()
def probe(base: Any, way: Forward, *, count: int = 24, first: int = 0) -> Probe:
    """Compute a few tokens, each of which attends to itself and the one before.

    Args:
        base: the model without its output projection.
        way: computes them.
        count: how many.
        first: the first of their ids; they go up from there.
    """
    place_M = torch.arange(count, device=base.device)
    windows: list[tuple[int, int | None]] = []

    def attend(layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:
        windows.append((layer, window))
        shared = q_MHE.shape[1] // k_MKE.shape[1]
        k_MHE, v_MHE = (x.repeat_interleave(shared, 1) for x in (k_MKE, v_MKE))
        share = torch.sigmoid((q_MHE * (k_MHE - k_MHE.roll(1, 0))).sum(-1, keepdim=True))
        return (share * v_MHE + (1 - share) * v_MHE.roll(1, 0)).flatten(1)

    return Probe(way((first + place_M) % base.config.vocab_size, 3 * place_M % 40, attend), windows)


class _Plain:
    """See `plain_forward`."""

    name = "plain operations"

    def __init__(self, base: Any) -> None:
        self.base = base

    def __call__(self, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
        base = self.base
        x_MD = base.embed_tokens(ids_M)
        turns = signed_turns(base, x_MD, positions_M)
        for number, layer in enumerate(base.layers):
            q, k, v = before_attention(layer, x_MD, *turns)
            attended = attend(number, q, k, v, window=getattr(layer.self_attn, "sliding_window", None))
            x_MD = after_attention(layer, x_MD, attended)
        return normed(base.norm, x_MD)


class _Compiled:
    """The same with what lies between matrix products in C."""

    name = "plain operations in C"

    def __init__(self, base: Any, kernels: Kernels) -> None:
        self.base, self.kernels, self.by_torch = base, kernels, _Plain(base)
        self.turns_TE: tuple[Tensor, Tensor] | None = None
        self.segments = segments(base, kernels)

    def __call__(self, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
        many = len(ids_M) > MANY_TOKENS and torch.get_num_threads() > 1
        x_MD = self.base.embed_tokens(ids_M)
        if many or x_MD.dtype != torch.float32 or x_MD.device.type != "cpu":  # the model was moved meanwhile
            return self.by_torch(ids_M, positions_M, attend)
        # A module's attributes are found by a search that takes as long as a norm, so its parts are looked up.
        layers, native = [layer._modules for layer in self.base.layers], self.kernels
        turns = self._turns(x_MD, positions_M)
        try:
            if self.segments is not None:
                return self.segments(x_MD, turns, attend)
        except NotPlain:
            pass
        before = [parts["input_layernorm"] for parts in layers[1:]] + [self.base.norm]
        hidden = self._normed(x_MD, None, layers[0]["input_layernorm"])
        for number, (parts, norm) in enumerate(zip(layers, before, strict=True)):
            attention, mlp = parts["self_attn"], parts["mlp"]._modules
            own, width = attention._modules, attention.head_dim
            q, k, v = (
                (projected := _project(own[name], hidden)).view(len(projected), -1, width)
                for name in ("q_proj", "k_proj", "v_proj")
            )
            q = self._rotate(q, own.get("q_norm"), attention.scaling, turns)
            k = self._rotate(k, own.get("k_norm"), 1.0, turns)
            attended = attend(number, q, k, v, window=getattr(attention, "sliding_window", None))
            hidden = self._normed(x_MD, _project(own["o_proj"], attended), parts["post_attention_layernorm"])
            gated = native.gate(_project(mlp["gate_proj"], hidden), _project(mlp["up_proj"], hidden))
            hidden = self._normed(x_MD, _project(mlp["down_proj"], gated), norm)
        return hidden

    def _normed(self, x_MD: Tensor, added_MD: Tensor | None, norm: Any) -> Tensor:
        return self.kernels.add_norm(x_MD, added_MD, norm._parameters["weight"], norm.variance_epsilon)

    def _rotate(self, x_MHE: Tensor, norm: Any, factor: float, turns: Turns) -> Tensor:
        weight, epsilon = (None, 0.0) if norm is None else (norm._parameters["weight"], norm.variance_epsilon)
        return self.kernels.rotate(x_MHE, weight, epsilon, factor, turns)

    def _turns(self, x_MD: Tensor, positions_M: Tensor) -> Turns:
        """Of positions as far as they go, computed anew when they go further."""
        longest = int(positions_M.max()) + 1
        if self.turns_TE is None or len(self.turns_TE[0]) < longest:
            every_1T = torch.arange(1 << (longest - 1).bit_length(), device=x_MD.device)[None]
            cosines, sines = (x[0].contiguous() for x in self.base.rotary_emb(x_MD[None], every_1T))
            self.turns_TE = cosines, sines
        return Turns(positions_M=positions_M, cosines_TE=self.turns_TE[0], sines_TE=self.turns_TE[1])


def _project(module: Any, x_MD: Tensor) -> Tensor:
    """What a module gives; of a plain projection without the way there, which takes as long as a norm too."""
    if type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
        out_MD: Tensor = module(x_MD)
        return out_MD
    given: Any = module._parameters
    return linear(x_MD, given["weight"], given["bias"])


def _heads(attention: Any, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (M, heads, width), as they are projected."""
    q, k, v = (
        project(x_MD).unflatten(-1, (-1, attention.head_dim))
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return q, k, v


def signed_turns(base: Any, x_MD: Tensor, positions_M: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (M, 1, E) of positions, sines with the sign that each half of a head takes them with."""
    cos_M1E, sin_M1E = (x[0, :, None] for x in base.rotary_emb(x_MD[None], positions_M[None]))
    half = cos_M1E.shape[-1] // 2
    return cos_M1E, torch.cat((-sin_M1E[..., :half], sin_M1E[..., half:]), dim=-1)


def before_attention(layer: Any, x_MD: Tensor, cos_M1E: Tensor, sin_M1E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (M, heads, width) of a layer: normed, turned by their positions, queries scaled."""
    attention, half = layer.self_attn, cos_M1E.shape[-1] // 2
    q, k, v = _heads(attention, normed(layer.input_layernorm, x_MD))
    if hasattr(attention, "q_norm"):
        q, k = normed(attention.q_norm, q), normed(attention.k_norm, k)
    q, k = (x * cos_M1E + x.roll(half, -1) * sin_M1E for x in (q, k))
    return q * attention.scaling, k, v


def after_attention(layer: Any, x_MD: Tensor, attended_MD: Tensor) -> Tensor:
    """What a layer gives (M, D)."""
    mlp = layer.mlp
    x_MD = x_MD + layer.self_attn.o_proj(attended_MD)
    hidden_MD = normed(layer.post_attention_layernorm, x_MD)
    gated_MF = silu(mlp.gate_proj(hidden_MD)).mul_(mlp.up_proj(hidden_MD))
    out_MD: Tensor = x_MD + mlp.down_proj(gated_MF)
    return out_MD


def normed(norm: Any, x: Tensor) -> Tensor:
    """The RMS norm of the last axis."""
    return rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
