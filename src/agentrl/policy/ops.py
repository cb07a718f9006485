"""The two halves of a plain decoder's layer around its attention, for training in float32 on the CPU.

In the layers of `transformers` some forty operations read and write the tokens of a batch in memory, for the forward
pass alone. Here what lies between two matrix products is one pass in C (``ops.c``), forwards and backwards, and
projections of one input are one product. With r(x) = (mean(x^2) + eps)^(-1/2) over the D entries of a token, or of one
of its heads:

    RMS norm         y = w r(x) x                    Zhang and Sennrich (1910.07467), equation 4
    rotary position  y = x cos + turned(x) sin       Su et al. (2104.09864), equation 34; turned((a, b)) = (-b, a)
    gated SiLU       y = a sigmoid(a) b              Shazeer (2002.05202), equation 6

and, for g the gradient of y,

    RMS norm         dx = r (w g - x r^2 mean(w g x)),  dw = sum over tokens of r g x
    rotary position  dx = g cos - turned(g sin)
    gated SiLU       db = g a s,  da = g b (s + a s - a s^2),  s = sigmoid(a)

Kept for the backward pass are, beside the inputs, what the products gave, and r; all else is computed again.

Shape suffixes: M flat tokens, D width, H heads, E width of a head, A width of all heads together, F width of the
feed-forward.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from agentrl.policy.compiled import library

SOURCE = Path(__file__).with_suffix(".c")
_BUILDS = {torch.float32: (), torch.float64: ("-DREAL=double", "-DEXACT")}
_INT, _REAL, _ROWS = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_ARGUMENTS = {
    "norm": (_INT, _INT, _REAL, *[_ROWS] * 4),
    "norm_backward": (_INT, _INT, *[_ROWS] * 8),
    "turn": (_INT, _INT, _INT, _REAL, *[_ROWS] * 4, _INT, _ROWS, _ROWS),
    "turn_backward": (_INT, _INT, _INT, *[_ROWS] * 5, _INT, _ROWS, _ROWS, _ROWS, _INT),
    "gate": (_INT, _INT, _ROWS, _ROWS),
    "gate_backward": (_INT, _INT, *[_ROWS] * 3),
}


class Affine(NamedTuple):
    """A projection: weight (out, in), and bias (out) where it has one."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    """An RMS norm."""

    weight: Tensor
    eps: float


class Turn(NamedTuple):
    """Cosines and sines (M, E) of the positions of tokens."""

    cos_ME: Tensor
    sin_ME: Tensor


@cache
def kernels(dtype: torch.dtype) -> Any:
    """The functions of ``ops.c``: float32, or float64 for comparison; None where they cannot be had."""
    found = library(SOURCE, _BUILDS[dtype]) if dtype in _BUILDS else None
    for name, arguments in _ARGUMENTS.items() if found else ():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None
    return found


class _Uncalled:
    """In the place of functions where tensors have no numbers: memory and work of a step are counted on such."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def _functions(x: Tensor) -> Any:
    """Those for numbers of this kind."""
    return _Uncalled() if x.is_meta else kernels(x.dtype)


