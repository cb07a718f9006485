"""Divergences of rows of logits, computed chunk by chunk so that few rows exist in float32 at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from agentrl.errors import TrainerError

RowLoss = Callable[..., Tensor]
"""From rows of student logits and the same rows of constants to a loss per row, differentiable in the student."""


def chunked(
    row_loss: RowLoss, student_TV: Tensor, constants: tuple[Tensor, ...], mask_T: Tensor, max_rows: int
) -> Tensor:
    """``row_loss`` at the trained rows, 0 at the others, which are not read.

    Args:
        row_loss: called with at most ``max_rows`` rows at a time; each row's loss may depend on that row only.
        student_TV: logits, shape [T, V]; rows come to ``row_loss`` in at least float32.
        constants: tensors with T rows each; they get no gradient.
        mask_T: True at trained rows.
        max_rows: at least 1.

    Raises:
        TrainerError: a loss is infinite.
    """
    parts = (part.detach() for part in constants)
    loss_T: Tensor = _Chunked.apply(row_loss, student_TV, mask_T, max_rows, *parts)  # type: ignore[no-untyped-call]
    infinite_T = loss_T.detach().isinf()
    if bool(infinite_T.any()):
        raise TrainerError(
            f"the divergence at trained token {int(infinite_T.nonzero()[0])} is infinite: one side excludes a token "
            "that the other may say; give both the same tokens, or take a beta between 0 and 1"
        )
    return loss_T


def log_probabilities(logits: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Log-softmax over the last axis, in ``dtype``."""
    return (logits.to(dtype) / temperature).log_softmax(-1)


def divergence(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Generalised JSD along the last axis, of normalised log-probabilities; see ``distillation.generalized_jsd``."""
    if beta == 0.0:
        return _kl(teacher, student)
    if beta == 1.0:
        return _kl(student, teacher)
    # A token that both exclude has no mixture: logaddexp(-inf, -inf) has NaN for a gradient.
    nowhere = student.isneginf() & teacher.isneginf()
    mixture = torch.logaddexp(
        torch.where(nowhere, 0.0, teacher) + math.log(beta), torch.where(nowhere, 0.0, student) + math.log1p(-beta)
    )
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def _kl(first: Tensor, second: Tensor) -> Tensor:
    # 0 log 0 is 0. The difference is chosen before the product, or -inf * 0 would come back in the gradient.
    absent = first.isneginf()
    difference = torch.where(absent, 0.0, first) - torch.where(absent, 0.0, second)
    return (first.exp() * difference).sum(-1)


class _Chunked(Function):
    """A loss per trained row, in chunks. Backward computes each chunk again, so that no chunk's steps are kept."""

    @staticmethod
    def forward(
        ctx: Any, row_loss: RowLoss, student_TV: Tensor, mask_T: Tensor, max_rows: int, *teacher: Tensor
    ) -> Tensor:
        ctx.row_loss, ctx.max_rows = row_loss, max_rows
        ctx.save_for_backward(student_TV, mask_T, *teacher)
        loss_T = torch.zeros(len(student_TV), dtype=_wide(student_TV), device=student_TV.device)
        for rows in _trained_rows(mask_T, max_rows):
            loss_T[rows] = row_loss(student_TV[rows].to(loss_T.dtype), *(part[rows] for part in teacher))
        return loss_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor | None, ...]:
        student_TV, mask_T, *teacher = ctx.saved_tensors
        grad_TV = torch.zeros_like(student_TV)
        for rows in _trained_rows(mask_T, ctx.max_rows):
            student = student_TV[rows].to(grad_T.dtype).requires_grad_()
            with torch.enable_grad():
                loss = ctx.row_loss(student, *(part[rows] for part in teacher))
            grad_TV[rows] = torch.autograd.grad(loss, student, grad_T[rows])[0].to(grad_TV.dtype)
        return None, grad_TV, None, None, *(None for _ in teacher)


def _trained_rows(mask_T: Tensor, max_rows: int) -> tuple[Tensor, ...]:
    return torch.split(mask_T.nonzero().squeeze(1), max_rows)


def _wide(student_TV: Tensor) -> torch.dtype:
    return torch.promote_types(student_TV.dtype, torch.float32)
