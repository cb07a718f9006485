"""Credit of a group: exact numbers, invariances, weights, and what is refused."""

import math
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.advantages import (
    group_mean,
    leave_one_out,
    max_rl,
    opo,
    pass_at_k,
    remax,
    std_normalized,
    top_minus_second,
    whiten,
)
from agentrl.errors import ConfigError, TrainerError

REWARD = st.floats(min_value=-100, max_value=100, allow_nan=False)
REWARDS = st.lists(st.one_of(st.none(), REWARD), min_size=1, max_size=9)


def reference(rewards):
    """The definition, written as a loop of its own."""
    total, count = 0.0, 0
    for reward in rewards:
        if reward is not None:
            total, count = total + reward, count + 1
    return [None if reward is None else reward - total / count for reward in rewards]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1, 0, 0, 1), (0.5, -0.5, -0.5, 0.5)),  # mean 2/4
        ((1, 1, 1, 0), (0.25, 0.25, 0.25, -0.75)),  # mean 3/4
        ((-2, 0, 1, 5), (-3.0, -1.0, 0.0, 4.0)),  # mean 4/4, negative rewards
        ((0.25, 0.5), (-0.125, 0.125)),  # partial rewards, mean 0.375
        ((3, None, 1), (1.0, None, -1.0)),  # mean 4/2: the missing attempt is out of the baseline
        ((0.7,), (0.0,)),  # its own baseline
        ((None, 0.7, None), (None, 0.0, None)),  # a single survivor likewise
        ((None, None), (None, None)),
        ((), ()),
    ],
)
def test_exact_numbers(rewards, expected):
    assert group_mean(rewards) == expected


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7, 1e-9, 123456.789])
def test_equal_rewards_give_exactly_zero(value):
    # A sum of 0.1s divided by their number is not 0.1; a remainder of 1e-17 would pass for a signal.
    assert group_mean([value] * 7) == (0.0,) * 7


@settings(deadline=None)
@given(REWARDS)
def test_agrees_with_the_reference(rewards):
    assert group_mean(rewards) == pytest.approx(reference(rewards), abs=1e-9)


@settings(deadline=None)
@given(REWARDS, REWARD)
def test_a_shift_of_all_rewards_changes_nothing(rewards, shift):
    shifted = [None if reward is None else reward + shift for reward in rewards]
    assert group_mean(shifted) == pytest.approx(group_mean(rewards), abs=1e-9)


@settings(deadline=None)
@given(REWARDS, st.floats(min_value=0.01, max_value=100))
def test_scaled_rewards_scale_the_credit(rewards, factor):
    # The negative control of a standard deviation: divided by one, the credit would stay the same.
    scaled = [None if reward is None else reward * factor for reward in rewards]
    expected = [None if credit is None else credit * factor for credit in group_mean(rewards)]
    assert group_mean(scaled) == pytest.approx(expected, abs=1e-8)


@settings(deadline=None)
@given(REWARDS.flatmap(lambda rewards: st.tuples(st.just(rewards), st.permutations(range(len(rewards))))))
def test_a_permuted_group_has_permuted_credit_to_the_bit(rewards_and_order):
    rewards, order = rewards_and_order
    credit = group_mean(rewards)
    assert group_mean([rewards[i] for i in order]) == tuple(credit[i] for i in order)


@settings(deadline=None)
@given(REWARDS)
def test_credit_sums_to_zero_and_missing_attempts_change_nothing(rewards):
    credit = group_mean(rewards)
    assert sum(x for x in credit if x is not None) == pytest.approx(0.0, abs=1e-9)
    scored = [reward for reward in rewards if reward is not None]
    assert tuple(x for x in credit if x is not None) == group_mean(scored)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_no_number_is_refused(value):
    with pytest.raises(TrainerError, match=r"attempt 1 is not finite; use None"):
        group_mean([1.0, value, None])


