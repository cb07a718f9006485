"""How long a step of a run will take, told from small real steps that are timed just before.

What a layer, a word of the vocabulary, a trained weight and a token cost is measured on models of few layers and words,
which run the code of the run on this machine; that each costs the same in the whole model is what is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, NamedTuple

import torch

from agentrl.config import TrainConfig
from agentrl.loops.footprint.estimate import Traces
from agentrl.loops.footprint.outline import outline
from agentrl.loops.footprint.small import Sizes, family, made
from agentrl.loops.footprint.speed import Clock, Sampled, Sampling, Steps, bookkeeping, head, trained_part
from agentrl.loops.footprint.trace import Conversations, trace_training

ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds of one step of a phase, by kind of work, and its floating point operations."""

    seconds: Mapping[str, float]
    flops: float

    @property
    def total(self) -> float:
        """All of them together."""
        return sum(self.seconds.values())


def durations(config: TrainConfig, traces: Traces) -> dict[str, Duration]:
    """How long one step of sampling and of training will take; tools are not in it.

    Seconds of the processor where the model is on one, which is those of the clock where one thread computes and
    nothing else runs; seconds of the clock on other devices.

    Args:
        config: of the run.
        traces: of its passes.

    Raises:
        ConfigError: the model's shape cannot be had.
    """
    there = config.hf.device != "cpu" and not config.model.is_tiny and torch.cuda.is_available()
    clock, small = Clock(torch.device("cuda" if there else "cpu")), _Small(config, traces)
    models = {sizes: _Model(config, sizes, small, clock) for sizes in small.family.members}
    rounds = [small.timed(models, clock) for _ in range(ROUNDS + 1)]
    sampling, training = small.told(_median(rounds[1:]))  # the first warms up
    return {
        "sampling": Duration(seconds=sampling, flops=_sampled_flops(traces)),
        "training": Duration(seconds=training, flops=traces.training.work.flops),
    }


class _Costs(NamedTuple):
    """Seconds of one model: of an update, of a further micro-batch of almost nothing, of a step beyond its update, and
    of sampling."""

    update: float
    further: float
    passes: float
    sampled: Sampled


class _Round(NamedTuple):
    """What was timed in a round, in which all have a turn, so that what is slow for a while is so for all.

    Attributes:
        models: each of the small models.
        word: seconds of a trained token's word in the vocabulary head.
        kept: seconds of the engine's own for each token.
    """

    models: Mapping[Sizes, _Costs]
    word: float
    kept: float


def _median(rounds: Sequence[_Round]) -> _Round:
    """Of each number by itself, before one is told from others: of differences the least would be that with most noise
    against it."""
    return _Round(
        {sizes: _median_costs([one.models[sizes] for one in rounds]) for sizes in rounds[0].models},
        median(one.word for one in rounds),
        median(one.kept for one in rounds),
    )


def _median_costs(costs: Sequence[_Costs]) -> _Costs:
    names = ("update", "further", "passes")
    sampled = {field.name: median(getattr(one.sampled, field.name) for one in costs) for field in fields(Sampled)}
    return _Costs(**{name: median(getattr(one, name) for one in costs) for name in names}, sampled=Sampled(**sampled))


class _Model:
    """One of the small models, ready to be timed."""

    def __init__(self, config: TrainConfig, sizes: Sizes, small: _Small, clock: Clock) -> None:
        policy = made(config, sizes, clock.device)
        self.clock, self.threads = clock, policy.sampling_threads
        self.steps = Steps(policy, small.part, max_tokens=config.hf.micro_batch_tokens)
        self.sampling = Sampling(policy, small.whole)
        self.is_wider = sizes == small.family.wider

    def costs(self) -> _Costs:
        update = self.steps.update(self.clock)
        further = max(0.0, self.steps.two(self.clock) - update)
        passes = 0.0 if self.is_wider else max(0.0, self.steps.whole(self.clock) - update)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads or threads)
        try:
            return _Costs(update, further, passes, self.sampling.seconds(self.clock))
        finally:
            torch.set_num_threads(threads)


class _Small:
    """What is timed of a run, and what that says of the run."""

    def __init__(self, config: TrainConfig, traces: Traces) -> None:
        self.family, self.whole, self.traces = family(config), traces.conversations, traces
        largest, most = self.family.deeper or self.family.base, config.hf.micro_batch_tokens
        weights = sum(weight.numel() for weight in outline(config, **vars(largest)).parameters())
        self.part = trained_part(self.whole, weights)
        self.policy = outline(config, **vars(self.family.base))
        whole, part = (trace_training(self.policy, one.samples(), max_tokens=most) for one in (self.whole, self.part))
        self.times = whole.work.flops / part.work.flops
        """Operations of the passes of a step over those of the part that is timed."""

    def timed(self, models: Mapping[Sizes, _Model], clock: Clock) -> _Round:
        """A round."""
        return _Round({sizes: model.costs() for sizes, model in models.items()}, self._word(clock), bookkeeping(clock))

    def told(self, found: _Round) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of sampling and of training."""
        return self._sampling(found), self._training(found)

    def _training(self, found: _Round) -> dict[str, float]:
        costs, tokens = found.models, self._trained_tokens
        base, deeper = self.family.base, self.family.deeper or self.family.base
        passes = self.family.told(costs[base].passes, costs[deeper].passes, costs[base].passes)
        further = (self.traces.training.micro_batches - 1) * self._told(costs, lambda one: one.further)
        return {
            "passes": self.times * passes,
            "vocabulary": found.word * tokens * (self.family.whole.words - self.family.base.words),
            "accumulation": further,
            "update": self._told(costs, lambda one: one.update),
        }

    @property
    def _trained_tokens(self) -> int:
        return self.whole.groups * self.whole.members * self.whole.num_trained

    def _word(self, clock: Clock) -> float:
        """Of one of the words that the smallest model lacks, for each trained token: in tiles or at once, as later."""
        if self.family.wider is None:
            return 0.0
        weight_VD: Any = self.policy.get_submodule("model").get_output_embeddings().weight  # type: ignore[operator]
        tokens = self._trained_tokens // self.traces.training.micro_batches
        return head(weight_VD, self.family.whole.words, tokens, clock)

    def _sampling(self, found: _Round) -> dict[str, float]:
        costs = found.models
        replies, answers = _turns(self.whole)
        rows = self.whole.groups * self.whole.members
        token = self._told(costs, lambda one: one.sampled.token)
        singly = max(0.0, replies - answers)  # the last token of a reply is computed with the answer to it
        return {
            "prompts": self.whole.groups * self.whole.prompt * self._told(costs, lambda one: one.sampled.context),
            "replies": rows * (singly * token + replies * found.kept),
            "answers": answers * rows * self._told(costs, lambda one: one.sampled.answer),
        }

    def _told(self, costs: Mapping[Sizes, _Costs], kind: Callable[[_Costs], float]) -> float:
        base = self.family.base
        others = (kind(costs[sizes or base]) for sizes in (self.family.deeper, self.family.wider))
        return self.family.told(kind(costs[base]), *others)


def _turns(work: Conversations) -> tuple[int, float]:
    """Reply tokens of a conversation, and how often the environment answers."""
    return work.num_trained, (work.own - work.num_trained) / work.observation


def _sampled_flops(traces: Traces) -> float:
    sampled, (replies, answers) = traces.sampling, _turns(traces.conversations)
    return (sampled.prefill + sampled.token.times(replies) + sampled.observation.times(answers)).flops
