"""Continuous batching: whoever joins, leaves, publishes or runs out of memory, each token is the trainer's."""

import asyncio
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.local import LocalEngine
from agentrl.errors import SamplerError
from agentrl.types import Sampling
from tests.engine.talks import SLOT, STOP, converse, gaps, make_model, plans_of, run


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_any_arrivals_publications_and_shortage_of_memory(number):
    rng = random.Random(number)
    weights = {version: make_model(version) for version in range(4)}
    model = make_model(0)
    engine = LocalEngine(
        model,
        schedule=rng.choice(("continuous", "continuous", "lockstep")),
        cache_bytes=rng.choice((10**9, 8 * SLOT, 5 * SLOT)),
        max_running=rng.choice((None, 1, 3)),
        chunk_tokens=rng.choice((1, 7, 2048)),
    )
    plans = plans_of(rng, 7)
    budget = engine.store.cache.budget

    async def play():
        talks = []
        for seed, (contexts, pauses) in plans.items():
            talks.append(asyncio.ensure_future(converse(engine.session(seed), contexts, pauses)))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        version = 0
        while not all(talk.done() for talk in talks):
            assert budget.used <= budget.limit
            if engine.schedule == "continuous" and version < 3 and rng.random() < 0.1:
                version += 1
                model.load_tensors(weights[version].tensors())
                engine.publish(version)
            await asyncio.sleep(0)
        return [talk.result() for talk in talks]

    played = dict(zip(plans, run(play()), strict=True))
    for seed, replies in played.items():
        versions = [version for reply in replies for version in reply.versions]
        assert versions == sorted(versions)
        assert max(gaps(weights, plans[seed][0], replies).values()) < 2e-5
    assert engine.stats.sampled == sum(len(reply.token_ids) for replies in played.values() for reply in replies)
    if budget.limit == 10**9 and engine.version == 0:
        assert (engine.stats.recomputed, engine.stats.evicted) == (0, 0)
        assert engine.stats.prefilled + engine.stats.shared == sum(len(c) for cs, _ in plans.values() for c in cs)
    engine.store.clear()
    engine.store.release()
    assert budget.used == 0


def test_what_the_trainer_says_is_a_test_that_can_fail():
    contexts = [(1, 2, 3)]
    replies = run(converse(LocalEngine(make_model(), schedule="continuous").session(5), contexts, [0]))
    assert gaps({0: make_model()}, contexts, replies)[0] < 1e-5
    assert gaps({0: make_model(1)}, contexts, replies)[0] > 1e-2


def test_draws_are_those_of_the_lockstep_schedule():
    plans = plans_of(random.Random(1), 12)

    def play(schedule):
        async def both():
            engine = LocalEngine(make_model(), schedule=schedule)
            talks = [converse(engine.session(seed), *plan) for seed, plan in plans.items()]
            return await asyncio.gather(*talks)

        return [[reply.token_ids for reply in replies] for replies in run(both())]

    assert play("continuous") == play("lockstep")


@pytest.mark.parametrize("schedule", ["continuous", "lockstep"])
def test_who_waits_for_a_slow_tool(schedule):
    """In lockstep the others wait with it; else they have all their replies before it goes on."""
    done = []

    async def play():
        engine = LocalEngine(make_model(), schedule=schedule)

        async def talk(seed, pause):
            await converse(engine.session(seed), [(1, 2), (3,), (4,)], [pause, 0, 0])
            done.append(seed)

        await asyncio.gather(*(talk(seed, 0.2 if seed == 0 else 0.0) for seed in range(4)))

    run(play())
    assert (done[-1] == 0) or schedule == "lockstep"
    if schedule == "lockstep":
        assert set(done) == {0, 1, 2, 3}


