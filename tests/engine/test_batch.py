"""Most steps go on with the one before them, and nobody can tell which did."""

import asyncio
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine import local
from agentrl.engine.local import LocalEngine
from agentrl.errors import SamplerError
from agentrl.policy.cache import KeyValueCache
from agentrl.types import Sampling
from tests.engine import talks
from tests.engine.talks import STOP, VOCABULARY, run

make_model = partial(talks.make_model, context=200)
MODEL = make_model()
NO_STOP = frozenset[int]()


def steps(work, *, schedule="continuous"):
    """What an engine's conversations get, how many steps there were, and how many of them were planned."""
    engine = LocalEngine(MODEL, schedule=schedule)
    with patch.object(local, "plan", wraps=local.plan) as plans:
        replies = run(work(engine))
        return replies, engine.stats.steps, plans.call_count


def test_a_reply_is_planned_once():
    async def work(engine):
        return await engine.session(1).sample((1, 2), max_tokens=40, stop_ids=NO_STOP)

    # The prompt, and the first token behind it; the last token is not computed.
    assert steps(work)[1:] == (40, 2)


def test_it_is_planned_again_when_somebody_joins_or_leaves():
    async def work(engine):
        first = asyncio.create_task(engine.session(1).sample((1, 2), max_tokens=40, stop_ids=NO_STOP))
        while engine.stats.sampled < 10:
            await asyncio.sleep(0)
        await engine.session(2).sample((1, 2), max_tokens=5, stop_ids=NO_STOP)
        return await first

    # As above, and twice for the second: its first token comes from the prompt's logits, while the other one goes on;
    # then both are planned. When it has left, the other one is planned once more.
    assert steps(work)[1:] == (40, 5)


class Stranger:
    """Someone who plays with an engine: talks, cuts, gives up and comes back, as drawn."""

    def __init__(self, engine, plan):
        self.session, self.engine = engine.session(plan["seed"], greedy=plan["greedy"]), engine
        self.plan, self.told = plan, []

    async def play(self):
        for wait, context, most, what in self.plan["turns"]:
            for _ in range(wait):
                await asyncio.sleep(0)
            masking = (lambda said: [2, 3, 5] if len(said) % 3 == 1 else None) if what == "masked" else None
            reply = self.session.sample(context, max_tokens=most, stop_ids=STOP, masking=masking)
            if what == "given up":
                await self.give_up(asyncio.ensure_future(reply))
                continue
            said = await reply
            self.told.append((said.token_ids, said.logprobs, said.versions, said.support))
            if what == "cut":
                await self.session.rewind(max(1, len(self.session.token_ids) - 3))
            if what == "published" and self.engine.schedule == "continuous":
                self.engine.publish(self.engine.version + 1)
        await self.session.close()
        return self.told

    async def give_up(self, task):
        for _ in range(4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


PLAN = st.fixed_dictionaries(
    {
        "greedy": st.booleans(),
        "turns": st.lists(
            st.tuples(
                st.integers(0, 12),
                st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=4).map(tuple),
                st.integers(1, 14),
                st.sampled_from(["talk", "talk", "talk", "masked", "cut", "given up", "published"]),
            ),
            min_size=1,
            max_size=4,
        ),
    }
)


@settings(max_examples=40, deadline=None)
@given(
    plans=st.lists(PLAN, min_size=1, max_size=5),
    at_publication=st.sampled_from(["drop", "keep"]),
    cache_bytes=st.sampled_from([None, 60_000]),
    chunk=st.sampled_from([3, 2048]),
)
def test_all_get_what_they_get_where_every_step_is_planned(plans, at_publication, cache_bytes, chunk):
    def told(goes_on):
        async def all_of_them():
            engine = LocalEngine(
                MODEL,
                schedule="continuous",
                at_publication=at_publication,
                cache_bytes=cache_bytes,
                chunk_tokens=chunk,
                sampling=Sampling(temperature=0.8),
            )
            strangers = [Stranger(engine, {"seed": seed, **plan}) for seed, plan in enumerate(plans)]
            replies = await asyncio.gather(*(one.play() for one in strangers), return_exceptions=True)
            engine.stats.seconds = 0.0
            return [repr(one) if isinstance(one, SamplerError) else one for one in replies], engine.stats

        if goes_on:
            return run(all_of_them())
        with patch.object(KeyValueCache, "can_go_on", False):
            return run(all_of_them())

    assert told(True) == told(False)


@pytest.mark.parametrize("count", [31, 32, 33, 100])
def test_random_numbers_that_are_drawn_ahead_are_those_of_their_positions(count):
    async def whole(engine):
        session = engine.session(7)
        return (await session.sample((1, 2), max_tokens=count, stop_ids=NO_STOP)).token_ids

    async def one_by_one(engine):
        session, ids = engine.session(7), ()
        for n in range(count):
            ids += (await session.sample(() if n else (1, 2), max_tokens=1, stop_ids=NO_STOP)).token_ids
        return ids

    assert steps(whole)[0] == steps(one_by_one)[0]
