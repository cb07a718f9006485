"""Credit over the groups of a step: one battery for every rule, exact numbers, and what tells the rules apart."""

import doctest
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import advantages, batch_advantages, returns, roles, steps
from agentrl.algorithms.advantages import group_mean, opo, remax, std_normalized
from agentrl.algorithms.batch_advantages import (
    batch_normalized,
    gdpo,
    gpg,
    lite_ppo,
    per_group,
    reinforce_pp,
    reinforce_pp_baseline,
)
from agentrl.errors import ConfigError, TrainerError


def gdpo_of_one(groups):
    return gdpo({"tests": groups}, ddof=0)


RULES = {
    "per_group": per_group(group_mean),
    "batch_normalized": partial(batch_normalized, ddof=1),
    "lite_ppo": partial(lite_ppo, ddof=1),
    "reinforce_pp": partial(reinforce_pp, ddof=0),
    "reinforce_pp_baseline": partial(reinforce_pp_baseline, ddof=1),
    "gpg": gpg,
    "gdpo": gdpo_of_one,
}
EIGHTHS = st.one_of(st.none(), st.integers(0, 24).map(lambda n: n / 8))
GROUPS = st.lists(st.lists(EIGHTHS, max_size=4), max_size=5)

every_rule = pytest.mark.parametrize("name", RULES)


def flat(groups):
    return [x for group in groups for x in group]


def near(credits):
    return [[None if x is None else pytest.approx(x, rel=1e-6, abs=1e-9) for x in group] for group in credits]


def plain(credits):
    return [list(group) for group in credits]


def mean(values):
    known = [x for x in values if x is not None]
    return sum(known) / len(known) if known else 0.0


def std(values, ddof):
    known = [x for x in values if x is not None]
    return float(np.std(known, ddof=ddof)) if len(known) > ddof and len(set(known)) > 1 else 0.0


def each(groups, function):
    return [[None if x is None else function(x, group) for x in group] for group in groups]


def normalized(groups, ddof, eps):
    center, spread = mean(flat(groups)), std([None if x is None else round(x, 12) for x in flat(groups)], ddof)
    return each(groups, lambda x, _: (x - center) / (spread + eps) if spread else 0.0)


def reference_of(name, groups):
    centered = each(groups, lambda x, group: x - mean(group))
    spread = std(flat(groups), 1)
    signal = sum(std(group, 0) > 0 for group in groups)
    known = sum(any(x is not None for x in group) for group in groups)
    in_group = each(groups, lambda x, group: (x - mean(group)) / (std(group, 0) + 1e-6) if std(group, 0) else 0.0)
    return {
        "per_group": lambda: centered,
        "batch_normalized": lambda: normalized(groups, 1, 1e-6),
        "lite_ppo": lambda: each(centered, lambda x, _: x / (spread + 1e-6) if spread else 0.0),
        "reinforce_pp": lambda: normalized(groups, 0, 1e-8),
        "reinforce_pp_baseline": lambda: normalized(centered, 1, 1e-8),
        "gpg": lambda: each(centered, lambda x, _: x * known / signal if signal else 0.0),
        "gdpo": lambda: normalized(in_group, 0, 1e-6),
    }[name]()


@every_rule
@settings(deadline=None, max_examples=60)
@given(groups=GROUPS)
def test_every_rule_agrees_with_its_reference(name, groups):
    assert plain(RULES[name](groups)) == near(reference_of(name, groups))


@every_rule
@settings(deadline=None, max_examples=40)
@given(groups=GROUPS, data=st.data())
def test_groups_and_attempts_in_another_order_have_the_same_credit_to_the_bit(name, groups, data):
    credit = RULES[name](groups)
    order = data.draw(st.permutations(range(len(groups))))
    inner = [data.draw(st.permutations(range(len(groups[g])))) for g in order]
    moved = [[groups[g][i] for i in places] for g, places in zip(order, inner, strict=True)]
    assert RULES[name](moved) == [tuple(credit[g][i] for i in at) for g, at in zip(order, inner, strict=True)]


@every_rule
@settings(deadline=None, max_examples=40)
@given(groups=GROUPS)
def test_missing_attempts_stay_missing_and_change_nothing(name, groups):
    credit = RULES[name](groups)
    assert [[x is None for x in group] for group in credit] == [[x is None for x in group] for group in groups]
    without = [[x for x in group if x is not None] for group in groups]
    assert [tuple(x for x in group if x is not None) for group in credit] == RULES[name](without)


