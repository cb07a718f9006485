"""How fast this machine carries out the passes of a run, measured on small real ones just before.

Times are processor time where the processor computes, since what else runs here then counts little, and seconds of the
clock on other devices.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.engine.draw import draw
from agentrl.engine.local import LocalEngine
from agentrl.loops.footprint.trace import Conversations, steps_of
from agentrl.policy.base import Policy
from agentrl.policy.cache import KeyValueCache, Piece
from agentrl.policy.slots import Slot
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.head import SMALL_LOGITS, token_scores
from agentrl.train.losses import LossShare
from agentrl.train.packing import Batch
from agentrl.train.scoring import Scored
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Sample

_ENOUGH_S, _OFTEN = 0.1, 20
"""What takes less is repeated for so long, or so often."""
_LEAST = Conversations(groups=1, members=1, prompt=1, length=3, observation=1)
_TRAINED_FLOPS = 6e10
_LEAST_TOKENS, _MOST_TOKENS = 384, 1024
_CACHE_BYTES = 2**28
"""Of each small model; where the conversations of a step take more, fewer are timed."""
_CHUNK = 256
_HEAD_TOKENS, _HEAD_WORDS = 512, 8192


class Clock:
    """Measures what a device computes.

    Args:
        device: that computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, compute: Callable[[], object]) -> float:
        """Of one call, the median of some."""
        found: list[float] = []
        while not found or (sum(found) < _ENOUGH_S and len(found) < _OFTEN):
            found.append(self._once(compute))
        return statistics.median(found)

    def _once(self, compute: Callable[[], object]) -> float:
        started = self._now()
        compute()
        return self._now() - started

    def _now(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


# Training.


def trained_part(conversations: Conversations, weights: int) -> Conversations:
    """Conversations of a step as they are, but fewer, so that a model with so many weights trains them in a second; cut
    where one alone is longer than that."""
    most = min(_MOST_TOKENS, max(_LEAST_TOKENS, int(_TRAINED_FLOPS / (6 * max(1, weights)))))
    length = min(conversations.length, most)
    prompt = min(length - 1, max(1, round(conversations.prompt * length / conversations.length)))
    members = max(1, min(conversations.members, (most - prompt) // (length - prompt)))
    groups = max(1, min(conversations.groups, most // (prompt + members * (length - prompt))))
    return replace(conversations, groups=groups, members=members, prompt=prompt, length=length)


class Steps:
    """Optimizer steps of a model, over some conversations and over almost nothing."""

    def __init__(self, policy: Policy, conversations: Conversations, *, max_tokens: int) -> None:
        self.trainer = Trainer(policy, _settings(max_tokens))
        self.least, self.samples = _LEAST.samples(), conversations.samples()
        self.twice = replace(_LEAST, groups=2).samples()
        self.max_tokens = max_tokens

    def update(self, clock: Clock) -> float:
        """Seconds of a step over almost nothing: those of the optimizer."""
        return self._seconds(clock, self.least)

    def two(self, clock: Clock) -> float:
        """Seconds of the same in two micro-batches: gradients are made once more and added."""
        self.trainer.settings = _settings(_LEAST.length)
        try:
            return self._seconds(clock, self.twice)
        finally:
            self.trainer.settings = _settings(self.max_tokens)

    def whole(self, clock: Clock) -> float:
        """Seconds of a step over all."""
        return self._seconds(clock, self.samples)

    def _seconds(self, clock: Clock, samples: Sequence[Sample]) -> float:
        return clock.seconds(lambda: self.trainer.step(samples, _total))


def _settings(max_tokens: int) -> OptimizerSettings:
    return OptimizerSettings(learning_rate=1e-6, matrix_learning_rate=1e-6, total_steps=1000, max_tokens=max_tokens)


def _total(scored: Scored, _: Batch) -> LossShare:
    return LossShare(scored.logprobs_K.sum(), {}, {})


def head(weight_VD: Tensor, words: int, tokens: int, clock: Clock) -> float:
    """Seconds of the vocabulary head for each token and word, in both passes, beyond those of a single token, which
    every micro-batch of almost nothing has.

    Args:
        weight_VD: a projection like that of the run on any device; its type, width and whether it is trained count.
        words: of the vocabulary.
        tokens: that a micro-batch trains.
        clock: measures.
    """
    rows, columns, width = min(tokens, _HEAD_TOKENS), min(words, _HEAD_WORDS), weight_VD.shape[1]
    like = {"dtype": weight_VD.dtype, "device": clock.device}
    part_WD = torch.full((columns, width), 0.1, **like).requires_grad_(weight_VD.requires_grad)  # type: ignore[call-overload]
    limit = rows * columns if tokens * words <= SMALL_LOGITS else 0  # at once or in tiles, as the whole is

    def seconds(rows: int) -> float:
        hidden_KD = torch.full((rows, width), 0.1, **like).requires_grad_()  # type: ignore[call-overload]
        target_K = torch.zeros(rows, dtype=torch.long, device=clock.device)

        def passes() -> None:
            scores = token_scores(hidden_KD, part_WD, target_K, small_logits=limit)
            scores.logprobs_K.sum().backward()  # type: ignore[no-untyped-call]
            hidden_KD.grad = part_WD.grad = None

        return clock.seconds(passes)

    return max(0.0, seconds(rows) - seconds(1)) / (max(1, rows - 1) * columns)


# Sampling.


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Seconds of sampling.

    Attributes:
        context: of a prompt's token.
        token: of a reply token, for one conversation.
        answer: of an answer of the environment, for one conversation.
    """

    context: float
    token: float
    answer: float


class Sampling:
    """Conversations at half of their length, which is what they have in the mean, over empty keys and values."""

    def __init__(self, policy: Policy, conversations: Conversations) -> None:
        self.cache = KeyValueCache(policy, sys.maxsize)
        self.work, self.half = conversations, max(1, conversations.own // 2)
        room = self.half + conversations.prompt // conversations.members
        most = max(2, _CACHE_BYTES // (self.cache.bytes_per_token * room))
        members = min(conversations.members, most)
        groups = max(1, min(conversations.groups, most // members))
        self.prompts = [self.cache.prompts.take(conversations.prompt) for _ in range(groups)]
        self.tails = {self.cache.tails.take(self.half): one for one in self.prompts for _ in range(members)}
        for prompt in self.prompts:
            prompt.length = conversations.prompt
        self._going: list[Slot] = []
        """Those that got the token before this one."""

    def seconds(self, clock: Clock) -> Sampled:
        """Of each kind of token."""
        answer, prompt = min(self.work.observation, self.half), self.work.prompt
        token = self._each(clock, self._reply)
        answered = self._each(clock, lambda tails: self._answer(tails, answer))
        count = min(_CHUNK, prompt)
        context = clock.seconds(lambda: self._begin((prompt - count) // 2, count)) / count
        return Sampled(context=context, token=token, answer=answered * self.work.observation / answer)

    def _each(self, clock: Clock, act: Callable[[dict[Slot, Slot]], None]) -> float:
        """Seconds for one conversation, of all that a step has. Where fewer are timed, so are half of them: the weights
        are read once for all, and each further one adds the same."""
        timed, rows = len(self.tails), self.work.groups * self.work.members
        whole = clock.seconds(lambda: act(self.tails))
        if timed in (rows, 1):
            return whole / timed
        fewer = dict(list(self.tails.items())[::2])
        more = max(0.0, whole - clock.seconds(lambda: act(fewer))) / (timed - len(fewer))
        return (whole + (rows - timed) * more) / rows

    def _reply(self, tails: dict[Slot, Slot]) -> None:
        if self._going == [*tails] and self.cache.can_go_on:  # as most steps do
            logits_BV = self.cache.go_on([0] * len(tails))
        else:
            for tail in tails:
                tail.length = self.half - 1
            logits_BV = self.cache.advance([_piece(tail, prompt, 1) for tail, prompt in tails.items()])
        self._going = [*tails]
        rows = len(logits_BV)
        draw(logits_BV, logits_BV.new_zeros(rows, dtype=torch.float64), logits_BV.new_zeros(rows, dtype=torch.bool))

    def _answer(self, tails: dict[Slot, Slot], count: int) -> None:
        self._going = []
        for tail in tails:
            tail.length = self.half - count
        for pieces in steps_of(tails, count):
            self.cache.advance(pieces)

    def _begin(self, length: int, count: int) -> None:
        self._going = []
        prompt = self.prompts[0]
        kept, prompt.length = prompt.length, length
        self.cache.advance([_piece(prompt, None, count)])
        prompt.length = kept


def _piece(slot: Slot, prompt: Slot | None, count: int) -> Piece:
    return Piece(slot=slot, prompt=prompt, token_ids=[0] * count, previous_id=0, ends=True)


def bookkeeping(clock: Clock) -> float:
    """Seconds that the engine takes for each token of a conversation, beside what is computed: a model of next to no
    weights, sampled by the engine and by its cache alone."""
    work = Conversations(groups=4, members=8, prompt=8, length=40, observation=1)
    shape = TransformerShape(vocab_size=16, layers=1, width=8, heads=1, mlp_width=8, context=64)
    model = TinyTransformer(shape, seed=0)
    tokens = work.groups * work.members * work.own
    whole = clock.seconds(lambda: asyncio.run(_played(LocalEngine(model), work))) / tokens
    return max(0.0, whole - Sampling(model, work).seconds(clock).token)


async def _played(engine: LocalEngine, work: Conversations) -> None:
    async def one(group: int, member: int) -> None:
        session = engine.session(group * work.members + member)
        await session.sample([group] * work.prompt, max_tokens=work.own, stop_ids=frozenset())
        await session.close()

    await asyncio.gather(*(one(group, member) for group in range(work.groups) for member in range(work.members)))
