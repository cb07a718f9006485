"""A small model with opinions, conversations to hold with it, and samplers that each have one fault."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from agentrl.engine.local import LocalEngine
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import WORDS, TinyRenderer
from agentrl.train.parity.check import Parity, parity
from agentrl.train.parity.conversations import Conversation, converse
from agentrl.types import Completion, Message, Sample

SHAPE = TransformerShape(vocab_size=len(WORDS), layers=3, width=32, heads=2, mlp_width=64, context=256)


def model(seed: int = 0) -> TinyTransformer:
    """Its logits spread as those of a trained model: a perplexity of 19 over 200 words."""
    made = TinyTransformer(SHAPE, seed=seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(3.0)
    return made


def nudged(policy: TinyTransformer, size: float = 0.02) -> TinyTransformer:
    """The policy some steps away: all weights moved a little."""
    other = copy.deepcopy(policy)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * size)
    return other


def user(text: str) -> Message:
    return Message(role="user", content=text)


def tool(text: str) -> tuple[Message, ...]:
    return (Message(role="tool", content=text),)


CONVERSATIONS = (
    Conversation(name="a", prompt=(user("def f(a):"),), answers=(tool("passed"), tool("return a"))),
    Conversation(name="b", prompt=(user("return b + a"),), answers=(tool("error"),)),
    Conversation(name="c", prompt=(user("b"), user("return a")), answers=(tool("a"), tool("def f(b):"))),
)

Given = Callable[[Sequence[int], int], Sequence[int]]
"""What the engine is sent in the place of some context, by the number of the turn."""
Told = Callable[[Completion, int], Completion]
"""What the sampler says in the place of what the engine did."""


class Faulty:
    """A sampler that sends other ids to an engine, or tells other numbers."""

    def __init__(self, engine: LocalEngine, *, given: Given | None = None, told: Told | None = None) -> None:
        self.engine, self.given, self.told = engine, given, told

    @property
    def version(self) -> int:
        return self.engine.version

    def session(self, seed: int, *, greedy: bool = False) -> FaultySession:
        return FaultySession(self, seed)


class FaultySession:
    def __init__(self, sampler: Faulty, seed: int) -> None:
        self.sampler, self.turn = sampler, 0
        self.session = sampler.engine.session(seed)

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:
        if self.sampler.given is not None:
            context_ids = self.sampler.given(context_ids, self.turn)
        reply = await self.session.sample(context_ids, max_tokens=max_tokens, stop_ids=stop_ids)
        if self.sampler.told is not None:
            reply = self.sampler.told(reply, self.turn)
        self.turn += 1
        return reply

    async def close(self) -> None:
        await self.session.close()


def with_logprobs(reply: Completion, logprobs: Sequence[float]) -> Completion:
    return replace(reply, logprobs=tuple(min(0.0, float(value)) for value in logprobs))


def sampled(sampler: object) -> list[Sample]:
    """What a sampler says, as samples to train on."""
    held = converse(sampler, TinyRenderer(), CONVERSATIONS, attempts=3, max_tokens=16, context=256, seed=0)
    return [sample for trace in asyncio.run(held) for sample in samples(trace, 0.0)]


def check(policy: TinyTransformer, sampler: object, **settings: object) -> Parity:
    return parity(policy, sampler, TinyRenderer(), CONVERSATIONS, attempts=3, max_tokens=16, **settings)
