"""Whether a publication arrived: what the sampler holds, and what it says, under the version that it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from agentrl.errors import SamplerError
from agentrl.loops.context import RunContext
from agentrl.loops.publication import local
from agentrl.policy.base import Policy
from agentrl.protocols import Renderer, Sampler
from agentrl.tokens.samples import samples
from agentrl.train.parity.check import Parity, rescore
from agentrl.train.parity.conversations import Conversation, converse
from agentrl.types import Sample, Trace

PROMPTS, ATTEMPTS, REPLY = 2, 2, 8
"""Tasks whose prompts are continued, how often each, and the tokens of the longest reply: about 30 tokens in all."""
SCORED = 64
"""Tokens at the beginning of a prompt that each server is asked to score."""

DEADLINE_S = 600.0
"""Beside all that a sampler does on a slow machine, a short reply takes seconds."""
T = TypeVar("T")
Score = Callable[[Sequence[int]], Awaitable[Mapping[str, Sequence[float]]]]
"""What each server that is there says of given tokens: the log-probability, at temperature 1, of each but the first."""


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

    Servers cannot be asked for their weights. Each of them scores the beginning of a prompt instead, and it and the
    replies are compared with the trainer's numbers before the trainer moves on.

    Args:
        trainer: the policy whose weights are published.
        held: the sampler's own; None where servers have them.
        sampler: of ``held``.
        renderer: writes the prompts.
        prompts: what is said.
        temperature: of the sampler.
        seed: of the draws.
        every: how many versions there are to a publication; nothing is looked at for the others.
        context: the longest conversation in tokens; that of the trainer when None.
        score: asks all servers, where there are some.
        deadline_s: for all that is said after a publication.
    """

    def __init__(
        self,
        *,
        trainer: Policy,
        held: Policy | None,
        sampler: Sampler,
        renderer: Renderer,
        prompts: Sequence[Conversation],
        temperature: float = 1.0,
        seed: int = 0,
        every: int = 1,
        context: int | None = None,
        score: Score | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.trainer, self.held, self.sampler = trainer, held, sampler
        self.renderer, self.prompts = renderer, prompts
        self.temperature, self.seed, self.every = temperature, seed, every
        self.context = trainer.context if context is None else context
        self.score, self.deadline_s = score, deadline_s
        self._said: asyncio.Task[tuple[list[Trace], list[Sample]]] | None = None
        self._version = 0

    @classmethod
    def of(cls, run: RunContext, *, every: int) -> Self:
        """The canary of a run, on its first tasks; ``every`` as in the class."""
        tasks = run.train_tasks()
        some = [tasks[index] for index in range(min(PROMPTS, len(tasks)))]
        served = run.served
        return cls(
            trainer=run.model,
            held=local(run.engine).model if served is None else None,
            sampler=run.engine,
            renderer=run.renderer,
            prompts=[Conversation(name=task.id, prompt=task.prompt, tools=task.tools) for task in some],
            temperature=run.config.rl.temperature,
            seed=run.config.seed,
            every=every,
            context=run.config.model.context,
            score=None if served is None else served.sampler.score,
            deadline_s=DEADLINE_S + (0.0 if served is None else run.config.engine.reply_s),
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
        if self.held is None:
            return
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
            self._said = asyncio.get_running_loop().create_task(self._speak())

    async def _speak(self) -> tuple[list[Trace], list[Sample]]:
        """The replies, and what each server says of the beginning of one of them."""
        traces = await converse(
            self.sampler,
            self.renderer,
            self.prompts,
            attempts=ATTEMPTS,
            max_tokens=REPLY,
            context=self.context,
            seed=self.seed,
        )
        if self.score is None:
            return traces, []
        ids = tuple(token for node in traces[0].nodes for token in (*node.context_ids, *node.sampled_ids))[:SCORED]
        return traces, [_as_sample(url, ids, said) for url, said in (await self.score(ids)).items()]

    async def check(self, in_trainer: InTrainer, *, learnt: bool = True) -> None:
        """Score what it said as the trainer does, with the weights that were published; before the next publication.

        Args:
            in_trainer: runs the forward pass.
            learnt: whether the trainer has moved on since. With servers nothing is looked at then, and with a sampler
                in this process not before.

        Raises:
            SamplerError: it says nothing, labels tokens with another version, or its numbers differ by more than
                rounding, within what the type of the weights allows.
        """
        if self._said is None or learnt is (self.held is None):
            return
        try:
            traces, scored = await asyncio.wait_for(self._said, self.deadline_s)
        except TimeoutError as error:
            raise SamplerError(
                f"version {self._version} was published and the sampler gave no reply of {REPLY} tokens within "
                f"{self.deadline_s:g} s: it is stuck"
            ) from error
        labels = {label for trace in traces for node in trace.nodes for label in node.versions}
        if labels != {self._version}:
            raise SamplerError(
                f"version {self._version} was published and what is sampled then is labelled with {sorted(labels)}: "
                "the sampler did not take the publication"
            )
        for one in scored:
            found = await in_trainer(partial(rescore, self.trainer, [one], temperature=1.0, worst=0))
            self._judge(found, one.trace_id, ": it does not hold the weights that it was given")
        made = [made for trace in traces for made in samples(trace, 0.0)]
        held, same = self.held, "its weights are the same"
        if held is None:
            held, same = self.trainer, "what it says of given tokens is the same"
        found = await in_trainer(partial(rescore, held, made, temperature=self.temperature, worst=0))
        self._judge(found, "the sampler", f", although {same}: {found.diagnosis}; look at its caches")

    def _judge(self, found: Parity, who: str, why: str) -> None:
        """Refuse numbers that differ.

        Raises:
            SamplerError: they do.
        """
        if found.within:
            return
        raise SamplerError(
            f"version {self._version} was published and the log-probabilities of {who} differ from the trainer's by "
            f"{found.figures.largest:.3g} nats, {found.figures.mean:.2g} in the mean (at most "
            f"{found.tolerance.largest:g} and {found.tolerance.mean:g} with weights in {found.dtype}){why}"
        )


def _as_sample(url: str, ids: Sequence[int], logprobs: Sequence[float]) -> Sample:
    """Given tokens with what a server says of each but the first."""
    return Sample(
        token_ids=tuple(ids),
        weights={"pg": (0.0, *(1.0 for _ in logprobs))},
        logprobs=(None, *logprobs),
        advantages=(0.0,) * len(ids),
        trace_id=url,
        group_id=url,
    )


def _equal(mine: Tensor, theirs: Tensor) -> bool:
    return mine.dtype == theirs.dtype and torch.equal(mine, theirs.to(mine.device))
