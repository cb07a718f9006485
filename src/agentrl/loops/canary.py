"""Whether a publication arrived: what the sampler holds, and what it says, under the version that it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from agentrl.errors import SamplerError
from agentrl.loops.context import RunContext
from agentrl.policy.base import Policy
from agentrl.protocols import Renderer, Sampler
from agentrl.tokens.samples import samples
from agentrl.train.parity.check import rescore
from agentrl.train.parity.conversations import Conversation, converse
from agentrl.types import Trace

PROMPTS, ATTEMPTS, REPLY = 2, 2, 8
"""Tasks whose prompts are continued, how often each, and the tokens of the longest reply: about 30 tokens in all."""


DEADLINE_S = 600.0
"""Beside all that a sampler does on a slow machine, a short reply takes seconds."""
T = TypeVar("T")


class InTrainer(Protocol):
    """Runs a function in the trainer's thread, and gives what it returns."""

    def __call__(self, work: Callable[..., T], *values: Any) -> Awaitable[T]:
        """Run ``work(*values)``."""
        ...


class Canary:
    """A few short replies to the prompts of some tasks, always with the same draws, after each publication.

    They take the way of every other reply, through batch and caches, so a cache that was kept by mistake shows as well
    as weights that did not arrive. Weights are compared besides, tensor by tensor and to the bit: what one step changes
    may be less than what the numbers of trainer and sampler are apart by rounding. Where they are the same, the
    trainer's forward pass over the sampler's weights says what the trainer said when it published them, so the replies
    can be scored when the trainer has moved on.

    Args:
        trainer: the policy whose weights are published.
        held: the sampler's own.
        sampler: of ``held``.
        renderer: writes the prompts.
        prompts: what is said.
        temperature: of the sampler.
        seed: of the draws.
        every: how many versions there are to a publication; nothing is looked at for the others.
    """

    def __init__(
        self,
        *,
        trainer: Policy,
        held: Policy,
        sampler: Sampler,
        renderer: Renderer,
        prompts: Sequence[Conversation],
        temperature: float = 1.0,
        seed: int = 0,
        every: int = 1,
    ) -> None:
        self.trainer, self.held, self.sampler = trainer, held, sampler
        self.renderer, self.prompts = renderer, prompts
        self.temperature, self.seed, self.every = temperature, seed, every
        self._said: asyncio.Task[list[Trace]] | None = None
        self._version = 0

    @classmethod
    def of(cls, run: RunContext) -> Self:
        """The canary of a run, on its first tasks."""
        tasks = run.train_tasks()
        some = [tasks[index] for index in range(min(PROMPTS, len(tasks)))]
        return cls(
            trainer=run.model,
            held=run.engine.model,
            sampler=run.engine,
            renderer=run.renderer,
            prompts=[Conversation(name=task.id, prompt=task.prompt, tools=task.tools) for task in some],
            temperature=run.config.rl.temperature,
            seed=run.config.seed,
            every=run.config.rl.publish_every,
        )

    def compare_weights(self, version: int) -> None:
        """Look at what the sampler holds after a publication.

        Raises:
            SamplerError: other weights than the trainer's, or under another version.
        """
        if version % self.every:
            return
        if self.sampler.version != version:
            raise SamplerError(
                f"version {version} was published and the sampler still has {self.sampler.version}: the publication "
                "reached nobody"
            )
        mine, theirs = self.trainer.tensors(), self.held.tensors()
        wrong = [name for name, tensor in mine.items() if name not in theirs or not _equal(tensor, theirs[name])]
        if not wrong:
            return
        named = ", ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        reached = "reached nobody" if len(wrong) == len(mine) else "arrived in part"
        raise SamplerError(
            f"the publication of version {version} {reached}: of {len(mine)} tensors {len(wrong)} are others in the "
            f"sampler than in the trainer ({named})"
        )

    def begin(self, version: int) -> None:
        """Let the sampler speak, beside what else it samples."""
        self._said, self._version = None, version
        if version % self.every == 0:
            speaking = converse(
                self.sampler,
                self.renderer,
                self.prompts,
                attempts=ATTEMPTS,
                max_tokens=REPLY,
                context=self.held.context,
                seed=self.seed,
            )
            self._said = asyncio.get_running_loop().create_task(speaking)

    async def check(self, in_trainer: InTrainer) -> None:
        """Score what it said as the trainer does, with the weights that were published; before the next publication.

        Raises:
            SamplerError: it says nothing, labels tokens with another version, or its numbers differ by more than
                rounding, within what the type of the weights allows.
        """
        if self._said is None:
            return
        try:
            traces = await asyncio.wait_for(self._said, DEADLINE_S)
        except TimeoutError as error:
            raise SamplerError(
                f"version {self._version} was published and the sampler gave no reply of {REPLY} tokens within "
                f"{DEADLINE_S:g} s: it is stuck"
            ) from error
        labels = {label for trace in traces for node in trace.nodes for label in node.versions}
        if labels != {self._version}:
            raise SamplerError(
                f"version {self._version} was published and what is sampled then is labelled with {sorted(labels)}: "
                "the sampler did not take the publication"
            )
        made = [made for trace in traces for made in samples(trace, 0.0)]
        found = await in_trainer(partial(rescore, self.held, made, temperature=self.temperature, worst=0))
        if not found.within:
            raise SamplerError(
                f"version {self._version} was published and the sampler's log-probabilities differ from the "
                f"trainer's by {found.figures.largest:.3g} nats, {found.figures.mean:.2g} in the mean (at most "
                f"{found.tolerance.largest:g} and {found.tolerance.mean:g} with weights in {found.dtype}), although "
                f"its weights are the same: {found.diagnosis}; look at its caches"
            )


def _equal(mine: Tensor, theirs: Tensor) -> bool:
    return mine.dtype == theirs.dtype and torch.equal(mine, theirs.to(mine.device))
