"""Conversations with the in-process engine, and the trainer's word on each of their tokens."""

import asyncio
from dataclasses import replace

import torch

from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.packing import count, pack
from agentrl.train.scoring import score_tokens
from agentrl.types import Sample

VOCABULARY = 12
STOP = frozenset((0,))
SHAPE = TransformerShape(vocab_size=VOCABULARY, layers=2, width=16, heads=2, mlp_width=24, context=192)
TOKEN_BYTES = (2 * 2 + 1) * 16 * 4
"""Keys and values in two layers, and one of them again for a copy."""
SLOT = 64 * TOKEN_BYTES
"""Bytes of the smallest slot."""
LOGITS = VOCABULARY * 4
"""Bytes of what follows a prompt, which is kept."""


def make_model(seed=0, context=SHAPE.context):
    """A model with opinions: fresh weights predict nearly uniformly."""
    model = TinyTransformer(replace(SHAPE, context=context), seed=seed)
    with torch.no_grad():
        model.embedding.weight.mul_(6.0)
    return model


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30.0))


async def converse(session, contexts, pauses=None, *, max_tokens=6, **options):
    """One conversation: contexts in, completions out, with so many seconds behind each."""
    replies = []
    for context, pause in zip(contexts, pauses or [0.0] * len(contexts), strict=True):
        replies.append(await session.sample(context, max_tokens=max_tokens, stop_ids=STOP, **options))
        await asyncio.sleep(pause)
    await session.close()
    return replies


def to_sample(contexts, replies, *, trace_id="t", group_id="g"):
    """What was sampled in a conversation, to be trained."""
    ids, logprobs, support = [], [], []
    for context, reply in zip(contexts, replies, strict=True):
        ids += [*context, *reply.token_ids]
        logprobs += [None] * len(context) + list(reply.logprobs)
        support += [()] * len(context) + list(reply.support or [()] * len(reply.token_ids))
    return Sample(
        token_ids=tuple(ids),
        weights={"pg": tuple(float(logprob is not None) for logprob in logprobs)},
        logprobs=tuple(logprobs),
        advantages=(0.0,) * len(ids),
        trace_id=trace_id,
        group_id=group_id,
        support=tuple(support) if any(support) else (),
    )


def gaps(weights, contexts, replies):
    """For each version, the largest difference between its trainer's log-probability of a token and the sampler's."""
    sample = to_sample(contexts, replies)
    batch = pack([[sample]], count([sample]))
    of_token = [version for reply in replies for version in reply.versions]
    found = {}
    for version in set(of_token):
        with torch.no_grad():
            scored = score_tokens(weights[version], batch, 1.0).logprobs_K
        difference = (scored - batch.old_logprobs_K).abs()
        found[version] = max(d for d, v in zip(difference.tolist(), of_token, strict=True) if v == version)
    return found


def plans_of(rng, number):
    """Contexts and pauses of conversations, many of which begin alike."""
    openings = [tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.choice((2, 20, 40)))) for _ in range(3)]
    plans = {}
    for seed in range(number):
        first = openings[rng.randrange(3)] + tuple(rng.randrange(1, 3) for _ in range(rng.choice((0, 0, 2))))
        turns = rng.randrange(3)
        more = [tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.choice((0, 1, 5)))) for _ in range(turns)]
        plans[seed] = ([first, *more], [rng.choice((0, 0, 0.001)) for _ in range(turns + 1)])
    return plans
