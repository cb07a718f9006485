"""One battery for every rule of credit over one group, each against a reference of its own."""

import itertools
import math
from functools import partial

import numpy as np
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
from agentrl.errors import TrainerError


def opo_even(rewards):
    return opo(rewards, lengths=[5] * len(rewards))


def pass_at_2(rewards):
    return pass_at_k(rewards, k=2) if len(rewards) != 1 else pass_at_k([*rewards, None], k=2)[:1]


RULES = {
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "grpo_ddof_0": partial(std_normalized, ddof=0),
    "grpo_ddof_1": partial(std_normalized, ddof=1),
    "opo": opo_even,
    "max_rl": max_rl,
    "remax": partial(remax, greedy=0.5),
    "top_minus_second": top_minus_second,
    "top_minus_second_ddof_1": partial(top_minus_second, ddof=1),
    "pass_at_1": partial(pass_at_k, k=1),
    "pass_at_2": pass_at_2,
    "whiten": partial(whiten, ddof=1),
    "scale_only": partial(whiten, ddof=1, shift_mean=False),
}
WITH_GROUP_BASELINE = [name for name in RULES if name not in ("remax", "whiten", "scale_only")]
SHIFT_INVARIANT = [name for name in RULES if name not in ("max_rl", "remax", "scale_only")]
POSITIVE = st.lists(st.one_of(st.none(), st.floats(min_value=0, max_value=100)), max_size=9)
EIGHTHS = st.lists(st.one_of(st.none(), st.integers(0, 80).map(lambda n: n / 8)), max_size=9)

every_rule = pytest.mark.parametrize("name", RULES)


def near(credit):
    """Like ``pytest.approx``, with None equal to None alone."""
    return [None if x is None else pytest.approx(x, rel=1e-9, abs=1e-9) for x in credit]


def numbers(rewards):
    return [reward for reward in rewards if reward is not None]


def put_back(rewards, credit):
    left = iter(credit)
    return [None if reward is None else next(left) for reward in rewards]


def reference_of(name, rewards):
    """Each definition in the plainest way, over the scored attempts."""
    known = numbers(rewards)
    mean = sum(known) / len(known) if known else 0.0
    ranked = sorted(known)
    one_best = len(ranked) > 1 and ranked[-1] > ranked[-2]

    def std(ddof):
        return float(np.std(known, ddof=ddof)) if len(known) > ddof and len(set(known)) > 1 else 0.0

    def top(scale):
        return [(x - ranked[-2]) / scale if one_best and x == ranked[-1] else 0.0 for x in known]

    def other_mean(i):
        others = known[:i] + known[i + 1 :]
        return sum(others) / len(others) if others else known[i]

    def adds(i, k):
        sets = [set(s) for s in itertools.combinations(range(len(known)), k) if i in s]
        gains = [max(known[j] for j in s) - max(known[j] for j in s - {i}) for s in sets]
        return len(known) * sum(gains) / math.comb(len(known), k) if len(known) >= k else 0.0

    credit = {
        "group_mean": lambda: [x - mean for x in known],
        "leave_one_out": lambda: [x - other_mean(i) for i, x in enumerate(known)],
        "grpo_ddof_0": lambda: [(x - mean) / (std(0) + 1e-6) if std(0) else 0.0 for x in known],
        "grpo_ddof_1": lambda: [(x - mean) / (std(1) + 1e-6) if std(1) else 0.0 for x in known],
        "opo": lambda: [x - mean for x in known],
        "max_rl": lambda: [x / mean - 1 if mean else 0.0 for x in known],
        "remax": lambda: [x - 0.5 for x in known],
        "top_minus_second": lambda: top(1.0),
        "top_minus_second_ddof_1": lambda: top(std(1) + 1e-6),
        "pass_at_1": lambda: [x - other_mean(i) for i, x in enumerate(known)],
        "pass_at_2": lambda: [adds(i, 2) for i in range(len(known))],
        "whiten": lambda: known if len(known) < 2 else [(x - mean) / (std(1) + 1e-8) if std(1) else 0.0 for x in known],
        "scale_only": lambda: [x / (std(1) + 1e-8) if std(1) else x for x in known],
    }[name]()
    return put_back(rewards, credit)


@every_rule
@settings(deadline=None, max_examples=60)
@given(rewards=EIGHTHS)
def test_every_rule_agrees_with_its_reference(name, rewards):
    assert list(RULES[name](rewards)) == near(reference_of(name, rewards))


@every_rule
@settings(deadline=None, max_examples=40)
@given(rewards=POSITIVE, data=st.data())
def test_every_rule_permutes_with_the_group_to_the_bit(name, rewards, data):
    order = data.draw(st.permutations(range(len(rewards))))
    credit = RULES[name](rewards)
    assert RULES[name]([rewards[i] for i in order]) == tuple(credit[i] for i in order)


@every_rule
@settings(deadline=None, max_examples=40)
@given(rewards=POSITIVE)
def test_a_missing_attempt_stays_missing_and_changes_nothing(name, rewards):
    credit = RULES[name](rewards)
    assert [x is None for x in credit] == [x is None for x in rewards]
    assert tuple(numbers(credit)) == RULES[name](numbers(rewards))


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
@settings(deadline=None, max_examples=40)
@given(rewards=EIGHTHS, shift=st.integers(-800, 800).map(lambda n: n / 8))
def test_a_shift_of_the_group_changes_nothing(name, rewards, shift):
    shifted = [None if reward is None else reward + shift for reward in rewards]
    if name == "whiten" and len(numbers(rewards)) == 1:
        return  # a single value is left alone
    assert list(RULES[name](shifted)) == near(RULES[name](rewards))


@pytest.mark.parametrize("name", [name for name in RULES if name not in SHIFT_INVARIANT])
def test_the_others_do_change_with_a_shift(name):
    assert RULES[name]([2.0, 1.0, 1.0]) != pytest.approx(RULES[name]([1.0, 0.0, 0.0]), abs=1e-3)


@pytest.mark.parametrize("name", WITH_GROUP_BASELINE)
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 0.7, 1e-9, 123456.789])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_equal_rewards_and_a_group_of_one_have_exactly_zero(name, value, size):
    assert RULES[name]([value] * size) == (0.0,) * size
    assert RULES[name]([None, *[value] * size]) == (None, *[0.0] * size)


@every_rule
def test_nothing_scored_and_nothing_at_all(name):
    assert RULES[name]([None, None]) == (None, None)
    assert RULES[name]([]) == ()


@every_rule
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_every_rule_refuses_what_is_no_number(name, value):
    with pytest.raises(TrainerError, match=r"of attempt 1 is not finite; use None"):
        RULES[name]([1.0, value, None])


@every_rule
@settings(deadline=None, max_examples=40)
@given(rewards=st.lists(st.floats(min_value=0, max_value=1e100), max_size=6))
def test_no_rule_makes_nan_of_numbers(name, rewards):
    assert all(math.isfinite(x) for x in RULES[name](rewards))
