"""The in-process engine: its numbers are the trainer's, its draws depend on seeds alone, and nobody waits for ever."""

import asyncio
import random
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from agentrl.engine.local import LocalEngine
from agentrl.engine.random import uniforms
from agentrl.errors import SamplerError
from agentrl.train.packing import count, pack
from agentrl.train.scoring import score_tokens
from agentrl.types import Completion, Sampling
from tests.engine import talks
from tests.engine.talks import STOP, VOCABULARY, converse, run

make_model = partial(talks.make_model, context=96)


def play(engine, plans, *, order=None, pause=None, max_tokens=5):
    """All conversations at once, with pauses that ``pause`` draws. Plans map a seed to contexts; returns seed ->
    completions."""

    def pauses(contexts):
        return [pause.random() * 0.004 if pause else 0.0 for _ in contexts]

    async def all_of_them():
        names = order or list(plans)
        sessions = {seed: engine.session(seed) for seed in names}
        said = [converse(sessions[n], plans[n], pauses(plans[n]), max_tokens=max_tokens) for n in names]
        return dict(zip(names, await asyncio.gather(*said), strict=True))

    return run(all_of_them())


# Two prompts, uneven numbers of turns, one tool that answers with nothing new.
PLANS = {
    11: [(1, 2, 3), (4,), (5, 6)],
    12: [(1, 2, 3), (7, 8)],
    13: [(1, 2, 3)],
    14: [(9, 10), (4, 4, 4, 4), (), (6,)],
    15: [(9, 10), (5,)],
}


def to_sample(seed, contexts, completions):
    return talks.to_sample(contexts, completions, trace_id=str(seed), group_id=str(contexts[0]))


def gap(model, plans, played, temperature):
    """The largest difference between the engine's and the trainer's log-probability of a sampled token."""
    groups = {}
    for seed, contexts in plans.items():
        sample = to_sample(seed, contexts, played[seed])
        groups.setdefault(sample.group_id, []).append(sample)
    batch = pack(list(groups.values()), count([s for group in groups.values() for s in group]))
    with torch.no_grad():
        scored = score_tokens(model, batch, temperature)
    assert len(scored.logprobs_K) == sum(len(c.token_ids) for replies in played.values() for c in replies)
    return (scored.logprobs_K - batch.old_logprobs_K).abs().max().item()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_right_after_publication_the_trainer_agrees_with_the_sampler(temperature):
    model = make_model()
    played = play(LocalEngine(model, sampling=Sampling(temperature=temperature)), PLANS)
    assert gap(model, PLANS, played, temperature) < 1e-5
    # Negative controls: another temperature and other weights are noticed.
    assert gap(model, PLANS, played, temperature + 0.1) > 1e-3
    assert gap(make_model(seed=1), PLANS, played, temperature) > 1e-3


def test_conversations_that_go_on_alone_keep_their_cache():
    """Most conversations end early, so that the cache is packed while others go on."""
    plans = {seed: [(1, 2, 3)] for seed in range(20)} | {100: PLANS[11], 101: PLANS[14]}
    model = make_model()
    assert gap(model, plans, play(LocalEngine(model), plans), 1.0) < 1e-5


def test_the_same_seeds_give_the_same_replies_bit_for_bit_whatever_the_clock_and_the_order():
    model = make_model()
    expected = play(LocalEngine(model), PLANS)
    for attempt in range(3):
        order = random.Random(attempt).sample(list(PLANS), len(PLANS))
        again = play(LocalEngine(model), PLANS, order=order, pause=random.Random(100 + attempt))
        assert again == expected
    other = play(LocalEngine(model), {seed + 1000: contexts for seed, contexts in PLANS.items()})
    assert [c.token_ids for c in other[1011]] != [c.token_ids for c in expected[11]]


