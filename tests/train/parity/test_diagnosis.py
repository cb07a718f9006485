"""Each fault that is planted is named, with the numbers that show it; what is not known is not named."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.train.parity.case import Case, Forward
from agentrl.train.parity.diagnosis import ADVICE, diagnose, worst_samples
from agentrl.train.parity.figures import TOLERANCES, Compared, compare
from agentrl.train.parity.of_sampling import fit_temperature
from agentrl.types import Sampling
from tests.train.parity.lab import Faulty, check, model, nudged, sampled, with_logprobs

MODEL = model()
BEFORE = nudged(MODEL)


def engine(policy=MODEL, **sampling):
    return LocalEngine(policy, sampling=Sampling(**sampling))


def told(change, **sampling):
    return Faulty(engine(**sampling), told=change)


def given(change):
    return Faulty(engine(), given=change)


def named(sampler, **settings):
    found = check(MODEL, sampler, **settings)
    assert not found.within
    return found.diagnosis


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_p": 0.9},
        {"top_k": 5},
        {"top_p": 0.8, "top_k": 20, "min_p": 0.02},
    ],
    ids=str,
)
def test_a_sampler_without_fault_agrees_at_any_setting(sampling):
    found = check(MODEL, engine(**sampling), sampling=Sampling(**sampling))
    assert found.within
    assert found.figures.largest < 5e-4  # float32 in a network whose weights are three times as large as others
    assert found.figures.share_beyond == 0.0


# Settings.


@pytest.mark.parametrize("temperature", [0.5, 0.7, 0.98, 1.02, 1.5])
def test_another_temperature_is_named_with_its_value(temperature):
    diagnosis = named(engine(temperature=temperature))
    assert diagnosis.fault == "temperature"
    assert f"agrees at temperature {temperature:.4g} and scored at 1" in diagnosis.evidence


def test_the_temperature_is_found_from_far_away():
    made = sampled(engine(temperature=0.8))
    found = compare(MODEL, made, temperature=1.0)
    forward = Forward(MODEL, found.samples)
    for start in (0.2, 1.0, 6.0):
        assert fit_temperature(forward, found.sampler_N, start) == pytest.approx(0.8, rel=1e-4)


def test_a_temperature_that_only_the_trainer_forgets_is_named_over_a_support_too():
    diagnosis = named(engine(temperature=0.7, top_p=0.9))
    assert (diagnosis.fault, "temperature 0.7 " in diagnosis.evidence) == ("temperature", True)


def test_log_probabilities_divided_by_the_temperature_are_named():
    """prime-rl#697: the logits 2, 1, 0 at T 0.5 give -2.143 for the second; -1.408 / 0.5 is -2.815."""
    divided = told(lambda reply, turn: with_logprobs(reply, [value / 0.5 for value in reply.logprobs]))
    diagnosis = named(divided, sampling=Sampling(temperature=0.5))
    assert diagnosis.fault == "temperature"
    assert "those at temperature 1 times 2" in diagnosis.evidence.replace("the log-probabilities ", "those ")


def test_log_probabilities_from_before_the_temperature_are_those_of_temperature_one():
    """NeMo-RL#3392, raw log-probabilities where processed ones are wanted: drawn at 0.7, told at 1."""
    diagnosis = named(engine(), sampling=Sampling(temperature=0.7))
    assert "agrees at temperature 1 and scored at 0.7" in diagnosis.evidence


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"top_p": 0.9}, "top_p about 0.9 cuts"),
        ({"top_p": 0.99}, "top_p about 0.99 cuts"),
        ({"top_k": 5}, "top_k 5 cuts"),
        ({"top_k": 50}, "top_k 50 cuts"),
        ({"min_p": 0.05}, "min_p about 0.05 cuts"),
        ({"top_p": 0.9, "top_k": 10}, "no single rule"),
        ({"temperature": 0.7, "top_p": 0.9}, "top_p about 0.9 cuts"),
    ],
    ids=str,
)
def test_a_truncation_that_is_not_reported_is_named_with_its_rule(sampling, words):
    silent = told(lambda reply, turn: replace(reply, support=()), **sampling)
    diagnosis = named(silent, sampling=Sampling(temperature=sampling.get("temperature", 1.0)))
    assert diagnosis.fault == "truncation"
    assert words in diagnosis.evidence
    assert "does not report" in diagnosis.evidence


def test_numbers_from_before_the_truncation_are_named():
    """A sampler that reports what it drew from, with log-probabilities over everything."""
    made = sampled(engine(top_k=8))
    whole = [replace(sample, support=()) for sample in made]
    raw = compare(MODEL, whole, temperature=1.0)
    spoken = [with_numbers(sample, raw.trainer_N[raw.sample_N == index]) for index, sample in enumerate(made)]
    diagnosis = diagnosed(spoken)
    assert diagnosis.fault == "truncation"
    assert "from before top-p, top-k or min-p" in diagnosis.evidence


def with_numbers(sample, numbers):
    """The sample with other numbers of the sampler, one per trained token."""
    rest = iter(numbers.tolist())
    return replace(sample, logprobs=tuple(None if value is None else min(0.0, next(rest)) for value in sample.logprobs))


