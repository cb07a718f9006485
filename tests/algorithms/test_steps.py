"""Step credit among the steps that were taken from the same state."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.advantages import group_mean, std_normalized
from agentrl.algorithms.steps import Episode, gigpo
from agentrl.errors import ConfigError, TrainerError

STEP = st.tuples(st.integers(-4, 4).map(lambda n: n / 4), st.sampled_from("abc"))
EPISODE = st.one_of(st.none(), st.lists(STEP, min_size=1, max_size=4))
GROUP = st.lists(EPISODE, max_size=4)


def episode(steps):
    return None if steps is None else Episode(rewards=tuple(r for r, _ in steps), anchors=tuple(a for _, a in steps))


def final(reward, *anchors):
    return Episode(rewards=(*[0.0] * (len(anchors) - 1), reward), anchors=anchors)


def reference(group, gamma, omega):
    """Written out with one loop per sum."""
    known = [steps for steps in group if steps is not None]
    totals = [sum(reward for reward, _ in steps) for steps in known]
    visits = {}
    for steps in known:
        for t, (_, anchor) in enumerate(steps):
            visits.setdefault(anchor, []).append(sum(gamma**k * r for k, (r, _) in enumerate(steps[t:])))
    out = []
    for steps in group:
        if steps is None:
            out.append(None)
            continue
        base = sum(reward for reward, _ in steps) - sum(totals) / len(totals)
        row = []
        for t, (_, anchor) in enumerate(steps):
            value = sum(gamma**k * r for k, (r, _) in enumerate(steps[t:]))
            row.append(base + omega * (value - sum(visits[anchor]) / len(visits[anchor])))
        out.append(row)
    return out


@settings(deadline=None, max_examples=100)
@given(group=GROUP, gamma=st.sampled_from([0.0, 0.5, 0.95, 1.0]), omega=st.sampled_from([0.0, 1.0, 2.0]))
def test_agrees_with_the_reference(group, gamma, omega):
    credit = gigpo([episode(steps) for steps in group], gamma=gamma, omega=omega)
    for got, expected in zip(credit, reference(group, gamma, omega), strict=True):
        assert got == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_worked_numbers():
    # Totals 1 0 0, mean 1/3. At "fork" (gamma .5) returns .5 0 0, mean 1/6; "good" and "bad": 1 alone, 0 0.
    group = [final(1.0, "fork", "good"), final(0.0, "fork", "bad"), final(0.0, "fork", "bad")]
    credit = gigpo(group, gamma=0.5)
    assert credit[0] == pytest.approx((2 / 3 + 1 / 3, 2 / 3))
    assert credit[1] == pytest.approx((-1 / 3 - 1 / 6, -1 / 3))
    assert credit[2] == credit[1]


def test_in_units_of_the_spread():
    # Totals 1 0: +-1 with ddof 0. "fork" returns 1 0: +-1. The last states are visited once.
    group = [final(1.0, "fork", "good"), final(0.0, "fork", "bad")]
    assert gigpo(group, gamma=1.0, ddof=0, eps=0.0, omega=0.5) == ((1.5, 1.0), (-1.5, -1.0))


def test_a_good_step_of_a_failed_episode_has_better_credit_than_its_bad_one():
    lucky = Episode(rewards=(0.5, 0.5), anchors=("start", "door"))
    unlucky = Episode(rewards=(0.5, -0.5), anchors=("start", "door"))
    stuck = Episode(rewards=(-1.0,), anchors=("start",))
    # Totals 1 0 -1, mean 0. "start": 1 0 -1, mean 0. "door": .5 -.5, mean 0.
    assert gigpo([lucky, unlucky, stuck], gamma=1.0) == ((2.0, 1.5), (0.0, -0.5), (-2.0,))


def test_credit_of_the_episode_alone_cannot_tell_its_steps_apart():
    group = [final(1.0, "start", "door"), final(0.0, "start", "door", "pit"), final(0.0, "start", "start")]
    credit = gigpo(group, gamma=1.0, omega=0.0)
    assert [set(steps) for steps in credit] == [{x} for x in group_mean([1.0, 0.0, 0.0])]


@pytest.mark.parametrize("ddof", [None, 0, 1])
def test_without_a_shared_state_it_is_the_credit_of_the_episode(ddof):
    group = [final(1.0, "a", "b"), None, final(0.0, "c"), final(0.5, "d", "e", "f")]
    rewards = [1.0, None, 0.0, 0.5]
    expected = group_mean(rewards) if ddof is None else std_normalized(rewards, ddof=ddof)
    credit = gigpo(group, gamma=0.95, ddof=ddof)
    assert credit == tuple(None if x is None else (x,) * len(e.rewards) for x, e in zip(expected, group, strict=True))


def test_equal_episodes_a_single_one_and_nothing_scored():
    assert gigpo([final(0.7, "a", "b")] * 3, gamma=0.9) == ((0.0, 0.0),) * 3
    assert gigpo([final(0.7, "a", "b")], gamma=0.9) == ((0.0, 0.0),)
    assert gigpo([None, None], gamma=0.9) == (None, None)
    assert gigpo([], gamma=0.9) == ()


def test_an_episode_that_returns_to_a_state_is_compared_with_itself():
    # Returns at "a": .25, .5 (gamma .5), mean .375; at "b" 1 alone. One episode has no group credit.
    assert gigpo([final(1.0, "a", "a", "b")], gamma=0.5) == ((-0.125, 0.125, 0.0),)


def test_a_discount_of_one_sees_no_detour():
    detour = [final(1.0, "a", "a", "b"), final(1.0, "a", "b")]
    assert gigpo(detour, gamma=1.0) == ((0.0, 0.0, 0.0), (0.0, 0.0))
    assert gigpo(detour, gamma=0.5)[0][0] < gigpo(detour, gamma=0.5)[1][0]


@settings(deadline=None, max_examples=40)
@given(group=GROUP, data=st.data())
def test_permuted_episodes_have_permuted_credit_to_the_bit(group, data):
    order = data.draw(st.permutations(range(len(group))))
    episodes = [episode(steps) for steps in group]
    credit = gigpo(episodes, gamma=0.9, ddof=1)
    assert gigpo([episodes[i] for i in order], gamma=0.9, ddof=1) == tuple(credit[i] for i in order)


@settings(deadline=None, max_examples=40)
@given(group=GROUP)
def test_unscored_episodes_change_nothing(group):
    credit = gigpo([episode(steps) for steps in group], gamma=0.9)
    scored = gigpo([episode(steps) for steps in group if steps is not None], gamma=0.9)
    assert tuple(steps for steps in credit if steps is not None) == scored


def test_anchors_are_compared_and_not_only_their_first_letters():
    pairs = itertools.product([("a", 1), ("a", 2)], repeat=1)
    group = [final(float(n), anchor) for n, (anchor,) in enumerate(pairs)]
    assert gigpo(group, gamma=1.0) == ((-0.5,), (0.5,))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Episode(rewards=(), anchors=()), TrainerError, r"an episode of 0 rewards and 0 anchors"),
        (lambda: Episode(rewards=(1.0,), anchors=("a", "b")), TrainerError, r"1 rewards and 2 anchors"),
        (lambda: Episode(rewards=(float("nan"),), anchors=("a",)), TrainerError, r"reward nan of step 0"),
        (lambda: gigpo([final(1.0, "a")], gamma=1.1), ConfigError, r"gamma is 1.1"),
        (lambda: gigpo([final(1.0, "a")], gamma=1.0, omega=float("nan")), ConfigError, r"omega is nan"),
        (lambda: gigpo([final(1.0, "a")], gamma=1.0, ddof=2), ConfigError, r"ddof is 2"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
