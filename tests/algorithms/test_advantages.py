"""Credit of a group: exact numbers, invariances, and an independent reference."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.advantages import group_mean
from agentrl.errors import TrainerError

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