def test_rows_of_a_large_group_may_change_places():
    """Products of many rows are computed in blocks, whose edges must not depend on who came first."""
    model = make_model()
    plans = {seed: [(1, 2, 3), (seed % 5 + 1,) * (seed % 4), (2,)][: seed % 3 + 1] for seed in range(43)}
    expected = play(LocalEngine(model), plans)
    assert play(LocalEngine(model), plans, order=sorted(plans, reverse=True)) == expected


def test_each_draw_inverts_the_distribution_at_its_own_uniform_number():
    model = make_model()
    played = play(LocalEngine(model), PLANS)
    for seed, contexts in PLANS.items():
        sample = to_sample(seed, contexts, played[seed])
        batch = pack([[sample]], count([sample]))
        with torch.no_grad():
            cumulative = model(batch).logits_KV.double().softmax(-1).cumsum(-1).numpy()
        positions = np.arange(len(cumulative))  # counted on from turn to turn
        uniform = uniforms(np.full(len(positions), seed, dtype=np.uint64), positions)
        assert [int((row <= u).sum()) for row, u in zip(cumulative, uniform, strict=True)] == batch.target_K.tolist()


def test_an_engine_can_be_used_again():
    engine = LocalEngine(make_model())
    assert play(engine, PLANS) == play(engine, PLANS)


