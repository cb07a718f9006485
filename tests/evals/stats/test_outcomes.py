"""The two numbers of a training run: worked numbers, exact edge cases, and coverage by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from agentrl.evals.stats import paired_difference, pass_at_1, standard_error, wilson

T9 = 2.2621571627  # 97.5 % quantile of Student's t with 9 degrees of freedom
T7 = 2.3646242516  # with 7


def one_each(values):
    return {f"task{i}": [value] for i, value in enumerate(values)}


CLUSTERS = {"a": [1, 1, 1], "b": [0, 0, 0], "c": [1, 0, 1], "d": [1, 1, 0]}


def cr1(clusters):
    """The cluster-robust error from single attempts: sqrt(sum of squared cluster sums) / n * sqrt(C / (C - 1))."""
    attempts = [x for cluster in clusters.values() for x in cluster]
    mean = sum(attempts) / len(attempts)
    squares = sum(sum(x - mean for x in cluster) ** 2 for cluster in clusters.values())
    return math.sqrt(squares) / len(attempts) * math.sqrt(len(clusters) / (len(clusters) - 1))


def test_the_standard_error_is_clustered_by_task():
    # CR1: 0.209718, against 0.148647 for the twelve attempts taken as independent.
    assert standard_error([1, 0, 2 / 3, 2 / 3]) == pytest.approx(0.209718, abs=1e-6)
    assert cr1(CLUSTERS) == pytest.approx(0.209718, abs=1e-6)
    naive = np.std([x for cluster in CLUSTERS.values() for x in cluster], ddof=1) / math.sqrt(12)
    assert naive == pytest.approx(0.148647, abs=1e-6)


def test_the_interval_is_clustered_by_task():
    twice = CLUSTERS | {f"{task}2": attempts for task, attempts in CLUSTERS.items()}
    interval = pass_at_1(twice)
    assert interval.mean == pytest.approx(7 / 12)
    assert (interval.mean - interval.low) / T7 == pytest.approx(cr1(twice), abs=1e-6)
    assert (interval.high - interval.mean) / T7 == pytest.approx(cr1(twice), abs=1e-6)
    assert (interval.method, interval.num_tasks, interval.num_attempts) == ("t over tasks", 8, 24)


def test_near_the_ends_the_interval_is_wilsons_for_the_effective_number_of_tasks():
    # 0.583 +- 3.182 * 0.2097 would reach past both ends. p (1 - p) / 0.209718^2 = 5.526316 trials, with t = 3.182446:
    # (7/12 + t^2/2n +- t sqrt(p (1 - p)/n + t^2/4n^2)) / (1 + t^2/n) = (1.499668 +- 1.133629) / 2.832671
    interval = pass_at_1(CLUSTERS)
    assert interval.method == "wilson, effective tasks"
    assert (interval.low, interval.high) == pytest.approx((0.129221, 0.929616), abs=1e-6)


def test_every_task_counts_alike_whatever_its_attempts():
    # Means 1 and 0 and 0.5; all attempts together would be 5/7.
    assert pass_at_1({"a": [1, 1, 1, 1], "b": [0], "c": [1, 0]}).mean == 0.5


def test_unscored_attempts_are_counted_and_are_no_zeros():
    with_failures = pass_at_1({"a": [True, None], "b": [False, True], "lost": [None, None]})
    # Means 1 and 0.5; as zeros the three would have made it 0.5, 0.5, 0.
    assert with_failures.mean == 0.75
    assert (with_failures.num_tasks, with_failures.num_attempts, with_failures.num_unscored) == (2, 3, 3)


@pytest.mark.parametrize("attempts", [1, 4])
def test_all_tasks_passed_gives_wilson_on_the_tasks(attempts):
    interval = pass_at_1({f"task{i}": [True] * attempts for i in range(10)})
    # p = 1, n = 10 tasks: low = n / (n + z^2) = 10 / 13.841459, whatever the attempts
    assert (interval.mean, interval.high) == (1.0, 1.0)
    assert interval.low == pytest.approx(10 / 13.841459, abs=1e-6)
    assert interval.method == "wilson over tasks"


def test_no_task_passed_gives_wilson_on_the_tasks():
    interval = pass_at_1(one_each([0.0] * 10))
    # high = z^2 / (n + z^2) = 3.841459 / 13.841459
    assert (interval.mean, interval.low) == (0.0, 0.0)
    assert interval.high == pytest.approx(3.841459 / 13.841459, abs=1e-6)


def test_equal_tasks_between_zero_and_one_still_have_a_width():
    interval = pass_at_1({f"task{i}": [1, 0, 0] for i in range(10)})
    # A share of up to 0.277533 of the tasks may be anywhere: 1/3 - 0.277533/3 and 1/3 + 0.277533*2/3
    assert (interval.low, interval.high) == pytest.approx((0.240822, 0.518355), abs=1e-6)


def test_wilson_on_exact_numbers():
    assert wilson(0.9, 10) == pytest.approx((0.595850, 0.982124), abs=1e-6)


@settings(deadline=None)
@given(st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_scipy(c_n):
    c, n = c_n
    expected = scipy_stats.binomtest(c, n).proportion_ci(method="wilson")
    assert wilson(c / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_a_paired_difference_uses_the_pairs():
    after, before = [1, 1, 0, 1, 1, 1, 1, 0, 1, 1], [1, 0, 0, 1, 0, 1, 0, 0, 1, 1]
    interval = paired_difference(one_each(before), one_each(after))
    assert interval.mean == pytest.approx(0.3)
    # Paired error 0.152753, against 0.213437 for two independent suites.
    assert (interval.high - interval.mean) / T9 == pytest.approx(0.152753, abs=1e-6)
    assert (interval.mean - interval.low) / T9 == pytest.approx(0.152753, abs=1e-6)
    t = interval.mean / standard_error([a - b for a, b in zip(after, before, strict=True)])
    assert t == pytest.approx(1.963961, abs=1e-6)
    assert 2 * scipy_stats.t.sf(t, 9) == pytest.approx(0.081126, abs=1e-6)
    assert (interval.method, interval.num_tasks, interval.num_attempts) == ("paired t over tasks", 10, 20)


def test_a_comparison_with_itself_is_zero_and_not_certain():
    outcomes = one_each([1, 0, 1, 1, 0, 1, 0, 1, 1, 1])
    interval = paired_difference(outcomes, outcomes)
    assert interval.mean == 0.0
    assert (interval.low, interval.high) == pytest.approx((-0.277533, 0.277533), abs=1e-6)
    assert interval.method == "wilson over tasks"


def test_everything_mended_is_not_certain_either():
    interval = paired_difference(one_each([0] * 10), one_each([1] * 10))
    # 1 - 2 * 0.277533: the unseen share may have gone from 1 to 0
    assert (interval.mean, interval.high) == (1.0, 1.0)
    assert interval.low == pytest.approx(0.444934, abs=1e-6)


def test_rounding_is_no_spread():
    # 2/3 - 1/3 and 1 - 2/3 differ in their last bit.
    before = {"a": [1, 0, 0], "b": [1, 1, 0]}
    after = {"a": [1, 1, 0], "b": [1, 1, 1]}
    assert paired_difference(before, after).method == "wilson over tasks"


def test_order_does_not_matter_and_direction_does():
    before, after = {"a": [0], "b": [1], "c": [0]}, {"c": [1], "a": [1], "b": [1]}
    forward, backward = paired_difference(before, after), paired_difference(after, before)
    assert forward.mean == pytest.approx(2 / 3)
    assert (backward.mean, backward.low, backward.high) == pytest.approx((-forward.mean, -forward.high, -forward.low))


def test_a_pair_with_an_unscored_side_is_left_out_and_counted():
    interval = paired_difference({"a": [0], "b": [0], "lost": [None]}, {"a": [1], "b": [0, None], "lost": [1]})
    assert (interval.mean, interval.num_tasks, interval.num_attempts, interval.num_unscored) == (0.5, 2, 4, 2)


def test_different_tasks_are_refused_by_name():
    before, after = one_each([1] * 6), {"task0": [1], "new": [1]}
    with pytest.raises(ValueError, match="only before: task1, task2, task3 and 2 more; only after: new"):
        paired_difference(before, after)


@pytest.mark.parametrize("outcomes", [{}, {"a": [1, 0, 1]}, {"a": [1], "b": [None]}])
def test_one_task_has_no_interval(outcomes):
    with pytest.raises(ValueError, match="at least 2"):
        pass_at_1(outcomes)


@pytest.mark.parametrize("outcome", [1.5, -0.1, math.nan, math.inf])
def test_an_outcome_outside_zero_and_one_is_refused_by_name(outcome):
    with pytest.raises(ValueError, match="task 'b'"):
        pass_at_1({"a": [1], "b": [outcome]})


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.lists(st.one_of(st.booleans(), st.floats(0, 1)), min_size=1, max_size=4),
        min_size=2,
        max_size=8,
    )
)
def test_the_mean_lies_inside_and_the_ends_inside_zero_and_one(outcomes):
    interval = pass_at_1(outcomes)
    assert 0.0 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1.0
    assert interval.high > interval.low


def test_the_interval_covers_as_often_as_it_says():
    # 20 tasks of 5 attempts whose chances differ widely by task; the true mean is 0.5.
    generator = np.random.default_rng(0)
    repeats = 800
    hits = naive_hits = 0
    for _ in range(repeats):
        chances = generator.beta(0.5, 0.5, size=20)
        passed = generator.random((20, 5)) < chances[:, None]
        interval = pass_at_1({str(i): row.tolist() for i, row in enumerate(passed)})
        hits += interval.low <= 0.5 <= interval.high
        naive = 1.96 * passed.std(ddof=1) / math.sqrt(passed.size)
        naive_hits += abs(passed.mean() - 0.5) <= naive
    assert 0.93 <= hits / repeats <= 0.97
    # Negative control: a hundred attempts taken as independent.
    assert naive_hits / repeats < 0.85


PROGRAMS = {f"task{place}": f"program{place % 10}" for place in range(20)}


def twins(low, high):
    """Twenty tasks, two of each of ten programs: both are solved at the rate of their program."""
    return {task: [low if int(program[7:]) < 5 else high] for task, program in PROGRAMS.items()}


def test_tasks_of_one_program_count_as_one():
    """Ten programs, five at 0.4 and five at 0.6: sd sqrt(10 * 0.01 / 9), over sqrt(10) that is 1/30; t with 9 degrees
    of freedom. Twenty tasks taken as independent would have sqrt(20 * 0.01 / 19) / sqrt(20) = 0.0229."""
    found = pass_at_1(twins(0.4, 0.6), PROGRAMS)
    assert (found.low, found.high) == pytest.approx((0.5 - T9 / 30, 0.5 + T9 / 30))
    assert (found.method, found.num_tasks, found.num_clusters) == ("CR1 t over clusters", 20, 10)
    apart = pass_at_1(twins(0.4, 0.6))
    assert apart.high - apart.mean < 0.7 * (found.high - found.mean)


def test_a_difference_is_clustered_as_its_sides_are():
    """Each task of the second five programs gains 0.2: mean 0.1, and half of the spread of 0.4 and 0.6 doubled."""
    found = paired_difference(twins(0.4, 0.4), twins(0.4, 0.6), PROGRAMS)
    assert (found.mean, found.high) == pytest.approx((0.1, 0.1 + T9 / 30))
    assert (found.method, found.num_clusters) == ("paired t over clusters", 10)


def test_a_task_without_a_program_is_a_cluster_of_its_own():
    found = pass_at_1({**twins(0.4, 0.6), "alone": [0.5]}, PROGRAMS)
    assert (found.num_tasks, found.num_clusters) == (21, 11)


def test_one_program_says_nothing_of_others():
    alone = dict.fromkeys(PROGRAMS, "program")
    found = pass_at_1(twins(0.4, 0.6), alone)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.0, 1.0))
    assert (found.method, found.num_clusters) == ("one cluster, which says nothing of others", 1)
    difference = paired_difference(twins(0.4, 0.4), twins(0.4, 0.6), alone)
    assert (difference.low, difference.high) == (-1.0, 1.0)
    with pytest.raises(ValueError, match="2"):
        pass_at_1({"a": [1]}, {"a": "program"})


def test_no_clusters_leave_the_interval_as_it_was():
    assert pass_at_1(twins(0, 1), {}) == pass_at_1(twins(0, 1))
    assert pass_at_1(twins(0, 1)).method == "wilson"
