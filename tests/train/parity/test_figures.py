"""The figures by hand, what they tolerate, and the numbers that nobody may have."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.local import LocalEngine
from agentrl.errors import TrainerError
from agentrl.train.parity.check import rescore
from agentrl.train.parity.figures import ENOUGH, TOLERANCES, Tolerance, compare, dtype_of, figures, tolerance_of
from tests.train.parity.lab import model, sampled

STRICT = Tolerance(largest=0.5, mean=0.01)


def of(trainer, sampler, tolerance=STRICT):
    return figures(np.array(trainer), np.array(sampler), tolerance)


def test_the_figures_of_three_tokens():
    # differences +0.3, -0.05, 0.0
    found = of([-0.7, -1.05, -2.0], [-1.0, -1.0, -2.0])
    assert found.num_tokens == 3
    assert found.largest == pytest.approx(0.3)
    assert found.mean == pytest.approx(0.35 / 3)
    assert found.root_mean_square == pytest.approx(math.sqrt((0.09 + 0.0025) / 3))
    assert found.signed_mean == pytest.approx(0.25 / 3)
    # k3 = e^d - 1 - d, with d the trainer's minus the sampler's: 0.049859, 0.001229 and 0
    assert found.k3 == pytest.approx((math.exp(0.3) - 1.3 + math.exp(-0.05) - 0.95) / 3)
    assert found.share_beyond == pytest.approx(1 / 3)  # one token may differ by 10 * 0.01
    assert found.sampler_perplexity == pytest.approx(math.exp(4 / 3))
    assert found.trainer_perplexity == pytest.approx(math.exp(3.75 / 3))


def test_k3_is_the_divergence_on_average():
    """Over all tokens of a distribution with their probabilities it is the exact KL(sampler || trainer)."""
    sampler, trainer = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    drawn = [0, 0, 1, 2]  # as often as likely
    found = of(np.log(trainer)[drawn], np.log(sampler)[drawn])
    assert found.k3 == pytest.approx(float((sampler * np.log(sampler / trainer)).sum()))  # 0.25 ln 2


def test_one_token_or_the_mean_of_many_can_be_too_far():
    assert of([-1.0, -1.5], [-1.0, -1.0]).within(STRICT)
    assert not of([-1.0, -1.51], [-1.0, -1.0]).within(STRICT)
    few, many = ENOUGH - 1, ENOUGH
    assert of([-1.02] * few, [-1.0] * few).within(STRICT)
    assert not of([-1.02] * many, [-1.0] * many).within(STRICT)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(-300, 0), st.floats(-300, 0)), min_size=1, max_size=40), st.randoms())
def test_figures_do_not_depend_on_the_order_and_are_plain(pairs, random):
    found = of(*zip(*pairs, strict=True))
    random.shuffle(pairs)
    again = of(*zip(*pairs, strict=True))
    for name, value in vars(found).items():
        assert getattr(again, name) == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert math.isfinite(value)
    assert found.mean <= found.root_mean_square * (1 + 1e-9) + 1e-150  # squares of less are 0
    assert found.root_mean_square <= found.largest * (1 + 1e-9)
    assert found.k3 >= 0.0


def test_no_tokens_are_no_agreement():
    with pytest.raises(TrainerError, match="no token was sampled"):
        of([], [])


def test_a_coarser_type_may_differ_more():
    order = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    known = [TOLERANCES[dtype] for dtype in order]
    assert [one.largest for one in known] == sorted(one.largest for one in known)
    assert [one.mean for one in known] == sorted(one.mean for one in known)
    policy = model()
    assert (dtype_of(policy), tolerance_of(policy)) == (torch.float32, TOLERANCES[torch.float32])
    policy.blocks[1].to(torch.bfloat16)  # the least exact decides
    assert dtype_of(policy) == torch.bfloat16


@pytest.fixture(scope="module")
def drawn():
    policy = model()
    return policy, sampled(LocalEngine(policy))


def test_packing_and_micro_batches_change_nothing(drawn):
    """verl#6280: ratio one must not depend on how the tokens are cut."""
    policy, made = drawn
    whole = compare(policy, made, temperature=1.0)
    cut = compare(policy, made, temperature=1.0, max_tokens=1)
    alone = compare(policy, [replace(s, group_id=f"{n}") for n, s in enumerate(made)], temperature=1.0, max_tokens=1)
    for other in (cut, alone):
        assert np.abs(other.trainer_N - whole.trainer_N).max() < 1e-4
        assert np.array_equal(other.sampler_N, whole.sampler_N)
        assert np.array_equal(other.place_N, whole.place_N)


def test_tokens_are_counted_by_sample_reply_and_place(drawn):
    policy, made = drawn
    found = compare(policy, made, temperature=1.0)
    assert len(found.trainer_N) == sum(sum(sample.weights["pg"]) for sample in made)
    for index, sample in enumerate(found.samples):
        mine = found.sample_N == index
        assert found.place_N[mine].tolist() == [place for place, weight in enumerate(sample.weights["pg"]) if weight]
        assert found.sampler_N[mine].tolist() == [value for value in sample.logprobs if value is not None]
    assert found.reply_N.max() == 2  # three turns


def test_a_token_that_nobody_sampled_is_refused_by_name(drawn):
    policy, made = drawn
    whole = replace(made[0], weights={"pg": (0.0,) + (1.0,) * (len(made[0].token_ids) - 1)})
    with pytest.raises(TrainerError, match=rf"trace {made[0].trace_id}: token 1 has no log-probability of the sampler"):
        compare(policy, [whole], temperature=1.0)


def test_a_trainer_without_numbers_is_an_error_and_no_figure(drawn):
    """trl#6166, from the other side: NaN is no difference."""
    _, made = drawn
    broken = model()
    with torch.no_grad():
        broken.blocks[0].out.weight.fill_(math.nan)
    with pytest.raises(TrainerError, match=r"the trainer's log-probability of token \d+ is nan"):
        rescore(broken, made, temperature=1.0)


def test_a_report_is_plain_json(drawn):
    policy, made = drawn
    wrong = [replace(one, logprobs=tuple(value and value - 0.5 for value in one.logprobs)) for one in made]
    found = rescore(policy, wrong, temperature=1.0, worst=3)
    plain = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert plain["within"] is False
    assert plain["figures"]["largest"] == pytest.approx(0.5, abs=1e-3)
    assert plain["diagnosis"]["fault"] == "unknown"
    assert len(plain["worst"]) == 3
    assert plain["tolerance"] == {"largest": 1e-3, "mean": 1e-4}
    assert plain["dtype"] == "float32"
