"""What is left out, groups whole and attempts alone, each counted once under its reason, with what was lost."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.advantages import group_mean
from agentrl.algorithms.filters import FilterReport, Tally, filter_groups, no_signal, overlong, stale_before, unscored
from agentrl.algorithms.outcomes import Outcome, Outcomes, of_rewards
from agentrl.types import Stop

REWARDS = st.lists(st.lists(st.sampled_from([None, 0.0, 0.5, 1.0]), min_size=1, max_size=4), min_size=0, max_size=5)
ANY = Outcomes(attempts=())
pairs = partial(zip, strict=True)


def centered(groups):
    return [group_mean(group.rewards) for group in groups]


def group(*attempts):
    return Outcomes(attempts=attempts)


@pytest.mark.parametrize(
    ("credit", "left_out"),
    [
        ((0.0, 0.0), True),
        ((0.0, None), True),
        ((), True),
        ((0.5, -0.5), False),
        ((0.0, 1e-9), False),
        (((0.0, 0.0), (0.0,)), True),
        (((0.0, -1.0), (0.0,)), False),
        (((), None), True),
    ],
)
def test_no_signal(credit, left_out):
    assert no_signal(ANY, credit) is left_out


@pytest.mark.parametrize(
    ("rewards", "left_out"), [((None, None), True), ((), True), ((None, 0.0), False), ((0.0,), False)]
)
def test_unscored_is_not_the_same_as_zero(rewards, left_out):
    assert unscored(of_rewards([rewards])[0], ()) is left_out


def test_rewards_that_nothing_is_compared_with_are_not_unscored():
    """As where the greedy attempt was not scored, or where one attempt has no turn that could be credited."""
    groups = of_rewards([[1.0, 0.0], [None, None], [1.0, 1.0, None]])
    reasons, report = filter_groups(groups, [(None, None), (None, None), (0.5, None, None)])
    assert reasons == [("uncredited",) * 2, ("unscored",) * 2, (None, "uncredited", "unscored")]
    assert report.groups_dropped("uncredited") == report.groups_dropped("unscored") == 1
    assert report.dropped["uncredited"].num_scored == 3


LIMITS = {Stop.MAX_TURNS, Stop.CONTEXT_FULL, Stop.MAX_TOKENS, Stop.TIMEOUT, Stop.TOOL_TIME}


@pytest.mark.parametrize(("stop", "left_out"), [(stop, stop in LIMITS) for stop in Stop])
def test_overlong_is_what_a_limit_ended(stop, left_out):
    assert overlong(Outcome(reward=1.0, stop=stop)) is left_out


@pytest.mark.parametrize(("versions", "left_out"), [((3, 4), False), ((3, 2), True), ((None, 3), False), ((), False)])
def test_a_group_is_stale_as_its_oldest_token_is(versions, left_out):
    stale = stale_before(3)
    attempts = tuple(Outcome(reward=1.0, oldest_version=version) for version in versions)
    assert stale(group(*attempts), ()) is left_out
    assert stale.__name__ == "stale"


def test_each_group_is_counted_once_under_the_first_reason_with_what_it_held():
    groups = of_rewards([[1.0, 1.0], [1.0, 0.0], [None, None], [0.0, None]])
    reasons, report = filter_groups(groups, centered(groups), (no_signal, stale_before(9)))
    assert reasons == [("no_signal",) * 2, (None, None), ("unscored",) * 2, ("no_signal",) * 2]
    assert report.kept == Tally(num_groups=1, num_attempts=2, num_scored=2, reward=1.0, tokens=2)
    assert report.dropped == {
        "no_signal": Tally(num_groups=2, num_attempts=4, num_scored=3, reward=2.0, tokens=4),
        "unscored": Tally(num_groups=1, num_attempts=2, num_scored=0, reward=0.0, tokens=2),
    }
    assert report.dropped["no_signal"].mean_reward == 2 / 3
    assert report.dropped["unscored"].mean_reward is None
    assert report.num_groups == 4
    assert report.share_dropped("no_signal") == 0.5
    assert report.share_dropped("stale") == 0.0


def test_single_attempts_leave_and_their_group_stays():
    """The one that was cut is in the baseline and is not trained, and the one without a score is in neither."""
    cut = Outcome(reward=0.0, turns=(5, 4), stop=Stop.MAX_TOKENS)
    mine = group(
        Outcome(reward=1.0, turns=(3,)), cut, Outcome(reward=None, turns=(2,)), Outcome(reward=0.0, turns=(1,))
    )
    reasons, report = filter_groups([mine], centered([mine]), (no_signal,), (overlong,))
    assert reasons == [(None, "overlong", "unscored", None)]
    assert report.kept == Tally(num_groups=1, num_attempts=2, num_scored=2, reward=1.0, tokens=4)
    assert report.dropped["overlong"] == Tally(num_groups=0, num_attempts=1, num_scored=1, reward=0.0, tokens=9)
    assert report.dropped["unscored"] == Tally(num_groups=0, num_attempts=1, num_scored=0, reward=0.0, tokens=2)
    assert report.dropped["overlong"].mean_tokens == 9.0
    assert report.attempts_dropped("overlong") == 1
    assert report.num_groups == 1


def test_a_group_whose_attempts_all_leave_is_counted_once():
    lost = group(Outcome(reward=1.0, stop=Stop.TIMEOUT), Outcome(reward=None))
    reasons, report = filter_groups([lost], [(0.5, None)], (), (overlong,))
    assert reasons == [("overlong", "unscored")]
    assert (report.num_groups, report.groups_dropped("overlong"), report.groups_dropped("unscored")) == (1, 1, 0)


def test_beyond_the_size_of_a_step_groups_are_surplus_and_the_left_out_do_not_count():
    groups = of_rewards([[1.0, 1.0], [1.0, 0.0], [1.0, None, 0.0], [0.0, 1.0]])
    reasons, report = filter_groups(groups, centered(groups), (no_signal,), at_most=1)
    assert reasons == [
        ("no_signal",) * 2,
        (None, None),
        ("surplus", "unscored", "surplus"),
        ("surplus", "surplus"),
    ]
    assert report.kept.num_groups == 1
    assert report.groups_dropped("surplus") == 2
    assert report.num_groups == 4


def test_without_filters_equal_groups_stay_and_unscored_ones_still_leave():
    groups = of_rewards([[0.0, 0.0], [None]])
    reasons, report = filter_groups(groups, centered(groups))
    assert reasons == [(None, None), ("unscored",)]
    assert (report.kept.num_groups, report.groups_dropped("unscored")) == (1, 1)


def test_no_group_at_all():
    report = filter_groups([], [], (no_signal,)).report
    assert report == FilterReport()
    assert (report.num_groups, report.share_dropped("no_signal"), report.kept.mean_tokens) == (0, 0.0, None)


@settings(deadline=None)
@given(REWARDS, st.integers(0, 3) | st.none())
def test_nothing_is_lost_and_every_reward_that_differs_stays(rewards, at_most):
    groups = of_rewards(rewards)
    reasons, report = filter_groups(groups, centered(groups), (no_signal,), at_most=at_most)
    assert report.num_groups == len(groups)
    tallies = [report.kept, *report.dropped.values()]
    assert sum(tally.num_attempts for tally in tallies) == sum(map(len, rewards))
    assert sum(tally.num_scored for tally in tallies) == sum(r is not None for group in rewards for r in group)
    differ = [len({x for x in values if x is not None}) > 1 for values in rewards]
    assert report.kept.num_groups == min(sum(differ), len(groups) if at_most is None else at_most)
    for of_attempts, values, differs in pairs(reasons, rewards, differ):
        assert (None in of_attempts or "surplus" in of_attempts) == differs
        assert all(why is not None for why, r in pairs(of_attempts, values) if r is None)
