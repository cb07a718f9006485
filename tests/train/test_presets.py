"""For every preset, how a step is cut, ordered and padded changes neither its loss nor its gradient."""

import itertools
import random
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from agentrl.algorithms.presets import REDUCTIONS, preset
from agentrl.catalogue import CATALOGUE
from agentrl.train.losses import PolicyGradient, segments_of
from agentrl.train.packing import count, micro_batches, pack
from tests.train.test_trainer import gradient, make_sample

GROUPS = 4


def step():
    """Four groups of uneven attempts, sampled by a policy that is near the one in training (about 1 in 12 each)."""
    rng = random.Random(0)
    made = []
    for group in range(GROUPS):
        prompt = [1, *(rng.randrange(2, 12) for _ in range(group + 1))]
        for _ in range(3):
            reply = [rng.randrange(2, 12) for _ in range(rng.randint(1, 5))]
            trained = [0] * len(prompt) + [1] * len(reply)
            # a tool's answer in the middle is context
            if len(reply) > 3:
                trained[len(prompt) + 1] = 0
            sample = make_sample(prompt + reply, trained, group=str(group), advantage=rng.choice((-1.0, 0.5, 0.25)))
            made.append(replace(sample, logprobs=tuple(v and v - 0.5 + rng.random() * 0.6 for v in sample.logprobs)))
    return made


def shuffled(samples):
    """Groups in another order, and attempts within each."""
    rng = random.Random(1)
    groups = rng.sample(range(GROUPS), GROUPS)
    return [sample for group in groups for sample in rng.sample([s for s in samples if s.group_id == str(group)], 3)]


def poisoned(sample):
    """NaN and 1e9 wherever nothing is trained."""
    trained = sample.weights["pg"]
    return replace(
        sample,
        logprobs=tuple(v if w else 1e9 for v, w in zip(sample.logprobs, trained, strict=True)),
        advantages=tuple(v if w else float("nan") for v, w in zip(sample.advantages, trained, strict=True)),
    )


SENTENCES = {name: preset(name) for name in CATALOGUE if not CATALOGUE[name].critic} | {
    f"{name} by {kind}": replace(preset(name), reduction=reduction)
    for name in CATALOGUE
    if not CATALOGUE[name].critic
    for kind, reduction in REDUCTIONS.items()
}
TOLERANCE = 1e-6
"""In float32, relative to the largest of the loss and its gradient (measured: at most 4e-7)."""


@pytest.mark.parametrize("name", SENTENCES)
def test_cuts_order_and_poison_change_nothing(name):
    loss = PolicyGradient(SENTENCES[name])
    whole, slope = gradient(step(), loss)
    assert slope.abs().max() > 1e-6
    assert len(list(micro_batches(step(), max_tokens=1))) == GROUPS
    for samples, max_tokens in ((step(), 1), (step(), 40), (shuffled(step()), 10_000), (shuffled(step()), 30)):
        value, again = gradient(samples, loss, max_tokens=max_tokens)
        largest = slope.abs().max().item()
        assert abs(value - whole) <= TOLERANCE * max(abs(whole), largest)
        assert (again - slope).abs().max().item() <= TOLERANCE * largest
    value, again = gradient(list(map(poisoned, step())), loss)
    assert value == whole
    assert torch.equal(again, slope)


def cut(sample, seed):
    """Most trained tokens drawn from a part of the vocabulary; what stands at the others may be anything."""
    rng = random.Random(f"{seed}/{sample.trace_id}")
    drawn = [tuple(sorted({token, *rng.sample(range(12), 4)})) for token in sample.token_ids]
    trained = sample.weights["pg"]
    support = tuple((ids if rng.random() < 0.8 else None) if w else None for ids, w in zip(drawn, trained, strict=True))
    return replace(sample, support=support)


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "dapo", "gspo", "cispo", "gigpo by group"])
def test_neither_where_tokens_were_drawn_from_a_part_of_the_vocabulary(name):
    loss = PolicyGradient(SENTENCES[name])
    _, slope_of_plain = gradient(step(), loss)
    samples = [cut(sample, 0) for sample in step()]
    whole, slope = gradient(samples, loss)
    assert (slope - slope_of_plain).abs().max() > 1e-3 * slope.abs().max()
    mixed = [*samples[:3], *step()[3:]]  # supports in the first group only
    for given, (expected, reference) in ((samples, (whole, slope)), (mixed, gradient(mixed, loss))):
        largest = reference.abs().max().item()
        for again, max_tokens in ((given, 1), (given, 40), (shuffled(given), 10_000), (shuffled(given), 30)):
            value, found = gradient(again, loss, max_tokens=max_tokens)
            assert abs(value - expected) <= TOLERANCE * max(abs(expected), largest)
            assert (found - reference).abs().max().item() <= TOLERANCE * largest
    junk = [
        replace(s, support=tuple(ids if w else (10**9,) for ids, w in zip(s.support, s.weights["pg"], strict=True)))
        for s in samples
    ]
    value, found = gradient(junk, loss)
    assert value == whole
    assert torch.equal(found, slope)


def test_a_mean_of_each_micro_batch_is_noticed():
    chosen = preset("grpo")

    def own_denominators(loss_T, weight_T, segments):
        present = len(torch.unique(segments.sequence_T))
        return chosen.reduction(loss_T, weight_T, replace(segments, num_sequences=present)) / GROUPS

    wrong = PolicyGradient(replace(chosen, reduction=own_denominators))
    whole, _ = gradient(step(), wrong)
    pieces, _ = gradient(step()[:-2], wrong, max_tokens=1)
    reference, _ = gradient(step()[:-2], wrong)
    assert whole != pytest.approx(pieces, rel=1e-3)
    assert pieces != pytest.approx(reference, rel=1e-3)


def test_reductions_are_their_formulas():
    """The k-th trained token has loss k. By token, sequence, attempt and group, worked out plainly."""
    samples = step()
    batch = pack([[s for s in samples if s.group_id == str(g)] for g in range(GROUPS)], count(samples))
    numbers = itertools.count()
    losses = [[float(next(numbers)) for weight in sample.weights["pg"] if weight] for sample in samples]
    everything = [loss for mine in losses for loss in mine]
    groups = [[loss for mine in losses[first : first + 3] for loss in mine] for first in range(0, 12, 3)]
    expected = {
        "token": fmean(everything),
        "sequence": fmean([fmean(mine) for mine in losses]),
        "constant": fmean([sum(mine) for mine in losses]),
        "group": fmean([fmean(mine) for mine in groups]),
    }
    weight_K = batch.weights_K["pg"]
    for kind, value in expected.items():
        found = REDUCTIONS[kind](torch.tensor(everything), weight_K, segments_of(batch))
        assert found.item() == pytest.approx(value, rel=1e-6), kind
    assert len({round(value, 6) for value in expected.values()}) == 4