def test_a_long_prompt_does_not_stall_those_that_sample():
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous", chunk_tokens=8)
        speaks = engine.session(1)
        talk = asyncio.ensure_future(speaks.sample((1, 2), max_tokens=10, stop_ids=frozenset()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = engine.stats.steps
        long = engine.session(2)
        waits = asyncio.ensure_future(long.sample((3,) * 160, max_tokens=1, stop_ids=frozenset()))
        await talk
        spoke = engine.stats.steps - before
        assert not waits.done()
        await waits
        return spoke, engine.stats.steps - before

    spoke, waited = run(play())
    assert spoke <= 10  # a token in each step
    assert waited == 1 + 20  # one began before it came; 160 tokens, 8 at a time


def test_a_prompt_is_computed_once_for_all_that_begin_with_it_whenever_they_come():
    prompt = tuple(range(1, 11)) * 3

    async def play():
        engine = LocalEngine(make_model(), schedule="continuous")
        for seed in range(4):
            await converse(engine.session(seed), [prompt], [0], max_tokens=2)
        assert (engine.stats.prefilled, engine.stats.shared) == (30, 90)
        # 25 of 40 tokens in common with it, and 5, which are not worth a copy
        await converse(engine.session(9), [prompt[:25] + (11,) * 15], [0])
        assert (engine.stats.prefilled, engine.stats.shared) == (30 + 15, 90 + 25)
        await converse(engine.session(10), [prompt[:5] + (11,) * 15], [0])
        assert (engine.stats.prefilled, engine.stats.shared) == (45 + 20, 115)
        engine.publish(1)  # no key of other weights is given out
        await converse(engine.session(11), [prompt], [0])
        assert (engine.stats.prefilled, engine.stats.shared) == (65 + 30, 115)

    run(play())


def test_one_publication_in_the_middle_of_replies():
    """Drop: all is computed anew with the new weights. Keep: the keys stay, and that is counted."""
    weights = {0: make_model(0), 1: make_model(1)}

    async def play(at_publication):
        model = make_model(0)
        engine = LocalEngine(model, schedule="continuous", at_publication=at_publication)
        talks = [
            asyncio.ensure_future(engine.session(seed).sample((1, 2, 3), max_tokens=20, stop_ids=frozenset()))
            for seed in range(3)
        ]
        while engine.stats.sampled < 15:
            await asyncio.sleep(0)
        model.load_tensors(weights[1].tensors())
        engine.publish(1)
        replies = await asyncio.gather(*talks)
        late = engine.session(50)
        replies.append(await late.sample((1, 2, 3), max_tokens=20, stop_ids=frozenset()))
        return engine.stats, replies

    stats, replies = run(play("drop"))
    assert [reply.versions for reply in replies[:3]] == [(0,) * 5 + (1,) * 15] * 3
    assert replies[3].versions == (1,) * 20
    for reply in replies:
        assert max(gaps(weights, [(1, 2, 3)], [reply]).values()) < 1e-5
    assert stats.on_older_keys == 0
    # the prompt once, for all three; of each, the 4 tokens whose keys there were
    assert stats.recomputed == 3 + 3 * 4

    stats, replies = run(play("keep"))
    assert [reply.versions for reply in replies[:3]] == [(0,) * 5 + (1,) * 15] * 3
    for reply in replies[:3]:
        found = gaps(weights, [(1, 2, 3)], [reply])
        assert found[0] < 1e-5
        assert found[1] > 1e-3  # such tokens are nobody's: a correction needs their log-probability as it was sampled
    assert (stats.on_older_keys, stats.recomputed) == (45, 0)
    assert gaps(weights, [(1, 2, 3)], [replies[3]])[1] < 1e-5  # who comes later gets no old key


def test_no_more_run_than_may():
    async def play(most):
        engine = LocalEngine(make_model(), schedule="continuous", max_running=most)
        talks = [engine.session(seed).sample((1, 2), max_tokens=5, stop_ids=frozenset()) for seed in range(9)]
        await asyncio.gather(*talks)
        return engine.stats.steps

    # Three times three: the first token of those that come later follows the prompt that is known, without a step.
    assert run(play(3)) == 3 * 5 - 2
    assert run(play(None)) == 5


def test_one_conversation_asks_for_one_reply_at_a_time():
    async def play():
        session = LocalEngine(make_model(), schedule="continuous").session(1)
        first = asyncio.ensure_future(session.sample((1,), max_tokens=5, stop_ids=frozenset()))
        await asyncio.sleep(0)
        with pytest.raises(SamplerError, match="waits for a reply; ask for the next one"):
            await session.sample((2,), max_tokens=5, stop_ids=frozenset())
        assert len((await first).token_ids) == 5

    run(play())


LETTERS = "_abcdefghijk"


def spell(ids):
    return "".join(LETTERS[token] for token in ids)


def test_a_stop_string_ends_a_reply_as_soon_as_its_text_has_one():
    engine = LocalEngine(make_model(), schedule="continuous", decode=spell)

    async def play(seed):
        session = engine.session(seed)
        free = await session.sample((1, 2), max_tokens=30, stop_ids=frozenset())
        await session.close()
        text = spell(free.token_ids)
        stop = text[11:13]
        again = engine.session(seed)
        reply = await again.sample((1, 2), max_tokens=30, stop_ids=frozenset(), stop_strings=("zz", stop))
        await again.close()
        assert spell(reply.token_ids) == text[: text.index(stop) + 2]
        assert reply.finish_reason == "stop"

    async def all_of_them():
        await asyncio.gather(*(play(seed) for seed in range(8)))

    run(all_of_them())
    with pytest.raises(SamplerError, match="give the engine decode"):
        run(LocalEngine(make_model()).session(1).sample((1,), max_tokens=1, stop_ids=STOP, stop_strings=("a",)))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=4)])
