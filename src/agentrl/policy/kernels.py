"""Differentiable steps of the transformer whose backward pass is written out, because the automatic one costs more.

At widths around a hundred, matrix products are a quarter of a training step on a CPU; the rest is memory traffic.
Each function here moves fewer bytes than what autograd would compose. Every backward is checked against autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, weight)
        normed: Tensor = unit * weight
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, inverse, weight = ctx.saved_tensors
        grad_unit = grad * weight
        mean = (grad_unit * unit).mean(-1, keepdim=True)
        grad_x = grad_unit.addcmul_(unit, mean, value=-1.0).mul_(inverse)
        return grad_x, (grad * unit).sum(0), None


class _SquaredReLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.clamp_min(0.0)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        grad_x: Tensor = (grad * positive).mul_(2.0)
        return grad_x


class _Pad(Function):
    @staticmethod
    def forward(ctx: Any, flat_MD: Tensor, index_R: Tensor, row_M: Tensor) -> Tensor:
        ctx.save_for_backward(row_M)
        return flat_MD.index_select(0, index_R)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None, None]:
        (row_M,) = ctx.saved_tensors
        return grad_RD.index_select(0, row_M), None, None


class _Unpad(Function):
    @staticmethod
    def forward(ctx: Any, padded_RD: Tensor, index_R: Tensor, row_M: Tensor, empty: Tensor) -> Tensor:
        ctx.save_for_backward(index_R, empty)
        return padded_RD.index_select(0, row_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None, None]:
        index_R, empty = ctx.saved_tensors
        return grad_MD.index_select(0, index_R).index_fill_(0, empty, 0.0), None, None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """``x`` over its root mean square along the last axis, times ``weight``. Source: 1910.07467, equation 4."""
    if not torch.is_grad_enabled():
        return torch.rms_norm(x, x.shape[-1:], weight, eps)
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]


def squared_relu(x: Tensor) -> Tensor:
    """``max(x, 0) ** 2``. Source: Primer (2109.08668), section 4."""
    if not torch.is_grad_enabled():
        return x.clamp_min(0.0).square_()
    return _SquaredReLU.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn neighbouring pairs of the last axis by the angles in ``turn`` (complex, one number a pair, broadcast).

    Source: RoFormer (2104.09864), section 3.2.2.
    """
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2)


def pad_rows(flat_MD: Tensor, index_R: Tensor, row_M: Tensor) -> Tensor:
    """Rows ``flat_MD[index_R]``, where flat row m stands at padded row ``row_M[m]`` and padding repeats any row.

    The gradient of padding rows is dropped, so nothing may be read from them.
    """
    return _Pad.apply(flat_MD, index_R, row_M)  # type: ignore[no-any-return, no-untyped-call]


def unpad_rows(padded_RD: Tensor, index_R: Tensor, row_M: Tensor, empty: Tensor) -> Tensor:
    """The inverse of `pad_rows`; ``empty`` lists the padding rows, which get a gradient of exactly zero."""
    return _Unpad.apply(padded_RD, index_R, row_M, empty)  # type: ignore[no-any-return, no-untyped-call]
