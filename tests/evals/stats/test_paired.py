"""Paired comparison: which test is taken, against other libraries and plain sums, and what must not be certain."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from agentrl.evals import stats

NAN = math.nan
A, B = [1, 1, 0, 1, 1, 1, 1, 0, 1, 1], [1, 0, 0, 1, 0, 1, 0, 0, 1, 1]


def test_one_attempt_each_is_mcnemars_test():
    # 3 tasks are won and none is lost: 2 * (1/2)^3, and Beta(4, 1) above one half: 1 - (1/2)^4
    found = stats.compare(B, A)
    assert (found.wins, found.losses, found.ties) == (3, 0, 7)
    assert (found.test, found.p_value, found.probability_better) == ("McNemar exact", 0.25, 0.9375)
    assert found.difference.mean == pytest.approx(0.3)
    assert found.difference.method == "paired t over tasks"
    assert (found.before.mean, found.after.mean) == (0.5, 0.8)
    assert not found.different


def test_several_attempts_are_a_paired_t_test():
    before, after = [0.25, 0.5, 0.0, 0.75, 0.5], [0.5, 0.5, 0.25, 1.0, 0.25]
    expected = scipy_stats.ttest_rel(after, before)
    found = stats.compare(before, after)
    assert found.test == "paired t"
    assert found.p_value == pytest.approx(expected.pvalue)
    ends = expected.confidence_interval(0.95)
    assert (found.difference.low, found.difference.high) == pytest.approx((ends.low, ends.high))
    # A flat prior: the posterior tail is the one-sided p.
    assert found.probability_better == pytest.approx(1 - expected.pvalue / 2)
    # (1.959964 + 0.841621) * error
    assert found.minimum_detectable == pytest.approx(2.801585 * found.standard_error, rel=1e-6)


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_paired_t_test_rejects_where_its_interval_excludes_zero(level):
    rng = np.random.default_rng(0)
    for shift in np.linspace(0.02, 0.3, 13):
        before = rng.uniform(0.2, 0.5, size=15)
        after = before + shift * rng.uniform(0, 1.0, size=15) - 0.04
        found = stats.compare(before, after, level=level)
        assert found.different == (not found.difference.low <= 0 <= found.difference.high)


def test_clusters_make_the_test_a_test_over_clusters():
    before, after = np.array([0.2, 0.4, 0.6, 0.3]), np.array([0.3, 0.6, 0.6, 0.5])
    alone = stats.compare(before, after)
    clusters = np.repeat(np.arange(4), 5)
    copied = stats.compare(np.repeat(before, 5), np.repeat(after, 5), clusters=clusters)
    assert copied.p_value == pytest.approx(alone.p_value)
    assert copied.standard_error == pytest.approx(alone.standard_error)
    assert (copied.wins, copied.difference.num_tasks, copied.difference.num_clusters) == (15, 20, 4)
    # Negative control: as 20 independent tasks the same data would be overwhelming.
    assert stats.compare(np.repeat(before, 5), np.repeat(after, 5)).p_value < 0.001 < copied.p_value


def test_clustered_single_attempts_are_not_taken_for_independent_pairs():
    clusters = np.arange(10) // 2
    assert stats.compare(B, A, clusters=clusters).test == "paired t"


def test_only_shared_tasks_are_compared_and_the_rest_is_counted():
    found = stats.compare([0.2, NAN, 0.5, 0.1, NAN], [0.4, 0.9, 0.6, NAN, NAN])
    assert (found.difference.mean, found.difference.num_tasks, found.num_left_out) == (pytest.approx(0.15), 2, 3)
    assert found.before.mean == pytest.approx(0.35)  # of the shared tasks, and not 0.2667 of all three


def test_a_side_against_itself_is_no_difference_and_not_certain():
    found = stats.compare(A, A)
    assert (found.p_value, found.probability_better, found.difference.mean) == (1.0, 0.5, 0.0)
    assert found.difference.low < -0.2
    assert found.minimum_detectable > 0.2
    means = [0.25, 0.5, 0.75]
    same = stats.compare(means, means)
    assert (same.test, same.p_value, same.probability_better, same.different) == ("sign", 1.0, 0.5, False)


@pytest.mark.parametrize(("tasks", "p_value"), [(3, 0.25), (8, 2 / 256)])
def test_all_tasks_better_by_the_same_is_a_sign_test_and_not_certain(tasks, p_value):
    before = np.linspace(0.1, 0.4, tasks)
    found = stats.compare(before, before + 0.25)
    assert (found.test, found.p_value) == ("sign", p_value)
    assert found.difference.low < 0.25 < found.difference.high
    assert stats.compare(before + 0.25, before).probability_better == pytest.approx(2.0 ** -(tasks + 1))


sides = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=10)


@settings(deadline=None, max_examples=50)
@given(sides)
def test_exchanging_the_sides_turns_everything_round(pairs):
    before, after = zip(*pairs, strict=True)
    forward, backward = stats.compare(before, after), stats.compare(after, before)
    assert backward.difference.mean == pytest.approx(-forward.difference.mean)
    assert backward.difference.low == pytest.approx(-forward.difference.high)
    assert backward.p_value == pytest.approx(forward.p_value)
    assert backward.probability_better == pytest.approx(1 - forward.probability_better)
    assert (backward.wins, backward.losses, backward.ties) == (forward.losses, forward.wins, forward.ties)
    assert forward.standard_error > 0


def test_unequal_attempts_and_rewards_without_bounds():
    before = stats.mean_score([[-3.0, 4.0, NAN], [10.0, 2.0, 6.0], [0.0, NAN, NAN]])
    after = stats.mean_score([[1.0], [9.0], [2.5]])
    found = stats.compare(before, after, bounds=None)
    # Differences 0.5, 3, 2.5
    assert found.difference.mean == pytest.approx(2.0)
    assert found.p_value == pytest.approx(scipy_stats.ttest_1samp([0.5, 3, 2.5], 0).pvalue)


def test_all_pairs_of_checkpoints_pay_for_each_other():
    rng = np.random.default_rng(2)
    values = rng.uniform(0.2, 0.6, size=(30, 1)) + np.array([0.0, 0.02, 0.3]) + rng.normal(size=(30, 3)) * 0.05
    pairs = stats.compare_all(values)
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    p_values = [pair.comparison.p_value for pair in pairs]
    assert p_values == [stats.compare(values[:, i], values[:, j]).p_value for i, j in ((0, 1), (0, 2), (1, 2))]
    assert [pair.holm for pair in pairs] == stats.holm(p_values).tolist()
    assert [pair.benjamini_hochberg for pair in pairs] == stats.benjamini_hochberg(p_values).tolist()
    only = stats.compare_all(values, pairs=[(0, 2)])
    assert only[0].holm == only[0].comparison.p_value


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_is_a_binomial_test(b, c):
    expected = scipy_stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert stats.mcnemar_exact(b, c) == pytest.approx(expected)
    assert stats.mcnemar_mid_p(b, c) <= stats.mcnemar_exact(b, c) <= 1.0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_adjusted_p_values_against_scipy_and_a_plain_loop(p_values):
    assert stats.benjamini_hochberg(p_values) == pytest.approx(scipy_stats.false_discovery_control(p_values))
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = running
    assert stats.holm(p_values) == pytest.approx(adjusted)


def test_holm_keeps_its_promise_under_the_null():
    # 10 true nulls: some unadjusted p below 0.05 in 40 % of families, some Holm p in at most 5 %.
    p_values = np.random.default_rng(3).random((2000, 10))
    assert (p_values.min(axis=1) < 0.05).mean() > 0.35
    assert np.mean([(stats.holm(row) < 0.05).any() for row in p_values]) <= 0.05 + 0.015


def test_the_posterior_of_a_pair_against_drawing_from_the_dirichlet():
    draws = np.random.default_rng(4).dirichlet([1 + 9, 1 + 4, 1 + 20, 1 + 7], size=40_000)
    assert stats.probability_better_paired(9, 4) == pytest.approx((draws[:, 0] > draws[:, 1]).mean(), abs=0.01)


def test_every_comparison_is_the_same_twice():
    assert list(itertools.repeat(stats.compare(B, A), 2)) == [stats.compare(B, A)] * 2
