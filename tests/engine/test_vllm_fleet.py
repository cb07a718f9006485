"""Several vLLM servers: what is sent again, who gets it, and what becomes of a server that is lost."""

import asyncio
import random
import threading

import pytest

from agentrl.engine.random import derive_seed
from agentrl.engine.vllm import Timing
from agentrl.errors import SamplerError
from tests.engine.vllm_runs import (
    FAILURES,
    NO_STOP,
    failing,
    fleet,
    play,
    replies,
    run,
    weights,
    with_stats,
)
from tests.engine.vllm_server import VOCABULARY, FakeVLLM, Twist

pytest.importorskip("httpx")


@pytest.mark.parametrize("name", FAILURES)
def test_a_reply_that_does_not_come_whole_is_asked_for_again(tmp_path, name):
    """The conversation goes on with one reply, whichever of the tries gave it, as if nothing had been."""
    request_s = 1.0 if name == "too late" else 20.0
    timing = Timing(request_s=request_s, reply_s=60, publish_s=20, health_s=0.1, retries=3, backoff_s=0.01)
    with FakeVLLM() as calm:
        expected = run(tmp_path, [calm], lambda s: play(s, (5,), (6,)))
    with FakeVLLM(failing([FAILURES[name]])) as server:
        found, stats = run(tmp_path, [server], lambda s: with_stats(s, play(s, (5,), (6,))), timing=timing)
        sent = replies(server)
    assert found == expected
    whole = name == "dropped after it was answered"  # all of it had come before the connection went
    if whole:  # the next request may find out on the old connection that the server closed it, and takes a new one
        assert (stats.replies, len(sent)) == (2, 2)
        assert stats.retries <= 1
    else:
        assert (stats.replies, stats.retries, len(sent)) == (2, 1, 3)
    assert len({body["request_id"] for body in sent}) == len(sent)
    if not whole:
        first, again = ({k: v for k, v in body.items() if k != "request_id"} for body in sent[:2])
        assert first == again


def test_retries_end(tmp_path):
    with FakeVLLM(failing([Twist(status=503, body="busy")] * 9)) as server:
        with pytest.raises(SamplerError, match=r"status 503: busy \(4 tries\)"):
            run(tmp_path, [server], lambda s: play(s, (5,)))
        assert len(replies(server)) == 4


def test_what_a_retry_cannot_mend_is_an_error_at_once(tmp_path):
    with FakeVLLM(failing([Twist(status=400, body={"error": {"message": "too many logprobs"}})])) as server:
        with pytest.raises(SamplerError, match="status 400: too many logprobs"):
            run(tmp_path, [server], lambda s: play(s, (5,)))
        assert len(replies(server)) == 1


def test_a_conversation_is_as_it_was_after_an_error(tmp_path):
    async def work(s):
        session = s.session(3)
        with pytest.raises(SamplerError, match="no way"):
            await session.sample((5,), max_tokens=4, stop_ids=NO_STOP)
        reply = await session.sample((5,), max_tokens=4, stop_ids=NO_STOP)
        await session.close()
        return reply, session.token_ids

    with FakeVLLM(failing([Twist(status=400, body={"error": "no way"})])) as server:
        reply, ids = run(tmp_path, [server], work)
    assert ids == (5, *reply.token_ids)


def test_a_reply_has_a_deadline_that_names_who_is_stuck(tmp_path):
    timing = Timing(request_s=5, reply_s=0.3, publish_s=5, health_s=0.1)
    stuck = r"no reply within 0\.3 s.*127\.0\.0\.1:\d+: well"
    with FakeVLLM(failing([Twist(after_s=1.0)])) as server, pytest.raises(SamplerError, match=stuck):
        run(tmp_path, [server], lambda s: play(s, (5,)), timing=timing)


def test_conversations_are_spread_and_stay(tmp_path):
    async def work(s):
        sessions = [s.session(seed) for seed in range(6)]
        for context, order in (((5,), 1), ((6,), -1), ((7,), 1)):
            turns = [session.sample(context, max_tokens=1, stop_ids=NO_STOP) for session in sessions[::order]]
            await asyncio.gather(*turns)
        for session in sessions:
            await session.close()
        return [server.conversations for server in s.fleet.servers]

    with fleet(3, lambda n, path, body: Twist(after_s=0.02) if "request_id" in body else None) as servers:
        left = run(tmp_path, servers, work)
        names = [{body["request_id"].split("-")[0] for body in replies(server)} for server in servers]
        assert [len(replies(server)) for server in servers] == [6, 6, 6]
    assert [len(found) for found in names] == [2, 2, 2]
    assert not names[0] & names[1]
    assert left == [0, 0, 0]


