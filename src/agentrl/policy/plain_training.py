"""The forward pass of plain decoders in training, where the one of `plain.py` is that of sampling.

Models that are nothing but RMS norms, rotary positions, attention and a gated feed-forward are computed by the two
halves of `ops.py` around our attention, in float32 on the CPU, if what was compiled of them gives the numbers of their
formulas. Whether a model is one is decided by its type, then by its numbers and gradients beside those of its own
layers; whether its layers are still as they were, before each pass: adapters, hooks, other types of weights, layers
that are computed again, and autocast have the model's own layers.

In the last layer nothing but keys and values is wanted of tokens that predict nothing, so that the rest is computed at
the others alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from agentrl.policy.compiled import refuse
from agentrl.policy.kernels import rms_norm
from agentrl.policy.ops import SOURCE, Affine, Norm, Turn, finish, kernels, project
from agentrl.policy.plain import PLAIN_TYPES, TOLERANCE, Forward, is_bare

GRADIENT_TOLERANCE = 1e-4
"""Most that a gradient may differ from that of the model's own layers, relative to the largest number in it."""
_LEAST = 1e-2
"""Gradients are compared as if their largest number were no less than this share of the largest of all."""


class AttendPacked(Protocol):
    """Causal attention of all tokens of a batch."""

    def __call__(
        self, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, scale: float, window: int | None, last: bool
    ) -> Tensor:
        """The attended values (M, H * E), or (K, H * E) at the wanted tokens.

        Args:
            q_MHE: queries; H a multiple of the K heads of keys.
            k_MKE: keys.
            v_MKE: values.
            scale: of the scores.
            window: how many tokens back a query sees, itself included; None for all.
            last: whether this is the last layer, where the wanted tokens alone are asked for.
        """
        ...


class PlainTraining:
    """Hidden states of a plain decoder.

    Args:
        base: the model without its output projection.
    """

    def __init__(self, base: Any) -> None:
        self.base = base

    @property
    def ready(self) -> bool:
        """Whether the layers compute now what is computed here."""
        base = self.base
        if torch.is_autocast_enabled("cpu") or not (_is_bare(base) and _is_bare(base.norm)):
            return False
        return all(map(_is_plain_layer, base.layers))

    def __call__(self, ids_M: Tensor, positions_M: Tensor, attend: AttendPacked, wanted_K: Tensor) -> Tensor:
        """Last hidden states (K, D) at some of the tokens.

        Args:
            ids_M: the tokens.
            positions_M: the place of each in its sequence.
            attend: called once in each layer.
            wanted_K: their places in M; ``attend`` knows them too.
        """
        base = self.base
        x_MD = base.embed_tokens(ids_M)
        turn = Turn(*(x[0] for x in base.rotary_emb(x_MD[None], positions_M[None])))
        for number, layer in enumerate(base.layers):
            attention, mlp = layer.self_attn, layer.mlp
            qkv = [_affine(part) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
            q, k, v = project(x_MD, _norm(layer.input_layernorm), qkv, _head_norms(attention), turn)
            window, last = getattr(attention, "sliding_window", None), number == len(base.layers) - 1
            attended = attend(q, k, v, scale=attention.scaling, window=window, last=last)
            if last:
                x_MD = x_MD.index_select(0, wanted_K)
            out, *three = (_affine(part) for part in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj))
            x_MD = finish(x_MD, attended, out, _norm(layer.post_attention_layernorm), *three)
        return rms_norm(x_MD, *_norm(base.norm))


def plain_training(base: Any, own: Forward) -> PlainTraining | None:
    """The quick pass, where it gives the numbers and gradients of the model's own layers.

    Args:
        base: the model without its output projection.
        own: hidden states (M, D) of ids and positions (M) by its own layers.
    """
    config = base.config
    if config.model_type not in PLAIN_TYPES or config.hidden_act != "silu":
        return None
    quick = PlainTraining(base)
    if not quick.ready or kernels(torch.float32) is None:
        return None
    if base.device.type == "meta":  # no numbers to compare
        return quick
    if not _halves_agree():
        refuse(SOURCE, "its formulas")
    elif not _agrees(quick, own):
        refuse(SOURCE, "the model's own layers")
    else:
        return quick
    return None


# Whether a layer is one.


def _is_plain_layer(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, gate_up = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)
    projections = (*qkv, *gate_up, attention.o_proj, mlp.down_proj)
    norms = (layer.input_layernorm, layer.post_attention_layernorm, *_modules(attention, ("q_norm", "k_norm")))
    return (
        not (layer.training and getattr(layer, "gradient_checkpointing", False))
        and all(map(_is_bare, (layer, attention, mlp, *projections, *norms)))
        and all(type(part) is nn.Linear for part in projections)
        and all(len({part.bias is None for part in parts}) == 1 for parts in (qkv, gate_up))
        and all(map(_is_single, (*(part.weight for part in projections), *(norm.weight for norm in norms))))
    )


def _is_bare(module: nn.Module) -> bool:
    """As `is_bare`, and no hooks on gradients."""
    return is_bare(module) and not (module._backward_hooks or module._backward_pre_hooks)


def _is_single(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type in {"cpu", "meta"} and weight.is_contiguous()


def _modules(parent: nn.Module, names: Sequence[str]) -> Iterator[nn.Module]:
    return (getattr(parent, name) for name in names if hasattr(parent, name))


def _affine(linear: nn.Linear) -> Affine:
    return Affine(linear.weight, linear.bias)


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight, norm.variance_epsilon)


def _head_norms(attention: Any) -> tuple[Norm, Norm] | None:
    return (_norm(attention.q_norm), _norm(attention.k_norm)) if hasattr(attention, "q_norm") else None


