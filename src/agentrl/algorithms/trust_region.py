"""The natural-gradient step of TRPO, for policies small enough to ask for the mean KL of all their parameters.

PPO's clip is a first-order stand-in for this step: minimise a loss subject to ``mean KL(pi_old || pi) <= max_kl``. The
quadratic model of the constraint around the old parameters has the Fisher matrix F, and the step is

    s = F^-1 (-g),   theta = theta_old + sqrt(2 max_kl / (s' F s)) s

shrunk until the loss falls enough and the true KL is within the bound. F itself is never built: conjugate gradients
need only products F v, and F is the second derivative of the mean KL at the old parameters.

Suffix: D, all parameters in one flat vector. Source: Schulman et al. 2015, arXiv 1502.05477, section 6, appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from agentrl.errors import ConfigError, TrainerError

Scalar = Callable[[Tensor], Tensor]
"""Flat parameters to a scalar that is differentiable in them."""


@dataclass(frozen=True, kw_only=True)
class TrustRegion:
    """How far one step may go. Defaults: paper's KL and iterations; the rest from its authors' code (modular_rl).

    Attributes:
        max_kl: bound on the mean KL(old || new) in nats, above 0.
        damping: added to the diagonal of F, at least 0; keeps F invertible, and makes the step a little shorter.
        cg_iterations: most products F v for one direction.
        shrink: factor between tries of the line search, in (0, 1).
        max_tries: step lengths that are tried before the step is refused.
        min_improvement: share of the fall in loss that the gradient promises which a try must reach, in [0, 1).
    """

    max_kl: float = 0.01
    damping: float = 1e-3
    cg_iterations: int = 10
    shrink: float = 0.5
    max_tries: int = 10
    min_improvement: float = 0.1

    def __post_init__(self) -> None:
        wrong = {
            "max_kl": not self.max_kl > 0,
            "damping": not self.damping >= 0,
            "cg_iterations": self.cg_iterations < 1,
            "shrink": not 0 < self.shrink < 1,
            "max_tries": self.max_tries < 1,
            "min_improvement": not 0 <= self.min_improvement < 1,
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            raise ConfigError(f"{name} is {getattr(self, name)!r}, out of its range; the default is {_DEFAULTS[name]}")


_DEFAULTS = {name: field.default for name, field in TrustRegion.__dataclass_fields__.items()}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What became of a step.

    Attributes:
        parameters_D: new parameters, the old ones when the step was refused.
        accepted: whether a step length passed.
        kl: mean KL(old || new) at the parameters returned; 0 when refused.
        improvement: fall of the loss; 0 when refused.
        num_tries: step lengths tried; 0 when the gradient was zero.
    """

    parameters_D: Tensor
    accepted: bool
    kl: float
    improvement: float
    num_tries: int


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], target_D: Tensor, *, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """Solve ``A x = b`` for a symmetric positive definite A that is known by its products only.

    Args:
        product: x to ``A x``.
        target_D: b.
        iterations: most products; with as many as A has distinct eigenvalues the solution is exact, up to rounding.
        tolerance: stop when the squared residual is at most this share of ``b' b``.

    Returns:
        The solution, or the best within the iterations. It stops before a direction along which A is not positive.

    >>> conjugate_gradients(lambda x: torch.tensor([2.0, 4.0]) * x, torch.tensor([2.0, 2.0]), iterations=2)
    tensor([1.0000, 0.5000])
    """
    solution_D, residual_D = torch.zeros_like(target_D), target_D.clone()
    direction_D = residual_D.clone()
    error = residual_D @ residual_D
    enough = tolerance * error
    for _ in range(iterations):
        if error <= enough:
            break
        image_D = product(direction_D)
        curvature = direction_D @ image_D
        if not curvature > 0:
            break
        length = error / curvature
        solution_D = solution_D + length * direction_D
        residual_D = residual_D - length * image_D
        last, error = error, residual_D @ residual_D
        direction_D = residual_D + (error / last) * direction_D
    return solution_D


def fisher_product(mean_kl: Scalar, parameters_D: Tensor, vector_D: Tensor, *, damping: float = 0.0) -> Tensor:
    """``(F + damping I) v``, with F the second derivative of the mean KL where old and new policy are the same.

    Args:
        mean_kl: parameters to mean KL(old || new), old constant; twice differentiable.
        parameters_D: the old parameters.
        vector_D: v.
        damping: added to the diagonal.
    """
    at_D = parameters_D.detach().requires_grad_()
    (gradient_D,) = torch.autograd.grad(mean_kl(at_D), at_D, create_graph=True)
    (product_D,) = torch.autograd.grad(gradient_D @ vector_D.detach(), at_D)
    return product_D + damping * vector_D.detach()


