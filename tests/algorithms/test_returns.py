"""Returns and advantages along an attempt: worked numbers, plain references, and context that changes no bit."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.batch_advantages import reinforce_pp
from agentrl.algorithms.returns import (
    discounted_returns,
    explained_variance,
    length_adaptive_lambda,
    overlong_penalty,
    reinforce_pp_tokens,
    token_gae,
    token_rewards,
    turn_gae,
)
from agentrl.errors import ConfigError, TrainerError

NUMBER = st.floats(min_value=-4, max_value=4)
UNIT = st.sampled_from([0.0, 0.25, 0.9, 1.0])
TOKENS = st.lists(st.tuples(NUMBER, NUMBER, st.booleans()), max_size=10)
ESTIMATES = {"token": token_gae, "turn": turn_gae}

both = pytest.mark.parametrize("unit", ESTIMATES)


def columns(tokens):
    return [list(column) for column in zip(*tokens, strict=True)] if tokens else [[], [], []]


def turns_of(mask):
    """Runs of trained tokens as lists of places."""
    runs = itertools.groupby(enumerate(mask), key=lambda pair: bool(pair[1]))
    return [[place for place, _ in run] for trained, run in runs if trained]


def reference_gae(unit, rewards, values, mask, gamma, lam, bootstrap):
    """The double sum of the paper: A_u = sum over l of (gamma lam)^l delta_(u + l)."""
    steps = turns_of(mask) if unit == "turn" else [[place] for turn in turns_of(mask) for place in turn]
    reward = [sum(rewards[place] for place in step) for step in steps]
    value = [values[step[0]] for step in steps] + [bootstrap]
    delta = [reward[u] + gamma * value[u + 1] - value[u] for u in range(len(steps))]
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    for u, step in enumerate(steps):
        total = sum((gamma * lam) ** (v - u) * delta[v] for v in range(u, len(steps)))
        for place in step:
            advantages[place], returns[place] = total, total + value[u]
    return advantages, returns


@both
@settings(deadline=None, max_examples=150)
@given(tokens=TOKENS, gamma=UNIT, lam=UNIT, bootstrap=NUMBER)
def test_agrees_with_the_sum_of_the_paper(unit, tokens, gamma, lam, bootstrap):
    rewards, values, mask = columns(tokens)
    advantages, returns = ESTIMATES[unit](rewards, values, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    expected = reference_gae(unit, rewards, values, mask, gamma, lam, bootstrap)
    assert list(advantages) == pytest.approx(expected[0], abs=1e-9)
    assert list(returns) == pytest.approx(expected[1], abs=1e-9)


@both
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e9])
def test_what_stands_at_context_changes_no_bit(unit, poison):
    mask = [False, True, True, False, True, False]
    clean = ESTIMATES[unit]([0, 0.5, 0, 0, 1, 0], [0, 0.1, 0.2, 0, 0.3, 0], mask, gamma=0.9, lam=0.8, bootstrap=0.5)
    rewards, values = [poison, 0.5, 0, poison, 1, poison], [poison, 0.1, 0.2, poison, 0.3, poison]
    assert ESTIMATES[unit](rewards, values, mask, gamma=0.9, lam=0.8, bootstrap=0.5) == clean
    assert [clean.advantages[place] for place in (0, 3, 5)] == [0.0, 0.0, 0.0]


@settings(deadline=None, max_examples=60)
@given(tokens=TOKENS, gamma=UNIT, lam=UNIT)
def test_context_takes_no_step_per_token(tokens, gamma, lam):
    rewards, values, mask = columns(tokens)
    whole = token_gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=0.0)
    kept = [place for place, trained in enumerate(mask) if trained]
    alone = token_gae(
        [rewards[p] for p in kept], [values[p] for p in kept], [True] * len(kept), gamma=gamma, lam=lam, bootstrap=0.0
    )
    assert tuple(whole.advantages[p] for p in kept) == alone.advantages


def test_gae_on_worked_numbers():
    # gamma .5, lam .5. Last: 1 + .5 * 2 - .5 = 1.5. First: 0 + .5 * .5 - .25 = 0, + .25 * 1.5 = .375.
    estimate = token_gae([0, 9, 1], [0.25, 9, 0.5], [True, False, True], gamma=0.5, lam=0.5, bootstrap=2.0)
    assert estimate.advantages == (0.375, 0.0, 1.5)
    assert estimate.returns == (0.625, 0.0, 2.0)


def test_terminated_is_not_truncated():
    terminated = token_gae([0.0, 0.0], [0.5, 0.5], [True, True], gamma=1.0, lam=1.0, bootstrap=0.0)
    truncated = token_gae([0.0, 0.0], [0.5, 0.5], [True, True], gamma=1.0, lam=1.0, bootstrap=0.5)
    assert terminated.advantages == (-0.5, -0.5)  # it ended with nothing
    assert truncated.advantages == (0.0, 0.0)  # it was stopped where the critic still expects a half


def test_one_turn_is_one_step_however_long():
    # Turns of 2 and 1 tokens, gamma .5, lam 1. V = .25, .5. Last: 1 - .5 = .5. First: .5 * .5 - .25 + .5 * .5 = .25.
    mask = [True, True, False, True]
    estimate = turn_gae([0, 0, 9, 1], [0.25, 7, 9, 0.5], mask, gamma=0.5, lam=1.0, bootstrap=0.0)
    assert estimate.advantages == (0.25, 0.25, 0.0, 0.5)
    assert estimate.returns == (0.5, 0.5, 0.0, 1.0)
    # Negative control: per token the first of them is discounted once more.
    assert token_gae([0, 0, 9, 1], [0, 0, 9, 0], mask, gamma=0.5, lam=1.0, bootstrap=0.0).advantages[0] == 0.25


@settings(deadline=None, max_examples=60)
@given(tokens=TOKENS, gamma=UNIT, bootstrap=NUMBER)
def test_lambda_one_gives_the_returns_and_lambda_zero_the_temporal_difference(tokens, gamma, bootstrap):
    rewards, values, mask = columns(tokens)
    returns = token_gae(rewards, values, mask, gamma=gamma, lam=1.0, bootstrap=bootstrap).returns
    expected = discounted_returns(rewards, mask, gamma=gamma, bootstrap=bootstrap)
    assert list(returns) == pytest.approx(list(expected), abs=1e-9)
    kept = [place for place, trained in enumerate(mask) if trained]
    short = token_gae(rewards, values, mask, gamma=gamma, lam=0.0, bootstrap=bootstrap).advantages
    for place, after in itertools.pairwise(kept):
        assert short[place] == pytest.approx(rewards[place] + gamma * values[after] - values[place], abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(tokens=TOKENS, gamma=UNIT)
def test_returns_agree_with_the_sum(tokens, gamma):
    rewards, _, mask = columns(tokens)
    kept = [place for place, trained in enumerate(mask) if trained]
    expected = [0.0] * len(mask)
    for k, place in enumerate(kept):
        expected[place] = sum(gamma ** (j - k) * rewards[kept[j]] for j in range(k, len(kept)))
    assert list(discounted_returns(rewards, mask, gamma=gamma)) == pytest.approx(expected, abs=1e-9)


@both
def test_an_attempt_without_a_trained_token(unit):
    assert ESTIMATES[unit]([1.0], [1.0], [False], gamma=1.0, lam=1.0, bootstrap=1.0) == ((0.0,), (0.0,))
    assert ESTIMATES[unit]([], [], [], gamma=1.0, lam=1.0, bootstrap=0.0) == ((), ())
    assert discounted_returns([1.0], [False], gamma=1.0) == (0.0,)


def test_a_kl_penalty_in_the_reward_does_not_leak_from_the_padding():
    # A public report: reward 1 on the last of three tokens, KL .1 .2 .1, coefficient .5, two pads with KL .3.
    mask = [True, True, True, False, False]
    rewards = token_rewards(1.0, mask, penalty_T=[0.1, 0.2, 0.1, 0.3, 0.3], scale=0.5)
    assert rewards == pytest.approx((-0.05, -0.1, 0.95, 0.0, 0.0))
    assert discounted_returns(rewards, mask, gamma=1.0) == pytest.approx((0.8, 0.85, 0.95, 0.0, 0.0))


def test_a_return_runs_on_over_a_tool_result():
    # A return that starts anew at context would give the first turn nothing.
    assert discounted_returns([0, 0, 0, 1], [True, False, False, True], gamma=0.5) == (0.5, 0.0, 0.0, 1.0)


def test_reinforce_pp_per_token_is_the_rule_per_attempt_when_nothing_is_discounted():
    masks = [[True, False, True, True], [True], [False]]
    rewards = [token_rewards(1.0, masks[0]), token_rewards(0.0, masks[1]), [5.0]]
    tokens = reinforce_pp_tokens(rewards, masks, gamma=1.0, ddof=1)
    [(solved, failed)] = reinforce_pp([[1.0, 0.0]], ddof=1, lengths=[[3, 1]])
    assert tokens[0] == pytest.approx((solved, 0.0, solved, solved))
    assert tokens[1:] == [pytest.approx((failed,)), (0.0,)]


def test_reinforce_pp_tokens_with_a_discount():
    # Returns .5 1 and 0: mean .5, std (ddof 0) sqrt(1/6).
    root = math.sqrt(6)
    tokens = reinforce_pp_tokens([[0, 1], [0]], [[True, True], [True]], gamma=0.5, ddof=0, eps=0.0)
    assert tokens == [pytest.approx((0.0, root / 2)), pytest.approx((-root / 2,))]


@pytest.mark.parametrize(
    ("steps", "alpha", "expected"),
    [(0, 0.05, 0.0), (1, 0.05, 0.0), (20, 0.05, 0.0), (40, 0.05, 0.5), (1000, 0.05, 0.98), (4, 0.5, 0.5)],
)
def test_the_lambda_of_vapo(steps, alpha, expected):
    assert length_adaptive_lambda(steps, alpha=alpha) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("steps", [40, 400, 4000])
def test_the_weights_of_the_future_sum_to_a_share_of_the_attempt(steps):
    lam = length_adaptive_lambda(steps)
    assert 1 / (1 - lam) == pytest.approx(0.05 * steps)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(0, 0.0), (16_384, 0.0), (16_385, -1 / 4096), (18_432, -0.5), (20_480, -1.0), (99_999, -1.0)],
)
def test_the_overlong_penalty_of_dapo(num_tokens, expected):
    assert overlong_penalty(num_tokens, max_tokens=20_480, buffer_tokens=4_096) == expected


@pytest.mark.parametrize(
    ("values", "returns", "expected"),
    [
        ([1, 2, 9, 3], [1, 2, 0, 3], 1.0),
        ([5, 5, 9, 5], [1, 2, 0, 3], 0.0),
        ([2, 3, 9, 4], [1, 2, 0, 3], 1.0),  # a constant error does not show
        ([3, 2, 9, 1], [1, 2, 0, 3], -3.0),  # errors -2 0 2: variance 8/3 over 2/3
        ([1, 2, 9, 3], [1, 1, 0, 1], None),
    ],
)
def test_explained_variance(values, returns, expected):
    mask = [True, True, False, True]
    got = explained_variance(values, returns, mask)
    assert got == (None if expected is None else pytest.approx(expected, abs=1e-12))
    assert explained_variance([float("nan")], [float("nan")], [False]) is None


@settings(deadline=None)
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=2, max_size=8))
def test_explained_variance_agrees_with_numpy(pairs):
    values, returns = np.array(pairs).T
    got = explained_variance(list(values), list(returns), [True] * len(pairs))
    if np.var(returns) > 1e-6:
        assert got == pytest.approx(1 - np.var(returns - values) / np.var(returns), rel=1e-6, abs=1e-6)


GOOD = {"gamma": 1.0, "lam": 1.0, "bootstrap": 0.0}


@both
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"lam": -0.1}, "lam is -0.1"),
        ({"gamma": float("nan")}, "gamma is nan"),
    ],
)
def test_discounts_out_of_range_are_refused(unit, change, message):
    with pytest.raises(ConfigError, match=message):
        ESTIMATES[unit]([1.0], [1.0], [True], **{**GOOD, **change})


@both
@pytest.mark.parametrize(
    ("rewards", "values", "bootstrap", "message"),
    [
        ([float("nan")], [1.0], 0.0, r"rewards_T\[0\] is nan; give a finite number"),
        ([1.0], [float("inf")], 0.0, r"values_T\[0\] is inf"),
        ([1.0], [1.0], float("nan"), r"bootstrap is nan"),
        ([1.0, 1.0], [1.0], 0.0, r"rewards_T has 2 entries and mask_T 1"),
        ([1.0], [], 0.0, r"values_T has 0 entries and mask_T 1"),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(unit, rewards, values, bootstrap, message):
    with pytest.raises(TrainerError, match=message):
        ESTIMATES[unit](rewards, values, [True], gamma=1.0, lam=1.0, bootstrap=bootstrap)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: token_rewards(1.0, [False]), TrainerError, r"reward 1.0 for 0 trained tokens"),
        (lambda: token_rewards(float("nan"), [True]), TrainerError, r"reward nan for 1 trained tokens"),
        (lambda: token_rewards(1.0, [True], penalty_T=[float("nan")]), TrainerError, r"penalty_T\[0\] is nan"),
        (lambda: length_adaptive_lambda(5, alpha=0.0), ConfigError, r"alpha is 0.0"),
        (lambda: length_adaptive_lambda(-1), TrainerError, r"num_steps is -1"),
        (lambda: overlong_penalty(1, max_tokens=10, buffer_tokens=0), ConfigError, r"buffer_tokens is 0"),
        (lambda: overlong_penalty(1, max_tokens=10, buffer_tokens=11), ConfigError, r"give 1 to max_tokens \(10\)"),
        (
            lambda: reinforce_pp_tokens([[1.0]], [], gamma=1.0, ddof=0),
            TrainerError,
            r"masks has 0 entries and rewards 1",
        ),
    ],
)
def test_what_else_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
