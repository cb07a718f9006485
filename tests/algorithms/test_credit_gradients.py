"""What the credit of a group is an estimate of: exact expectations over every group that a small policy can sample."""

import itertools
import statistics
from functools import partial

import numpy as np
import pytest

from agentrl.algorithms.advantages import (
    group_mean,
    leave_one_out,
    max_rl,
    opo,
    pass_at_k,
    remax,
    std_normalized,
    top_minus_second,
)

# A softmax policy over four answers.

LOGITS = np.array([0.3, -0.4, 0.8, -1.1])
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum()
SCORES = np.eye(4) - PROBS  # row a: gradient of log pi(a) by the logits
ANSWER_REWARDS = (1.0, 0.25, 0.0, 0.5)
BINARY_REWARDS = (1.0, 0.0, 0.0, 1.0)


def expected_update(rule, rewards, size):
    """Expectation of the mean over the group of A_i grad log pi(y_i), over all 4^size groups."""
    total = np.zeros(4)
    for group in itertools.product(range(4), repeat=size):
        credit = rule([rewards[a] for a in group])
        total += np.prod(PROBS[list(group)]) * sum(c * SCORES[a] for c, a in zip(credit, group, strict=True)) / size
    return total


def best_of(k, rewards):
    """Gradient of the expected best of k by central differences of the exact expectation."""

    def value(logits):
        probs = np.exp(logits) / np.exp(logits).sum()
        groups = itertools.product(range(4), repeat=k)
        return sum(np.prod(probs[list(group)]) * max(rewards[a] for a in group) for group in groups)

    return np.array([(value(LOGITS + step) - value(LOGITS - step)) / 2e-5 for step in 1e-5 * np.eye(4)])


@pytest.mark.parametrize(
    ("rule", "size", "k", "factor"),
    [
        (group_mean, 3, 1, 2 / 3),
        (leave_one_out, 3, 1, 1.0),
        (partial(remax, greedy=0.25), 2, 1, 1.0),
        (partial(pass_at_k, k=1), 3, 1, 1.0),
        (partial(pass_at_k, k=2), 4, 2, 1.0),
        (partial(pass_at_k, k=3), 4, 3, 1.0),
        (partial(pass_at_k, k=4), 4, 4, 1.0),
        (lambda rewards: [4 * x for x in top_minus_second(rewards)], 4, 4, 1.0),
        (max_rl, 2, 1, 1.0),  # with two attempts the series has one term, for rewards of 0 and 1 only
    ],
)
def test_the_expected_update_is_the_gradient_that_is_claimed(rule, size, k, factor):
    rewards = BINARY_REWARDS if rule is max_rl else ANSWER_REWARDS
    assert expected_update(rule, rewards, size) == pytest.approx(factor * best_of(k, rewards), abs=1e-8)


def test_a_standard_deviation_bends_the_gradient():
    # Negative control: no multiple of the gradient is the expected update of GRPO.
    update = expected_update(partial(std_normalized, ddof=1), ANSWER_REWARDS, 3)
    exact = best_of(1, ANSWER_REWARDS)
    assert np.linalg.norm(update / np.linalg.norm(update) - exact / np.linalg.norm(exact)) > 1e-2


@pytest.mark.parametrize("size", [2, 3, 5])
def test_max_rl_is_the_cut_series_of_log_p(size):
    gradient = best_of(1, BINARY_REWARDS)  # of p, the probability to solve
    failed = 1 - sum(p * r for p, r in zip(PROBS, BINARY_REWARDS, strict=True))
    series = sum(failed ** (k - 1) for k in range(1, size))
    assert expected_update(max_rl, BINARY_REWARDS, size) == pytest.approx(series * gradient, abs=1e-8)


def test_opo_is_the_baseline_of_least_variance_when_gradients_grow_with_length():
    # Answers of length l have a squared gradient of l; the best constant baseline is the l-weighted mean.
    rewards, lengths = [1.0, 0.0, 0.25], [4, 1, 2]
    baseline = rewards[0] - opo(rewards, lengths=lengths)[0]
    variance = [
        statistics.fmean(n * (r - b) ** 2 for r, n in zip(rewards, lengths, strict=True))
        for b in (baseline - 0.01, baseline, baseline + 0.01)
    ]
    assert variance[1] == min(variance)
