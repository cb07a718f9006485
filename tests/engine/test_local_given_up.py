"""Replies that nobody gets: whatever ended them, the conversation and the others are as if they had never been asked
for."""

import asyncio

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.errors import SamplerError
from agentrl.policy.transformer import TinyTransformer
from tests.engine.talks import SHAPE, STOP, VOCABULARY, converse, gaps, make_model, run

ANY = frozenset()
FIRST, SECOND = (1, 2, 3), (4, 5)


def raises(_reply):
    raise KeyError("caller")


def none_at_third(reply):
    return [] if len(reply) == 2 else None


def letters_at_third(reply):
    return ["a"] if len(reply) == 2 else None


async def ends_badly(session, way):
    """Ask for a reply that is not handed out."""
    ways = {
        "nothing allowed": {"masking": none_at_third},
        "not an id": {"masking": letters_at_third},
        "masking raises": {"masking": raises},
        "decode raises": {"stop_strings": ("zz",)},
        "no time": {"deadline_s": 0.0},
        "too late": {"deadline_s": 0.002},
    }
    with pytest.raises(SamplerError):
        await session.sample(SECOND, max_tokens=150, stop_ids=ANY, **ways[way])


async def cancelled(session, steps):
    talk = asyncio.ensure_future(session.sample(SECOND, max_tokens=4, stop_ids=ANY))
    for _ in range(steps):
        await asyncio.sleep(0)
    talk.cancel()
    (answer,) = await asyncio.gather(talk, return_exceptions=True)
    return answer


@pytest.mark.parametrize(
    "way", ["nothing allowed", "not an id", "masking raises", "decode raises", "no time", "too late"]
)
@pytest.mark.parametrize("turns", [0, 1])
def test_a_failure_leaves_the_conversation_and_its_draws_as_they_were(way, turns):
    async def play(*, fails):
        engine = LocalEngine(make_model(), schedule="continuous", decode=raises)
        session, replies = engine.session(3), []
        for _ in range(turns):
            replies.append(await session.sample(FIRST, max_tokens=3, stop_ids=ANY))
        before = list(session.token_ids)
        if fails:
            await ends_badly(session, way)
            assert list(session.token_ids) == before
        contexts = [FIRST] * turns
        if turns:  # the next token follows what was said before, not what came first
            contexts.append(())
            replies.append(await session.sample((), max_tokens=3, stop_ids=ANY))
        contexts.append(SECOND)
        replies.append(await session.sample(SECOND, max_tokens=3, stop_ids=ANY))
        assert gaps({0: make_model()}, contexts, replies)[0] < 1e-5
        return [reply.token_ids for reply in replies]

    assert run(play(fails=True)) == run(play(fails=False))


def test_a_caller_may_go_at_any_moment_even_that_of_the_answer():
    async def play(steps):
        session = LocalEngine(make_model(), schedule="continuous").session(3)
        await session.sample(FIRST, max_tokens=3, stop_ids=ANY)
        before = list(session.token_ids)
        answer = await cancelled(session, steps)
        if not isinstance(answer, asyncio.CancelledError):
            return "answered"
        assert list(session.token_ids) == before
        reply = await session.sample(SECOND, max_tokens=4, stop_ids=ANY)
        return reply.token_ids

    ends = [run(play(steps)) for steps in range(1, 12)]
    whole = run(play(0))
    assert [end for end in ends if end != "answered"] == [whole] * (len(ends) - ends.count("answered"))
    assert 3 < ends.count("answered") < 9  # some moments are before the answer, the last is that of the answer


@pytest.mark.parametrize("options", [{"masking": raises}, {"stop_strings": ("zz",)}])
def test_what_a_caller_computes_fails_alone(options):
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous", decode=raises)
        others = [engine.session(seed).sample(FIRST, max_tokens=3, stop_ids=ANY) for seed in (1, 2)]
        bad = engine.session(0).sample(FIRST, max_tokens=3, stop_ids=ANY, **options)
        return await asyncio.gather(bad, *others, return_exceptions=True)

    bad, *others = run(play())
    with pytest.raises(SamplerError, match=r"(masking|decode) failed (on|behind) [01] tokens: KeyError: 'caller'"):
        raise bad
    assert [len(other.token_ids) for other in others] == [3, 3]


@pytest.mark.parametrize("schedule", ["continuous", "lockstep"])
def test_a_conversation_that_is_closed_ends_the_wait_for_its_reply(schedule):
    async def play():
        engine = LocalEngine(make_model(), schedule=schedule)
        session, other = engine.session(1), engine.session(2)
        talks = [asyncio.ensure_future(one.sample(FIRST, max_tokens=60, stop_ids=ANY)) for one in (session, other)]
        while engine.stats.sampled < 6:
            await asyncio.sleep(0)
        await session.close()
        await session.close()
        with pytest.raises(SamplerError, match="closed before its reply was complete"):
            await talks[0]
        reply = await talks[1]
        await other.close()
        engine.store.clear()
        engine.store.release()
        assert engine.store.cache.budget.used == 0
        return reply

    assert gaps({0: make_model()}, [FIRST], [run(play())])[0] < 1e-5


def test_an_engine_whose_work_was_cancelled_before_it_began_begins_anew():
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous")
        gone = asyncio.ensure_future(engine.session(1).sample(FIRST, max_tokens=3, stop_ids=ANY))
        before = asyncio.all_tasks()
        await asyncio.sleep(0)
        for task in (asyncio.all_tasks() - before) | {gone}:  # as at the end of `asyncio.run`
            task.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        return await engine.session(2).sample(FIRST, max_tokens=3, stop_ids=ANY)

    assert len(run(play()).token_ids) == 3