def test_a_server_works_on_no_more_than_it_may(tmp_path):
    async def work(s):
        return await asyncio.gather(*(play(s, (5,), seed=seed) for seed in range(12)))

    together = threading.Barrier(3)  # nobody gets a reply before as many as may have asked; 3 divides 12

    class Together(FakeVLLM):
        def answer(self, path, body):
            if "request_id" in body:
                together.wait(timeout=20)
            return super().answer(path, body)

    timing = Timing(request_s=25, reply_s=30, answer_s=25)
    with Together(lambda n, path, body: Twist(after_s=0.03) if "request_id" in body else None) as server:
        assert len(run(tmp_path, [server], work, concurrency=3, timing=timing)) == 12
        assert server.most == 3


def test_no_second_wave_below_the_limit(tmp_path):  # case P08: a pool of connections smaller than the concurrency
    async def work(s):
        return await asyncio.gather(*(play(s, (5,), seed=seed) for seed in range(64)))

    together = threading.Barrier(64)  # nobody gets a reply before all have asked

    def twist(n, path, body):
        if "request_id" in body:
            together.wait(timeout=20)

    timing = Timing(request_s=25, reply_s=30, answer_s=25)
    with FakeVLLM(twist) as server:
        assert len(run(tmp_path, [server], work, timing=timing)) == len(replies(server)) == 64


def test_a_conversation_moves_when_its_server_is_lost(tmp_path):
    async def work(s):
        session = s.session(3)
        first = await session.sample((5,), max_tokens=4, stop_ids=NO_STOP)
        lost = next(server for server in servers if replies(server))
        await asyncio.to_thread(lost.stop)
        second = await session.sample((6,), max_tokens=4, stop_ids=NO_STOP)
        await session.close()
        return [first, second]

    with FakeVLLM() as calm:
        expected = run(tmp_path, [calm], lambda s: play(s, (5,), (6,)))
    with fleet(2) as servers:
        assert run(tmp_path, servers, work) == expected


def test_a_hung_server_is_left_while_the_reply_is_under_way(tmp_path):
    """Its connection stays open; that it does not answer about its health is what gives it away."""

    def hang(n, path, body):
        hung = bool(replies(stuck))
        return Twist(after_s=5.0) if hung and (path == "/health" or "request_id" in body) else None

    timing = Timing(request_s=60, reply_s=20, health_s=0.05, answer_s=0.8, backoff_s=0.01)
    with fleet(2) as servers:
        stuck, other = servers
        stuck.twist = hang
        found, stats = run(tmp_path, servers, lambda s: with_stats(s, play(s, (5,))), timing=timing)
        assert len(replies(stuck)) == len(replies(other)) == 1
    assert len(found) == 1
    assert stats.retries == 1


@pytest.mark.parametrize("seed", range(4))
def test_whatever_fails_each_reply_comes_once_and_is_of_the_weights_that_it_names(tmp_path, seed):
    """Six conversations of three turns while servers fail by chance, die and come back, and weights are published. Of
    what was drawn every token can be computed: from its seed, its place and the number of its version's weights."""
    chance = random.Random(seed)

    def twist(n, path, body):
        reply = "request_id" in body
        names = [name for name in FAILURES if reply or name not in ("status 500", "aborted")]
        return FAILURES[chance.choice(names)] if chance.random() < (0.25 if reply else 0.02) else None

    async def disturb(s):
        for version in (1, 2, 3):
            await s.publish(version, weights(11 * version))
            server = chance.choice(servers)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(chance.random() / 10)
            await asyncio.to_thread(server.start)

    async def work(s):
        for server in servers:
            server.twist = twist
        disturbance = asyncio.ensure_future(disturb(s))
        found = await asyncio.gather(*(play(s, (5, 6), (7,), (8,), seed=number) for number in range(6)))
        await disturbance
        return found, s.stats.replies

    timing = Timing(request_s=0.5, reply_s=25, publish_s=20, health_s=0.05, retries=50, backoff_s=0.001)
    with fleet(2) as servers:
        found, replied = run(tmp_path, servers, work, timing=timing)
        assert all(server.mixed == 0 for server in servers)
    assert replied == 18
    for number, turns in enumerate(found):
        place = 0
        for turn, (context, reply) in enumerate(zip(((5, 6), (7,), (8,)), turns, strict=True)):
            place += len(context)
            (version,) = set(reply.versions)
            drawn = derive_seed(number, turn) + 11 * version
            assert reply.token_ids == tuple((drawn + 7 * (place + t)) % VOCABULARY for t in range(4))
            place += 4