def diagnosed(samples, **known):
    found = compare(MODEL, samples, temperature=1.0)
    tolerance = TOLERANCES[torch.float32]
    assert not found.figures(tolerance).within(tolerance)
    return diagnose(Case(policy=MODEL, compared=found, temperature=1.0, tolerance=tolerance, **known))


# Positions.


@pytest.mark.parametrize(
    ("by", "words"), [(1, "1 token after it"), (-1, "1 token before it"), (2, "2 tokens after it")]
)
def test_numbers_of_the_neighbouring_token_are_named(by, words):
    """NeMo-RL#3297, vllm#54539: entry t of one list beside entry t + 1 of the other."""
    diagnosis = named(told(lambda reply, turn: with_logprobs(reply, np.roll(reply.logprobs, -by))))
    assert diagnosis.fault == "shift"
    assert words in diagnosis.evidence


def test_numbers_of_the_prompt_in_the_place_of_the_reply_are_named():
    """trl#3681: logits cut by one from the front in place of by the length of the prompt."""
    made = sampled(engine())
    whole = [replace(s, weights={"pg": (0.0,) + (1.0,) * (len(s.token_ids) - 1)}, logprobs=(-1.0,) * 999) for s in made]
    whole = [replace(s, logprobs=(-1.0,) * len(s.token_ids), advantages=(0.0,) * len(s.token_ids)) for s in whole]
    everywhere = compare(MODEL, whole, temperature=1.0)
    spoken = []
    for index, sample in enumerate(made):
        count = sum(value is not None for value in sample.logprobs)
        spoken.append(with_numbers(sample, everywhere.trainer_N[everywhere.sample_N == index][:count]))
    diagnosis = diagnosed(spoken)
    assert diagnosis.fault == "shift"
    assert "of the tokens at" in diagnosis.evidence


# Tokens.


def test_a_template_without_the_ids_that_open_a_reply_is_named():
    diagnosis = named(given(lambda ids, turn: ids[:-1]))
    assert diagnosis.fault == "tokens"
    assert "without the last 1 of the 1 ids that open a reply" in diagnosis.evidence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids, turn: ids[1:] if turn == 0 else ids, "without the first id of the conversation"),
        (lambda ids, turn: [ids[0], *ids] if turn == 0 else ids, "with the first id of the conversation twice"),
    ],
    ids=["no beginning", "two beginnings"],
)
def test_a_beginning_that_is_missing_or_there_twice_is_named(change, words):
    """Soup#781: the template prints it and the tokenizer adds it."""
    diagnosis = named(given(change))
    assert diagnosis.fault == "tokens"
    assert words in diagnosis.evidence


def test_earlier_replies_written_anew_from_their_text_are_named():
    """verl#3720: each turn is encoded again. Here writing anew drops a reply's first id."""
    made = sampled(Rewriting(engine()))
    diagnosis = diagnosed(made, reencode=lambda ids: ids[1:])
    assert diagnosis.fault == "tokens"
    assert "earlier replies written anew from their text" in diagnosis.evidence


class Rewriting(Faulty):
    """Opens a new conversation for each turn, with all earlier replies written anew."""

    def session(self, seed, *, greedy=False):
        return RewritingSession(self.engine, seed)


class RewritingSession:
    def __init__(self, engine, seed):
        self.session, self.sent, self.reply = engine.session(seed), 0, ()

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        if self.reply:
            await self.session.rewind(self.sent)
            context_ids = [*self.reply[1:], *context_ids]
        reply = await self.session.sample(context_ids, max_tokens=max_tokens, stop_ids=stop_ids)
        self.sent, self.reply = self.sent + len(context_ids), reply.token_ids
        return reply

    async def close(self):
        await self.session.close()


def test_other_ids_of_one_turn_are_known_by_where_the_differences_begin():
    """verl#6921: a separator is lost behind a reply. No usual way of it, but what was before agrees."""
    diagnosis = named(given(lambda ids, turn: [*ids[:2], ids[1], *ids[2:]] if turn == 1 else ids))
    assert diagnosis.fault == "tokens"
    assert "the differences begin behind what was given" in diagnosis.evidence


def test_a_prompt_that_is_another_in_some_conversations_only_is_known_by_the_others():
    diagnosis = named(given(lambda ids, turn: [*ids[:3], ids[1], *ids[3:]] if turn == 0 and len(ids) > 8 else ids))
    assert diagnosis.fault == "tokens"


# Weights.


def test_stale_weights_are_named_with_their_version():
    earlier = [("version 4", nudged(MODEL, 0.1).tensors()), ("version 3", BEFORE.tensors())]
    diagnosis = named(engine(BEFORE), earlier=earlier)
    assert diagnosis.fault == "stale weights"
    assert "agrees with the weights of version 3" in diagnosis.evidence


def test_without_earlier_weights_nothing_is_named():
    diagnosis = named(engine(BEFORE))
    assert diagnosis.fault == "unknown"
    assert "no earlier weights were at hand" in diagnosis.evidence
    assert "no known fault explains it" in str(diagnosis)