# Whether the numbers are the same.


@cache
@torch.inference_mode(False)
@torch.enable_grad()
def _halves_agree() -> bool:
    """Compare the halves of a layer with their formulas on numbers of size one, of which epsilon is a part that counts,
    as it may not be in a model, and in sizes that no register divides."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    before, after, *of_heads = (Norm(drawn(size), 0.5) for size in (21, 21, 10, 10))
    turn = Turn(*(drawn(7, 10).detach() for _ in range(2)))
    qkv = [Affine(drawn(size, 21), drawn(size)) for size in (30, 10, 10)]
    out, gate, up, down = (Affine(drawn(*size), None) for size in ((21, 30), (19, 21), (19, 21), (21, 19)))
    firsts = [(drawn(7, 21), before, qkv, heads, turn) for heads in (None, (of_heads[0], of_heads[1]))]
    seconds = (drawn(7, 21), drawn(7, 30), out, after, gate, up, down)
    return all(_same(project(*first), _project_by_formula(*first), first) for first in firsts) and _same(
        [finish(*seconds)], [_finish_by_formula(*seconds)], seconds
    )


def _same(ours: Sequence[Tensor], theirs: Sequence[Tensor], given: Sequence[Any]) -> bool:
    """Whether numbers, and gradients of all that is given, are the same."""
    weights = [x for x in _tensors(given) if x.requires_grad]
    factors = [torch.linspace(-1.0, 2.0, x.numel()).sin().view_as(x) for x in theirs]
    mine, other = (torch.autograd.grad(found, weights, factors) for found in (ours, theirs))
    pairs = zip((*ours, *mine), (*theirs, *other), strict=True)
    return all(bool((a - b).abs().max() <= TOLERANCE * b.abs().max()) for a, b in pairs)


def _tensors(given: Sequence[Any]) -> Iterator[Tensor]:
    for part in given:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, Sequence):
            yield from _tensors(part)


def _project_by_formula(
    x_MD: Tensor, norm: Norm, qkv: Sequence[Affine], head_norms: tuple[Norm, Norm] | None, turn: Turn
) -> list[Tensor]:
    def turned(x_MHE: Tensor) -> Tensor:
        low, high = x_MHE.chunk(2, -1)
        return x_MHE * turn.cos_ME[:, None] + torch.cat((-high, low), -1) * turn.sin_ME[:, None]

    width = turn.cos_ME.shape[1]
    h_MD = _normed(x_MD, norm)
    q, k, v = (linear(h_MD, *affine).view(len(x_MD), -1, width) for affine in qkv)
    if head_norms is not None:
        q, k = _normed(q, head_norms[0]), _normed(k, head_norms[1])
    return [turned(q), turned(k), v]


def _normed(x: Tensor, norm: Norm) -> Tensor:
    return torch.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def _finish_by_formula(
    x_MD: Tensor, attended_MA: Tensor, out: Affine, norm: Norm, gate: Affine, up: Affine, down: Affine
) -> Tensor:
    middle_MD = x_MD + linear(attended_MA, *out)
    h_MD = _normed(middle_MD, norm)
    return middle_MD + linear(silu(linear(h_MD, *gate)) * linear(h_MD, *up), *down)


@torch.enable_grad()
def _agrees(quick: PlainTraining, own: Forward) -> bool:
    """Compare on a few tokens, each of which attends to itself and the one before: hidden states, how far each layer
    sees, and the gradients of the first and the last layer, which those of the others flow through."""
    base = quick.base
    ids = torch.arange(min(24, base.config.vocab_size))
    positions = 3 * ids % 40
    ours, theirs = _Neighbours(), _Neighbours()
    mine, other = quick(ids, positions, ours, ids), own(ids, positions, theirs.scaled)
    near = bool((mine - other).abs().max() <= TOLERANCE * other.abs().max())
    return near and ours.windows == theirs.windows and _same_gradients(base, mine, other)


def _same_gradients(base: Any, mine: Tensor, other: Tensor) -> bool:
    layers = nn.ModuleList([base.layers[0], base.layers[-1], base.norm])
    weights = [weight for weight in layers.parameters() if weight.requires_grad]
    if not weights:
        return True
    factors = torch.linspace(-1.0, 2.0, mine.numel()).sin().view_as(mine)
    found = zip(*(torch.autograd.grad(hidden, weights, factors) for hidden in (mine, other)), strict=True)
    pairs = [((a - b).abs().max(), b.abs().max()) for a, b in found]
    least = _LEAST * max(largest for _, largest in pairs)
    return all(bool(gap <= GRADIENT_TOLERANCE * max(largest, least)) for gap, largest in pairs)


class _Neighbours:
    """Attention of each token to itself and the one before, which notes how far each layer sees."""

    def __init__(self) -> None:
        self.windows: list[tuple[int, int | None]] = []

    def __call__(
        self,
        q_MHE: Tensor,
        k_MKE: Tensor,
        v_MKE: Tensor,
        *,
        scale: float,
        window: int | None,
        last: bool,  # noqa: ARG002
    ) -> Tensor:
        return self.scaled(len(self.windows), q_MHE * scale, k_MKE, v_MKE, window=window)

    def scaled(self, layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:
        self.windows.append((layer, window))
        shared = q_MHE.shape[1] // k_MKE.shape[1]
        k_MHE, v_MHE = (x.repeat_interleave(shared, 1) for x in (k_MKE, v_MKE))
        share = torch.sigmoid((q_MHE * (k_MHE - k_MHE.roll(1, 0))).sum(-1, keepdim=True))
        return (share * v_MHE + (1 - share) * v_MHE.roll(1, 0)).flatten(1)
