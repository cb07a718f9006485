"""The passes of a run on shapes alone: how many bytes are alive in them at once, and what they compute.

What is traced is the code that runs later: the policy's own passes, the sampling cache, the loss and its backward
pass. One thing stands in for another: the tiled vocabulary head, whose thousands of equal tiles are one allocation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from agentrl.engine.draw import draw
from agentrl.engine.local import CHUNK_TOKENS
from agentrl.loops.footprint.live import LiveBytes, Product
from agentrl.policy.base import Output, Policy
from agentrl.policy.cache import KeyValueCache, Piece
from agentrl.policy.slots import SMALLEST, Slot
from agentrl.train.head import SMALL_LOGITS, TILE_ROWS, TILE_WORDS, token_scores
from agentrl.train.packing import Batch, micro_batches
from agentrl.train.scoring import Scored
from agentrl.types import Sample


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """Those of one step, all alike: as many tokens as the longest may have.

    Attributes:
        groups: tasks.
        members: conversations of each, which share the prompt.
        prompt: tokens of it.
        length: tokens of a whole conversation.
        observation: tokens of one answer of the environment.
        trained: share of the tokens behind the prompt that the policy wrote.
    """

    groups: int
    members: int
    prompt: int
    length: int
    observation: int
    trained: float = 0.5

    @property
    def own(self) -> int:
        """Tokens of a conversation behind its prompt."""
        return self.length - self.prompt

    @property
    def num_trained(self) -> int:
        """Tokens of a conversation that the policy wrote."""
        return max(1, round(self.trained * self.own))

    def samples(self) -> list[Sample]:
        """Samples of these sizes; those of a group differ behind the prompt, so that it alone is shared."""
        weights = (0.0,) * (self.length - self.num_trained) + (1.0,) * self.num_trained
        return [
            Sample(
                token_ids=(0,) * self.prompt + (member + 1,) + (0,) * (self.own - 1),
                weights={"pg": weights},
                logprobs=(0.0,) * self.length,
                advantages=(0.0,) * self.length,
                trace_id=f"{group}-{member}",
                group_id=str(group),
            )
            for group in range(self.groups)
            for member in range(self.members)
        ]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a pass computes.

    Attributes:
        products: how often it computes each matrix product.
        attention_flops: operations of fused attention.
    """

    products: dict[Product, float] = field(default_factory=dict)
    attention_flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        products = dict(self.products)
        for product, times in other.products.items():
            products[product] = products.get(product, 0.0) + times
        return Work(
            products=products,
            attention_flops=self.attention_flops + other.attention_flops,
        )

    def times(self, factor: float) -> Work:
        """The same so many times."""
        return Work(
            products={product: factor * times for product, times in self.products.items()},
            attention_flops=factor * self.attention_flops,
        )

    @property
    def flops(self) -> float:
        """Floating point operations of matrix products and attention."""
        return self.attention_flops + sum(
            2.0 * times * product.batch * product.rows * product.inner * product.columns
            for product, times in self.products.items()
        )


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes that a pass holds at its peak beside the weights.

    Attributes:
        peak: of all tensors.
        small, large: the peaks of those below and from `live.LARGE` alone.
    """

    peak: int = 0
    small: int = 0
    large: int = 0


def _held(live: LiveBytes) -> Held:
    return Held(peak=live.peak, small=live.small_peak, large=live.large_peak)


def _taken(live: LiveBytes) -> Work:
    """What was computed since it was last asked."""
    work = Work(products=dict(live.products), attention_flops=live.attention_flops)
    live.products.clear()
    live.attention_flops = 0
    return work


# Training.


@dataclass(frozen=True, kw_only=True)
class TrainingTrace:
    """The passes of one micro-batch.

    Attributes:
        held: all that is made, the gradients included.
        kept: what is there before the backward pass.
        work: of the whole step.
        tokens: of the micro-batch, with each shared prefix once.
        micro_batches: of the whole step.
    """

    held: Held
    kept: int
    work: Work
    tokens: int
    micro_batches: int


def trace_training(policy: Policy, samples: Sequence[Sample], *, max_tokens: int) -> TrainingTrace:
    """The forward and backward pass of the largest micro-batch of a step.

    The loss is a plain sum: every loss here is made of a few numbers for each trained token, which is nothing beside
    the rest.

    Args:
        policy: on the meta device.
        samples: of the step.
        max_tokens: as the trainer cuts.
    """
    batches = list(micro_batches(samples, max_tokens=max_tokens))
    batch = max(batches, key=lambda batch: len(batch.token_ids_M))
    live = LiveBytes((*policy.parameters(), *policy.buffers()))
    with live:
        if len(batches) > 1:  # the gradients of those before are there already
            for weight in policy.parameters():
                weight.grad = torch.empty_like(weight) if weight.requires_grad else None
        output: Output = policy(batch)
        projection_VD = output.projection_VD
        scored = _score(output, batch)
        del output
        kept = live.now
        values = () if scored.values_K is None else (scored.values_K.sum(),)
        sum(values, scored.logprobs_K.sum()).backward()  # type: ignore[no-untyped-call]
    tokens, words = (sum(map(len, rows)) for rows in zip(*((b.token_ids_M, b.target_K) for b in batches), strict=True))
    work = _taken(live).times(tokens / len(batch.token_ids_M))
    head = _head_work(len(batch.target_K), projection_VD)
    policy.zero_grad(set_to_none=True)
    return TrainingTrace(
        held=_held(live),
        kept=kept,
        work=work + head.times(words / len(batch.target_K)),
        tokens=len(batch.token_ids_M),
        micro_batches=len(batches),
    )


def _score(output: Output, batch: Batch) -> Scored:
    if len(batch.target_K) * len(output.projection_VD) <= SMALL_LOGITS:
        scores = token_scores(output.hidden_KD, output.projection_VD, batch.target_K, bias_V=output.bias_V)
        return Scored(scores.logprobs_K, scores.entropy_K, output.values_K)
    scaled_KD = output.hidden_KD.float() / 1.0
    logprobs_K, entropy_K = _TiledHead.apply(scaled_KD, output.projection_VD)  # type: ignore[no-untyped-call]
    return Scored(logprobs_K, entropy_K.detach(), output.values_K)


class _TiledHead(Function):
    """Allocates and computes what the tiles of `head.tiled_scores` do, in one piece: two tiles, and in the backward
    pass the gradients of the hidden states and of the projection."""

    @staticmethod
    def forward(ctx: Any, hidden_KD: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
        tokens, words = len(hidden_KD), len(weight_VD)
        ctx.scratch = hidden_KD.new_empty(2, min(TILE_ROWS, tokens) * min(TILE_WORDS, words))
        ctx.save_for_backward(hidden_KD, weight_VD)
        return hidden_KD.new_empty(tokens), hidden_KD.new_empty(tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden_KD, weight_VD = ctx.saved_tensors
        pulled_KD = torch.ones_like(hidden_KD) * hidden_KD
        grad_KD = torch.zeros_like(hidden_KD) if ctx.needs_input_grad[0] else None
        grad_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        del pulled_KD
        return grad_KD, grad_VD


def _head_work(tokens: int, weight_VD: Tensor) -> Work:
    """Matrix products of the tiles: the logits twice, and the gradients of their factors; see `agentrl.train.head`."""
    words, width = weight_VD.shape
    if tokens * words <= SMALL_LOGITS:
        return Work()  # traced with the rest
    rows, columns = min(TILE_ROWS, tokens), min(TILE_WORDS, words)
    tiles = tokens / rows * words / columns
    products = {Product(1, rows, width, columns): 2 * tiles, Product(1, rows, columns, width): tiles}
    if weight_VD.requires_grad:
        products[Product(1, columns, rows, width)] = tiles
    return Work(products=products)


# Sampling.


@dataclass(frozen=True, kw_only=True)
class SamplingTrace:
    """All conversations of a step at their full length, held at once.

    Attributes:
        cache: bytes of keys and values.
        prefill: work of all prompts.
        token: work of one reply token for each conversation, at their end, without the draw.
        observation: work of one answer of the environment to each conversation, at their end.
    """

    held: Held
    cache: int
    prefill: Work
    token: Work
    observation: Work


def trace_sampling(policy: Policy, conversations: Conversations) -> SamplingTrace:
    """The passes of the sampling cache.

    Args:
        policy: on the meta device.
        conversations: all that are open at the same time.
    """
    own, observed = conversations.own, min(conversations.observation, conversations.own)
    live = LiveBytes((*policy.parameters(), *policy.buffers()))
    with live:
        cache = KeyValueCache(policy, sys.maxsize)
        prompts = [cache.prompts.take(conversations.prompt) for _ in range(conversations.groups)]
        _taken(live)
        for pieces in steps_of(dict.fromkeys(prompts), conversations.prompt):
            cache.advance(pieces)
        prefill = _taken(live)
        tails = {cache.tails.take(1): prompt for prompt in prompts for _ in range(conversations.members)}
        for length in _grown(own):
            for tail in tails:
                tail.length = min(length - 1, tail.bucket.room)
            tails = {cache.tails.moved(tail, length): prompt for tail, prompt in tails.items()}
            for tail in tails:
                tail.length = length - 1
            _taken(live)
            logits = cache.advance([_piece(*pair, 1) for pair in tails.items()])
            token = _taken(live)
            _draw(logits)
            _taken(live)
        for tail in tails:
            tail.length = own - observed
        for pieces in steps_of(tails, observed):
            cache.advance(pieces)
    return SamplingTrace(
        held=_held(live),
        cache=cache.prompts.held + cache.tails.held,
        prefill=prefill,
        token=token,
        observation=_taken(live),
    )


def steps_of(slots: Mapping[Slot, Slot | None], count: int) -> Iterator[list[Piece]]:
    """New context of so many tokens for each slot, as many of them in a step as `LocalEngine` computes."""
    most = min(count, CHUNK_TOKENS)
    at_once = max(1, CHUNK_TOKENS // most)
    pairs = list(slots.items())
    for first in range(0, len(pairs), at_once):
        for start in range(0, count, most):
            yield [_piece(*pair, min(most, count - start)) for pair in pairs[first : first + at_once]]


def _piece(slot: Slot, prompt: Slot | None, count: int) -> Piece:
    return Piece(slot=slot, prompt=prompt, token_ids=[0] * count, previous_id=0, ends=True)


def _grown(own: int) -> list[int]:
    """Lengths before and after the slots grow for the last time, and the last of all."""
    room = SMALLEST
    while 2 * room < own:
        room *= 2
    return [own] if own <= room else [room, room + 1, own]


def _draw(logits_BV: Tensor) -> None:
    """What `LocalEngine` makes of the logits, in place: little beside them, in a large vocabulary."""
    rows = len(logits_BV)
    draw(logits_BV, logits_BV.new_zeros(rows, dtype=torch.float64), logits_BV.new_zeros(rows, dtype=torch.bool))
