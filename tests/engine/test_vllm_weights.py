"""Publication to vLLM servers: which weights may be sampled, and what breaks off is mended."""

import asyncio
import threading

import pytest
import torch

from agentrl.engine.vllm import Timing
from agentrl.errors import SamplerError
from tests.engine.vllm_runs import (
    failing,
    fleet,
    play,
    replies,
    run,
    sampler,
    weights,
    with_stats,
)
from tests.engine.vllm_server import VOCABULARY, FakeVLLM, Twist

pytest.importorskip("httpx")


def test_nothing_is_sampled_before_the_first_publication(tmp_path):
    async def main():
        made = sampler(tmp_path, server, timing=Timing(reply_s=0.3, health_s=0.1))
        with pytest.raises(SamplerError, match="no weights have been published"):
            _ = made.version
        with pytest.raises(SamplerError, match=r"no reply within 0\.3 s: it waits for a server"):
            await play(made, (5,))

    with FakeVLLM() as server:
        asyncio.run(main())
        assert not replies(server)


@pytest.mark.parametrize("route", ["transfer", "reload"])
def test_published_weights_are_what_is_sampled_from(tmp_path, route):
    async def work(s):
        before = await play(s, (5,))
        await s.publish(4, weights(11))
        return before, await play(s, (5,)), s.version

    with fleet(2) as servers:
        (before,), (after,), version = run(tmp_path, servers, work, route=route)
        assert [server.state.stamp for server in servers] == [11, 11]
    assert after.token_ids == tuple((token + 11) % VOCABULARY for token in before.token_ids)
    assert (before.versions, after.versions, version) == ((0,) * 4, (4,) * 4, 4)


def test_a_publication_takes_its_steps_in_order(tmp_path):
    with FakeVLLM() as server:
        run(tmp_path, [server], lambda s: s.publish(1, weights(1)))
        steps = [path for path, _ in server.requests]
        start = len(steps) - 1 - steps[::-1].index("/pause")
        assert [path for path in steps[start:] if path not in ("/health", "/is_paused")][:8] == [
            "/pause",
            "/update_weight_version",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/reset_prefix_cache",
            "/weight_info",
            "/resume",
        ]
        assert server.sent("/update_weight_version")[-1]["new_version"].startswith("half ")


def test_keys_of_other_weights_can_never_serve(tmp_path):  # case R06
    async def work(s):
        await play(s, (5,))
        await s.publish(1, weights(1))
        await play(s, (5,))
        await s.publish(1, weights(2))  # the same version, published again
        await play(s, (5,))

    with FakeVLLM() as server:
        run(tmp_path, [server], work)
        salts = [body["cache_salt"] for body in replies(server)]
        assert len(server.sent("/reset_prefix_cache")) == 3
    assert len(set(salts)) == 3


def test_a_publication_waits_for_replies_under_way(tmp_path):
    async def work(s):
        slow = asyncio.ensure_future(play(s, (5,)))
        while not replies(server):
            await asyncio.sleep(0.01)
        await s.publish(1, weights(9))
        return await slow, await play(s, (5,)), s.stats.stale

    with FakeVLLM(failing([Twist(before_s=0.3, after_s=0.1)])) as server:
        (old,), (new,), stale = run(tmp_path, [server], work)
        assert (server.mixed, stale) == (0, 0)
    assert (old.versions, new.versions) == ((0,) * 4, (1,) * 4)


def test_a_reply_may_go_on_over_a_publication_with_the_version_of_each_token(tmp_path):
    """Two tokens of the old weights, then two of the new."""

    def twist(n, path, body):
        if "request_id" not in body:
            return None
        old = server.state.label

        def change(answer):
            published.wait(20)
            answer["choices"][0]["weight_versions"] = [
                {"version": old, "start": 0, "end": 2},
                {"version": server.state.label, "start": 2, "end": 4},
            ]

        return Twist(change=change)

    published = threading.Event()

    async def work(s):
        slow = asyncio.ensure_future(play(s, (5,)))
        while not replies(server):
            await asyncio.sleep(0.01)
        await s.publish(1, weights(9))
        published.set()
        return await slow

    with FakeVLLM(twist) as server:
        (reply,) = run(tmp_path, [server], work, in_flight="continue")
        assert reply.versions == (0, 0, 1, 1)
        assert [body["mode"] for body in server.sent("/pause")] == ["keep", "keep"]
        assert server.sent("/reset_prefix_cache")[-1]["reset_running_requests"] == "true"


def test_two_versions_in_one_reply_unasked_are_thrown_away(tmp_path):  # case R11
    def mixed(answer):
        choice = answer["choices"][0]
        label = choice["weight_versions"][0]["version"]
        choice["weight_versions"] = [
            {"version": label, "start": 0, "end": 1},
            {"version": "another", "start": 1, "end": 4},
        ]

    with FakeVLLM(failing([Twist(change=mixed)])) as server:
        (reply,), stats = run(tmp_path, [server], lambda s: with_stats(s, play(s, (5,))))
    assert (reply.versions, stats.stale, stats.retries) == ((0,) * 4, 1, 1)


@pytest.mark.parametrize(
    "path", ["/pause", "/update_weights", "/finish_weight_update", "/reset_prefix_cache", "/resume"]
)
def test_a_publication_that_breaks_off_is_never_sampled_and_is_mended(tmp_path, path):
    """Of two servers one breaks off at a step; the other serves, and the first when it has got the weights whole."""

    async def work(s):
        broken[0] = True
        await s.publish(1, weights(9))
        replied = await asyncio.gather(*(play(s, (5,), seed=seed) for seed in range(4)))
        while not all(map(s.fleet.ready, s.fleet.servers)):
            await asyncio.sleep(0.01)
        return replied

    broken = [False]

    def twist(n, asked, body):
        if asked == path and broken[0]:
            broken[0] = False
            return Twist(cut=0)
        return None

    with fleet(2) as servers:
        servers[0].twist = twist
        found = run(tmp_path, servers, work)
        assert all(server.state.stamp == 9 and not server.state.paused for server in servers)
    assert {reply.versions for (reply,) in found} == {(1,) * 4}


