"""Supervised fine-tuning: cross entropy on what others did, validated on what was held out. It is the warm start of
what follows, or a run by itself."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from agentrl.config import WarmStartConfig
from agentrl.engine.random import derive_seed
from agentrl.loops.context import RunContext
from agentrl.loops.demonstrations import demonstrations
from agentrl.policy.base import Policy
from agentrl.tokens.dataset import split
from agentrl.train.losses import supervised
from agentrl.train.scoring import score_samples
from agentrl.train.trainer import OptimizerSettings
from agentrl.types import Sample


def warm_start(run: RunContext) -> None:
    """Teach the policy the tools, and what a good reply looks like."""
    settings = run.config.warm_start
    max_tokens = run.config.hf.micro_batch_tokens
    trainer = run.start_phase("warm_start", replace(optimizer_settings(settings), max_tokens=max_tokens))
    if settings.steps == 0:
        run.save("warm_start-000000-end")  # else what reinforcement learning began with would be kept nowhere
    if run.progress.step >= settings.steps or run.progress.stopped_early:
        return
    with run.timed("demonstrations"):
        units = demonstrations(run)
    train, held_out = split(units, settings.validation, derive_seed(run.config.seed, "validation"))
    validation = Validation(run, [sample for unit in held_out for sample in unit.samples])
    run.reporter.phase("warm start", settings.steps)
    validation.begin()
    for step in range(run.progress.step, settings.steps):
        started = time.perf_counter()
        groups = run.draw(len(train), units_per_step(settings), step, "demonstrations")
        metrics = trainer.step([sample for index in groups for sample in train[index].samples], supervised)
        seconds = time.perf_counter() - started
        run.add_seconds("warm_start", seconds)
        metrics |= {"seconds_step": seconds, "seconds_training": seconds}
        metrics |= validation.after(step + 1)
        run.folder.append_metrics("warm_start", step + 1, metrics)
        run.reporter.step(step + 1, metrics)
        last = step + 1 == settings.steps or run.progress.stopped_early
        if last:
            validation.end()
        run.finish_step(step + 1, checkpoint=(step + 1) % settings.checkpoint_every == 0, last=last)
        if last:
            return


def optimizer_settings(settings: WarmStartConfig) -> OptimizerSettings:
    """The optimizer of the configuration."""
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        matrix_learning_rate=settings.matrix_learning_rate,
        total_steps=settings.steps,
        warmup_steps=settings.warmup_steps,
        final_fraction=settings.final_fraction,
    )


def units_per_step(settings: WarmStartConfig) -> int:
    """Conversations of a file in a step, or tasks, each with all its demonstrations."""
    if settings.data is not None:
        return settings.batch_size
    return max(1, settings.batch_size // settings.demonstrations)


class Validation:
    """Measures the loss on what is held out, and with patience keeps the best weights and says when to stop.

    What it remembers stands in the run's progress and checkpoints, so that a resumed run goes on with it.

    Args:
        run: whose policy is trained.
        held_out: samples that are not trained; without any, nothing is measured.
    """

    def __init__(self, run: RunContext, held_out: Sequence[Sample]) -> None:
        self.run, self.held_out = run, held_out
        self.settings = run.config.warm_start

    def begin(self) -> None:
        """Measure the weights before the first step, unless that was done before a resume."""
        if self.held_out and self.run.progress.step == 0:
            self.run.folder.append_metrics("warm_start", 0, self._measured(0))

    def after(self, step: int) -> dict[str, float]:
        """What is measured after a step; nothing where no validation is due."""
        due = step % self.settings.validate_every == 0 or step == self.settings.steps
        return self._measured(step) if self.held_out and due else {}

    def end(self) -> None:
        """Go back to the best weights, where patience keeps them."""
        run, progress = self.run, self.run.progress
        if run.best is None:
            return
        run.model.load_tensors(run.best)
        run.best = None
        run.reporter.note(
            f"{'stopped early; ' if progress.stopped_early else ''}the weights of step {progress.best_step} are kept, "
            f"whose validation loss was the lowest ({progress.best_loss:.4f})"
        )

    def _measured(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        loss, tokens = validation_loss(self.run.model, self.held_out)
        self.run.add_seconds("validation", time.perf_counter() - started)
        self.run.reporter.note(f"step {step}: validation loss {loss:.4f} nats a token")
        if self.settings.patience:
            self._compare(loss, step)
        return {"validation_loss": loss, "tokens_validated": tokens}

    def _compare(self, loss: float, step: int) -> None:
        progress = self.run.progress
        if progress.best_loss is None or loss < progress.best_loss:
            progress.best_loss, progress.best_step, progress.misses = loss, step, 0
            self.run.best = {name: tensor.clone() for name, tensor in self.run.model.tensors().items()}
        else:
            progress.misses += 1
        progress.stopped_early = progress.misses >= self.settings.patience


def validation_loss(model: Policy, held_out: Sequence[Sample], *, max_tokens: int = 8192) -> tuple[float, float]:
    """Cross entropy in nats per trained token, and the weight of those tokens, which is their number.

    Every token counts as much as any other, however long its conversation and whatever is computed together: the sum
    over all tokens is divided once. (A mean over batches of their means would depend on how they are cut.)

    Args:
        model: the policy.
        held_out: samples with weights for ``ce``.
        max_tokens: of a micro-batch.
    """
    scored = score_samples(model, held_out, lambda s: s.logprobs_K, temperature=1.0, max_tokens=max_tokens)
    pairs = [
        (weight, logprob)
        for sample, logprobs in zip(held_out, scored, strict=True)
        for weight, logprob in zip(sample.weights["ce"], logprobs, strict=True)
        if weight
    ]
    total = math.fsum(weight for weight, _ in pairs)
    return -math.fsum(weight * logprob for weight, logprob in pairs) / total, total
