"""Conversations with a sampler over vLLM servers of this machine."""

import asyncio
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from agentrl.engine.vllm import ModelShape, Timing, VLLMSampler, VLLMSettings
from tests.engine.vllm_server import GENERATE, SHAPE, FakeVLLM, Twist

NO_STOP: frozenset[int] = frozenset()
QUICK = Timing(request_s=5, reply_s=10, publish_s=5, health_s=0.1, retries=3, backoff_s=0.01)


def sampler(folder, *servers, probes=None, shape=None, **options):
    """A sampler over servers, with short waits."""
    options = {"timing": QUICK, "folder": folder, **options}
    settings = VLLMSettings(urls=tuple(server.url for server in servers), model="policy", **options)
    return VLLMSampler(settings, shape or ModelShape(context=64, **SHAPE), probes=probes)


def weights(stamp):
    """Two tensors; the server's replies depend on the first number."""
    return {"a.weight": torch.full((3,), float(stamp)), "b.weight": torch.zeros(2, 2)}


@contextmanager
def fleet(count, twist=lambda n, path, body: None):
    """Servers that run, with the same twist."""
    with ExitStack() as stack:
        yield [stack.enter_context(FakeVLLM(twist)) for _ in range(count)]


async def play(sampler, *turns, seed=3, max_tokens=4, stop_ids=NO_STOP, greedy=False):
    """One conversation of these contexts."""
    session = sampler.session(seed, greedy=greedy)
    try:
        return [await session.sample(turn, max_tokens=max_tokens, stop_ids=stop_ids) for turn in turns]
    finally:
        await session.close()


def run(folder, servers, work, **options):
    """Publish version 0 with stamp 0, and do ``work(sampler)``."""

    async def main():
        async with sampler(folder, *servers, **options) as made:
            await made.publish(0, weights(0))
            return await work(made)

    return asyncio.run(asyncio.wait_for(main(), 30))


def replies(server):
    """The requests for replies, without those that check the server."""
    return [body for body in server.sent(GENERATE) if "request_id" in body]


async def with_stats(sampler, work):
    """What comes of the work, and the sampler's count of it."""
    return await work, sampler.stats


def check(server, **options):
    """Ask whether a server is the right one."""
    asyncio.run(asyncio.wait_for(sampler(Path("unused"), server, **options).check(), 20))


def failing(twists):
    """The n-th request for a reply gets the n-th of these."""
    count = iter(twists)
    return lambda n, path, body: next(count, None) if "request_id" in body else None


FAILURES = {
    "no answer": Twist(cut=0),
    "dropped after it was answered": Twist(cut=1.0),
    "half an answer": Twist(cut=0.5),
    "no JSON": Twist(body="<html>"),
    "a list": Twist(body=[1]),
    "status 500": Twist(status=500, body={"error": "oops"}),
    "status 503": Twist(status=503, body="busy"),
    "too late": Twist(after_s=1.5),
    "aborted": Twist(change=lambda answer: answer["choices"][0].update(finish_reason="abort")),
}
