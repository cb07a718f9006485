"""Bootstrap and aggregates over runs: seeded, stratified, against closed forms and other libraries' definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from agentrl.evals import stats
from agentrl.evals.stats.bootstrap import resample

VALUES = np.random.default_rng(0).uniform(0.2, 0.8, size=60)


def test_one_seed_is_one_answer_and_another_seed_nearly_the_same():
    first, again, other = (stats.bootstrap_interval(VALUES, stats.weighted_mean, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.low != other.low
    assert first.low == pytest.approx(other.low, abs=0.01)
    assert first.method == "bootstrap over tasks, 2000 resamples, seed 1"


def test_the_order_of_tasks_does_not_matter():
    shuffled = np.random.default_rng(9).permutation(VALUES)
    first, second = (stats.bootstrap_interval(v, stats.weighted_iqm, seed=1) for v in (VALUES, shuffled))
    assert (first.low, first.high) == pytest.approx((second.low, second.high))


def test_the_mean_agrees_with_its_closed_form():
    found = stats.bootstrap_interval(VALUES, stats.weighted_mean, seed=0, resamples=4000)
    error = VALUES.std() / math.sqrt(60)
    assert found.mean == pytest.approx(VALUES.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_resamples_are_multinomial_within_strata():
    strata = np.array([0, 1, 0, 1, 1, 2, 2])
    weights = np.concatenate(list(resample(strata, seed=3, resamples=5000)))
    assert weights.shape == (5000, 7)
    for stratum, size in enumerate((2, 3, 2)):
        inside = weights[:, strata == stratum]
        assert (inside.sum(axis=1) == size).all()
        assert inside.mean(axis=0) == pytest.approx(np.ones(size), abs=0.05)
        # n p (1 - p) with p = 1/n
        assert inside.var(axis=0) == pytest.approx(np.full(size, 1 - 1 / size), abs=0.05)


def test_strata_take_out_what_differs_between_them():
    strata = np.repeat([0, 1], 30)
    values = VALUES * 0.1 + strata
    plain = stats.bootstrap_interval(values, stats.weighted_mean, seed=0)
    stratified = stats.bootstrap_interval(values, stats.weighted_mean, seed=0, strata=strata)
    assert stratified.high - stratified.low < 0.2 * (plain.high - plain.low)
    assert stratified.method.startswith("stratified bootstrap over tasks")


def test_clusters_are_drawn_whole():
    clusters = np.repeat(np.arange(20), 3)
    values = np.sort(VALUES[:20])
    found = stats.bootstrap_interval(np.repeat(values, 3), stats.weighted_mean, seed=0, clusters=clusters)
    alone = stats.bootstrap_interval(values, stats.weighted_mean, seed=0)
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high))
    assert (found.num_tasks, found.num_clusters) == (60, 20)


def repeated(values, weights):
    return np.repeat(values, weights.astype(int))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(-3, 3).map(float), st.integers(0, 3)), min_size=1, max_size=9).filter(
    lambda rows: sum(weight for _, weight in rows) > 0
))  # fmt: skip
def test_weighted_statistics_are_those_of_the_repeated_values(rows):
    values, weights = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    drawn = repeated(values, weights)
    assert stats.weighted_mean(values, weights[None])[0] == pytest.approx(drawn.mean())
    assert stats.weighted_median(values, weights[None])[0] == pytest.approx(np.median(drawn))
    assert stats.weighted_iqm(values, weights[None])[0] == pytest.approx(scipy_stats.trim_mean(drawn, 0.25))


RUNS = np.random.default_rng(1).uniform(0, 1.2, size=(6, 9))


def test_aggregates_over_runs():
    assert stats.iqm(RUNS) == pytest.approx(scipy_stats.trim_mean(RUNS.ravel(), 0.25))
    assert stats.optimality_gap(RUNS) == pytest.approx(1 - np.minimum(RUNS, 1).mean())
    other = RUNS[:4] + 0.1
    expected = np.mean([scipy_stats.mannwhitneyu(other[:, t], RUNS[:, t])[0] / 24 for t in range(9)])
    assert stats.probability_of_improvement(other, RUNS) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("interval", "value"),
    [
        (lambda seed: stats.iqm_interval(RUNS, seed=seed), stats.iqm(RUNS)),
        (lambda seed: stats.optimality_gap_interval(RUNS, seed=seed), stats.optimality_gap(RUNS)),
        (
            lambda seed: stats.improvement_interval(RUNS[:4] + 0.1, RUNS, seed=seed),
            stats.probability_of_improvement(RUNS[:4] + 0.1, RUNS),
        ),
    ],
    ids=["iqm", "gap", "improvement"],
)
def test_intervals_over_runs_hold_the_value_and_repeat(interval, value):
    found = interval(0)
    assert found == interval(0) != interval(1)
    assert found.mean == pytest.approx(value)
    assert found.low < value < found.high
    assert (found.num_tasks, found.low, found.high) == (9, pytest.approx(interval(1).low, abs=0.03), found.high)


def test_runs_are_drawn_within_each_task():
    # Tasks differ and runs do not: there is nothing that another run could change.
    scores = np.tile(np.linspace(0, 1, 9), (5, 1))
    found = stats.iqm_interval(scores, seed=0)
    assert found.low == pytest.approx(found.mean) == pytest.approx(found.high)


def test_improvement_intervals_resample_both_sides():
    two_of_four = RUNS[:4] + np.array([[0], [0], [9], [9]])
    found = stats.improvement_interval(two_of_four, RUNS, seed=0)
    assert 0.5 < found.low < found.mean < found.high <= 1
