"""Groups left out whole, each counted once under its reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.advantages import group_mean
from agentrl.algorithms.filters import FilterReport, filter_groups, no_signal, unscored

GROUPS = st.dictionaries(
    st.text(min_size=1, max_size=3), st.lists(st.sampled_from([None, 0.0, 0.5, 1.0]), min_size=1, max_size=4)
)


@pytest.mark.parametrize(
    ("advantages", "left_out"),
    [((0.0, 0.0), True), ((0.0, None), True), ((), True), ((0.5, -0.5), False), ((0.0, 1e-9), False)],
)
def test_no_signal(advantages, left_out):
    assert no_signal(advantages) is left_out


@pytest.mark.parametrize(
    ("advantages", "left_out"), [((None, None), True), ((), True), ((None, 0.0), False), ((0.0,), False)]
)
def test_unscored_is_not_the_same_as_zero(advantages, left_out):
    assert unscored(advantages) is left_out


def test_each_group_is_counted_once_under_the_first_reason():
    groups = {"solved": (0.0, 0.0), "mixed": (0.5, -0.5), "lost": (None, None), "failed": (0.0, None)}
    kept, left_out, report = filter_groups(groups, (no_signal,))
    assert kept == ("mixed",)
    assert left_out == {"solved": "no_signal", "lost": "unscored", "failed": "no_signal"}
    assert report == FilterReport(num_kept=1, num_dropped={"no_signal": 2, "unscored": 1})
    assert report.num_groups == 4
    assert report.share_dropped("no_signal") == 0.5
    assert report.share_dropped("stale") == 0.0


def test_without_filters_equal_groups_stay_and_unscored_ones_still_leave():
    kept, _, report = filter_groups({"equal": (0.0, 0.0), "lost": (None,)}, ())
    assert kept == ("equal",)
    assert report.num_dropped == {"unscored": 1}


def test_no_group_at_all():
    report = filter_groups({}, (no_signal,)).report
    assert (report.num_groups, report.share_dropped("no_signal")) == (0, 0.0)


@settings(deadline=None)
@given(GROUPS)
def test_nothing_is_lost_and_every_reward_that_differs_stays(rewards):
    kept, left_out, report = filter_groups(
        {group: group_mean(values) for group, values in rewards.items()}, (no_signal,)
    )
    assert report.num_kept == len(kept)
    assert {*kept, *left_out} == set(rewards)
    assert report.num_groups == len(rewards)
    assert kept == tuple(g for g, values in rewards.items() if len({x for x in values if x is not None}) > 1)