def test_masking_leaves_what_is_allowed_and_says_so(sampling):
    def odd_then_all(reply):
        return [n for n in range(12) if n % 2] if len(reply) < 4 else None

    async def play():
        engine = LocalEngine(make_model(), schedule="continuous", sampling=sampling)
        masked, free = engine.session(1), engine.session(2)
        return await asyncio.gather(
            masked.sample((1, 2), max_tokens=8, stop_ids=frozenset(), masking=odd_then_all),
            free.sample((1, 2), max_tokens=8, stop_ids=frozenset()),
        )

    reply, other = run(play())
    assert all(token % 2 for token in reply.token_ids[:4])
    most = 4 if sampling.truncates else 12
    assert [len(ids) for ids in reply.support[4:]] == [most] * 4
    assert all(set(ids) <= {1, 3, 5, 7, 9, 11} for ids in reply.support[:4])
    assert bool(other.support) == sampling.truncates
    weights = {0: make_model()}
    assert gaps(weights, [(1, 2)], [reply])[0] < 1e-5  # renormalised over what was allowed
    assert gaps(weights, [(1, 2)], [other])[0] < 1e-5


@pytest.mark.parametrize(("ids", "what"), [([], "no id"), ([3, 12], "ids from 3 to 12")])
def test_a_masking_that_allows_nothing_fails_alone(ids, what):
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous")
        good = asyncio.ensure_future(engine.session(2).sample((1, 2), max_tokens=4, stop_ids=frozenset()))
        with pytest.raises(SamplerError, match=f"allows {what} behind 0 tokens"):
            await engine.session(1).sample((1, 2), max_tokens=4, stop_ids=frozenset(), masking=lambda reply: ids)
        return await good

    assert len(run(play()).token_ids) == 4


def test_sizes_below_one_are_refused():
    for name in ("cache_bytes", "max_running", "chunk_tokens"):
        with pytest.raises(SamplerError, match=f"{name} is 0; write a number above 0"):
            LocalEngine(make_model(), **{name: 0})


def test_weights_that_are_not_numbers_are_told_of():
    model = make_model()
    with torch.no_grad():
        model.embedding.weight[3, 0] = float("nan")
    with pytest.raises(SamplerError, match="logits are not numbers"):
        run(LocalEngine(model, schedule="continuous").session(1).sample((1, 3), max_tokens=2, stop_ids=STOP))


def test_a_rewound_conversation_may_speak_again_from_any_place():
    async def play(keep):
        engine = LocalEngine(make_model(), schedule="continuous")
        session = engine.session(1)
        await session.sample((1, 2, 3), max_tokens=4, stop_ids=frozenset())
        await session.sample((4,), max_tokens=4, stop_ids=frozenset())
        await session.rewind(keep)
        kept = tuple(session.token_ids)
        return kept, await session.sample((), max_tokens=4, stop_ids=frozenset())

    for keep in range(1, 12):
        kept, reply = run(play(keep))
        assert gaps({0: make_model()}, [kept], [reply])[0] < 1e-5


def test_in_lockstep_those_that_found_no_room_go_on_before_the_next_round():
    """With room for three, nine conversations of two turns take turns of all nine: nobody is passed over."""
    order = []

    async def play():
        engine = LocalEngine(make_model(), max_running=3)

        async def talk(seed):
            session = engine.session(seed)
            for turn in range(2):
                await session.sample((1, 2), max_tokens=3, stop_ids=frozenset())
                order.append(turn)
            await session.close()

        await asyncio.gather(*(talk(seed) for seed in range(9)))

    run(play())
    assert order == [0] * 9 + [1] * 9
