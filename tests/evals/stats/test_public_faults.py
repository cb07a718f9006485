"""Faults that other evaluators had in public: one test each, named after what went wrong."""

import math

import pytest

from agentrl.evals import stats


def one_task(n, c):
    return [[1.0] * c + [0.0] * (n - c)]


@pytest.mark.parametrize(("n", "c", "k"), [(2, 0, 5), (99, 0, 100), (2, 1, 4)])
def test_more_draws_than_attempts_are_not_a_pass(n, c, k):
    # E01: a shortcut for n - c < k gave 1.0 where nothing had passed.
    assert math.isnan(stats.pass_at_k_of(n, c, k))
    with pytest.raises(ValueError, match=f"pass@{k} needs {k} attempts"):
        stats.pass_at_k(one_task(n, c), k)


def test_a_suite_with_an_undefined_task_has_no_mean_unless_asked():
    # E01, second half: (4, 1), (4, 0), (2, 1) at k = 4.
    scores = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, math.nan, math.nan]]
    values = stats.pass_at_k(scores, 4)
    assert values[:2].tolist() == [1, 0]
    assert math.isnan(values[2])
    with pytest.raises(ValueError, match="2 of 3 tasks are defined"):
        stats.interval_of(values)
    asked = stats.interval_of(values, drop_undefined=True)
    assert (asked.mean, asked.num_tasks, asked.num_undefined) == (0.5, 2, 1)


def test_tasks_are_not_attempts():
    # E02: 164 tasks with one attempt each, 50 solved. 97.7 % and 100 % were reported as pass@10 and pass@100.
    scores = [[1.0]] * 50 + [[0.0]] * 114
    assert stats.pass_at_k(scores, 1).mean() == pytest.approx(0.304878, abs=1e-6)
    for k in (10, 100):
        with pytest.raises(ValueError, match=f"pass@{k} needs {k} attempts at a task and no task has more than 1"):
            stats.pass_at_k(scores, k)


@pytest.mark.parametrize(("k", "value"), [(1, 0.005), (10, 0.05), (200, 1.0)])
def test_a_chance_is_not_a_truth_value(k, value):
    # E03: one pass in 200 counted as solved for every k.
    assert stats.pass_at_k(one_task(200, 1), k)[0] == pytest.approx(value)


def test_best_of_k_is_drawn_without_replacement():
    # E04: one pass in four gave best@4 = 1 - 0.75^4 = 0.683594.
    for k, value in ((4, 1.0), (2, 0.5), (1, 0.25)):
        assert stats.pass_at_k(one_task(4, 1), k)[0] == pytest.approx(value)
        assert stats.best_at_k(one_task(4, 1), k)[0] == pytest.approx(value)
    # Maxima of the six pairs: .4 .4 .9 .4 .9 .9
    assert stats.best_at_k([[0.2, 0.4, 0.4, 0.9]], 2)[0] == pytest.approx(0.65)


@pytest.mark.parametrize(("n", "c", "error"), [(307, 14, 0.011926), (123, 2, 0.011450), (280, 5, 0.007929)])
def test_an_error_is_not_zero_between_zero_and_one(n, c, error):
    # E07: published as 0.0.
    assert stats.standard_error([1.0] * c + [0.0] * (n - c)) == pytest.approx(error, abs=1e-6)


def test_no_and_all_passes_have_a_width_and_one_task_has_none():
    # E07, second half.
    with pytest.raises(ValueError, match="1 scored task"):
        stats.interval_of([1.0])
    none, every = stats.interval_of([0.0] * 20), stats.interval_of([1.0] * 20)
    assert (none.low, none.high) == (0.0, pytest.approx(0.161125, abs=1e-6))
    assert (every.low, every.high) == (pytest.approx(0.838875, abs=1e-6), 1.0)


def test_missing_attempts_stand_beside_the_mean_with_what_they_could_hide():
    # E09: 4 right, 2 wrong, 4 missing of 10 tasks; 0.667 was all that was said.
    scores = [[1.0]] * 4 + [[0.0]] * 2 + [[math.nan]] * 4
    interval = stats.interval_of(stats.mean_score(scores), drop_undefined=True)
    assert (interval.mean, interval.num_tasks, interval.num_undefined) == (pytest.approx(4 / 6), 6, 4)
    assert stats.missing_bounds(scores) == pytest.approx((0.4, 0.8))
    with pytest.raises(ValueError, match=r"value 1\.5 of task 1"):
        stats.interval_of(stats.mean_score([[1.0], [1.5]]))
    with pytest.raises(ValueError, match=r"scores\[1, 0\] is inf"):
        stats.mean_score([[1.0], [math.inf]])


def test_attempts_are_not_independent_rows():
    # E13: 4 tasks of 5 attempts with 5, 0, 4, 1 passes. Twenty rows give 0.114708, the four tasks 0.238048.
    scores = [row for c in (5, 0, 4, 1) for row in one_task(5, c)]
    values = stats.mean_score(scores)
    assert values.mean() == pytest.approx(0.5)
    assert stats.standard_error(values) == pytest.approx(0.238048, abs=1e-6)
    assert stats.standard_error([x for row in scores for x in row]) == pytest.approx(0.114708, abs=1e-6)


def test_a_bootstrap_error_is_not_divided_by_its_resamples():
    # 60 of 100: the error is 0.049; the spread of 1000 resamples over the root of 1000 is 0.0015.
    found = stats.bootstrap_interval([1.0] * 60 + [0.0] * 40, stats.weighted_mean, seed=0)
    assert (found.high - found.low) / 2 / 1.96 == pytest.approx(0.049, abs=0.004)