@every_rule
@settings(deadline=None, max_examples=40)
@given(groups=GROUPS, shift=st.integers(-16, 16))
def test_a_shift_of_the_whole_step_changes_nothing(name, groups, shift):
    assert plain(RULES[name](each(groups, lambda x, _: x + shift))) == near(RULES[name](groups))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("per_group", False),
        ("batch_normalized", True),
        ("lite_ppo", True),  # by its unit alone
        ("reinforce_pp", True),
        ("reinforce_pp_baseline", False),
        ("gpg", False),
        ("gdpo", False),
    ],
)
def test_whether_a_shift_of_one_group_changes_anything(name, changes):
    rule = RULES[name]
    assert (plain(rule([[5.0, 4.0], [1.0, 0.5]])) != near(rule([[1.0, 0.0], [1.0, 0.5]]))) is changes


@every_rule
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 123456.789])
def test_a_step_of_equal_rewards_has_exactly_zero(name, value):
    assert RULES[name]([[value] * 3, [value], [None, value]]) == [(0.0,) * 3, (0.0,), (None, 0.0)]


@every_rule
def test_nothing_scored_and_nothing_at_all(name):
    assert RULES[name]([]) == []
    assert RULES[name]([[], [None, None]]) == [(), (None, None)]


@every_rule
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_every_rule_refuses_what_is_no_number_and_says_where(name, value):
    with pytest.raises(TrainerError, match=r"group 1: reward (nan|inf) of attempt 2 is not finite; use None"):
        RULES[name]([[1.0, 0.0], [0.0, None, value]])


STEP = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0, None]]  # mean 1/2 of 6 scored, squares 6/4, std ddof 0 1/2


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (per_group(group_mean), [(0.5, -0.5), (0.0, 0.0), (0.0, 0.0, None)]),
        (partial(batch_normalized, ddof=0, eps=0.0), [(1.0, -1.0), (1.0, 1.0), (-1.0, -1.0, None)]),
        (partial(lite_ppo, ddof=0, eps=0.0), [(1.0, -1.0), (0.0, 0.0), (0.0, 0.0, None)]),
        (partial(reinforce_pp, ddof=0, eps=0.0), [(1.0, -1.0), (1.0, 1.0), (-1.0, -1.0, None)]),
        # Centred .5 -.5 0 0 0 0: squares .5 over 6, std sqrt(1/12).
        (
            partial(reinforce_pp_baseline, ddof=0, eps=0.0),
            [(math.sqrt(3), -math.sqrt(3)), (0.0, 0.0), (0.0, 0.0, None)],
        ),
        (gpg, [(1.5, -1.5), (0.0, 0.0), (0.0, 0.0, None)]),  # alpha = 3 groups / 1 with signal
    ],
)
def test_exact_numbers(rule, expected):
    assert plain(rule(STEP)) == near(expected)


def test_one_of_four_solved_alone_in_the_step():
    one = [[1.0, 0.0, 0.0, 0.0]]
    assert batch_normalized(one, ddof=1, eps=0.0) == [(1.5, -0.5, -0.5, -0.5)]
    assert lite_ppo(one, ddof=1, eps=0.0) == [(1.5, -0.5, -0.5, -0.5)]
    assert gpg(one) == [(0.75, -0.25, -0.25, -0.25)]


def test_groups_by_id_and_not_by_position():
    # Attempts of two tasks came in turn; the first task is always solved and the second never.
    ids, rewards = (1, 2, 1, 2, 1, 2, 1, 2), (1.0, 0.0) * 4
    groups = [[r for r, i in zip(rewards, ids, strict=True) if i == task] for task in (1, 2)]
    assert per_group(partial(std_normalized, ddof=1))(groups) == [(0.0,) * 4, (0.0,) * 4]
    by_position = per_group(group_mean)([rewards[:4], rewards[4:]])
    assert by_position[0] == (0.5, -0.5, 0.5, -0.5)  # negative control: what went wrong


def test_a_lifted_rule_takes_one_argument_per_group():
    assert per_group(opo)([[1.0, 0.0], [0.0, 1.0]], lengths=[[3, 1], [3, 1]]) == [(0.25, -0.75), (-0.25, 0.75)]
    assert per_group(remax)([[1.0], [0.0]], greedy=[None, 1.0]) == [(None,), (-1.0,)]
    with pytest.raises(TrainerError, match=r"greedy has 1 entries for 2"):
        per_group(remax)([[1.0], [0.0]], greedy=[1.0])


def test_lengths_whiten_over_tokens():
    # Tokens: 3 of reward 1 and 1 of reward 0. Mean .75, squares 3/16 + 9/16 = .75, over 4: std sqrt(3)/4.
    root = math.sqrt(3) / 4
    whole = reinforce_pp([[1.0], [0.0]], ddof=0, eps=0.0, lengths=[[3], [1]])
    assert plain(whole) == near([[0.25 / root], [-0.75 / root]])
    # Weighted credit sums to zero over tokens: 3 * .25 = 1 * .75. Without lengths both would be 1 from 0.
    assert reinforce_pp([[1.0], [0.0]], ddof=0, eps=0.0) == [(1.0,), (-1.0,)]


