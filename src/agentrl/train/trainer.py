"""The optimizer step. The trainer knows no algorithm: it gets samples, and a loss made of a preset's pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from agentrl.errors import TrainerError
from agentrl.policy.base import Policy
from agentrl.train.losses import Loss
from agentrl.train.packing import micro_batches, trained_places
from agentrl.train.scoring import Scored, score_samples, score_tokens
from agentrl.types import Sample


def _values(scored: Scored) -> Tensor:
    if scored.values_K is None:
        raise TrainerError("the model has no value head; set model.value_head to true")
    return scored.values_K


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Muon for the matrices that the model names (`Policy.matrices`) and AdamW for everything else, on one schedule: a
    linear warm-up, then a linear descent to ``final_fraction`` of the peak over ``total_steps``.

    Sources: Muon, Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; AdamW, 1711.05101.
    """

    learning_rate: float
    matrix_learning_rate: float
    total_steps: int
    delay_steps: int = 0
    warmup_steps: int = 5
    final_fraction: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.9
    max_grad_norm: float = 1.0
    max_tokens: int = 8192

    def scale(self, step: int) -> float:
        """The share of the peak learning rates at a step (from 0): all of them before the schedule begins."""
        if step < self.delay_steps:
            return 1.0
        step -= self.delay_steps
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        done = min(1.0, step / max(1, self.total_steps))
        return warm * (1.0 - (1.0 - self.final_fraction) * done)


class Trainer:
    """Owns the optimizers of a model."""

    def __init__(self, model: Policy, settings: OptimizerSettings) -> None:
        self.model = model
        self.settings = settings
        self.steps = 0
        matrices = model.matrices()
        held = {id(parameter) for parameter in matrices}
        others = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in held]
        fused = not matrices  # then AdamW has all of the weights, and passes over them cost
        adamw = partial(torch.optim.AdamW, betas=settings.betas, weight_decay=0.0, foreach=not fused, fused=fused)
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (adamw(others, lr=settings.learning_rate),)
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=settings.matrix_learning_rate, momentum=settings.momentum, weight_decay=0.0
            )
            self.optimizers = (*self.optimizers, muon)

    def step(
        self, samples: Sequence[Sample], loss: Loss, *, temperature: float = 1.0, entropy_gradient: bool = False
    ) -> dict[str, float]:
        """One optimizer step over ``samples``. No gradients are left behind.

        Args:
            samples: all that the step trains.
            loss: of a micro-batch, its share of the step's.
            temperature: that of the sampler.
            entropy_gradient: whether the loss needs entropies that carry a gradient.

        Returns:
            Means and maxima over the trained tokens of what the loss reports, with ``tokens_trained``, ``loss``,
            ``entropy`` (nats), ``grad_norm`` (before clipping) and ``learning_rate``; names as in `agentrl.metrics`.

        Raises:
            TrainerError: no token is trained, or the gradient is not finite (the weights are left as they were).
        """
        num_trained = sum(len(trained_places(sample)) for sample in samples)
        if not num_trained:
            raise TrainerError(f"none of the {len(samples)} samples has a trained token; skip the step")
        self.model.zero_grad(set_to_none=True)
        try:
            return self._step(samples, loss, num_trained, temperature, entropy_gradient)
        finally:
            self.model.zero_grad(set_to_none=True)  # so that sampling has their room

    def _step(
        self, samples: Sequence[Sample], loss: Loss, num_trained: int, temperature: float, entropy_gradient: bool
    ) -> dict[str, float]:
        means: dict[str, float] = {"loss": 0.0, "entropy": 0.0}
        maxima: dict[str, float] = {}
        for batch in micro_batches(samples, max_tokens=self.settings.max_tokens):
            batch = batch.to(self.model.device)
            scored = score_tokens(self.model, batch, temperature, entropy_gradient=entropy_gradient)
            share = loss(scored, batch)
            share.loss.backward()  # type: ignore[no-untyped-call]
            means["loss"] += share.loss.item()
            for name, total in {"entropy": scored.entropy_K.sum(), **share.sums}.items():
                means[name] = means.get(name, 0.0) + total.item() / num_trained
            for name, largest in share.maxima.items():
                maxima[name] = max(maxima.get(name, 0.0), largest.item())
        return {"tokens_trained": num_trained, "sequences_trained": len(samples), **means, **maxima, **self._update()}

    def values(self, samples: Sequence[Sample], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """What the value head expects before each trained token; NaN at context.

        Returns:
            One tuple per sample, in the order given, with one number per token, in units of return.

        Raises:
            TrainerError: the model has no value head.
        """
        return score_samples(self.model, samples, _values, temperature=temperature, max_tokens=self.settings.max_tokens)

    def _update(self) -> dict[str, float]:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        if not torch.isfinite(norm):
            raise TrainerError(f"the gradient norm is {float(norm)}; the step was not taken")
        scale = self.settings.scale(self.steps)
        peaks = (self.settings.learning_rate, self.settings.matrix_learning_rate)
        for optimizer, peak in zip(self.optimizers, peaks, strict=False):  # without matrices there is no Muon
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
        self.steps += 1
        return {"optimizer_steps": 1, "grad_norm": float(norm), "learning_rate": self.settings.learning_rate * scale}
