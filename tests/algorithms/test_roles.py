"""A moving baseline per role, used before it is updated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.roles import RoleBaselines, rae
from agentrl.errors import ConfigError, TrainerError

REWARD = st.one_of(st.none(), st.floats(min_value=-10, max_value=10))


def test_the_worked_numbers():
    # b: 0 -> .05 -> .95 * .05 - .05 = -.0025 -> .95 * -.0025 + .05 = .047625
    credit = rae([1.0, -1.0, 1.0], roles=["x"] * 3, state=RoleBaselines())
    assert credit.advantages == pytest.approx((1.0, -1.05, 1.0025), abs=1e-12)
    assert credit.state.baselines["x"] == pytest.approx(0.047625, abs=1e-12)


def test_updated_first_it_would_shrink_the_first_reward():
    # Negative control: with the baseline updated before its use the first advantage is 1 - .05.
    assert rae([1.0], roles=["x"], state=RoleBaselines()).advantages == (1.0,)


def test_roles_have_baselines_of_their_own_and_the_state_given_stays():
    state = RoleBaselines(baselines={"first": 0.5}, decay=0.5)
    advantages, after = rae([1.0, -1.0, None], roles=["first", "second", "first"], state=state)
    assert advantages == (0.5, -1.0, None)
    assert after == RoleBaselines(baselines={"first": 0.75, "second": -0.5}, decay=0.5)
    assert state.baselines == {"first": 0.5}


def test_a_role_without_a_scored_attempt_has_no_baseline_yet():
    assert rae([None], roles=["x"], state=RoleBaselines()) == ((None,), RoleBaselines())
    assert rae([], roles=[], state=RoleBaselines()) == ((), RoleBaselines())


@settings(deadline=None)
@given(st.lists(st.tuples(REWARD, st.sampled_from("ab")), max_size=8), st.integers(0, 8))
def test_in_one_call_or_in_two_it_is_the_same(played, cut):
    rewards, roles = [r for r, _ in played], [role for _, role in played]
    whole = rae(rewards, roles=roles, state=RoleBaselines())
    early = rae(rewards[:cut], roles=roles[:cut], state=RoleBaselines())
    late = rae(rewards[cut:], roles=roles[cut:], state=early.state)
    assert (early.advantages + late.advantages, late.state) == whole


@settings(deadline=None)
@given(st.lists(st.tuples(REWARD, st.sampled_from("ab")), max_size=8))
def test_agrees_with_a_loop_per_role(played):
    expected = [None] * len(played)
    for role in "ab":
        baseline = 0.0
        for place, (reward, whose) in enumerate(played):
            if whose == role and reward is not None:
                expected[place] = reward - baseline
                baseline += 0.05 * (reward - baseline)
    advantages = rae([r for r, _ in played], roles=[role for _, role in played], state=RoleBaselines()).advantages
    assert [x is None for x in advantages] == [x is None for x in expected]
    assert [x or 0.0 for x in advantages] == pytest.approx([x or 0.0 for x in expected], abs=1e-9)


def test_what_is_refused():
    with pytest.raises(TrainerError, match=r"reward nan of attempt 0 is not finite"):
        rae([float("nan")], roles=["x"], state=RoleBaselines())
    with pytest.raises(TrainerError, match=r"0 roles for 1 rewards"):
        rae([1.0], roles=[], state=RoleBaselines())
    with pytest.raises(ConfigError, match=r"decay is 1.5"):
        RoleBaselines(decay=1.5)