class Interrupted(TinyTransformer):
    """Is interrupted in one of its steps."""

    left = -1

    def advance(self, *arguments):
        logits_BV = super().advance(*arguments)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return logits_BV


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_step_is_computed_again_in_the_next_event_loop():
    model = Interrupted(SHAPE, seed=0)
    engine = LocalEngine(model, schedule="continuous", chunk_tokens=2)
    whole = run(converse(LocalEngine(TinyTransformer(SHAPE, seed=0)).session(1), [FIRST], [0]))
    sessions = []

    async def play():
        sessions.append(engine.session(1))
        return await sessions[0].sample(FIRST, max_tokens=6, stop_ids=STOP)

    async def again():
        return await sessions[0].sample(FIRST, max_tokens=6, stop_ids=STOP)

    model.left = 4
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(play())
    reply = run(again())
    assert reply.token_ids == whole[0].token_ids
    assert gaps({0: TinyTransformer(SHAPE, seed=0)}, [FIRST], [reply])[0] < 1e-5


def test_what_is_not_a_number_does_not_outlast_the_weights_that_gave_it():
    """Free memory is read, though hidden: the next conversation is shorter than its neighbour in the same tensor."""

    async def play():
        model, good = make_model(), make_model()
        engine = LocalEngine(model, schedule="continuous")
        with torch.no_grad():
            model.layers[0].qkv.weight.fill_(float("nan"))
        with pytest.raises(SamplerError, match="not numbers"):
            await engine.session(1).sample((1,) * 40, max_tokens=3, stop_ids=ANY)
        model.load_tensors(good.tensors())
        engine.publish(1)
        short, long = (
            engine.session(seed).sample((4,) * (2 + 38 * seed), max_tokens=3, stop_ids=ANY) for seed in (0, 1)
        )
        return await asyncio.gather(short, long)

    assert [len(reply.token_ids) for reply in run(play())] == [3, 3]


def test_no_token_follows_the_prompt_of_older_weights():
    """Kept keys go on, but the logits behind a prompt that a conversation returns to are old themselves."""
    weights = {version: make_model(version) for version in (0, 1)}

    async def play():
        model = make_model(0)
        engine = LocalEngine(model, schedule="continuous", at_publication="keep")
        session = engine.session(1)
        await session.sample(FIRST, max_tokens=3, stop_ids=ANY)
        model.load_tensors(weights[1].tensors())
        engine.publish(1)
        await session.rewind(len(FIRST))
        return await session.sample((), max_tokens=1, stop_ids=ANY)

    reply = run(play())
    assert reply.versions == (1,)
    assert gaps(weights, [FIRST], [reply])[1] < 1e-5


def test_weights_do_not_change_in_the_middle_of_a_step():
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous")

        def masking(_reply):
            engine.publish(1)

        with pytest.raises(SamplerError, match="publish between two steps"):
            await engine.session(1).sample(FIRST, max_tokens=3, stop_ids=ANY, masking=masking)
        assert engine.version == 0
        engine.publish(1)
        assert engine.version == 1

    run(play())


@pytest.mark.parametrize("stop_strings", [("a", ""), "ab"])
def test_stop_strings_that_would_end_every_reply_are_refused(stop_strings):
    engine = LocalEngine(make_model(), decode=str)
    with pytest.raises(SamplerError, match="write a tuple of strings of at least one letter"):
        run(engine.session(1).sample(FIRST, max_tokens=1, stop_ids=ANY, stop_strings=stop_strings))


def test_a_masking_that_allows_everything_costs_one_list_of_the_vocabulary():
    session = LocalEngine(make_model()).session(1)
    reply = run(session.sample(FIRST, max_tokens=5, stop_ids=ANY, masking=lambda _: None))
    assert reply.support == (tuple(range(VOCABULARY)),) * 5
    assert len({id(ids) for ids in reply.support}) == 1


def test_a_deadline_gives_a_reply_up_and_leaves_the_conversation_as_it_was():
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous")
        session = engine.session(3)
        first = await session.sample((1, 2), max_tokens=3, stop_ids=frozenset())
        before = list(session.token_ids)
        with pytest.raises(SamplerError, match=r"no reply within 0.002 s; [0-9]+ tokens came"):
            await session.sample((4, 5), max_tokens=180, stop_ids=frozenset(), deadline_s=0.002)
        second = await session.sample((4, 5), max_tokens=3, stop_ids=frozenset(), deadline_s=30.0)
        assert list(session.token_ids) == [*before, 4, 5, *second.token_ids]
        return [first, second]

    assert max(gaps({0: make_model()}, [(1, 2), (4, 5)], run(play())).values()) < 1e-5


def test_a_caller_that_goes_away_takes_its_reply_with_it():
    async def play():
        engine = LocalEngine(make_model(), schedule="continuous")
        gone, stays = engine.session(1), engine.session(2)
        talk = asyncio.ensure_future(gone.sample((1, 2), max_tokens=150, stop_ids=frozenset()))
        other = asyncio.ensure_future(stays.sample((3, 4), max_tokens=20, stop_ids=frozenset()))
        while engine.stats.sampled < 10:
            await asyncio.sleep(0)
        talk.cancel()
        reply = await other
        assert engine.stats.sampled < 10 + 20 + 2
        await gone.close()
        await stays.close()
        engine.store.clear()
        engine.store.release()
        assert engine.store.cache.budget.used == 0
        return [reply]

    assert gaps({0: make_model()}, [(3, 4)], run(play()))[0] < 1e-5
