"""Which interval is taken when, what it is at the edges, and that it is where it should be."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from agentrl.evals import stats
from agentrl.evals.stats.intervals import degrees_of_freedom

NAN = math.nan


@pytest.mark.parametrize(
    ("values", "clusters", "bounds", "method"),
    [
        ([1, 0, 1, 1], None, (0, 1), "wilson"),
        ([1, 0, 1, 1], None, (-5, 5), "t over tasks"),
        ([0.4, 0.6, 0.5, 0.5], None, (0, 1), "t over tasks"),
        ([0.9, 1.0, 1.0, 0.2], None, (0, 1), "wilson, effective tasks"),
        ([0.4, 0.6, 0.5, 0.4], [0, 0, 1, 2], (0, 1), "CR1 t over clusters"),
        ([1, 0, 1, 1], [0, 0, 1, 2], (0, 1), "wilson, effective clusters"),
        ([1, 1, 1], None, (0, 1), "wilson over tasks"),
        ([1, 0, 1, 0], [0, 0, 1, 1], (0, 1), "wilson over clusters"),
        ([-3.0, 5.0, 9.0], None, None, "t over tasks"),
    ],
)
def test_the_method_fits_the_data_and_is_named(values, clusters, bounds, method):
    bounds = bounds and (float(bounds[0]), float(bounds[1]))
    interval = stats.interval_of(values, clusters=clusters, bounds=bounds)
    assert interval.method == method
    assert interval.low < interval.mean < interval.high or interval.mean in (bounds or ())
    units = len(set(clusters)) if clusters else len(values)
    assert (interval.num_tasks, interval.num_clusters, interval.level) == (len(values), units, 0.95)


def test_a_t_interval_is_that_of_scipy():
    values = [0.4, 0.6, 0.55, 0.5, 0.7]
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.9)
    interval = stats.interval_of(values, level=0.9)
    assert (interval.low, interval.high) == pytest.approx(tuple(expected))
    assert interval.level == 0.9


def test_clusters_of_one_task_are_no_clusters():
    values = [0.4, 0.6, 0.55, 0.5, 0.7]
    alone, clustered = stats.interval_of(values), stats.interval_of(values, clusters=[4, 2, 9, 0, 7])
    assert (clustered.low, clustered.high) == pytest.approx((alone.low, alone.high))


def test_repeating_each_task_in_a_cluster_teaches_nothing_new():
    values = np.array([0.4, 0.6, 0.55, 0.5, 0.7])
    alone = stats.interval_of(values)
    copied = stats.interval_of(np.repeat(values, 6), clusters=np.repeat(np.arange(5), 6))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    # Negative control: without saying so the copies look like 30 tasks.
    assert stats.interval_of(np.repeat(values, 6)).high < alone.high - 0.05


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [5] * 10, [50] + [5] * 9, [1, 2, 3, 4, 9]])
def test_degrees_of_freedom_are_those_of_the_matrix(sizes):
    w = np.array(sizes) / sum(sizes)
    centre = np.eye(len(w)) - np.outer(np.ones(len(w)), w)
    matrix = centre.T @ np.diag(w**2) @ centre
    expected = np.trace(matrix) ** 2 / np.trace(matrix @ matrix)
    found = degrees_of_freedom(np.repeat(np.arange(len(w)), sizes))
    assert found == pytest.approx(expected)
    assert found == len(w) - 1 if len(set(sizes)) == 1 else found < len(w) - 1


@pytest.mark.parametrize("values", [[0.9, 1.0, 1.0, 0.2], [0.4, 0.6, 0.5, 0.4], [0.3, 0.3, 0.3]])
def test_bounds_only_change_the_scale(values):
    plain = stats.interval_of(values)
    scaled = stats.interval_of([20 * value - 5 for value in values], bounds=(-5.0, 15.0))
    assert scaled.method == plain.method
    assert (scaled.low, scaled.high) == pytest.approx((20 * plain.low - 5, 20 * plain.high - 5))


def test_the_width_without_spread_depends_on_the_level():
    # Wilson's upper end for 0 of 8 is z^2 / (8 + z^2): 1.644854^2 / 10.705543 and 3.841459 / 11.841459
    assert stats.interval_of([0.0] * 8, level=0.9).high == pytest.approx(0.252724, abs=1e-6)
    assert stats.interval_of([0.0] * 8).high == pytest.approx(0.324408, abs=1e-6)


def test_clusters_that_agree_are_not_certain():
    # Each cluster has mean 1/2, so the CR1 error is 0; of 2 clusters a share of 3.841459 / 5.841459 may differ.
    interval = stats.interval_of([1, 0, 1, 0], clusters=[0, 0, 1, 1])
    assert (interval.low, interval.high) == pytest.approx((0.5 - 0.5 * 0.657620, 0.5 + 0.5 * 0.657620), abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1 / 3, 1.0]), st.integers(0, 4)), min_size=2, max_size=12).filter(
        lambda rows: len({label for _, label in rows}) > 1
    ),
    st.booleans(),
)
def test_the_mean_is_inside_the_ends_are_possible_and_more_certain_is_wider(rows, clustered):
    values, labels = zip(*rows, strict=True)
    clusters = labels if clustered else None
    narrow, wide = (stats.interval_of(values, clusters=clusters, level=level) for level in (0.8, 0.99))
    assert 0.0 <= wide.low <= narrow.low + 1e-12 <= narrow.mean + 2e-12
    assert narrow.mean <= narrow.high + 1e-12 <= wide.high + 2e-12 <= 1.0 + 2e-12
    assert narrow.low < narrow.high


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0.0, 0.25, 1 / 3, 1.0]), min_size=3, max_size=9))
def test_mirrored_values_have_the_mirrored_interval(values):
    interval, mirrored = stats.interval_of(values), stats.interval_of([1 - value for value in values])
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - interval.high, 1 - interval.low))


def test_undefined_tasks_are_dropped_only_when_asked():
    with pytest.raises(ValueError, match=r"2 of 3 tasks are defined \(task 1 is NaN\).*drop_undefined=True"):
        stats.interval_of([1.0, NAN, 0.0])
    interval = stats.interval_of([1.0, NAN, 0.0], clusters=[5, 0, 5 + 2], drop_undefined=True)
    assert (interval.mean, interval.num_tasks, interval.num_clusters, interval.num_undefined) == (0.5, 2, 2, 1)


def test_how_many_attempts_stand_behind_it_is_recorded():
    assert stats.interval_of([1, 0, 1]).num_attempts == 3
    assert stats.interval_of([1, 0, 1], num_attempts=24).num_attempts == 24


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.8, 0.95]))
def test_intervals_of_a_proportion_agree_with_scipy(passes_n, level):
    passes, n = passes_n
    for ours, method in (
        (stats.wilson(passes / n, n, level), "wilson"),
        (stats.clopper_pearson(passes, n, level), "exact"),
    ):
        expected = scipy_stats.binomtest(passes, n).proportion_ci(level, method=method)
        assert ours == pytest.approx((expected.low, expected.high), abs=1e-9)
    posterior = scipy_stats.beta(passes + 0.5, n - passes + 0.5)
    assert stats.jeffreys(passes, n, level) == pytest.approx(posterior.interval(level), abs=1e-9)
    assert stats.beta_interval(passes, n, level) == pytest.approx(
        scipy_stats.beta(passes + 1, n - passes + 1).interval(level), abs=1e-9
    )
