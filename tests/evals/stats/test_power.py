"""Planning: the variance split without bias, and plans that give what they promise (simulated in test_simulations)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.evals import stats
from agentrl.evals.stats import PairedVariance, VarianceSplit

NAN = math.nan


def test_the_split_on_small_numbers():
    # Means .5 and 1; variances of attempts .5 and 0. attempt = .25; task = Var(.5, 1) - mean(.25, 0) = .125 - .125
    split = stats.variance_split([[0, 1], [1, 1]])
    assert (split.task, split.attempt, split.num_tasks) == (pytest.approx(0.0), 0.25, 2)


def test_missing_attempts_and_tasks_of_one():
    # Task 1 has variance 1/3 over 3 attempts; the last task has a single attempt and is left out.
    split = stats.variance_split([[0, 1, NAN], [1, 1, 0], [1, NAN, NAN]])
    assert (split.attempt, split.num_tasks) == (pytest.approx((1 / 2 + 1 / 3) / 2), 2)
    assert split.task == pytest.approx((1 / 6) ** 2 / 2 - (1 / 4 + 1 / 9) / 2)


def test_the_split_is_unbiased_with_missing_attempts():
    # Chances uniform on [0, 1]: 1/12 between tasks, 1/6 within. A third of the attempts is missing.
    rng = np.random.default_rng(0)
    scores = (rng.random((20_000, 6)) < rng.random((20_000, 1))).astype(float)
    scores[rng.random(scores.shape) < 1 / 3] = NAN
    split = stats.variance_split(scores)
    assert split.task == pytest.approx(1 / 12, abs=0.003)
    assert split.attempt == pytest.approx(1 / 6, abs=0.003)
    # Negative control: the variance of task means holds the noise of the attempts too.
    assert np.nanvar(stats.mean_score(scores), ddof=1) > 1 / 12 + 0.03


def test_the_paired_variance_is_unbiased_with_unequal_attempts():
    rng = np.random.default_rng(1)
    chance = rng.random((20_000, 2)) * [1.0, 0.5]
    before = (rng.random((20_000, 3)) < chance[:, :1]).astype(float)
    after = (rng.random((20_000, 8)) < chance[:, :1] / 2 + chance[:, 1:]).astype(float)
    found = stats.paired_variance(before, after)
    # x_B - x_A = u/2 - x/2 with u = 2 * the second chance: Var = 1/4 * 1/12 * 2 = 1/24
    assert found.task == pytest.approx(1 / 24, abs=0.003)
    assert found.before == pytest.approx(1 / 6, abs=0.003)
    # p = (x + u) / 2: E[p (1 - p)] = 1/2 - (1/4 + 1/24) = 5/24
    assert found.after == pytest.approx(5 / 24, abs=0.003)
    assert found.num_tasks == 20_000


def test_the_split_predicts_the_error_of_the_mean():
    rng = np.random.default_rng(2)
    scores = (rng.random((400, 8)) < rng.random((400, 1))).astype(float)
    error = stats.variance_split(scores).error(tasks=400, attempts=8)
    assert error == pytest.approx(stats.standard_error(stats.mean_score(scores)), rel=1e-9)


VARIANCES = st.builds(PairedVariance, task=st.floats(0.001, 0.5), before=st.floats(0, 0.25), after=st.floats(0, 0.25))


@settings(deadline=None, max_examples=50)
@given(VARIANCES, st.floats(0.02, 0.5), st.integers(1, 16))
def test_as_many_tasks_as_planned_are_enough_and_no_more_than_needed(variance, delta, k):
    tasks = stats.tasks_needed(variance, delta=delta, attempts_before=k, attempts_after=k)
    seen = stats.minimum_detectable(variance, tasks=tasks, attempts_before=k, attempts_after=k)
    assert seen <= delta * (1 + 1e-9)
    if tasks > 2:
        before = stats.minimum_detectable(variance, tasks=tasks - 1, attempts_before=k, attempts_after=k)
        assert before > delta * (1 - 1e-9)
    attempts = stats.attempts_needed(variance, delta=delta, tasks=tasks)
    assert attempts <= k


def test_no_number_of_attempts_makes_up_for_too_few_tasks():
    variance = PairedVariance(task=1 / 9, before=1 / 6, after=1 / 6)
    # 969 tasks are the least with any number of attempts, row 13 of the worked numbers.
    with pytest.raises(ValueError, match=r"900 tasks cannot show a difference of 0.03 .* at least 970 tasks"):
        stats.attempts_needed(variance, delta=0.03, tasks=900)
    assert stats.attempts_needed(variance, delta=0.03, tasks=970) > 100


def test_a_negative_estimate_of_variance_is_taken_as_none():
    variance = PairedVariance(task=-0.01, before=0.2, after=0.2)
    assert stats.minimum_detectable(variance, tasks=100, attempts_before=4, attempts_after=4) == pytest.approx(
        2.801585 * math.sqrt(0.1 / 100), rel=1e-6
    )
    assert VarianceSplit(task=-0.01, attempt=0.2, num_tasks=5).error(tasks=10, attempts=2) == pytest.approx(0.1)


def test_the_power_of_the_t_test_meets_the_plan_and_is_honest_for_few_tasks():
    variance = PairedVariance(task=1 / 9, before=1 / 6, after=1 / 6)
    power = stats.paired_power(variance, delta=0.03, tasks=1696, attempts_before=4, attempts_after=4)
    assert power == pytest.approx(0.8, abs=0.001)
    tasks = stats.tasks_needed(variance, delta=0.6)
    assert tasks == 10
    assert stats.paired_power(variance, delta=0.6, tasks=tasks) < 0.75
    assert stats.paired_power(variance, delta=1e-9, tasks=50) == pytest.approx(0.05, abs=1e-6)


def test_tasks_for_mcnemar():
    tasks = stats.mcnemar_tasks_needed(p10=0.2, p01=0.1)
    assert stats.mcnemar_power(tasks, p10=0.2, p01=0.1) >= 0.8 > stats.mcnemar_power(tasks - 1, p10=0.2, p01=0.1)
    assert 245 < tasks < 270
    assert stats.mcnemar_tasks_needed(p10=0.2, p01=0.1, mid_p=True) < tasks


@pytest.mark.parametrize("mid_p", [False, True])
@pytest.mark.parametrize("tasks", [10, 100, 1000])
def test_the_exact_test_keeps_its_level(tasks, mid_p):
    level = stats.mcnemar_power(tasks, p10=0.15, p01=0.15, mid_p=mid_p)
    assert level <= (0.051 if mid_p else 0.05)
    assert level > 0.02 or tasks < 100