def project(
    x_MD: Tensor, norm: Norm, qkv: Sequence[Affine], head_norms: tuple[Norm, Norm] | None, turn: Turn
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, turned to their positions, and values, each (M, H, E), of what a layer gets.

    Args:
        x_MD: what the layer gets.
        norm: before the projections.
        qkv: the three projections, all with a bias or all without.
        head_norms: of queries and of keys, where the model has them.
        turn: positions of the tokens.
    """
    norms = (None, None) if head_norms is None else tuple(one.weight for one in head_norms)
    eps = norm.eps, *((0.0, 0.0) if head_norms is None else (one.eps for one in head_norms))
    weights = (norm.weight, *norms, *(x for affine in qkv for x in affine))
    found: tuple[Tensor, Tensor, Tensor] = _Project.apply(eps, *turn, x_MD, *weights)  # type: ignore[no-untyped-call]
    return found


def finish(
    x_MD: Tensor, attended_MA: Tensor, out: Affine, norm: Norm, gate: Affine, up: Affine, down: Affine
) -> Tensor:
    """What a layer gives (M, D): its input, with what was attended, with the gated feed-forward of both.

    Args:
        x_MD: what the layer got.
        attended_MA: of all heads side by side.
        out: to the width of the model.
        norm: before the feed-forward.
        gate: to what is gated with.
        up: to what is gated; has a bias if ``gate`` has.
        down: back to the width of the model.
    """
    weights = (norm.weight, *out, *down, *gate, *up)
    found: Tensor = _Finish.apply(norm.eps, x_MD, attended_MA, *weights)  # type: ignore[no-untyped-call]
    return found


class _Finish(Function):
    @staticmethod
    def forward(ctx: Any, eps: float, x_MD: Tensor, attended_MA: Tensor, *weights: Tensor | None) -> Tensor:
        norm_D, (out, down, *gate_up) = weights[0], _affines(weights[1:])
        assert norm_D is not None, "the first weight is that of the norm"
        middle_MD = _add_product(x_MD, attended_MA, out)
        h_MD, inverse_M = _normed(middle_MD, Norm(norm_D, eps))
        both = _joined(gate_up)
        both_M2F = _product(h_MD, both)
        gated_MF = both_M2F.new_empty(len(both_M2F), both_M2F.shape[1] // 2)
        _functions(x_MD).gate(*gated_MF.shape, _at(both_M2F), _at(gated_MF))
        ctx.save_for_backward(attended_MA, middle_MD, inverse_M, both_M2F, *weights)
        return _add_product(middle_MD, gated_MF, down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor | None, ...]:
        attended_MA, middle_MD, inverse_M, both_M2F, norm_D, *weights = ctx.saved_tensors
        out, down, *gate_up = _affines(weights)
        of_out, of_down, of_both = (ctx.needs_input_grad[4 + at :] for at in (0, 2, 4))
        grad_MD = grad_MD.contiguous()
        gated_MF, grads_M2F = torch.mm(grad_MD, down.weight), torch.empty_like(both_M2F)
        _functions(grad_MD).gate_backward(*gated_MF.shape, *map(_at, (both_M2F, gated_MF, grads_M2F)))
        down_grads = _weight_grads([down], of_down, grad_MD, gated_MF)
        grad_h_MD = torch.mm(grads_M2F, _joined(gate_up).weight)
        back = _norm_backward(grad_h_MD, middle_MD, inverse_M, norm_D, added_MD=grad_MD)
        both_grads = _weight_grads(gate_up, of_both, grads_M2F, back.normed_MD)
        out_grads = _weight_grads([out], of_out, back.grad_MD, attended_MA)
        grad_attended_MA = torch.mm(back.grad_MD, out.weight)
        return None, back.grad_MD, grad_attended_MA, back.weight_D, *out_grads, *down_grads, *both_grads


class _Project(Function):
    @staticmethod
    def forward(
        ctx: Any, eps: Sequence[float], cos_ME: Tensor, sin_ME: Tensor, x_MD: Tensor, *weights: Tensor | None
    ) -> tuple[Tensor, ...]:
        norm_D, *norms, qkv = *weights[:3], _affines(weights[3:])
        assert norm_D is not None, "the first weight is that of the norm"
        h_MD, inverse_M = _normed(x_MD, Norm(norm_D, eps[0]))
        raw_MHE = _product(h_MD, _joined(qkv)).view(len(x_MD), -1, cos_ME.shape[1])
        *heads, v_MHE = torch.split(raw_MHE, _num_heads(qkv, cos_ME), dim=1)
        found = [x.new_empty(x.shape) for x in heads]
        inverses = [x.new_empty(x.shape[:2]) for x in heads]
        for x, norm_E, epsilon, inverse, into in zip(heads, norms, eps[1:], inverses, found, strict=True):
            sizes, where = (*x.shape, epsilon), map(_at, (norm_E, cos_ME, sin_ME, x))
            _functions(x).turn(*sizes, *where, x.stride(0), _at(inverse), _at(into))
        ctx.save_for_backward(cos_ME, sin_ME, x_MD, inverse_M, raw_MHE, *inverses, *weights)
        return *found, v_MHE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos_ME, sin_ME, x_MD, inverse_M, raw_MHE, *rest = ctx.saved_tensors
        inverses, norm_D, norms, qkv = rest[:2], rest[2], rest[3:5], _affines(rest[5:])
        grad_MHE, heads = torch.empty_like(raw_MHE), _num_heads(qkv, cos_ME)
        *into, grad_v = torch.split(grad_MHE, heads, dim=1)
        grad_v.copy_(grads[2])
        grad_norms = [None if norm_E is None else torch.zeros_like(norm_E) for norm_E in norms]
        columns = zip(grads, torch.split(raw_MHE, heads, dim=1), norms, inverses, grad_norms, into, strict=False)
        for grad, x, norm_E, inverse, grad_norm_E, out in columns:
            grad = grad.contiguous()
            where = map(_at, (norm_E, cos_ME, sin_ME, grad, x))
            results = (*map(_at, (inverse, grad_norm_E, out)), out.stride(0))
            _functions(x).turn_backward(*x.shape, *where, x.stride(0), *results)
        grad_MA = grad_MHE.flatten(1)
        grad_h_MD = torch.mm(grad_MA, _joined(qkv).weight)
        back = _norm_backward(grad_h_MD, x_MD, inverse_M, norm_D)
        qkv_grads = _weight_grads(qkv, ctx.needs_input_grad[7:], grad_MA, back.normed_MD)
        return None, None, None, back.grad_MD, back.weight_D, *grad_norms, *qkv_grads


def _num_heads(qkv: Sequence[Affine], cos_ME: Tensor) -> list[int]:
    return [len(affine.weight) // cos_ME.shape[1] for affine in qkv]


# Norms.


class _NormBack(NamedTuple):
    """Gradients of an RMS norm's input and weight, and once more what it gave."""

    grad_MD: Tensor
    weight_D: Tensor
    normed_MD: Tensor


def _normed(x_MD: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """What an RMS norm gives (M, D), and the r (M) of its tokens."""
    found_MD, inverse_M = torch.empty_like(x_MD), x_MD.new_empty(len(x_MD))
    _functions(x_MD).norm(*x_MD.shape, norm.eps, *map(_at, (norm.weight, x_MD, inverse_M, found_MD)))
    return found_MD, inverse_M


def _norm_backward(
    grad_MD: Tensor, x_MD: Tensor, inverse_M: Tensor, weight_D: Tensor, *, added_MD: Tensor | None = None
) -> _NormBack:
    """Back through an RMS norm; what goes around it is added to the gradient of its input."""
    found = _NormBack(torch.empty_like(x_MD), torch.zeros_like(weight_D), torch.empty_like(x_MD))
    given = (weight_D, grad_MD, x_MD, inverse_M, added_MD)
    results = (found.weight_D, found.normed_MD, found.grad_MD)
    _functions(x_MD).norm_backward(*x_MD.shape, *map(_at, (*given, *results)))
    return found


# Projections.


def _affines(weights: Sequence[Tensor | None]) -> list[Affine]:
    """Pairs of weight and bias."""
    found = []
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        assert weight is not None, "a projection has a weight"
        found.append(Affine(weight, bias))
    return found


def _joined(affines: Sequence[Affine]) -> Affine:
    """Projections of one input as one."""
    biases = [affine.bias for affine in affines if affine.bias is not None]
    return Affine(torch.cat([affine.weight for affine in affines]), torch.cat(biases) if biases else None)


def _product(x: Tensor, affine: Affine) -> Tensor:
    if affine.bias is None:
        return torch.mm(x, affine.weight.T)
    return torch.addmm(affine.bias, x, affine.weight.T)


def _add_product(x: Tensor, y: Tensor, affine: Affine) -> Tensor:
    found = torch.addmm(x, y, affine.weight.T)
    return found if affine.bias is None else found.add_(affine.bias)


def _weight_grads(affines: Sequence[Affine], wanted: Sequence[bool], grad: Tensor, x: Tensor) -> list[Tensor | None]:
    """Of the weight and the bias of each projection of ``x``, where they are wanted."""
    sizes = [len(affine.weight) for affine in affines]
    wanted = wanted[: 2 * len(sizes)]
    none = [None] * len(sizes)
    weights = torch.split(torch.mm(grad.T, x), sizes) if any(wanted[::2]) else none
    biases = torch.split(grad.sum(0), sizes) if any(wanted[1::2]) else none
    both = (part for pair in zip(weights, biases, strict=True) for part in pair)
    return [part if want else None for part, want in zip(both, wanted, strict=True)]


def _at(x: Tensor | None) -> int | None:
    """Where a tensor lies in memory; rows one behind the other, but for heads, whose stride is told."""
    return None if x is None else x.data_ptr()
