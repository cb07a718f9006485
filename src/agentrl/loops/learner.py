"""What is learnt from a batch of attempts: the optimizer steps of one step of reinforcement learning."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NoReturn

from agentrl.algorithms.entropy import AdaptiveEntropy
from agentrl.algorithms.presets import Critic, Preset
from agentrl.config import RlConfig
from agentrl.engine.random import derive_seed
from agentrl.errors import TrainerError
from agentrl.metrics import merge
from agentrl.policy.base import Policy
from agentrl.train.correct import with_correction
from agentrl.train.critic import only_value_head, with_critic
from agentrl.train.losses import KlTerm, Loss, PolicyGradient, critic_alone
from agentrl.train.packing import trained_places
from agentrl.train.parity.case import Weights
from agentrl.train.parity.check import rescore
from agentrl.train.parity.figures import Figures, tolerance_of
from agentrl.train.parity.watch import Watch
from agentrl.train.scoring import score_samples, with_reference
from agentrl.train.trainer import Trainer
from agentrl.train.truncation import check_reported
from agentrl.types import Sample

Row = dict[str, float | None]


class Learner:
    """Trains a policy, and its critic where the algorithm has one, on batch after batch.

    Args:
        trainer: of the policy.
        algorithm: what is done.
        settings: how much of it.
        critic: the trainer of a critic that is a network of its own; None for a value head of the policy.
        reference: what a KL term pulls towards.
        entropy_coef: where an adaptive entropy bonus goes on from.
        earlier: names and weights that the sampler may have in the place of the policy's, for an error that says so.
        seed: root of the draws of which groups share an optimizer step.
    """

    def __init__(
        self,
        trainer: Trainer,
        algorithm: Preset,
        settings: RlConfig,
        *,
        critic: Trainer | None = None,
        reference: Policy | None = None,
        entropy_coef: float = 0.0,
        earlier: Callable[[], Iterable[tuple[str, Weights]]] = tuple,
        seed: int = 0,
    ) -> None:
        self.trainer, self.critic = trainer, critic
        self.algorithm, self.settings, self.seed = algorithm, settings, seed
        self.reference, self.earlier = reference, earlier
        self.entropy: AdaptiveEntropy | None = None
        if settings.entropy_target is not None:
            self.entropy = AdaptiveEntropy(coefficient=entropy_coef, target=settings.entropy_target)

    def learn(self, batch: Sequence[Sample], version: int) -> Row:
        """Train on a batch.

        Args:
            batch: all samples of the step.
            version: of the weights before it, which count the steps; a sampler that has them must agree with them.

        Returns:
            The metrics of the step, over all its optimizer steps.

        Raises:
            TrainerError: on tokens that were sampled with these weights the trainer's log-probabilities are not the
                sampler's (no step has been taken then), or a sampler that truncates did not report what it drew from.
        """
        if not batch:
            return {"tokens_trained": 0.0, "optimizer_steps": 0.0}
        check_reported(batch, self.settings.sampling)
        warming = version < self.settings.critic_warmup
        fresh = all(found in (None, version) for sample in batch for found in sample.versions)
        batch, told = self._prepared(batch)
        entropy_coef = 0.0 if warming else self._entropy_coef(batch)
        rows: list[Row] = []
        for part in self._parts(batch, version):
            if rows:
                rows.append(self._step(part, entropy_coef, warming))
            else:
                rows.append(self._first_step(part, entropy_coef, warming, version, fresh=fresh))
        first = rows[0].get("logprob_gap")
        found: Row = {**merge(rows), **told}
        if entropy_coef:
            found["entropy_coef"] = entropy_coef
        return found if first is None else found | {"logprob_gap": first}

    def _prepared(self, batch: Sequence[Sample]) -> tuple[Sequence[Sample], Row]:
        """The batch with all that is computed once, before its first optimizer step, and what that says."""
        told: Row = {}
        temperature, max_tokens = self.settings.temperature, self.trainer.settings.max_tokens
        if self.algorithm.correction is not None:
            old = score_samples(
                self.trainer.model, batch, lambda s: s.logprobs_K, temperature=temperature, max_tokens=max_tokens
            )
            batch, found = with_correction(batch, old, self.algorithm.correction)
            told |= found
        if self.reference is not None:
            batch = with_reference(self.reference, batch, temperature=temperature, max_tokens=max_tokens)
        if self.algorithm.critic is not None:
            batch, found = with_critic(
                self.critic or self.trainer, batch, self.algorithm.critic, temperature=temperature
            )
            told |= found
        return batch, told

    def _entropy_coef(self, batch: Sequence[Sample]) -> float:
        """The weight of the entropy bonus; an adaptive one takes the entropy before the step, and moves on."""
        if self.entropy is None:
            return self.settings.entropy_coef
        rows = score_samples(
            self.trainer.model,
            batch,
            lambda s: s.entropy_K,
            temperature=self.settings.temperature,
            max_tokens=self.trainer.settings.max_tokens,
        )
        known = [row[place] for sample, row in zip(batch, rows, strict=True) for place in trained_places(sample)]
        entropy = sum(known) / len(known)
        coefficient = self.entropy.alpha(entropy)
        self.entropy = self.entropy.after(entropy)
        return coefficient

    def _parts(self, batch: Sequence[Sample], version: int) -> Iterator[Sequence[Sample]]:
        """The samples of each optimizer step: whole groups, in another order each pass."""
        names = list(dict.fromkeys(sample.group_id for sample in batch))
        for epoch in range(self.settings.epochs):
            if self.settings.minibatches == 1:
                yield batch
                continue
            order = list(names)
            random.Random(derive_seed(self.seed, "minibatches", version, epoch)).shuffle(order)
            for number in range(self.settings.minibatches):
                mine = set(order[number :: self.settings.minibatches])
                part = [sample for sample in batch if sample.group_id in mine]
                if part:
                    yield part

    def _first_step(
        self, part: Sequence[Sample], entropy_coef: float, warming: bool, version: int, *, fresh: bool
    ) -> Row:
        """The optimizer step that the sampler's weights are compared in: fresh tokens are not trained where trainer and
        sampler disagree on them. Some steps, by the settings, say in full how far they are apart."""
        model = self.trainer.model
        watch = partial(Watch, tolerance=tolerance_of(model), refuse=partial(self._refuse, part) if fresh else None)
        watched: list[Watch] = []

        def watching(loss: Loss) -> Loss:
            watched.append(watch(loss))
            return watched[0]

        row = self._step(part, entropy_coef, warming, watching)
        return {**row, **_as_row(watched[0].figures())} if self._tells(version) and watched else row

    def _tells(self, version: int) -> bool:
        """Whether it is a step's turn to say in full how far trainer and sampler are apart."""
        every = self.settings.parity_every
        return version == self.settings.critic_warmup or bool(every and (version + 1) % every == 0)

    def compare(self, batch: Sequence[Sample], version: int) -> Row:
        """How far trainer and sampler are apart, for a step in which nothing is trained.

        Args:
            batch: what was sampled in the step.
            version: of the weights.

        Returns:
            The metrics, in the steps whose turn it is; else none.

        Raises:
            TrainerError: as `learn`.
        """
        if not batch or not self._tells(version):
            return {}
        found = rescore(self.trainer.model, batch, temperature=self.settings.temperature)
        if not found.within and all(one in (None, version) for sample in batch for one in sample.versions):
            self._refuse(batch)
        return _as_row(found.figures)

    def _refuse(self, part: Sequence[Sample]) -> NoReturn:
        """Say how trainer and sampler disagree, and why."""
        model = self.trainer.model
        made = [replace(sample, weights={"pg": sample.weights["pg"]}) for sample in part]
        found = rescore(model, made, temperature=self.settings.temperature, earlier=self.earlier())
        raise TrainerError(
            f"log-probabilities of tokens that were just sampled differ by {found.figures.largest:.3g} nats between "
            f"trainer and sampler, {found.figures.mean:.2g} in the mean (at most {found.tolerance.largest:g} and "
            f"{found.tolerance.mean:g} with weights in {found.dtype}): {found.diagnosis}"
        )

    def _step(
        self,
        part: Sequence[Sample],
        entropy_coef: float,
        warming: bool,
        watching: Callable[[Loss], Loss] = lambda loss: loss,
    ) -> Row:
        """One optimizer step of the policy, the critic or both."""
        critic, temperature = self.algorithm.critic, self.settings.temperature
        told: Row = {}
        if critic is not None and (warming or self.critic is not None):
            told = self._critic_step(part, critic)
            if warming:
                return told
        kl = None
        if self.reference is not None:
            kl = KlTerm(name=self.settings.kl_loss, coefficient=self.settings.kl_coef)
        loss = watching(PolicyGradient(self.algorithm, kl=kl, entropy_coef=entropy_coef, critic=self.critic is None))
        row = self.trainer.step(part, loss, temperature=temperature, entropy_gradient=entropy_coef > 0)
        return {**row, **({"value_loss": told["value_loss"]} if told else {})}

    def _critic_step(self, part: Sequence[Sample], critic: Critic) -> Row:
        trainer = self.critic or self.trainer
        with nullcontext() if self.critic else only_value_head(self.trainer.model):
            return {**trainer.step(part, critic_alone(critic), temperature=self.settings.temperature)}


def _as_row(found: Figures) -> Row:
    """As metrics, which merge over steps: squares in place of their root, and logarithms of the perplexities."""
    return {
        "parity_tokens": found.num_tokens,
        "parity_difference": found.mean,
        "parity_square": found.root_mean_square**2,
        "parity_k3": found.k3,
        "parity_beyond": found.share_beyond,
        "parity_sampler_nll": math.log(found.sampler_perplexity),
        "parity_trainer_nll": math.log(found.trainer_perplexity),
    }