def test_credit_samples_and_statistics_start_without_torch():
    code = (
        "import sys, agentrl.algorithms.advantages, agentrl.algorithms.filters, agentrl.tokens.samples, "
        "agentrl.evals.stats; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (group_mean, (0.75, -0.25, -0.25, -0.25)),  # mean 1/4
        (partial(std_normalized, ddof=0, eps=0.0), (1.732051, -0.577350, -0.577350, -0.577350)),  # std sqrt(3)/4
        (partial(std_normalized, ddof=1, eps=0.0), (1.5, -0.5, -0.5, -0.5)),  # std 1/2
        (partial(std_normalized, ddof=1), (0.75 / 0.500001, *[-0.25 / 0.500001] * 3)),
        (leave_one_out, (1.0, -1 / 3, -1 / 3, -1 / 3)),
        (max_rl, (3.0, -1.0, -1.0, -1.0)),
        (partial(max_rl, eps=1e-6), (0.75 / 0.250001, *[-0.25 / 0.250001] * 3)),
        (partial(opo, lengths=[10, 30, 30, 30]), (0.9, -0.1, -0.1, -0.1)),  # 10 of 100 tokens are in the solved one
        (partial(remax, greedy=1.0), (0.0, -1.0, -1.0, -1.0)),
        (top_minus_second, (1.0, 0.0, 0.0, 0.0)),
        (partial(top_minus_second, ddof=1, eps=0.0), (2.0, 0.0, 0.0, 0.0)),
        (partial(pass_at_k, k=2), (2.0, 0.0, 0.0, 0.0)),  # 4/6 * three sets with it, in each it adds 1
        (partial(pass_at_k, k=3), (3.0, 0.0, 0.0, 0.0)),  # 4/4 * three sets
        (partial(pass_at_k, k=4), (4.0, 0.0, 0.0, 0.0)),  # 4/1 * one set
    ],
)
def test_one_of_four_solved(rule, expected):
    assert rule([1.0, 0.0, 0.0, 0.0]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("solved", range(7))
def test_pass_at_k_of_zeros_and_ones_in_closed_form(k, solved):
    share = k * math.comb(6 - solved, k - 1) / math.comb(5, k - 1)
    assert pass_at_k([1.0] * solved + [0.0] * (6 - solved), k=k) == pytest.approx(
        [share] * solved + [0.0] * (6 - solved)
    )


@settings(deadline=None, max_examples=40)
@given(st.lists(REWARD, min_size=2, max_size=8))
def test_the_best_of_the_whole_group_is_top_minus_second_times_its_size(rewards):
    expected = [len(rewards) * x for x in top_minus_second(rewards)]
    assert pass_at_k(rewards, k=len(rewards)) == pytest.approx(expected, rel=1e-12)


def test_two_attempts_that_share_the_best_reward_leave_nothing_to_credit():
    assert top_minus_second([1.0, 1.0, 0.0]) == (0.0, 0.0, 0.0)
    assert pass_at_k([1.0, 1.0, 0.0], k=3) == (0.0, 0.0, 0.0)
    # With k = 2 each is without the other in one set of three: 3/3 * 1.
    assert pass_at_k([1.0, 1.0, 0.0], k=2) == (1.0, 1.0, 0.0)


def test_too_few_scored_attempts_for_a_set_have_no_credit_and_too_small_a_group_is_refused():
    assert pass_at_k([1.0, 0.0, None], k=3) == (0.0, 0.0, None)
    with pytest.raises(TrainerError, match=r"group of 2 attempts has no pass@3; sample at least 3"):
        pass_at_k([1.0, 0.0], k=3)


# Weights are counts.

WEIGHTED = {
    "group_mean": group_mean,
    "std_normalized": partial(std_normalized, ddof=1),
    "max_rl": max_rl,
    "whiten": partial(whiten, ddof=1),
}
COUNTED = st.lists(st.tuples(st.integers(0, 8).map(lambda n: n / 8), st.integers(1, 3)), min_size=2, max_size=6)


@pytest.mark.parametrize("name", WEIGHTED)
@settings(deadline=None, max_examples=40)
@given(counted=COUNTED)
def test_a_weight_is_the_number_of_copies(name, counted):
    rewards, weights = [x for x, _ in counted], [w for _, w in counted]
    copies = [x for x, w in counted for _ in range(w)]
    credit = dict(zip(copies, WEIGHTED[name](copies), strict=True))
    assert WEIGHTED[name](rewards, weights=weights) == pytest.approx([credit[x] for x in rewards], abs=1e-9)


@pytest.mark.parametrize("name", [*WEIGHTED, "leave_one_out"])
def test_equal_weights_of_one_are_no_weights(name):
    rule = WEIGHTED.get(name, leave_one_out)
    assert rule([1.0, 0.5, None, 0.0], weights=[1, 1, 1, 1]) == rule([1.0, 0.5, None, 0.0])


def test_an_attempt_of_weight_zero_is_out_of_the_baseline_and_has_credit():
    assert group_mean([1.0, 0.0, 4.0], weights=[1, 1, 0]) == (0.5, -0.5, 3.5)
    assert group_mean([0.1, 0.1, 0.1, 4.0], weights=[1, 1, 1, 0])[:3] == (0.0, 0.0, 0.0)


def test_leave_one_out_leaves_an_attempt_out_whole_whatever_it_weighs():
    # Baselines: (0 * 1 + 3 * 2) / 3 = 2; (1 * 3 + 3 * 2) / 5 = 1.8; (1 * 3 + 0) / 4 = 0.75.
    assert leave_one_out([1.0, 0.0, 3.0], weights=[3, 1, 2]) == pytest.approx((-1.0, -1.8, 2.25))
    assert leave_one_out([1.0, 0.0], weights=[1, 0]) == (0.0, -1.0)  # nobody is left to compare the first with


def test_the_weight_of_an_unscored_attempt_is_not_read():
    assert opo([1.0, None, 0.0], lengths=[3, float("nan"), 1]) == (0.25, None, -0.75)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], r"1 weights for 2 attempts; give one weight per attempt"),
        ([1, -1], r"weight -1 of attempt 1 is not a count"),
        ([1, float("nan")], r"weight nan of attempt 1 is not a count"),
        ([0, 0], r"every scored attempt has weight 0.0"),
    ],
)
def test_weights_that_are_no_counts_are_refused(weights, message):
    for rule in (*WEIGHTED.values(), leave_one_out, lambda rewards, weights: opo(rewards, lengths=weights)):
        with pytest.raises(TrainerError, match=message):
            rule([1.0, 0.0], weights=weights)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: std_normalized([1.0, 0.0], ddof=2), "ddof is 2; give 0"),
        (lambda: whiten([1.0, 0.0], ddof=-1), "ddof is -1"),
        (lambda: std_normalized([1.0, 0.0], ddof=1, eps=-1e-6), "eps is -1e-06; give a small number"),
        (lambda: max_rl([1.0], eps=float("nan")), "eps is nan"),
        (lambda: pass_at_k([1.0], k=0), "k is 0"),
    ],
)
def test_settings_out_of_range_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_max_rl_refuses_a_negative_reward_and_remax_a_greedy_nan():
    with pytest.raises(TrainerError, match=r"reward -1.0 is negative; max_rl divides by the mean"):
        max_rl([1.0, -1.0])
    with pytest.raises(TrainerError, match=r"greedy reward nan is not finite"):
        remax([1.0], greedy=float("nan"))


def test_remax_without_a_greedy_reward_has_no_credit():
    assert remax([1.0, 0.0], greedy=None) == (None, None)


# Public reports.


def test_a_failed_attempt_is_no_zero():
    assert group_mean([1.0, 1.0, None]) == (0.0, 0.0, None)


def test_scaling_without_a_shift_does_not_shift():
    scaled = whiten([1.0, 2.0, 4.0], ddof=1, shift_mean=False, eps=1e-8)
    assert scaled == pytest.approx((0.654654, 1.309307, 2.618615), abs=1e-6)
    assert whiten([1.0, 2.0, 4.0], ddof=1) == pytest.approx((-0.872872, -0.218218, 1.091089), abs=1e-6)


@pytest.mark.parametrize("shift_mean", [True, False])
@pytest.mark.parametrize("ddof", [0, 1])
def test_whitening_none_one_and_two_values(shift_mean, ddof):
    rule = partial(whiten, ddof=ddof, shift_mean=shift_mean)
    assert rule([None, None]) == (None, None)
    assert rule([None, 0.7]) == (None, 0.7)
    assert rule([0.7, None, 0.7]) == ((0.0, None, 0.0) if shift_mean else (0.7, None, 0.7))
