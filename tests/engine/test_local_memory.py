"""Short of memory: what there is room for is exact, repeats bit for bit in lockstep, and is not moved about."""

import asyncio
import gc
import random
import weakref

import pytest

from agentrl.engine.local import LocalEngine
from agentrl.engine.memory import host_bytes
from agentrl.errors import SamplerError
from agentrl.loops.footprint.live import LiveBytes
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from tests.engine.talks import LOGITS, SLOT, STOP, TOKEN_BYTES, converse, gaps, make_model, plans_of, run


def test_a_conversation_that_memory_cannot_hold_fails_alone():
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous", cache_bytes=2 * SLOT + LOGITS)
        long = asyncio.ensure_future(engine.session(1).sample((1,) * 70, max_tokens=5, stop_ids=frozenset()))
        short = await engine.session(2).sample((1, 2), max_tokens=5, stop_ids=frozenset())
        with pytest.raises(SamplerError, match=r"of 71 tokens needs 0.0 MiB .* cache_bytes allows 0.0 MiB: raise it"):
            await long
        return short

    assert len(run(play()).token_ids) == 5
    # 70 tokens: 65 of a prompt in room for 128, and 5 behind it in room for 64; at most 2 * 70 + 64
    assert LocalEngine(make_model(), cache_bytes=3 * 204 * TOKEN_BYTES + 3 * LOGITS).conversations_that_fit(70) == 3


def test_logits_that_are_kept_behind_prompts_count_as_memory():
    words, limit = 20_000, 2**20  # 80 kB of logits behind a prompt whose keys take 4 kB
    model = TinyTransformer(
        TransformerShape(vocab_size=words, layers=1, width=8, heads=1, mlp_width=8, context=64), seed=0
    )
    engine = LocalEngine(model, schedule="continuous", cache_bytes=limit)

    async def play():
        for seed in range(30):
            await converse(engine.session(seed), [(seed,)], [0], max_tokens=2)

    run(play())
    # 12 prompts with 83 rows of 64 tokens of 64 bytes between them: 12 * 80 kB + 4 * 4 kB; one more is too much
    assert engine.stats.evicted >= 30 - 13
    assert engine.store.cache.budget.used <= limit
    assert engine.store.cache.budget.used > limit // 2


@pytest.mark.parametrize("slots", [5, 8])
@pytest.mark.parametrize("most", [None, 3])
def test_lockstep_repeats_bit_for_bit_though_conversations_close_whenever_they_like(slots, most):
    """What is dropped for want of memory is the same, though some are closed by then in one run and not in another."""
    plans, model = plans_of(random.Random(7), 10), make_model()

    async def play(order, clock):
        engine = LocalEngine(model, cache_bytes=slots * SLOT, max_running=most)
        sessions = {seed: engine.session(seed) for seed in order}

        async def talk(seed):
            replies = []
            for context in plans[seed][0]:
                replies.append(await sessions[seed].sample(context, max_tokens=6, stop_ids=STOP))
                await asyncio.sleep(clock.random() * 0.003)
            await sessions[seed].close()
            return replies

        replies = await asyncio.gather(*(talk(seed) for seed in order))
        stats = engine.stats
        return dict(zip(order, replies, strict=True)), (stats.evicted, stats.recomputed, stats.steps)

    expected = run(play(list(plans), random.Random(0)))
    assert expected[1][0] > 10
    for attempt in range(1, 4):
        order = random.Random(attempt).sample(list(plans), len(plans))
        assert run(play(order, random.Random(attempt))) == expected


def test_a_prompt_takes_the_place_of_another_one_without_moving_what_else_is_cached():
    """Memory is handed back where another size is wanted, and not before: that copies all slots of a size."""

    async def play():
        engine = LocalEngine(make_model(), schedule="continuous", cache_bytes=9 * SLOT + 8 * LOGITS)
        for seed in range(8):
            await converse(engine.session(seed), [(1 + seed,) * 30], [0], max_tokens=1)
        prompts = engine.store.cache.prompts.buckets[64]
        places = [keys.data_ptr() for keys, _ in prompts.layers]
        for seed in range(8, 11):
            await converse(engine.session(seed), [(seed % 3 + 9, 1) * 15], [0], max_tokens=1)
        assert engine.stats.evicted == 3
        assert [keys.data_ptr() for keys, _ in prompts.layers] == places
        replies = await converse(engine.session(99), [(7,) * 100], [0], max_tokens=4)  # a slot of twice the room
        assert engine.stats.evicted > 3
        assert gaps({0: make_model()}, [(7,) * 100], replies)[0] < 1e-5

    run(play())


def test_those_that_leave_before_their_turn_leave_nothing_behind():
    """A long prompt takes all that is computed in a step, so that of the others nothing is."""

    async def play():
        engine = LocalEngine(make_model(), schedule="continuous", chunk_tokens=1)
        long = asyncio.ensure_future(engine.session(0).sample((1,) * 180, max_tokens=1, stop_ids=frozenset()))
        for seed in range(1, 12):
            session = engine.session(seed)
            talk = asyncio.ensure_future(session.sample((seed,) * 20, max_tokens=2, stop_ids=frozenset()))
            for _ in range(4):
                await asyncio.sleep(0)
            talk.cancel()
            await session.close()
        assert len(engine.store._prompts) == 1
        assert len((await long).token_ids) == 1

    run(play())


class CacheBytes(LiveBytes):
    """Counts the tensors of slots alone: rows of 2 heads, of a power of two of tokens, of 8 numbers."""

    def _see(self, tensor):
        is_slots = (
            tensor.ndim == 4 and tensor.shape[1] == 2 and tensor.shape[2] in (64, 128, 256) and tensor.shape[3] == 8
        )
        return super()._see(tensor) if is_slots else False


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
@pytest.mark.parametrize("slots", [8, 20])
def test_at_no_moment_do_keys_and_values_take_more_than_was_allowed(schedule, slots):
    """Also while slots grow, move and shrink, when the old tensors and the new ones are both there."""
    plans = plans_of(random.Random(3), 10)
    engine = LocalEngine(make_model(), schedule=schedule, cache_bytes=slots * SLOT)

    async def play():
        sessions = {seed: engine.session(seed) for seed in plans}
        await asyncio.gather(*(converse(sessions[seed], *plan, max_tokens=25) for seed, plan in plans.items()))

    with CacheBytes() as live:
        run(play())
    assert slots * SLOT // 2 < live.peak <= slots * SLOT


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
def test_an_engine_that_is_let_go_frees_its_cache_at_once(schedule):
    """Several engines of one process do not add up until the garbage collector happens to run."""
    model = make_model()

    def played():
        engine = LocalEngine(model, schedule=schedule)
        run(converse(engine.session(1), [(1,) * 30, (2,) * 40], [0, 0]))
        pools = (engine.store.cache.prompts, engine.store.cache.tails)
        return [
            weakref.ref(x)
            for pool in pools
            for bucket in pool.buckets.values()
            for layer in bucket.layers
            for x in layer
        ]

    gc.collect()
    gc.disable()
    try:
        tensors = played()
        assert len(tensors) >= 8
        assert [x for x in tensors if x() is not None] == []
    finally:
        gc.enable()


def test_by_default_a_quarter_of_what_this_process_may_take_is_for_the_cache():
    assert LocalEngine(make_model()).store.cache.budget.limit == host_bytes() // 4
