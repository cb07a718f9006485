"""The sampler over vLLM servers: what is asked for and what is taken."""

import asyncio
import subprocess
import sys

import pytest

from agentrl.engine.random import derive_seed
from agentrl.errors import SamplerError
from agentrl.types import Sampling
from tests.engine.vllm_runs import (
    NO_STOP,
    play,
    replies,
    run,
    with_stats,
)
from tests.engine.vllm_server import VOCABULARY, FakeVLLM

pytest.importorskip("httpx")


def test_a_reply_is_what_the_server_drew(tmp_path):
    with FakeVLLM() as server:
        ((reply,), stats) = run(tmp_path, [server], lambda s: with_stats(s, play(s, (5, 6))))
        seed = derive_seed(3, 0)
        assert reply.token_ids == tuple((seed + 7 * place) % VOCABULARY for place in (2, 3, 4, 5))
        assert reply.logprobs == (-0.5,) * 4
        assert (reply.versions, reply.finish_reason, reply.support) == ((0,) * 4, "length", ())
        assert (stats.replies, stats.sampled, stats.retries, stats.published) == (1, 4, 0, 1)


def test_every_setting_is_written_out(tmp_path):  # case L16: none is left to a file beside the weights
    with FakeVLLM() as server:
        run(tmp_path, [server], lambda s: play(s, (5,), stop_ids=frozenset((2, 9))), sampling=Sampling(temperature=0.5))
        (sent,) = replies(server)
        params = sent["sampling_params"]
        assert (params["temperature"], params["top_p"], params["top_k"], params["min_p"]) == (0.5, 1.0, 0, 0.0)
        assert (params["repetition_penalty"], params["presence_penalty"], params["frequency_penalty"]) == (
            1.0,
            0.0,
            0.0,
        )
        assert (params["n"], params["max_tokens"], params["min_tokens"]) == (1, 4, 0)
        assert (params["stop_token_ids"], params["ignore_eos"], params["detokenize"]) == ([2, 9], True, False)


def test_the_conversation_grows_by_ids_that_nobody_wrote_as_text(tmp_path):
    with FakeVLLM() as server:
        first, second = run(tmp_path, [server], lambda s: play(s, (5, 6), (7,)))
        one, two = replies(server)
        assert two["token_ids"] == [5, 6, *first.token_ids, 7]
        assert one["sampling_params"]["seed"] != two["sampling_params"]["seed"]
        assert len(second.token_ids) == 4


def test_draws_depend_on_the_seed_alone(tmp_path):
    async def work(s):
        return await asyncio.gather(play(s, (5,), (6,)), play(s, (5,), (6,)), play(s, (5,), (6,), seed=4))

    with FakeVLLM() as server:
        same, again, other = run(tmp_path, [server], work)
    assert same == again
    assert same != other


def test_a_stop_id_ends_the_reply_and_belongs_to_it(tmp_path):
    stop = (derive_seed(3, 0) + 7 * 3) % VOCABULARY  # the third token: places 1, 2, 3 behind one id of context
    with FakeVLLM() as server:
        (reply,) = run(tmp_path, [server], lambda s: play(s, (5,), stop_ids=frozenset((stop,))))
    assert (len(reply.token_ids), reply.token_ids[-1], reply.finish_reason) == (3, stop, "stop")


def test_a_greedy_conversation_takes_the_likeliest(tmp_path):
    with FakeVLLM() as server:
        run(tmp_path, [server], lambda s: play(s, (5,), greedy=True), sampling=Sampling(temperature=0.5, top_k=2))
        params = replies(server)[0]["sampling_params"]
    assert (params["temperature"], params["top_k"], params["logprobs"]) == (0.0, 0, 0)


def test_rewinding_forgets_and_the_draws_go_on(tmp_path):
    async def work(s):
        session = s.session(3)
        await session.sample((5, 6), max_tokens=2, stop_ids=NO_STOP)
        await session.rewind(1)
        with pytest.raises(SamplerError, match="has 1 tokens; it cannot keep 2"):
            await session.rewind(2)
        await session.sample((8,), max_tokens=2, stop_ids=NO_STOP)
        await session.close()

    with FakeVLLM() as server:
        run(tmp_path, [server], work)
        second = replies(server)[1]
    assert second["token_ids"] == [5, 8]
    assert second["sampling_params"]["seed"] == derive_seed(3, 1)


def test_the_room_of_the_context_ends_afailing(tmp_path):
    with FakeVLLM() as server:
        (reply,) = run(tmp_path, [server], lambda s: play(s, tuple(range(5, 35)) * 2, max_tokens=10))  # 60 of 64
        assert len(reply.token_ids) == 4
        with pytest.raises(SamplerError, match="64 tokens leaves no room in the context of 64"):
            run(tmp_path, [server], lambda s: play(s, (5,) * 64))


@pytest.mark.parametrize(
    ("context", "max_tokens", "problem"),
    [
        ((), 1, "at least one context id"),
        ((5,), 0, "max_tokens is 0"),
        ((50,), 1, "context id 50 is outside the vocabulary of 50"),
        ((-1,), 1, "context id -1 is outside"),
    ],
)
def test_what_cannot_be_asked_for_is_not_sent(tmp_path, context, max_tokens, problem):
    with FakeVLLM() as server:
        with pytest.raises(SamplerError, match=problem):
            run(tmp_path, [server], lambda s: play(s, context, max_tokens=max_tokens))
        assert not replies(server)


def test_one_reply_at_a_time_and_none_after_the_end(tmp_path):
    async def work(s):
        session = s.session(0)
        reply = asyncio.ensure_future(session.sample((5,), max_tokens=1, stop_ids=NO_STOP))
        await asyncio.sleep(0)
        with pytest.raises(SamplerError, match="waits for a reply already"):
            await session.sample((5,), max_tokens=1, stop_ids=NO_STOP)
        with pytest.raises(SamplerError, match="rewind it before or after"):
            await session.rewind(0)
        await reply
        await session.close()
        await session.close()
        with pytest.raises(SamplerError, match="is closed"):
            await session.sample((5,), max_tokens=1, stop_ids=NO_STOP)

    with FakeVLLM() as server:
        run(tmp_path, [server], work)


def test_the_client_needs_no_torch():
    lines = "import agentrl.engine.vllm, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", lines], check=False).returncode == 0