def natural_step(loss: Scalar, mean_kl: Scalar, parameters_D: Tensor, region: TrustRegion | None = None) -> Step:
    """One trust-region step on flat parameters.

    Args:
        loss: parameters to the surrogate loss, for instance the mean of ``-rho_t A_t``; to be made smaller.
        mean_kl: parameters to the mean KL(old || new) over the same states, old constant and equal to
            ``parameters_D``, so that it is 0 there.
        parameters_D: where to start, flat, floating point.
        region: how far to go; ``TrustRegion()`` when None.

    Returns:
        The step. Refused, with the old parameters, when the gradient is zero or no step length passes.

    Raises:
        TrainerError: at the start the loss or its gradient is not finite, or the KL is not 0.
    """
    region = region or TrustRegion()
    start_D = parameters_D.detach().clone()
    value, gradient_D = _value_and_gradient(loss, start_D)
    _check_start(mean_kl(start_D).item(), region)
    direction_D, curvature = _natural_direction(mean_kl, start_D, gradient_D, region)
    if not curvature > 0:
        return Step(parameters_D=start_D, accepted=False, kl=0.0, improvement=0.0, num_tries=0)
    step_D = math.sqrt(2 * region.max_kl / curvature) * direction_D
    promised = -float(gradient_D @ step_D)
    return _line_search(loss, mean_kl, start_D, step_D, value, promised, region)


def natural_step_of_module(
    module: nn.Module,
    loss: Callable[[Any], Tensor],
    mean_kl: Callable[[Any], Tensor],
    region: TrustRegion | None = None,
) -> Step:
    """One trust-region step on the trainable parameters of a module, which are overwritten when it is accepted.

    Args:
        module: the policy; frozen parameters stay, tied ones move together.
        loss: the module to the surrogate loss. Compute what belongs to the old policy before, without gradient.
        mean_kl: the module to the mean KL(old || new).
        region: how far to go; ``TrustRegion()`` when None.

    Returns and raises as ``natural_step``.
    """
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trainable:
        raise TrainerError("the module has no trainable parameter; set requires_grad on what is to be trained")
    start_D = nn.utils.parameters_to_vector(trainable.values()).detach()
    step = natural_step(_of_flat(module, trainable, loss), _of_flat(module, trainable, mean_kl), start_D, region)
    if step.accepted:
        with torch.no_grad():
            nn.utils.vector_to_parameters(step.parameters_D, trainable.values())
    return step


class _Call(nn.Module):
    """A function of a module as a module of its own, so that ``functional_call`` can lend it other parameters."""

    def __init__(self, module: nn.Module, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self) -> Tensor:
        return self.function(self.module)


def _of_flat(module: nn.Module, trainable: dict[str, nn.Parameter], function: Callable[[Any], Tensor]) -> Scalar:
    call = _Call(module, function)
    shapes = {f"module.{name}": p.shape for name, p in trainable.items()}

    def of_flat(parameters_D: Tensor) -> Tensor:
        pieces = torch.split(parameters_D, [shape.numel() for shape in shapes.values()])
        lent = {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
        result: Tensor = functional_call(call, lent, ())
        return result

    return of_flat


def _value_and_gradient(loss: Scalar, start_D: Tensor) -> tuple[float, Tensor]:
    at_D = start_D.clone().requires_grad_()
    loss_at_start = loss(at_D)
    (gradient_D,) = torch.autograd.grad(loss_at_start, at_D)
    value = loss_at_start.item()
    if not (math.isfinite(value) and bool(gradient_D.isfinite().all())):
        raise TrainerError(f"the loss is {value!r} or its gradient not finite at the start; no step can be taken")
    return value, gradient_D


def _check_start(kl: float, region: TrustRegion) -> None:
    # Rounding leaves a trace; a KL of this size is another policy.
    if not abs(kl) <= 1e-3 * region.max_kl + 1e-6:
        raise TrainerError(
            f"mean_kl is {kl!r} at the starting parameters and should be 0; give KL(old || new) with the old policy "
            "computed from these parameters, without gradient (kl.exact_forward, with the old logits as the reference)"
        )


def _natural_direction(
    mean_kl: Scalar, start_D: Tensor, gradient_D: Tensor, region: TrustRegion
) -> tuple[Tensor, float]:
    """``s = F^-1 (-g)`` and ``s' F s``, both with damping."""

    def product(vector_D: Tensor) -> Tensor:
        return fisher_product(mean_kl, start_D, vector_D, damping=region.damping)

    direction_D = conjugate_gradients(product, -gradient_D, iterations=region.cg_iterations)
    return direction_D, float(direction_D @ product(direction_D))


def _line_search(
    loss: Scalar,
    mean_kl: Scalar,
    start_D: Tensor,
    step_D: Tensor,
    value: float,
    promised: float,
    region: TrustRegion,
) -> Step:
    for tried in range(region.max_tries):
        length = region.shrink**tried
        there_D = start_D + length * step_D
        with torch.no_grad():
            improvement, kl = value - loss(there_D).item(), mean_kl(there_D).item()
        # Each comparison is False for NaN, so a try outside the domain is refused.
        if kl <= region.max_kl and improvement > 0 and improvement >= region.min_improvement * length * promised:
            return Step(parameters_D=there_D, accepted=True, kl=kl, improvement=improvement, num_tries=tried + 1)
    return Step(parameters_D=start_D, accepted=False, kl=0.0, improvement=0.0, num_tries=region.max_tries)