def test_a_cache_that_is_not_reset_stops_the_publication(tmp_path):
    kept = lambda n, path, body: Twist(body={"success": False}) if path == "/reset_prefix_cache" else None  # noqa: E731
    with FakeVLLM(kept) as server, pytest.raises(SamplerError, match="prefix cache still holds keys"):
        run(tmp_path, [server], lambda s: play(s, (5,)))


def test_a_trainer_that_died_within_a_publication_leaves_a_server_for_the_next(tmp_path):  # case O02
    with FakeVLLM() as server:
        server.state.paused = server.state.updating = True
        server.state.label = "half other:3"
        (reply,) = run(tmp_path, [server], lambda s: play(s, (5,)))
        assert not server.state.updating
    assert reply.versions == (0,) * 4


def test_weights_that_a_server_refuses_stop_the_run(tmp_path):
    refuse = Twist(status=500, body={"error": {"message": "size mismatch for a.weight"}})
    with fleet(2) as servers:
        servers[1].twist = lambda n, path, body: refuse if path == "/update_weights" else None
        with pytest.raises(SamplerError, match=r"version 0 was not published: .*size mismatch for a\.weight"):
            run(tmp_path, servers, lambda s: play(s, (5,)))


def test_a_version_can_be_published_again_after_a_failure(tmp_path):
    refused = [True]

    def twist(n, path, body):
        if path == "/update_weights" and refused[0]:
            return Twist(status=500, body={"error": {"message": "size mismatch"}})
        return None

    async def main():
        async with sampler(tmp_path, server) as made:
            with pytest.raises(SamplerError, match="size mismatch"):
                await made.publish(0, weights(9))
            refused[0] = False
            await made.publish(0, weights(0))
            return await play(made, (5,))

    with FakeVLLM(twist) as server:
        (reply,) = asyncio.run(asyncio.wait_for(main(), 30))
    assert reply.versions == (0,) * 4


def test_versions_go_upwards(tmp_path):
    async def work(s):
        await s.publish(3, weights(0))
        await s.publish(2, weights(0))

    with FakeVLLM() as server, pytest.raises(SamplerError, match="version 2 cannot be published after 3"):
        run(tmp_path, [server], work)


def test_versions_are_counted_anew_in_a_new_phase(tmp_path):
    async def work(s):
        await s.publish(3, weights(3))
        await s.publish(1, weights(5), anew=True)
        (reply,) = await play(s, (5,))
        with pytest.raises(SamplerError, match="version 0 cannot be published after 1"):
            await s.publish(0, weights(0))
        return s.version, reply.versions, server.state.stamp, len(s.fleet.versions)

    with FakeVLLM() as server:
        assert run(tmp_path, [server], work) == (1, (1,) * 4, 5, 1)


def test_only_the_newest_weights_are_kept(tmp_path):
    async def work(s):
        for version in (1, 2):
            await s.publish(version, weights(version))
        return s

    (tmp_path / "weights-of-a-run-that-died").mkdir()
    with FakeVLLM() as server:
        made = run(tmp_path, [server], work)
    assert [path.name.rsplit("-", 1)[1] for path in tmp_path.iterdir()] == ["2"]
    made.discard()
    assert not list(tmp_path.iterdir())


def test_tied_weights_are_written_once(tmp_path):
    async def work(s):
        shared = torch.full((3,), 7.0)
        await s.publish(1, {"a.weight": shared, "b.weight": torch.zeros(2), "c.weight": shared})

    with FakeVLLM() as server:
        run(tmp_path, [server], work)
        assert (server.state.tensors, server.state.stamp) == (2, 7)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with FakeVLLM() as server, pytest.raises(SamplerError, match=r"version 0 cannot be written to .*file"):
        run(tmp_path / "file", [server], lambda s: play(s, (5,)))


def test_servers_score_given_tokens(tmp_path):
    with fleet(2) as servers:
        found = run(tmp_path, servers, lambda s: s.score((5, 6, 7)))
        assert found == {server.url: (-6.0, -7.0) for server in servers}


def test_a_server_that_is_lost_while_it_scores_is_left_out(tmp_path):
    def lost(n, path, body):
        return Twist(cut=0) if "prompt_logprobs" in body.get("sampling_params", {}) else None

    with FakeVLLM() as server, FakeVLLM(lost) as other:
        assert run(tmp_path, [server, other], lambda s: s.score((5, 6))) == {server.url: (-6.0,)}


def test_a_server_that_scores_nonsense_is_an_error(tmp_path):
    def silent(n, path, body):
        asked = "prompt_logprobs" in body.get("sampling_params", {})
        return Twist(change=lambda answer: answer.pop("prompt_logprobs")) if asked else None

    with fleet(2, silent) as servers, pytest.raises(SamplerError, match="no log-probabilities of a prompt"):
        run(tmp_path, servers, lambda s: s.score((5, 6)))


def test_one_sampler_serves_one_event_loop_after_another(tmp_path):
    with FakeVLLM() as server:
        made = sampler(tmp_path, server)
        asyncio.run(made.publish(0, weights(0)))
        first, second = (asyncio.run(play(made, (5,))) for _ in range(2))
    assert first == second
