"""The worked numbers of the field's formulas, one test each, to six decimals, with the wrong answers beside them."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from agentrl.evals import stats


def close(number):
    return pytest.approx(number, abs=1e-6)


def attempts(n, c):
    """One task with n attempts of which c passed."""
    return [[1.0] * c + [0.0] * (n - c)]


def test_1_pass_at_k():
    assert stats.pass_at_k(attempts(10, 3), 1)[0] == close(0.3)
    # 1 - C(7, 5) / C(10, 5) = 1 - 21 / 252
    assert stats.pass_at_k(attempts(10, 3), 5)[0] == close(0.916667)
    # Negative control: the plug-in 1 - 0.7^5 is biased.
    plug_in = 1 - 0.7**5
    assert plug_in == close(0.831930)


def test_2_pass_hat_k():
    # C(6, 3) / C(8, 3) = 20 / 56; the plug-in is 0.75^3 = 0.421875
    assert stats.pass_hat_k(attempts(8, 6), 3)[0] == close(0.357143)


def test_3_a_suite_with_its_error():
    scores = [row for c in (0, 1, 4, 8) for row in attempts(8, c)]
    assert stats.pass_at_k(scores, 4) == pytest.approx([0, 0.5, 0.985714, 1], abs=1e-6)
    assert stats.pass_at_k(scores, 4).mean() == close(0.621429)
    assert stats.standard_error(stats.pass_at_k(scores, 4)) == close(0.237511)
    # 0, 0, C(4, 4) / C(8, 4) = 1 / 70, 1
    assert stats.pass_hat_k(scores, 4).mean() == close(0.253571)


def test_4_g_pass_at_k():
    # Hypergeometric: at least 2 of 4 from 8 of 16
    assert stats.g_pass_at_k(attempts(16, 8), 4, tau=0.5)[0] == close(0.715385)


def test_5_best_and_worst_at_k():
    # Pairs of .1 .4 .5 .9: maxima .4 .5 .9 .5 .9 .9 sum to 4.1, minima .1 .1 .1 .4 .4 .5 to 1.6
    assert stats.best_at_k([[0.1, 0.4, 0.5, 0.9]], 2)[0] == close(4.1 / 6)
    assert stats.worst_at_k([[0.1, 0.4, 0.5, 0.9]], 2)[0] == close(1.6 / 6)


def test_6_best_of_k_by_a_proxy():
    # Pairs by the better proxy: 1, 1, 0, 1, 0, 0
    assert stats.best_of_k([[0.2, 0.5, 0.7, 0.9]], [[0, 1, 1, 0]], 2)[0] == close(0.5)


def test_7_majority_at_k():
    assert stats.maj_at_k([[7, 7, 7, 5, 5, 9]], [7], 3)[0] == close(0.6)


def test_8_the_error_of_a_mean():
    values = [1] * 7 + [0] * 3
    assert stats.standard_error(values) == close(0.152753)
    assert math.sqrt(0.7 * 0.3 / 10) == close(0.144914)  # with N in place of N - 1: too small


def test_9_clustered_errors():
    clusters = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    errors = stats.cluster_errors([1, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0], clusters)
    assert errors == pytest.approx((0.148647, 0.186621, 0.181621, 0.209718, 1.576190), abs=1e-6)
    # The interval uses CR1, with t of 4 - 1 degrees of freedom: 3.182446 * 0.209718 is above both ends.
    interval = stats.interval_of([1, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0], clusters=clusters, bounds=(-1, 2))
    assert interval.high - interval.mean == close(3.182446305 * 0.2097179)


A, B = [1, 1, 0, 1, 1, 1, 1, 0, 1, 1], [1, 0, 0, 1, 0, 1, 0, 0, 1, 1]


def test_10_the_paired_error():
    found = stats.compare(B, A, clusters=range(10))
    assert found.difference.mean == close(0.3)
    assert found.standard_error == close(0.152753)
    assert found.test == "paired t"
    assert found.p_value == close(0.081126)
    assert math.hypot(stats.standard_error(A), stats.standard_error(B)) == close(0.213437)


@pytest.mark.parametrize(("b", "c", "exact", "mid"), [(3, 0, 0.25, 0.125), (12, 3, 0.035156, 0.021271)])
def test_11_mcnemar(b, c, exact, mid):
    assert stats.mcnemar_exact(b, c) == close(exact)
    assert stats.mcnemar_mid_p(b, c) == close(mid)
    assert (stats.mcnemar_exact(c, b), stats.mcnemar_mid_p(c, b)) == close((exact, mid))


@pytest.mark.parametrize(("k", "error"), [(1, 0.05), (4, 0.035355), (16, 0.030619), (math.inf, 0.028868)])
def test_12_the_error_with_resampled_attempts(k, error):
    # Chances uniform on [0, 1]: variance between tasks 1/12, within 1/6
    assert stats.VarianceSplit(task=1 / 12, attempt=1 / 6, num_tasks=0).error(tasks=100, attempts=k) == close(error)


UNIFORM = stats.PairedVariance(task=1 / 9, before=1 / 6, after=1 / 6)


@pytest.mark.parametrize(("k", "tasks"), [(1, 3876), (4, 1696), (10, 1260), (math.inf, 969)])
def test_13_tasks_needed(k, tasks):
    assert stats.tasks_needed(UNIFORM, delta=0.03, attempts_before=k, attempts_after=k) == tasks
    if k < math.inf:
        assert stats.attempts_needed(UNIFORM, delta=0.03, tasks=tasks) == k


@pytest.mark.parametrize(("k", "smallest"), [(1, 0.241122), (8, 0.141370)])
def test_14_the_smallest_detectable_difference(k, smallest):
    found = stats.minimum_detectable(UNIFORM, tasks=60, attempts_before=k, attempts_after=k)
    assert found == close(smallest)


def test_15_the_power_of_mcnemar():
    assert stats.mcnemar_power(200, p10=0.2, p01=0.1) == close(0.703404)


def test_16_wilson():
    assert stats.wilson(0.9, 10) == close((0.595850, 0.982124))
    interval = stats.interval_of([1] * 9 + [0])
    assert (interval.low, interval.high, interval.method) == (close(0.595850), close(0.982124), "wilson")


def test_17_clopper_pearson_beta_and_jeffreys():
    assert stats.clopper_pearson(9, 10) == close((0.554984, 0.997471))
    assert stats.beta_interval(9, 10) == close((0.587220, 0.977169))
    assert stats.jeffreys(9, 10) == close((0.618685, 0.988988))
    assert stats.beta_interval(10, 10) == close((0.715086, 0.997701))


def test_18_zero_events():
    assert stats.zero_events_upper(30) == close(0.095034)
    assert stats.clopper_pearson(0, 30)[1] == close(0.115703)
    assert (stats.trials_for_zero_events(0.05), stats.trials_for_zero_events(0.01)) == (59, 299)
    # 58 would not do.
    assert stats.zero_events_upper(58) > 0.05 > stats.zero_events_upper(59)


def test_19_better_of_two_independent():
    assert stats.probability_better(9, 10, 7, 10) == close(0.844612)
    assert stats.probability_better(7, 10, 9, 10) == close(1 - 0.844612)


def test_20_better_of_a_pair():
    assert stats.probability_better_paired(12, 3) == close(0.989365)
    assert stats.probability_better_paired(3, 0) == close(0.9375)


@pytest.mark.parametrize(("b", "c", "exact"), [(13, 10, 0.7294), (71, 59, 0.8528), (306, 306, 0.5)])
def test_20_where_sampling_gave_anything_from_0_to_1(b, c, exact):
    assert stats.probability_better_paired(b, c) == pytest.approx(exact, abs=5e-5)


def test_21_aggregates_over_runs():
    scores = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1]
    assert stats.iqm(scores) == close(0.35)
    assert stats.optimality_gap(scores) == close(0.6125)
    # 1 against 0 2 2: 1 win; 2: 1 and two halves; 3: 3. 6 of 9
    assert stats.probability_of_improvement([1, 2, 3], [0, 2, 2]) == close(0.666667)


def test_22_several_tests():
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert stats.holm(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.benjamini_hochberg(p_values) == pytest.approx([0.02, 0.04, 0.04, 0.02])


def test_23_the_anytime_valid_e_value():
    # 2^15 * B(13, 4) = 32768 / (16 * C(15, 3)) = 32768 / 7280
    assert stats.mixture_e_value(12, 3) == close(32768 / 7280)
    assert stats.mixture_e_value(12, 3) == close(4.501099)
    assert stats.mixture_e_value(15, 3) == close(16.908153)


def test_24_the_least_likely_tokens():
    logprobs = [-0.1, -0.2, -3, -5, -0.3, -0.4, -0.2, -0.6, -0.5, -0.1]
    assert stats.min_k_logprob(logprobs, 20) == close(-4.0)
    assert stats.min_k_logprob(logprobs, 1) == close(-5.0)  # at least one token


def coverage(interval, n, p):
    chances = scipy_stats.binom.pmf(range(n + 1), n, p)
    ends = [interval(c) for c in range(n + 1)]
    return sum(chance for chance, (low, high) in zip(chances, ends, strict=True) if low <= p <= high)


def test_exact_coverage_of_the_intervals_of_a_proportion():
    def wald(n):
        return lambda c: (c / n - 1.959964 * math.sqrt(c / n * (1 - c / n) / n), 1.0)

    def wald_both(n):
        return lambda c: (wald(n)(c)[0], 2 * c / n - wald(n)(c)[0])

    assert coverage(wald_both(30), 30, 0.95) == pytest.approx(0.782, abs=5e-4)  # negative control
    assert coverage(lambda c: stats.wilson(c / 30, 30), 30, 0.95) == pytest.approx(0.939, abs=5e-4)
    assert coverage(lambda c: stats.beta_interval(c, 30), 30, 0.95) == pytest.approx(0.939, abs=5e-4)
    assert coverage(lambda c: stats.clopper_pearson(c, 30), 30, 0.95) == pytest.approx(0.984, abs=5e-4)
    assert coverage(lambda c: stats.wilson(c / 20, 20), 20, 0.9) == pytest.approx(0.957, abs=5e-4)
    assert coverage(lambda c: stats.wilson(c / 60, 60), 60, 0.9) == pytest.approx(0.952, abs=5e-4)


def test_the_power_of_mcnemar_against_a_plain_sum():
    def plain(n, p10, p01, p_value):
        total = 0.0
        for b, c in itertools.product(range(n + 1), repeat=2):
            if b + c <= n and p_value(b, c) <= 0.05:
                total += scipy_stats.multinomial.pmf([b, c, n - b - c], n, [p10, p01, 1 - p10 - p01])
        return total

    assert stats.mcnemar_power(20, p10=0.5, p01=0.1) == close(plain(20, 0.5, 0.1, stats.mcnemar_exact))
    assert stats.mcnemar_power(20, p10=0.5, p01=0.1, mid_p=True) == close(plain(20, 0.5, 0.1, stats.mcnemar_mid_p))


def test_better_of_two_independent_against_an_integral():
    grid = (np.arange(20_000) + 0.5) / 20_000
    a, b = scipy_stats.beta(4, 9), scipy_stats.beta(6, 3)
    assert stats.probability_better(3, 11, 5, 7) == pytest.approx((a.pdf(grid) * b.cdf(grid)).mean(), abs=1e-6)
