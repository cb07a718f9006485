"""Public failures of sampling engines with caches, tried on ours: the trainer's own numbers say what is right."""

import asyncio
import copy
import math

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.errors import SamplerError
from agentrl.loops.canary import Canary
from agentrl.tokens.tiny import TinyRenderer
from agentrl.types import Sampling
from tests.engine.test_continuous import STOP, gaps, make_model, run
from tests.policy.test_lora import adapted, train

PROMPT = tuple(range(1, 11)) * 3
NEVER = frozenset()
ROUNDING = 2e-5


def moved(model, size=0.03):
    """Its weights after a step."""
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * size)


async def reply_to(engine, seed, context, tokens=6):
    session = engine.session(seed)
    reply = await session.sample(context, max_tokens=tokens, stop_ids=NEVER)
    await session.close()
    return reply


def over_versions(number, **options):
    """A conversation that stays open over so many publications: contexts, replies, the weights of each version, and
    the engine."""
    model = make_model()
    engine = LocalEngine(model, schedule="continuous", **options)
    weights = {0: copy.deepcopy(model)}
    contexts = [PROMPT] + [(version % 11 + 1,) for version in range(1, number + 1)]

    async def play():
        session, replies = engine.session(3), []
        for version, context in enumerate(contexts):
            if version:
                moved(model)
                engine.publish(version)
                weights[version] = copy.deepcopy(model)
            replies.append(await session.sample(context, max_tokens=3, stop_ids=NEVER))
        await session.close()
        return replies

    return contexts, run(play()), weights, engine


def test_keys_are_not_17_versions_old():
    """NeMo RL#4018: a prefix cache went on with keys of up to 17 steps before."""
    contexts, replies, weights, engine = over_versions(17)
    found = gaps(weights, contexts, replies)
    assert set(found) == set(range(18))
    assert max(found.values()) < ROUNDING
    assert engine.stats.on_older_keys == 0


def test_keys_that_are_kept_by_policy_are_counted_and_would_show():
    """The negative control of the test above, and the other policy."""
    contexts, replies, weights, engine = over_versions(17, at_publication="keep")
    found = gaps(weights, contexts, replies)
    assert found[0] < ROUNDING
    assert found[17] > 100 * ROUNDING
    assert engine.stats.on_older_keys == 17 * 3


def test_case_r06_after_each_publication_the_same_prompt_is_that_of_a_cold_engine():
    model = make_model()
    warm = LocalEngine(model, schedule="continuous")
    for version in range(3):
        if version:
            moved(model)
            warm.publish(version)
        cold = LocalEngine(model, schedule="continuous", version=version)
        first, second = (run(reply_to(engine, 7, PROMPT)) for engine in (warm, cold))
        assert first.token_ids == second.token_ids
        assert first.logprobs == pytest.approx(second.logprobs, abs=ROUNDING)
        assert first.versions == second.versions == (version,) * 6
    assert warm.stats.shared == 0


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
def test_case_r12_scores_do_not_depend_on_which_of_two_prompts_with_one_beginning_came_first(schedule):
    one, other = (*PROMPT, 4, 4), (*PROMPT, 5)
    found = {}
    for order in ((one, other), (other, one)):
        engine = LocalEngine(make_model(), schedule=schedule)
        for context in order:
            reply = run(reply_to(engine, 5, context))
            found.setdefault(context, []).append(reply)
    for first, second in found.values():
        assert first.token_ids == second.token_ids
        assert first.logprobs == pytest.approx(second.logprobs, abs=ROUNDING)
        assert all(map(math.isfinite, first.logprobs))


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
def test_case_p07_a_seed_is_heeded_whoever_is_beside_it(schedule):
    """Alone, beside an own copy, and beside others, four times each: twelve equal replies."""

    async def together(engine, seeds):
        sessions = [engine.session(seed) for seed in seeds]
        replies = await asyncio.gather(*(one.sample(PROMPT, max_tokens=8, stop_ids=STOP) for one in sessions))
        for one in sessions:
            await one.close()
        return replies[seeds.index(42)]

    replies = []
    for beside in ((), (42,), (1, 2, 3)):
        for _ in range(4):
            engine = LocalEngine(make_model(), schedule=schedule)
            replies.append(run(together(engine, [*beside, 42])))
    assert len({reply.token_ids for reply in replies}) == 1
    assert all(reply.logprobs == pytest.approx(replies[0].logprobs, abs=ROUNDING) for reply in replies)
    assert len({reply.logprobs for reply in replies[:4]}) == 1, "alone it repeats to the bit"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5, top_p=0.9)])
def test_a_policy_that_is_sure_has_logprobs_that_are_numbers(sampling):
    """TRL#6166: where the entropy had collapsed, a logprob was NaN. Here it is below 1e-3 nats a token."""
    model = make_model()
    with torch.no_grad():
        model.embedding.weight.mul_(40.0)
    replies = [run(reply_to(LocalEngine(model, sampling=sampling), seed, PROMPT, 20)) for seed in range(4)]
    logprobs = [value for reply in replies for value in reply.logprobs]
    assert all(math.isfinite(value) and value <= 0.0 for value in logprobs)
    assert sum(logprobs) / len(logprobs) > -1e-3


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_an_adapter_that_is_never_delivered_is_noticed_and_one_that_is_changes_what_is_sampled():
    """verl#7495: replies stayed those of the first policy, which looked like staleness, for two months."""
    trainer = adapted()
    held = trainer.frozen_copy()
    engine = LocalEngine(held, schedule="continuous")
    canary = Canary(trainer=trainer, held=held, sampler=engine, renderer=TinyRenderer(), prompts=())
    before = run(reply_to(engine, 1, (5, 6, 7)))
    train(trainer, 3)
    engine.publish(1)  # the version alone
    names = len(trainer.tensors())
    with pytest.raises(SamplerError, match=f"version 1 reached nobody: of {names} tensors {names} are others"):
        canary.compare_weights(1)
    held.load_tensors(trainer.tensors())
    engine.publish(2)
    canary.compare_weights(2)
    after = run(reply_to(engine, 1, (5, 6, 7)))
    cold = run(reply_to(LocalEngine(trainer), 1, (5, 6, 7)))
    assert after.token_ids == cold.token_ids
    assert after.logprobs == pytest.approx(cold.logprobs, abs=ROUNDING)
    assert before.logprobs != pytest.approx(after.logprobs, abs=1e-2)
