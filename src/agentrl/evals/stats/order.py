"""best@k, worst@k and best-of-k by a proxy: expected values over which k of the attempts one happened to draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.evals.stats.checks import Array, as_scores, check_enough, check_k


def best_at_k(scores: ArrayLike, k: int) -> Array:
    """Expected highest score of k attempts, drawn without replacement.

        sum over i = k .. n of  C(i - 1, k - 1) / C(n, k) * x_(i)        with x_(1) <= ... <= x_(n)

    Drawing with replacement, as some do, would be too low: one pass in four attempts has best@4 = 1, not 0.68.

    Args:
        scores: [tasks, attempts, *checkpoints], any finite reward; NaN where missing.
        k: attempts one may draw.

    Returns:
        [tasks, *checkpoints]; NaN where a task has fewer than k attempts.

    Raises:
        ValueError: no task has k attempts, or k < 1.

    >>> round(float(best_at_k([[0.1, 0.4, 0.5, 0.9]], 2)[0]), 6)
    0.683333
    """
    return _highest(_enough(scores, k, f"best@{k}"), k)


def worst_at_k(scores: ArrayLike, k: int) -> Array:
    """Expected lowest score of k attempts, drawn without replacement. Arguments and errors as ``best_at_k``."""
    return -_highest(-_enough(scores, k, f"worst@{k}"), k)


def best_of_k(proxy: ArrayLike, gold: ArrayLike, k: int) -> Array:
    """Expected gold score of the attempt that a proxy ranks first among k, drawn without replacement.

    Attempts that the proxy cannot tell apart are picked among at random. An attempt counts only where both scores
    are there.

    Args:
        proxy: [tasks, attempts, *checkpoints], what picks: a reward model, visible tests, a log-probability.
        gold: the same shape, what the pick is worth.
        k: attempts one may draw.

    Returns:
        [tasks, *checkpoints]; NaN where a task has fewer than k attempts.

    Raises:
        ValueError: shapes differ, no task has k attempts, or k < 1.

    >>> round(float(best_of_k([[0.2, 0.5, 0.7, 0.9]], [[0, 1, 1, 0]], 2)[0]), 6)
    0.5
    """
    picks, worth = as_scores(proxy, "proxy"), as_scores(gold, "gold")
    if picks.shape != worth.shape:
        raise ValueError(f"proxy has shape {picks.shape} and gold {worth.shape}; give one of each for every attempt")
    both = ~np.isnan(picks) & ~np.isnan(worth)
    picks = _enough(np.where(both, picks, np.nan), k, f"best-of-{k}")
    order = np.argsort(picks, axis=1, kind="stable")
    ranked = np.take_along_axis(picks, order, axis=1)
    ranked_worth = np.nan_to_num(np.take_along_axis(np.where(both, worth, np.nan), order, axis=1), nan=0.0)
    return _weigh(_mean_of_ties(ranked, ranked_worth), both.sum(axis=1), k)


def _enough(scores: ArrayLike, k: int, what: str) -> Array:
    check_k(k)
    array = as_scores(scores)
    check_enough((~np.isnan(array)).sum(axis=1), k, what)
    return array


def _highest(scores: Array, k: int) -> Array:
    ascending = np.sort(scores, axis=1)
    return _weigh(np.nan_to_num(ascending, nan=0.0), (~np.isnan(scores)).sum(axis=1), k)


def _weigh(ranked: Array, number: NDArray[np.int64], k: int) -> Array:
    """Sum over ranks of weight * value, for tasks of ``number`` attempts whose values come first, ascending."""
    length = ranked.shape[1]
    result = np.full(number.shape, np.nan)
    moved = np.moveaxis(ranked, 1, -1)
    for n in np.unique(number[number >= k]):
        here = number == n
        result[here] = moved[here] @ _weights(int(n), k, length)
    return result


def _weights(n: int, k: int, length: int) -> Array:
    """C(i - 1, k - 1) / C(n, k) for i = 1 .. n, then zeros: the chance that rank i is the highest of k drawn."""
    weights = np.zeros(length)
    weights[n - 1] = k / n
    for i in range(n - 1, k - 1, -1):  # C(i-1, k-1) = C(i, k-1) * (i-k+1) / i
        weights[i - 1] = weights[i] * (i - k + 1) / i
    return weights


def _mean_of_ties(ranked: Array, worth: Array) -> Array:
    """Replace each worth by the mean over the attempts of equal rank, along axis 1."""
    if not (ranked[:, 1:] == ranked[:, :-1]).any():
        return worth
    rows = np.moveaxis(ranked, 1, -1).reshape(-1, ranked.shape[1])
    values = np.moveaxis(worth, 1, -1).reshape(rows.shape)
    fresh = np.ones(rows.shape, dtype=bool)
    fresh[:, 1:] = rows[:, 1:] != rows[:, :-1]
    run = np.cumsum(fresh.ravel()) - 1
    means = np.bincount(run, weights=values.ravel()) / np.bincount(run)
    shape = (*ranked.shape[:1], *ranked.shape[2:], ranked.shape[1])
    return np.moveaxis(means[run].reshape(shape), -1, 1)
