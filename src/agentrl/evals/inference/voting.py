"""The expected worth of what k attempts elect, when each votes for its answer with a weight."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.evals.stats.checks import Array, as_scores, check_enough, check_k

DRAWS = 512
"""Subsets that are drawn for a task where there are more than these; up to so many, all are taken."""


def vote_of_k(answers: ArrayLike, gold: ArrayLike, k: int, *, weights: ArrayLike | None = None, seed: int = 0) -> Array:
    """Expected gold score of the answer that k attempts elect, drawn without replacement.

    Each attempt gives its answer its weight, and the answer with most wins; answers that tie are picked among at
    random. Where nobody votes, an attempt is picked at random. All subsets are taken where there are up to `DRAWS`,
    and as many drawn by the seed elsewhere; both are without bias.

    Unlike `stats.maj_at_k`, several answers of a task may be right: an answer is worth what its attempts scored.

    Args:
        answers: numbers that stand for answers, [tasks, attempts]; NaN missing, negative for no answer, which is no
            vote.
        gold: the same shape, what each attempt is worth.
        k: attempts that vote.
        weights: the same shape, at least 0, such as a verifier's scores; None gives all the same.
        seed: of the subsets.

    Returns:
        [tasks]; NaN where a task has fewer than k attempts.

    Raises:
        ValueError: shapes differ, a negative weight, no task has k attempts, or k < 1.

    >>> round(float(vote_of_k([[7, 7, 7, 5, 5, 9]], [[1, 1, 1, 0, 0, 0]], 3)[0]), 6)
    0.6
    """
    check_k(k)
    codes, worth = as_scores(answers, "answers"), as_scores(gold, "gold")
    given = np.ones(codes.shape) if weights is None else as_scores(weights, "weights")
    if not codes.shape == worth.shape == given.shape or codes.ndim != 2:
        raise ValueError(f"answers {codes.shape}, gold {worth.shape} and weights {given.shape}: give [tasks, attempts]")
    if (given < 0).any():
        raise ValueError(f"a weight is {np.nanmin(given):g}; a vote has a weight of 0 or more")
    there = ~np.isnan(codes) & ~np.isnan(worth) & ~np.isnan(given)
    check_enough(there.sum(axis=1), k, f"vote@{k}")
    rng = np.random.default_rng([seed, k])
    return np.array([_of_task(codes[i, row], worth[i, row], given[i, row], k, rng) for i, row in enumerate(there)])


def _of_task(codes: Array, worth: Array, weights: Array, k: int, rng: np.random.Generator) -> float:
    if len(codes) < k:
        return float("nan")
    names, place = np.unique(codes, return_inverse=True)
    votes = np.zeros((len(codes), len(names)))
    votes[np.arange(len(codes)), place] = np.where(codes < 0, 0.0, weights)
    value = np.bincount(place, weights=worth) / np.bincount(place)
    drawn = _subsets(len(codes), k, rng)
    counted = votes[drawn].sum(axis=1)
    most = counted.max(axis=1, keepdims=True)
    won = np.isclose(counted, most, rtol=1e-12, atol=0.0)
    elected = (won * value).sum(axis=1) / won.sum(axis=1)
    return float(np.where(most[:, 0] > 0, elected, worth[drawn].mean(axis=1)).mean())


def _subsets(n: int, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of k different numbers below n: all, or as many as are drawn."""
    if math.comb(n, k) <= DRAWS:
        return np.array(list(combinations(range(n), k)), dtype=np.int64)
    return np.argsort(rng.random((DRAWS, n)), axis=1)[:, :k]