@pytest.mark.parametrize("neighbours", [{}, {91: PLANS[12], 92: PLANS[14]}, {93: [(1, 2, 3)], 94: [(8,)], 95: [(8,)]}])
def test_draws_do_not_depend_on_who_else_is_sampled(neighbours):
    model = make_model()
    alone = play(LocalEngine(model), {11: PLANS[11]})[11]
    among = play(LocalEngine(model), neighbours | {11: PLANS[11]})[11]
    assert [c.token_ids for c in among] == [c.token_ids for c in alone]
    for ours, theirs in zip(among, alone, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


def test_a_reply_ends_with_the_sampled_stop_id_or_at_its_length():
    played = play(LocalEngine(make_model()), {seed: [(1, 2, 3)] for seed in range(40)}, max_tokens=6)
    replies = [reply for (reply,) in played.values()]
    assert {reply.finish_reason for reply in replies} == {"stop", "length"}
    for reply in replies:
        assert 1 <= len(reply.token_ids) <= 6
        assert 0 not in reply.token_ids[:-1]
        if reply.finish_reason == "stop":
            assert reply.token_ids[-1] == 0
        else:
            assert (len(reply.token_ids), reply.token_ids[-1] != 0) == (6, True)


def test_every_context_token_is_computed_once_or_shared():
    engine = LocalEngine(make_model())
    played = play(engine, PLANS)
    # Prompts: 3 * 3 + 2 * 2 = 13 of which 3 + 2 are computed; later contexts 1 + 2, 2, 4 + 0 + 1, 1.
    assert engine.stats.prefilled == 5 + 3 + 2 + 5 + 1
    assert engine.stats.shared == 13 - 5
    assert engine.stats.prefilled + engine.stats.shared == sum(len(c) for plan in PLANS.values() for c in plan)
    assert engine.stats.sampled == sum(len(c.token_ids) for replies in played.values() for c in replies)
    assert engine.stats.seconds > 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_come_with_the_probabilities_of_the_model(temperature):
    model = make_model()
    draws = 4000
    played = play(
        LocalEngine(model, sampling=Sampling(temperature=temperature)),
        {s: [(1, 2, 3)] for s in range(draws)},
        max_tokens=1,
    )
    counts = np.bincount([reply.token_ids[0] for (reply,) in played.values()], minlength=VOCABULARY)
    probe = to_sample(0, [(1, 2, 3)], played[0])
    with torch.no_grad():
        logits = model(pack([[probe]], count([probe]))).logits_KV[0].double()

    def p_value(temperature):
        expected = draws * (logits / temperature).softmax(-1).numpy()
        common = expected >= 5
        found = [*counts[common], counts[~common].sum()]
        wanted = [*expected[common], expected[~common].sum()]
        rest = wanted[-1] > 0
        return stats.chisquare(found if rest else found[:-1], wanted if rest else wanted[:-1]).pvalue

    assert p_value(temperature) > 1e-3
    assert p_value(temperature * 1.2) < 1e-6
    drawn = [reply for (reply,) in played.values()]
    expected = (logits / temperature).log_softmax(-1)
    assert all(reply.logprobs[0] == pytest.approx(expected[reply.token_ids[0]].item(), abs=1e-5) for reply in drawn)


def test_replies_carry_the_version_that_sampled_them():
    engine = LocalEngine(make_model(), version=3)
    assert play(engine, {1: [(1, 2)]})[1][0].versions[0] == engine.version == 3
    engine.publish(4)
    (reply,) = play(engine, {1: [(1, 2)]})[1]
    assert reply.versions == (4,) * len(reply.token_ids)


def test_weights_change_between_conversations_only():
    async def scenario():
        engine = LocalEngine(make_model())
        session = engine.session(1)
        await session.sample((1, 2), max_tokens=2, stop_ids=STOP)
        with pytest.raises(SamplerError, match="1 conversations are open"):
            engine.publish(1)
        assert engine.version == 0
        await session.close()
        await session.close()
        engine.publish(1)
        assert engine.version == 1

    run(scenario())


def test_a_new_version_of_the_weights_meets_no_old_cache():
    model = make_model()
    engine = LocalEngine(model)
    before = play(engine, PLANS)
    with torch.no_grad():
        model.embedding.weight.mul_(1.1)
    engine.publish(1)
    after = play(engine, PLANS)
    assert gap(model, PLANS, after, 1.0) < 1e-5
    assert gap(model, PLANS, before, 1.0) > 1e-3


def refused(engine, context, max_tokens=3, close=False):
    async def scenario():
        session = engine.session(1)
        if close:
            await session.close()
        try:
            await session.sample(context, max_tokens=max_tokens, stop_ids=STOP)
        finally:
            await session.close()

    with pytest.raises(SamplerError) as caught:
        run(scenario())
    return str(caught.value)


def test_what_cannot_be_sampled_is_refused_in_words():
    engine = LocalEngine(make_model())
    assert "closed" in refused(engine, (1,), close=True)
    assert "max_tokens is 0" in refused(engine, (1,), max_tokens=0)
    assert "at least one context id" in refused(engine, ())
    assert "97 tokens leaves no room in the context of 96" in refused(engine, (1,) * 97)
    assert "96 tokens leaves no room" in refused(engine, (1,) * 96)
    with pytest.raises(SamplerError, match=r"temperature is 0\.0"):
        LocalEngine(make_model(), sampling=Sampling(temperature=0.0))
    play(engine, PLANS)  # none of this has broken the engine


def test_a_reply_ends_where_the_context_does_and_a_conversation_without_room_fails_alone():
    async def scenario():
        engine = LocalEngine(make_model())
        sessions = [engine.session(seed) for seed in range(3)]
        contexts = ((1,) * 90, (1,) * 96, (1, 2))
        asked = (
            session.sample(context, max_tokens=8, stop_ids=frozenset())
            for session, context in zip(sessions, contexts, strict=True)
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for session in sessions:
            await session.close()
        return answers

    cut, refusal, whole = run(scenario())
    assert (len(cut.token_ids), cut.finish_reason) == (6, "length")  # 96 - 90
    assert isinstance(refusal, SamplerError)
    assert len(whole.token_ids) == 8


def to_samples(told):
    """What was sampled, from (context, reply) pairs of each seed, for `gap`."""
    plans = {seed: [context for context, _ in pairs] for seed, pairs in told.items()}
    return plans, {seed: [reply for _, reply in pairs] for seed, pairs in told.items()}


def test_conversations_may_open_while_others_go_on():
    model = make_model()

    async def scenario():
        engine = LocalEngine(model)
        told = {}

        async def say(session, context):
            reply = await session.sample(context, max_tokens=4, stop_ids=STOP)
            told.setdefault(session.seed, []).append((context, reply))

        early = [engine.session(seed) for seed in (1, 2, 3)]
        await asyncio.gather(*(say(session, (1, 2, session.seed)) for session in early))
        late = [engine.session(seed) for seed in (4, 5)]
        await asyncio.gather(*(say(session, (1, 2)) for session in (*early, *late)))
        await early[1].close()
        await asyncio.gather(*(say(session, (7, 8)) for session in (late[1], early[0], late[0], early[2])))
        assert engine.stats.prefilled == 3 * 3 + 3 * 2 + 2 + 4 * 2  # the two that came late share what they begin with
        assert engine.stats.shared == 2
        return told

    plans, played = to_samples(run(scenario()))
    assert {seed: len(replies) for seed, replies in played.items()} == {1: 3, 2: 2, 3: 3, 4: 2, 5: 2}
    assert gap(model, plans, played, 1.0) < 1e-5


@pytest.mark.parametrize("kept", [0, 2, 3, 6, 9])
def test_a_conversation_that_was_rewound_goes_on_as_if_the_rest_had_never_been(kept):
    """Three opening ids and two turns; cut within the opening, behind it, within a reply, and within the context."""
    model = make_model()

    async def scenario(rewound):
        engine = LocalEngine(model)
        session, other = engine.session(1), engine.session(2)
        ids = []
        for context in ((1, 2, 3), (4, 5)):
            reply, _ = await asyncio.gather(
                session.sample(context, max_tokens=4, stop_ids=frozenset()),
                other.sample((1, 2, 3), max_tokens=4, stop_ids=frozenset()),
            )
            ids += [*context, *reply.token_ids]
        if rewound:
            await session.rewind(kept)
            context = (8, 9)
        else:  # a conversation of its own that begins with what was kept
            await session.close()
            session, context = engine.session(1), (*ids[:kept], 8, 9)
            session.num_drawn = 8
        reply, _ = await asyncio.gather(
            session.sample(context, max_tokens=6, stop_ids=frozenset()),
            other.sample((7,), max_tokens=2, stop_ids=frozenset()),
        )
        return reply

    again, fresh = run(scenario(True)), run(scenario(False))
    assert again.token_ids == fresh.token_ids
    assert again.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


def test_a_rewind_computes_no_more_than_is_new():
    async def scenario():
        engine = LocalEngine(make_model())
        session = engine.session(1)
        await session.sample((1, 2, 3), max_tokens=4, stop_ids=frozenset())
        await session.rewind(3)
        await session.sample((4,), max_tokens=4, stop_ids=frozenset())
        assert engine.stats.prefilled == 3 + 1
        with pytest.raises(SamplerError, match="has 8 tokens; it cannot keep 9"):
            await session.rewind(9)
        await session.close()

    run(scenario())


def test_a_failure_in_the_model_reaches_everyone_who_waits():
    async def scenario():
        model = make_model()
        engine = LocalEngine(model)
        sessions = [engine.session(seed) for seed in range(3)]
        with torch.no_grad():
            model.norm.fill_(float("nan"))
        asked = [session.sample((1, 2), max_tokens=4, stop_ids=STOP) for session in sessions]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for session in sessions:
            await session.close()
        return answers

    answers = run(scenario())
    assert len({id(answer) for answer in answers}) == 3
    assert all(isinstance(answer, SamplerError) for answer in answers)


def test_a_conversation_that_closes_lets_the_others_go_on():
    async def scenario():
        engine = LocalEngine(make_model())
        waiting, leaving = engine.session(1), engine.session(2)
        asked = asyncio.ensure_future(waiting.sample((1, 2), max_tokens=2, stop_ids=STOP))
        await asyncio.sleep(0.01)
        assert not asked.done()  # a round begins when everyone waits
        await leaving.close()
        await asked
        await waiting.close()

    run(scenario())


def test_a_caller_that_is_cancelled_does_not_hold_up_the_others():
    async def scenario():
        engine = LocalEngine(make_model())
        first, second = engine.session(1), engine.session(2)
        gone = asyncio.ensure_future(first.sample((1, 2), max_tokens=3, stop_ids=STOP))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await first.close()
        reply = await second.sample((1, 2), max_tokens=3, stop_ids=STOP)
        await second.close()
        return reply

    assert run(scenario()).token_ids == play(LocalEngine(make_model()), {2: [(1, 2)]}, max_tokens=3)[2][0].token_ids


def test_a_greedy_conversation_takes_the_likeliest_token_whatever_its_seed_and_others_draw_as_ever():
    model = make_model()
    contexts = PLANS[11]

    def spoken(seed, *, greedy):
        engine = LocalEngine(model)

        async def both():
            first, other = engine.session(seed, greedy=greedy), engine.session(99)
            return await asyncio.gather(
                converse(first, contexts, max_tokens=5), converse(other, PLANS[12], max_tokens=5)
            )

        return run(both())

    (one, beside), (two, _) = spoken(1, greedy=True), spoken(2, greedy=True)
    assert [c.token_ids for c in one] == [c.token_ids for c in two]
    (drawn, beside_drawn), (others, _) = spoken(1, greedy=False), spoken(2, greedy=False)
    assert len({tuple(c.token_ids for c in talk) for talk in (one, drawn, others)}) == 3
    assert [c.token_ids for c in beside] == [c.token_ids for c in beside_drawn]
    ids = list(contexts[0])
    for token, logprob in zip(one[0].token_ids, one[0].logprobs, strict=True):
        sample = to_sample(
            1, [tuple(ids)], [Completion(token_ids=(0,), logprobs=(-1.0,), versions=(0,), finish_reason="stop")]
        )
        batch = pack([[sample]], count([sample]))
        with torch.no_grad():
            logprobs_V = model(batch).logits_KV[0].log_softmax(-1)
        assert token == int(logprobs_V.argmax())
        assert logprob == pytest.approx(logprobs_V.max().item(), abs=1e-5)
        ids.append(token)


def test_a_conversation_that_had_no_room_may_be_rewound_and_goes_on_exactly():
    """Its row of the cache was given away in the round in which it failed."""
    model = make_model()

    async def scenario():
        engine = LocalEngine(model)
        told = {}

        async def say(session, context, **options):
            reply = await session.sample(context, **{"max_tokens": 4, "stop_ids": STOP} | options)
            told.setdefault(session.seed, []).append((context, reply))

        sessions = [engine.session(seed) for seed in range(1, 9)]
        await asyncio.gather(*(say(session, (1, 2, 3)) for session in sessions))
        full, *others = sessions
        for gone in others[2:]:
            await gone.close()
        failed, *_ = await asyncio.gather(
            say(full, (5,) * 95), *(say(other, (4, 5)) for other in others[:2]), return_exceptions=True
        )
        assert isinstance(failed, SamplerError)
        await asyncio.gather(*(say(session, (6, 7)) for session in (full, *others[:2])))
        return told

    plans, played = to_samples(run(scenario()))
    assert [len(played[seed]) for seed in (1, 2, 3)] == [2, 3, 3]
    assert gap(model, plans, played, 1.0) < 1e-5


def test_a_conversation_is_not_rewound_while_it_is_sampled():
    async def scenario():
        engine = LocalEngine(make_model())
        first, second = engine.session(1), engine.session(2)
        waiting = asyncio.ensure_future(first.sample((1, 2), max_tokens=50, stop_ids=frozenset()))
        other = asyncio.ensure_future(second.sample((1, 2), max_tokens=50, stop_ids=frozenset()))
        while not engine.stats.sampled:
            await asyncio.sleep(0)
        with pytest.raises(SamplerError, match="waits for a reply"):
            await first.rewind(1)
        await asyncio.gather(waiting, other)
        await first.rewind(1)
        await asyncio.gather(first.close(), second.close())

    run(scenario())