def test_the_baseline_form_moves_equal_groups_when_lengths_differ():
    # Centred .5 on 3 tokens, -.5 on 1, 0 on 4: mean 1/8, so the group of equal rewards is below it.
    credit = reinforce_pp_baseline([[1.0, 0.0], [1.0, 1.0]], ddof=0, lengths=[[3, 1], [2, 2]])
    assert credit[1][0] < 0.0
    assert reinforce_pp_baseline([[1.0, 0.0], [1.0, 1.0]], ddof=0, lengths=[[2, 2], [3, 1]])[1] == (0.0, 0.0)


def test_alpha_of_gpg_keeps_the_mean_of_the_groups_that_teach():
    # Averaged over all three groups it is what the average over the one with signal was without alpha.
    scaled, alone = gpg(STEP)[0], group_mean(STEP[0])
    assert [x / 3 for x in scaled] == [pytest.approx(x) for x in alone]
    assert gpg([[1.0, 1.0], [None]]) == [(0.0, 0.0), (None,)]


# GDPO


def test_two_rewards_each_in_its_own_unit():
    # Both rewards are +-1 in their own spread (ddof 0): sums 2, 0, 0, -2; mean 0, std sqrt(2).
    rewards = {"tests": [[1.0, 1.0, 0.0, 0.0]], "length": [[100.0, 0.0, 100.0, 0.0]]}
    expected = [math.sqrt(2), 0.0, 0.0, -math.sqrt(2)]
    assert plain(gdpo(rewards, ddof=0, eps=0.0)) == near([expected])
    # Negative control: summed first, the wide reward would rule the order of the middle two.
    summed = std_normalized([101.0, 1.0, 100.0, 0.0], ddof=0)
    assert summed[2] - summed[1] > 1.9


def test_gdpo_weights_signs_and_metrics():
    rewards = {"tests": [[1.0, 0.0]], "cost": [[3.0, 1.0]], "metric": [[None, float("nan")]]}
    # 1 - 0.5 and its negative, whitened to 1 and -1.
    weights = {"cost": -0.5, "metric": 0.0}
    assert plain(gdpo(rewards, ddof=0, eps=0.0, weights=weights)) == near([[1.0, -1.0]])
    assert plain(gdpo(rewards, ddof=0, eps=0.0, weights={**weights, "cost": -2.0})) == near([[-1.0, 1.0]])


def test_an_attempt_that_lacks_one_reward_is_out_of_all_statistics():
    rewards = {"tests": [[1.0, 0.0, 9.0]], "style": [[2.0, 1.0, None]]}
    without = {"tests": [[1.0, 0.0]], "style": [[2.0, 1.0]]}
    assert gdpo(rewards, ddof=1) == [(*gdpo(without, ddof=1)[0], None)]


@pytest.mark.parametrize(
    ("rewards", "weights", "error", "message"),
    [
        ({"a": [[1.0]]}, {"b": 1.0}, ConfigError, r"weight b = 1.0; give a finite weight to one of a"),
        ({"a": [[1.0]]}, {"a": float("inf")}, ConfigError, r"weight a = inf"),
        ({"a": [[1.0]]}, {"a": 0.0}, TrainerError, r"no reward counts"),
        ({}, {}, TrainerError, r"no reward counts"),
        ({"a": [[1.0]], "b": [[1.0, 0.0]]}, {}, TrainerError, r"reward b has groups of \[2\] attempts and a of \[1\]"),
        ({"a": [[1.0], [0.0]], "b": [[1.0]]}, {}, TrainerError, r"reward b has groups of \[1\] .* a of \[1, 1\]"),
    ],
)
def test_gdpo_refuses(rewards, weights, error, message):
    with pytest.raises(error, match=message):
        gdpo(rewards, ddof=0, weights=weights)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: batch_normalized([[1.0]], ddof=3), ConfigError, "ddof is 3"),
        (lambda: lite_ppo([[1.0]], ddof=0, eps=-1.0), ConfigError, "eps is -1.0"),
        (lambda: reinforce_pp([[1.0]], ddof=0, lengths=[]), TrainerError, "weights has 0 entries for 1"),
        (lambda: reinforce_pp([[1.0]], ddof=0, lengths=[[]]), TrainerError, "group 0: weights has 0 entries for 1"),
        (lambda: reinforce_pp([[1.0]], ddof=0, lengths=[[-1]]), TrainerError, "weight -1 of attempt 0"),
    ],
)
def test_settings_out_of_range_and_missing_lengths_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("module", [advantages, batch_advantages, returns, roles, steps])
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
