"""Who plays a workload in this process: our engine, and `generate` of `transformers` in two ways."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

from agentrl.bench.generation.work import Ids, Work
from agentrl.bench.report import BenchError
from agentrl.engine.local import LocalEngine, Schedule
from agentrl.engine.session import LocalSession
from agentrl.policy.base import Policy
from agentrl.types import Completion

Replies = list[list[Ids]]
"""The sampled ids of each turn of each conversation."""


class OurEngine:
    """LocalEngine; each play has an engine of its own, so that nothing is left of the one before.

    What it computes: the logits of each sampled token, its draw, and its log-probability.
    """

    def __init__(self, policy: Policy, *, schedule: Schedule = "continuous") -> None:
        self.policy, self.schedule = policy, schedule

    def play(self, work: Work) -> Replies:
        """All conversations at a time."""
        return [[reply.token_ids for reply in replies] for replies in self.completions(work)]

    def completions(self, work: Work) -> list[list[Completion]]:
        """As `play`, with log-probabilities."""
        return asyncio.run(self._play(LocalEngine(self.policy, schedule=self.schedule), work))

    async def _play(self, engine: LocalEngine, work: Work) -> list[list[Completion]]:
        sessions = [engine.session(seed) for seed in work.seeds]
        plays = zip(sessions, work.opening, work.observations, strict=True)
        return await asyncio.gather(*(_converse(*play, work.shape.reply) for play in plays))


async def _converse(session: LocalSession, prompt: Ids, observations: Sequence[Ids], reply: int) -> list[Completion]:
    contexts = (prompt, *observations)
    replies = [await session.sample(ids, max_tokens=reply, stop_ids=frozenset()) for ids in contexts]
    await session.close()
    return replies


class Generate:
    """`generate` of `transformers`: batched, with a key-value cache, sampling from all tokens at temperature 1.

    A later turn begins again with the whole conversation. Log-probabilities are not asked for.

    Args:
        model: with the attention that the library takes by itself.
        prompt_once: whether the cache of each prompt is computed once and repeated for its group by hand, which the
            library offers and `num_return_sequences` does not do; in later turns the cache is continued, too.
    """

    def __init__(self, model: Qwen3ForCausalLM, *, prompt_once: bool = False) -> None:
        self.model, self.prompt_once = model, prompt_once

    def play(self, work: Work) -> Replies:
        """All conversations as one batch; they are equally long, so nothing is padded."""
        if self.prompt_once:
            return self._continued(work)
        prompts = torch.tensor(work.prompts)
        ids = self._generate(prompts, work.shape.reply, num_return_sequences=work.shape.group)
        turns = [ids[:, work.shape.prompt :]]
        for turn in range(1, work.shape.turns):
            ids = torch.cat((ids, _observed(work, turn)), 1)
            given = ids.shape[1]
            ids = self._generate(ids, work.shape.reply)
            turns.append(ids[:, given:])
        return _as_replies(turns)

    def _continued(self, work: Work) -> Replies:
        cache = DynamicCache(config=self.model.config)
        with torch.inference_mode():
            self.model.model(torch.tensor(work.prompts)[:, :-1], cache=cache, use_cache=True)
        cache.batch_repeat_interleave(work.shape.group)
        ids, turns = torch.tensor(work.opening), []
        for turn in range(work.shape.turns):
            if turn:
                ids = torch.cat((ids, _observed(work, turn)), 1)
            given = ids.shape[1]
            ids = self._generate(ids, work.shape.reply, cache=cache)
            turns.append(ids[:, given:])
        return _as_replies(turns)

    def _generate(self, ids: Tensor, reply: int, **options: object) -> Tensor:
        made: Tensor = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=reply,
            **options,
        )
        return made


def _observed(work: Work, turn: int) -> Tensor:
    return torch.tensor([observations[turn - 1] for observations in work.observations])


def _as_replies(turns: Sequence[Tensor]) -> Replies:
    return [[tuple(ids) for ids in conversation] for conversation in torch.stack(list(turns), 1).tolist()]


def check(name: str, replies: Replies, work: Work) -> int:
    """How many tokens were sampled.

    Raises:
        BenchError: not so many as the workload has, so that a rate of them would be one of other work.
    """
    lengths = {len(reply) for turns in replies for reply in turns}
    shape = work.shape
    right = len(replies) == shape.conversations and {len(turns) for turns in replies} == {shape.turns}
    if not right or lengths != {shape.reply}:
        raise BenchError(
            f"{name} gave {len(replies)} conversations with replies of {sorted(lengths)} tokens; the workload has "
            f"{shape.conversations} with {shape.turns} replies of {shape.reply}"
        )
    return shape.sampled
