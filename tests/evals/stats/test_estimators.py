"""Estimators against the mean over all subsets, missing attempts, checkpoints, and where they are undefined."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.evals import stats

NAN = math.nan

outcomes = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6)
rewards = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=6)


def mean_over_subsets(row, k, value):
    """What an estimate from all C(n, k) choices of attempts is."""
    chosen = list(itertools.combinations(range(len(row)), k))
    return sum(value(list(subset)) for subset in chosen) / len(chosen)


def of(row, value):
    return lambda subset: value([row[i] for i in subset])


@settings(deadline=None, max_examples=40)
@given(outcomes, st.data())
def test_pass_metrics_are_the_mean_over_subsets(row, data):
    k = data.draw(st.integers(1, len(row)))
    assert stats.pass_at_k([row], k)[0] == pytest.approx(mean_over_subsets(row, k, of(row, max)))
    assert stats.pass_hat_k([row], k)[0] == pytest.approx(mean_over_subsets(row, k, of(row, min)))
    half = mean_over_subsets(row, k, of(row, lambda drawn: sum(drawn) >= k / 2))
    assert stats.g_pass_at_k([row], k, tau=0.5)[0] == pytest.approx(half)


@settings(deadline=None, max_examples=40)
@given(rewards, st.data())
def test_best_and_worst_are_the_mean_over_subsets(row, data):
    k = data.draw(st.integers(1, len(row)))
    assert stats.best_at_k([row], k)[0] == pytest.approx(mean_over_subsets(row, k, of(row, max)))
    assert stats.worst_at_k([row], k)[0] == pytest.approx(mean_over_subsets(row, k, of(row, min)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=6), st.data())
def test_best_by_a_proxy_is_the_mean_over_subsets_with_ties_split(attempts, data):
    k = data.draw(st.integers(1, len(attempts)))
    proxy, gold = zip(*attempts, strict=True)

    def pick(subset):
        best = max(proxy[i] for i in subset)
        tied = [gold[i] for i in subset if proxy[i] == best]
        return sum(tied) / len(tied)

    assert stats.best_of_k([proxy], [gold], k)[0] == pytest.approx(mean_over_subsets(gold, k, pick))


@pytest.mark.parametrize("k", [1, 3, 8])
def test_g_pass_lies_between_pass_at_k_and_pass_hat_k(k):
    scores = [[1.0] * c + [0.0] * (8 - c) for c in range(9)]
    lowest = stats.g_pass_at_k(scores, k, tau=1e-6)
    assert lowest == pytest.approx(stats.pass_at_k(scores, k))
    assert stats.g_pass_at_k(scores, k, tau=1.0) == pytest.approx(stats.pass_hat_k(scores, k))


def test_the_share_of_g_pass_is_not_rounded_up_by_a_float():
    # 0.28 * 25 is 7.000000000000001 for the machine; 7 passes of 25 are 28 %.
    assert math.ceil(0.28 * 25) == 8
    assert stats.g_pass_at_k([[1.0] * 7 + [0.0] * 18], 25, tau=0.28)[0] == pytest.approx(1.0)
    assert stats.g_pass_at_k([[1.0] * 6 + [0.0] * 19], 25, tau=0.28)[0] == pytest.approx(0.0)


ESTIMATORS = {
    "mean": stats.mean_score,
    "pass@k": lambda x: stats.pass_at_k(x, 2),
    "pass^k": lambda x: stats.pass_hat_k(x, 2),
    "G-Pass@k": lambda x: stats.g_pass_at_k(x, 2, tau=0.5),
    "best@k": lambda x: stats.best_at_k(x, 2),
    "worst@k": lambda x: stats.worst_at_k(x, 2),
    "best of k": lambda x: stats.best_of_k(x, x, 2),
    "maj@k": lambda x: stats.maj_at_k(x, np.ones(len(x)), 2),
}
every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS.keys())


@every_estimator
def test_a_missing_attempt_is_as_if_it_had_never_been(estimate):
    whole = estimate([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    holes = estimate([[1.0, NAN, 0.0, 1.0], [NAN, 0.0, 0.0, 1.0]])
    assert holes == pytest.approx(whole)
    # Negative control: a zero in its place is another number.
    assert estimate([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]) != pytest.approx(whole)


@every_estimator
def test_the_order_of_attempts_does_not_matter(estimate):
    rng = np.random.default_rng(0)
    scores = (rng.random((5, 6)) < 0.5).astype(float)
    assert estimate(rng.permuted(scores, axis=1)) == pytest.approx(estimate(scores))


@every_estimator
def test_checkpoints_are_estimated_apart(estimate):
    scores = np.random.default_rng(1).integers(0, 2, size=(4, 5, 3, 2)).astype(float)
    scores[0, :2, 0, 0] = NAN
    together = estimate(scores)
    assert together.shape == (4, 3, 2)
    for i, j in itertools.product(range(3), range(2)):
        np.testing.assert_allclose(together[:, i, j], estimate(scores[:, :, i, j]))


@every_estimator
def test_a_task_without_attempts_is_undefined(estimate):
    values = estimate([[1.0, 0.0], [NAN, NAN]])
    assert not math.isnan(values[0])
    assert math.isnan(values[1])


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if "k" in name])
def test_too_few_attempts_are_undefined_and_not_a_zero_or_a_one(name):
    values = ESTIMATORS[name]([[1.0, NAN], [1.0, 1.0], [0.0, NAN]])
    assert np.isnan(values).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [bool, int, np.float32])
def test_other_number_types_will_do(dtype):
    assert stats.pass_at_k(np.array([[1, 0, 0, 0]], dtype=dtype), 2)[0] == 0.5


def test_a_threshold_says_from_where_partial_reward_is_a_pass():
    scores = [[0.5, 1.0, 0.2, NAN]]
    assert stats.counts(scores, 0.5) == ([3], [2])
    assert stats.counts(scores, 1.0) == ([3], [1])
    assert stats.pass_at_k(scores, 1, threshold=0.2)[0] == 1.0
    # Rewards on any scale have passes, when told.
    assert stats.pass_at_k([[-3.0, 12.0]], 1, threshold=10.0)[0] == 0.5


def test_large_numbers_of_attempts_keep_their_digits():
    # C(9999, 500) / C(10000, 500) = 1 - 500/10000
    assert stats.pass_at_k_of(10_000, 1, 500) == pytest.approx(0.05, rel=1e-12)
    assert stats.pass_hat_k_of(10_000, 9_999, 500) == pytest.approx(0.95, rel=1e-10)
    exact = sum(math.comb(700, j) * math.comb(300, 100 - j) for j in range(75, 101)) / math.comb(1000, 100)
    assert stats.g_pass_at_k_of(1000, 700, 100, 0.75) == pytest.approx(exact, rel=1e-9)
    row = np.arange(2000.0)[None]
    # k = n - 1 draws miss the best with chance 1/n: 1999 - 1/2000
    assert stats.best_at_k(row, 1999)[0] == pytest.approx(1999 - 1 / 2000, rel=1e-12)


def test_what_missing_attempts_could_hide():
    # 4 right, 2 wrong, 4 missing of 10: between 4/10 and 8/10
    assert stats.missing_bounds([[1.0]] * 4 + [[0.0]] * 2 + [[NAN]] * 4) == pytest.approx((0.4, 0.8))
    assert stats.missing_bounds([[1.0, NAN], [0.0, 0.0]], -1.0, 2.0) == pytest.approx((0.0, 0.75))
