"""vLLM servers that are started again: none is sampled before it has the weights, whole."""

import asyncio

import pytest

from agentrl.engine.vllm import Timing
from agentrl.errors import SamplerError
from tests.engine.vllm_runs import (
    play,
    run,
    weights,
)
from tests.engine.vllm_server import FakeVLLM, Twist

pytest.importorskip("httpx")


def test_a_server_that_was_started_again_gets_the_weights_before_it_is_sampled(tmp_path):
    async def work(s):
        await s.publish(2, weights(13))
        before = await play(s, (5,))
        await asyncio.to_thread(server.stop)
        waiting = asyncio.ensure_future(play(s, (5,)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.to_thread(server.start)
        return before, await waiting, s.fleet.recovered

    with FakeVLLM() as server:
        before, after, recovered = run(tmp_path, [server], work)
        assert server.state.stamp == 13
    assert before == after
    assert recovered == 1


def test_a_server_that_came_back_and_stayed_paused_gets_the_weights_again(tmp_path):
    """The last step of what it is brought breaks off: it holds the right weights and gives no replies."""
    broken = [False]

    def twist(n, path, body):
        if path == "/resume" and broken[0]:
            broken[0] = False
            return Twist(status=503, body="busy", change=lambda answer: setattr(server.state, "paused", True))
        return None

    async def work(s):
        await play(s, (5,))
        await asyncio.to_thread(server.stop)
        broken[0] = True
        while not s.fleet.servers[0].problem:  # until its loss has been seen
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        return await play(s, (5,))

    with FakeVLLM(twist) as server:
        (reply,) = run(tmp_path, [server], work, timing=Timing(reply_s=25, health_s=0.1, backoff_s=0.01))
    assert reply.versions == (0,) * 4


def test_a_publication_waits_for_a_server_that_comes_back(tmp_path):
    async def work(s):
        await asyncio.to_thread(server.stop)
        publication = asyncio.ensure_future(s.publish(1, weights(9)))
        await asyncio.sleep(0.3)
        assert not publication.done()
        await asyncio.to_thread(server.start)
        await publication
        return await play(s, (5,))

    with FakeVLLM() as server:
        (reply,) = run(tmp_path, [server], work)
    assert reply.versions == (1,) * 4


def test_a_publication_that_reaches_nobody_is_an_error(tmp_path):
    async def work(s):
        await asyncio.to_thread(server.stop)
        await s.publish(1, weights(9))

    timing = Timing(publish_s=0.5, health_s=0.1, backoff_s=0.01)
    problem = r"version 1 reached no server within 0\.5 s: .*/health: ConnectError"
    with FakeVLLM() as server, pytest.raises(SamplerError, match=problem):
        run(tmp_path, [server], work, timing=timing)


def test_a_server_that_is_started_again_unseen_is_found_out_by_its_label(tmp_path):
    """It comes back within the time between two looks, with its first weights; its first reply gives it away."""

    async def work(s):
        before = await play(s, (5,))
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        return before, await play(s, (5,)), s.stats.stale

    with FakeVLLM() as server:
        timing = Timing(health_s=3.0, backoff_s=0.01)
        before, after, stale = run(tmp_path, [server], work, timing=timing)
    assert before == after
    assert stale == 1
