"""Parity of the tokens that are trained anyway: read from the trainer's own forward pass, before the weights move."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from agentrl.train.losses import Loss, LossShare
from agentrl.train.packing import Batch
from agentrl.train.parity.figures import Figures, Tolerance, figures, flat
from agentrl.train.scoring import Scored


class Watch:
    """A loss that notes, of every token of a policy gradient, what trainer and sampler say of it.

    Args:
        loss: what is computed; its value and gradient are left as they are.
        tolerance: of trainer and sampler.
        refuse: called when the tokens of a micro-batch are beyond it, before the step is taken; None where other
            weights have sampled them.
    """

    def __init__(self, loss: Loss, tolerance: Tolerance, refuse: Callable[[], NoReturn] | None) -> None:
        self.loss, self.tolerance, self.refuse = loss, tolerance, refuse
        self._trainer: list[np.ndarray] = []
        self._sampler: list[np.ndarray] = []

    def __call__(self, scored: Scored, batch: Batch) -> LossShare:
        """The loss of a micro-batch."""
        mask_K = batch.weights_K["pg"] != 0
        pair = (scored.logprobs_K.detach()[mask_K], batch.sampler_logprobs_K[mask_K])
        trainer_N, sampler_N = (logprobs_K.double().cpu().numpy() for logprobs_K in pair)
        if len(trainer_N):
            self._trainer.append(trainer_N)
            self._sampler.append(sampler_N)
            if self.refuse is not None and not figures(trainer_N, sampler_N, self.tolerance).within(self.tolerance):
                self.refuse()
        return self.loss(scored, batch)

    def figures(self) -> Figures:
        """Of all micro-batches so far.

        Raises:
            TrainerError: there were no tokens.
        """
        return figures(flat(self._trainer), flat(self._sampler), self.tolerance)