def partly(old):
    """The model, with the weights of some names still those from before."""
    mixed = copy.deepcopy(MODEL)
    before = BEFORE.tensors()
    mixed.load_tensors({name: before[name] if old(name) else tensor for name, tensor in MODEL.tensors().items()})
    return mixed


@pytest.mark.parametrize(
    ("old", "words"),
    [
        (lambda name: ".1." in name, "when layer 1 is still of version 3"),
        (lambda name: name == "embedding.weight", "when embedding.weight is still of version 3"),
        (lambda name: ".1." in name or ".2." in name, "when everything from layer 1 on is still of version 3"),
        (lambda name: ".2." not in name, "when everything before layer 2 is still of version 3"),
    ],
    ids=["one layer", "embedding", "the rest", "the beginning"],
)
def test_a_publication_that_stopped_half_way_is_named_with_the_place(old, words):
    """NeMo-RL#2180, prime-rl#3358: some weights are new and some are not, such as a head that no publication holds."""
    diagnosis = named(engine(partly(old)), earlier=[("version 3", BEFORE.tensors())])
    assert diagnosis.fault == "half-published weights"
    assert words in diagnosis.evidence


def changing(after):
    """The model, whose weights become those from before at some forward pass of the sampler."""
    moved, count, before = copy.deepcopy(MODEL), itertools.count(1), BEFORE.tensors()
    advance = moved.advance

    def advancing(*given):
        if next(count) == after:
            moved.load_tensors(before)
        return advance(*given)

    moved.advance = advancing
    return moved


def test_weights_that_change_while_a_reply_is_sampled_are_known_by_the_place():
    """labs-molt#124: one reply of two policies, whose numbers belong to neither."""
    diagnosis = named(engine(changing(6)), earlier=[("version 3", BEFORE.tensors())])
    assert diagnosis.fault == "changed midway"
    assert "begin within a reply" in diagnosis.evidence
    assert named(engine(changing(1)), earlier=[("version 3", BEFORE.tensors())]).fault == "stale weights"


def test_a_publication_reaches_every_conversation_that_opens_behind_it():
    """vllm#42125, prime-rl#1650: no cache of older weights is left; the second check is as good as the first."""
    policy = copy.deepcopy(MODEL)
    sampler = engine(policy)
    first = check(policy, sampler)
    policy.load_tensors(BEFORE.tensors())
    sampler.publish(1)
    second = check(policy, sampler)
    assert (first.within, second.within) == (True, True)
    assert first.figures.sampler_perplexity != second.figures.sampler_perplexity


# Precision, and nothing.


def rounded(policy, dtype):
    copied = copy.deepcopy(policy)
    for weight in copied.parameters():
        weight.data = weight.data.to(dtype).float()
    return copied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_another_type_are_named(dtype):
    diagnosis = named(engine(rounded(MODEL, dtype)))
    assert diagnosis.fault == "precision"
    assert str(dtype).removeprefix("torch.") in diagnosis.evidence


def noisy(reply, turn):
    wave = [
        0.05 * math.sin(37.1 * place * place + 3.3 * turn + 11 * value) for place, value in enumerate(reply.logprobs)
    ]
    return with_logprobs(reply, np.add(reply.logprobs, wave))


def penalised(reply, turn):
    """ART#140: a repetition penalty from the checkpoint's own settings moves the tokens that were there before."""
    seen = [token in reply.token_ids[:place] for place, token in enumerate(reply.token_ids)]
    return with_logprobs(
        reply, [value * 1.1 if old else value + 0.01 for value, old in zip(reply.logprobs, seen, strict=True)]
    )


@pytest.mark.parametrize("change", [noisy, penalised])
def test_what_is_not_known_is_not_named(change):
    diagnosis = named(told(change), earlier=[("version 3", BEFORE.tensors())])
    assert diagnosis.fault == "unknown"
    assert "the best of each kind still leaves" in diagnosis.evidence
    assert "no earlier weights" not in diagnosis.evidence


def test_two_faults_at_once_are_not_taken_for_one():
    shifted = told(lambda reply, turn: with_logprobs(reply, np.roll(reply.logprobs, 1)), temperature=0.7)
    assert named(shifted).fault == "unknown"


def test_every_fault_has_advice():
    assert all(text and "\n" not in text for text in ADVICE.values())


def test_the_worst_samples_are_whole_and_within_the_limit():
    made = sampled(engine())
    found = compare(MODEL, made, temperature=1.0)
    shifted = replace(found, sampler_N=found.sampler_N - np.where(found.sample_N == 4, 1.0, 0.0))
    one = worst_samples(shifted, 1)
    assert [sample.trace_id for sample in one.samples] == [found.samples[4].trace_id]
    assert set(one.sample_N.tolist()) == {0}
    assert isinstance(one, Compared)
    some = worst_samples(shifted, 60)
    assert len(some.sampler_N) <= 60
    assert found.samples[4] in some.samples
