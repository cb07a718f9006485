"""What the dropped were like beside the kept, and how old what was trained is: exact sums."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.bias import Bias, Moments
from agentrl.rollout.outstanding import End, Ended, Ticket
from agentrl.rollout.plan import GroupShape, plan_group
from agentrl.rollout.staleness import Staleness
from agentrl.types import Fault
from tests.rollout.simulated import TASKS, trace

SHAPE = GroupShape(attempts=4)
LOST = Fault(boundary="sandbox", message="lost")


def ended(group, attempt, end, length=None, *, step=3, version=3, **options):
    """An end. The family of group n is that of task n."""
    plan = plan_group(TASKS, group, shape=SHAPE, name="rl", place=group, seed=0)
    made = None if length is None else trace(plan.task, plan.identity(attempt), [version] * length, **options)
    return Ended(ticket=Ticket(group, attempt, 0, version), plan=plan, end=end, step=step, trace=made)


SOME = [
    ended(0, 0, End.CONSUMED, 2),
    ended(0, 1, End.CONSUMED, 4),
    ended(2, 0, End.CONSUMED, 5),
    ended(1, 0, End.STALE, 8, reward=0.0),
    ended(1, 1, End.STALE, 12, reward=1.0),
    ended(1, 2, End.STALE),
    ended(3, 0, End.STALE, 6, reward=0.0, step=4),
    ended(4, 0, End.STALE, 2, reward=0.0, step=4),
    ended(5, 0, End.FAILED, 90, error=LOST),
]


def test_moments():
    # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7
    found = Moments().plus(1).plus(2).plus(6)
    assert found == (3, 9, 41)
    assert found.mean == 3
    assert found.error_of_mean == pytest.approx(math.sqrt(7 / 3))
    assert (Moments().mean, Moments().error_of_mean, Moments().plus(1.0).error_of_mean) == (None, None, None)


def test_the_dropped_are_compared_with_the_kept_group_by_group():
    bias = Bias.of(SOME)
    assert (bias.kept.attempts, bias.kept.unseen) == (3, 0)
    assert bias.kept.length == Moments().plus(3).plus(5)  # the groups' means
    assert (bias.dropped.attempts, bias.dropped.unseen) == (5, 1)
    assert bias.dropped.length == Moments().plus(10).plus(6).plus(2)
    # lengths: 6 - 4; variances 16 / 3 groups and 2 / 2 groups
    assert bias.length_difference == pytest.approx((2, math.sqrt(16 / 3 + 2 / 2)))
    # rewards: the group means 1/2, 0, 0 beside 1, 1
    assert bias.reward_difference.value == pytest.approx(1 / 6 - 1)


def test_the_families_of_the_dropped():
    bias = Bias.of(SOME)
    assert bias.families() == {"even": (3, 1), "odd": (0, 4)}
    assert bias.family_shift == pytest.approx(4 / 5)  # all of the kept are even, and one of five dropped
    assert Bias.of(SOME[:3]).family_shift is None
    assert Bias().family_shift is None


def test_what_broke_is_no_length_of_the_policy():
    bias = Bias.of([ended(0, 0, End.CONSUMED, 2), ended(0, 1, End.CONSUMED, 40, error=LOST)])
    assert bias.kept.length == Moments().plus(2)
    assert bias.kept.reward == Moments().plus(1.0)
    assert bias.length_difference is None


@given(st.permutations(range(4)), st.integers(0, 4))
def test_steps_add_up(order, cut):
    """Whatever the order of the groups, and wherever they are cut into steps."""
    groups = [SOME[:2], SOME[2:3], SOME[3:6], SOME[6:]]
    parts = [groups[n] for n in order]
    first, second = ([one for part in half for one in part] for half in (parts[:cut], parts[cut:]))
    merged, whole = Bias.of(first).merged(Bias.of(second)), Bias.of(SOME)
    assert merged.families() == whole.families()
    assert merged.length_difference == pytest.approx(whole.length_difference)


def test_ages_and_ends_of_a_step():
    found = Staleness.of([*SOME[:3], *SOME[3:], ended(6, 0, End.CONSUMED, 3, version=1), ended(6, 1, End.CANCELLED)])
    assert found.ages == {0: 11, 2: 3}
    assert found.age_mean == pytest.approx(6 / 14)
    assert found.groups_stale == 3
    assert found.faults == {"sandbox": 1}
    row = found.row(updates_per_step=4)
    assert (row["age_max"], row["age_max_updates"], row["tokens_taken"]) == (2, 8, 14)
    assert (row["episodes_consumed"], row["episodes_stale"], row["episodes_failed"]) == (4, 5, 1)
    assert (row["episodes_cancelled"], row["episodes_surplus"]) == (1, 0)


def test_a_step_without_ends_has_no_ages():
    row = Staleness.of([]).row()
    assert (row["age_mean"], row["age_max"], row["tokens_taken"], row["length_dropped_difference"]) == (
        None,
        None,
        0,
        None,
    )
