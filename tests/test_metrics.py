"""Merging does not depend on how the work was cut into rows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.metrics import METRICS, merge, metric


def test_counts_add_up_means_are_weighted_and_the_largest_stays() -> None:
    rows = [
        {"episodes_scored": 1, "reward": 1.0, "resident_mib": 100.0, "seconds_tools": 0.5},
        {"episodes_scored": 3, "reward": 0.0, "resident_mib": 80.0, "seconds_tools": 0.25},
    ]
    # reward: (1 * 1.0 + 3 * 0.0) / 4 = 0.25; the mean of the means would be 0.5
    assert merge(rows) == {"episodes_scored": 4, "reward": 0.25, "resident_mib": 100.0, "seconds_tools": 0.75}


def test_a_rate_is_weighted_by_its_time() -> None:
    # 100 tokens/s over 1 s and 10 tokens/s over 9 s: 190 tokens in 10 s
    rows = [{"tokens_per_s": 100.0, "seconds_step": 1.0}, {"tokens_per_s": 10.0, "seconds_step": 9.0}]
    assert merge(rows)["tokens_per_s"] == pytest.approx(19.0)


def test_what_was_not_measured_adds_nothing() -> None:
    rows = [{"episodes_scored": 2, "reward": 0.5}, {"episodes_scored": 5, "reward": None}, {"episodes_scored": 0}]
    assert merge(rows) == {"episodes_scored": 7, "reward": 0.5}
    assert merge([{"reward": None}]) == {}
    assert merge([]) == {}


def test_a_mean_over_nothing_is_absent_even_when_it_is_nan() -> None:
    assert merge([{"episodes_scored": 0, "reward": math.nan}]) == {"episodes_scored": 0}
    rows = [{"episodes_scored": 0, "reward": math.nan}, {"episodes_scored": 2, "reward": 1.0}]
    assert merge(rows) == {"episodes_scored": 2, "reward": 1.0}


@given(data=st.lists(st.tuples(st.integers(1, 50), st.floats(-10, 10)), min_size=1, max_size=8), cut=st.integers(0, 8))
def test_merging_parts_first_changes_nothing(data: list[tuple[int, float]], cut: int) -> None:
    rows = [{"tokens_trained": count, "loss": loss, "logprob_gap": loss} for count, loss in data]
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    assert merge([merge(part) for part in parts]) == pytest.approx(merge(rows))
    assert merge(rows[::-1]) == pytest.approx(merge(rows))


def test_a_mean_without_its_count_is_refused() -> None:
    with pytest.raises(ValueError, match="metric 'reward' is a mean over 'episodes_scored', which its row lacks"):
        merge([{"reward": 1.0}])


def test_ends_of_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="'pass_rate_low' is an end of an interval"):
        merge([{"pass_rate_low": 0.1}, {"pass_rate_low": 0.2}])
    assert merge([{"pass_rate_low": 0.1}]) == {"pass_rate_low": 0.1}


def test_an_unknown_metric_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown metric 'entropi'; did you mean 'entropy'"):
        metric("entropi")


def test_every_mean_is_over_a_count_that_exists() -> None:
    over = {one.over for one in METRICS.values() if one.merge == "mean"}
    assert {METRICS[name].merge for name in over} <= {"count", "sum"}
    assert all(not one.over for one in METRICS.values() if one.merge != "mean")
