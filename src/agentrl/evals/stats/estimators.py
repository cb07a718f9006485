"""Unbiased estimates per task from its attempts: mean, pass@k, pass^k, G-Pass@k.

Scores are [tasks, attempts, *checkpoints] with NaN for a missing attempt; results are [tasks, *checkpoints] with NaN
for a task of fewer than k attempts. There no unbiased estimate exists: 1.0 because "some attempt passed" and 0.0
because "none did" are both wrong. Missing attempts are taken to be missing whatever their outcome would have been;
``missing_bounds`` says what that could hide.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln  # type: ignore[import-untyped]

from agentrl.evals.stats.checks import Array, as_scores, check_enough, check_k, counts


def mean_score(scores: ArrayLike) -> Array:
    """Mean over each task's scored attempts, in the unit of the scores.

    Raises:
        ValueError: see ``as_scores``.

    >>> mean_score([[1.0, 0.0], [1.0, float("nan")]]).tolist()
    [0.5, 1.0]
    """
    array = as_scores(scores)
    present = ~np.isnan(array)
    number = present.sum(axis=1)
    total = np.where(present, array, 0.0).sum(axis=1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def pass_at_k(scores: ArrayLike, k: int, *, threshold: float | None = None) -> Array:
    """Chance that at least one of k attempts passes.

        1 - C(n - c, k) / C(n, k)        for n attempts of which c passed

    Args:
        scores: [tasks, attempts, *checkpoints].
        k: attempts one may draw, 1 <= k.
        threshold: lowest score that passes; needed as soon as a score is neither 0 nor 1.

    Raises:
        ValueError: no task has k attempts, k < 1, or partial scores without a threshold.

    Source: Chen et al. 2021, arXiv 2107.03374, equation 1.

    >>> pass_at_k([[1, 0, 0, 0]], 2).tolist()
    [0.5]
    """
    attempts, passes = counts(scores, threshold)
    check_k(k)
    check_enough(attempts, k, f"pass@{k}")
    return pass_at_k_of(attempts, passes, k)


def pass_hat_k(scores: ArrayLike, k: int, *, threshold: float | None = None) -> Array:
    """pass^k, the chance that all of k attempts pass: C(c, k) / C(n, k). Arguments and errors as ``pass_at_k``.

    Source: Yao et al. 2024, "tau-bench", arXiv 2406.12045.
    """
    attempts, passes = counts(scores, threshold)
    check_k(k)
    check_enough(attempts, k, f"pass^{k}")
    return pass_hat_k_of(attempts, passes, k)


def g_pass_at_k(scores: ArrayLike, k: int, *, tau: float, threshold: float | None = None) -> Array:
    """G-Pass@k: the chance that at least ceil(tau * k) of k attempts pass; between pass@k and pass^k (tau = 1).

    Args:
        tau: share of the k attempts that must pass, 0 < tau <= 1. The others as for ``pass_at_k``, and the errors.

    Source: Liu et al. 2024, "Are Your LLMs Capable of Stable Reasoning?", arXiv 2412.13147.
    """
    attempts, passes = counts(scores, threshold)
    check_k(k)
    check_enough(attempts, k, f"G-Pass@{k}")
    return g_pass_at_k_of(attempts, passes, k, tau)


def pass_at_k_of(attempts: ArrayLike, passes: ArrayLike, k: int) -> Array:
    """``pass_at_k`` from counts of any shape; NaN where there are fewer than k attempts.

    Raises:
        ValueError: k < 1, or passes outside 0 .. attempts.

    >>> round(float(pass_at_k_of(10, 3, 5)), 6)
    0.916667
    >>> float(pass_at_k_of(2, 1, 4))
    nan
    """
    n, c = _counted(attempts, passes, k)
    return np.where(n < k, np.nan, 1.0 - _all_from(n - c, n, k))


def pass_hat_k_of(attempts: ArrayLike, passes: ArrayLike, k: int) -> Array:
    """``pass_hat_k`` from counts of any shape; NaN where there are fewer than k attempts.

    >>> round(float(pass_hat_k_of(8, 6, 3)), 6)
    0.357143
    """
    n, c = _counted(attempts, passes, k)
    return np.where(n < k, np.nan, _all_from(c, n, k))


def g_pass_at_k_of(attempts: ArrayLike, passes: ArrayLike, k: int, tau: float) -> Array:
    """``g_pass_at_k`` from counts of any shape: the upper tail of a hypergeometric distribution.

    >>> round(float(g_pass_at_k_of(16, 8, 4, 0.5)), 6)
    0.715385
    """
    n, c = _counted(attempts, passes, k)
    if not 0.0 < tau <= 1.0:
        raise ValueError(f"tau is {tau!r}; give the share of the k attempts that must pass, above 0 and up to 1")
    needed = max(1, math.ceil(tau * k - 1e-9))
    width = int(c.max()) + 1 if c.size else 1
    pairs, inverse = np.unique(n * width + c, return_inverse=True)
    tail = _hypergeometric_tail(pairs // width, pairs % width, k, needed)
    return np.asarray(np.where(n < k, np.nan, tail[inverse.reshape(n.shape)]))


def missing_bounds(scores: ArrayLike, low: float = 0.0, high: float = 1.0) -> tuple[float, float]:
    """Mean over tasks if every missing attempt had scored ``low``, and if every one had scored ``high``.

    Every task counts alike, also one with all attempts missing. scores: [tasks, attempts].

    >>> missing_bounds([[1.0], [0.0], [float("nan")], [float("nan")]])
    (0.25, 0.75)
    """
    array = as_scores(scores)
    return tuple(float(np.nan_to_num(array, nan=end).mean()) for end in (low, high))  # type: ignore[return-value]


def _counted(attempts: ArrayLike, passes: ArrayLike, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    check_k(k)
    n, c = np.broadcast_arrays(np.asarray(attempts, dtype=np.int64), np.asarray(passes, dtype=np.int64))
    if ((c < 0) | (c > n)).any():
        at = np.argwhere(np.atleast_1d((c < 0) | (c > n)))[0]
        bad_n, bad_c = np.atleast_1d(n)[tuple(at)], np.atleast_1d(c)[tuple(at)]
        raise ValueError(f"{bad_c} passes of {bad_n} attempts; passes must be between 0 and the attempts")
    return n, c


def _all_from(chosen: NDArray[np.int64], n: NDArray[np.int64], k: int) -> Array:
    """Chance that k draws of n without replacement all come from ``chosen`` of them: a product of k ratios."""
    chance = np.ones(n.shape)
    for i in range(k):
        chance = chance * np.maximum(chosen - i, 0) / np.maximum(n - i, 1)
    return chance


def _hypergeometric_tail(n: NDArray[np.int64], c: NDArray[np.int64], k: int, needed: int) -> Array:
    tail = np.zeros(n.shape)
    whole = _log_choose(n, np.full_like(n, k))
    for hits in range(needed, k + 1):
        possible = (hits <= c) & (k - hits <= n - c)
        ways = _log_choose(c, np.full_like(c, hits)) + _log_choose(n - c, np.full_like(n, k - hits))
        with np.errstate(invalid="ignore"):
            tail += np.where(possible, np.exp(ways - whole), 0.0)
    return np.minimum(tail, 1.0)


def _log_choose(n: NDArray[np.int64], k: NDArray[np.int64]) -> Array:
    inside = (k >= 0) & (k <= n)
    safe_n, safe_k = np.where(inside, n, 0), np.where(inside, k, 0)
    logs = gammaln(safe_n + 1) - gammaln(safe_k + 1) - gammaln(safe_n - safe_k + 1)
    return np.where(inside, logs, -np.inf)
