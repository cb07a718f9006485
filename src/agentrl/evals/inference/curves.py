"""What it is worth to spend more at test time: scores with intervals over the tokens that were sampled for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.evals import stats
from agentrl.evals.inference.grid import Floats, Grid
from agentrl.evals.inference.voting import vote_of_k


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The worth of one way of choosing, over how much is sampled.

    Attributes:
        name: of the way.
        ks: attempts (or rounds) that are spent.
        tokens: sampled for them on average, [ks]; NaN where it is not known.
        values: expected score of each task, [ks, tasks].
        clusters: of the tasks.
    """

    name: str
    ks: tuple[int, ...]
    tokens: Floats
    values: Floats
    clusters: NDArray[np.int64] | None

    def intervals(self) -> list[stats.Interval]:
        """The mean over tasks at each k, with its interval."""
        return [stats.interval_of(row, clusters=self.clusters) for row in self.values]

    def against(self, other: Curve, k: int) -> stats.Comparison:
        """This way minus another at the same k, paired by task.

        Raises:
            ValueError: one of the two has no such k, or they are of other tasks.
        """
        for one in (self, other):
            if k not in one.ks:
                raise ValueError(f"{one.name} has no k = {k}; it has {', '.join(map(str, one.ks))}")
        before, after = (one.values[one.ks.index(k)] for one in (other, self))
        return stats.compare(before, after, clusters=self.clusters)


def doublings(grid: Grid) -> tuple[int, ...]:
    """1, 2, 4, ... up to the number of attempts that every task has, and that number."""
    fewest = int((~np.isnan(grid.rewards())).sum(axis=1).min())
    if fewest < 1:
        raise ValueError("a task has no scored attempt; leave it out")
    return tuple(sorted({2**power for power in range(fewest.bit_length())} | {fewest}))


def best_of(name: str, grid: Grid, proxy: ArrayLike, gold: ArrayLike, ks: Sequence[int]) -> Curve:
    """The attempt that a proxy likes best of k, scored by gold; ties are split.

    Args:
        name: of the proxy.
        grid: the attempts, for their tokens.
        proxy: [tasks, attempts], what picks, such as the visible tests or a reward model.
        gold: [tasks, attempts], in [0, 1], what the pick is worth. ``proxy`` itself shows what the proxy believes.
        ks: attempts to pick from.
    """
    return _curve(name, grid, ks, lambda k: stats.best_of_k(proxy, gold, k))


def ceiling(grid: Grid, gold: ArrayLike, ks: Sequence[int]) -> Curve:
    """What a chooser that knows gold would reach: pass@k."""
    return _curve("ceiling", grid, ks, lambda k: stats.best_at_k(gold, k))


def vote(
    name: str,
    grid: Grid,
    answers: ArrayLike,
    gold: ArrayLike,
    ks: Sequence[int],
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
) -> Curve:
    """The answer that k attempts elect, each with its weight; see `voting.vote_of_k`."""
    return _curve(name, grid, ks, lambda k: vote_of_k(answers, gold, k, weights=weights, seed=seed))


def revision(grid: Grid, gold: ArrayLike, tokens: ArrayLike) -> Curve:
    """The answer after each round of `policies.revise`.

    Args:
        grid: of the last rounds, for their clusters.
        gold: [tasks, attempts, rounds], what the answer is worth after each round.
        tokens: the same shape, sampled in each round.
    """
    scores, spent = np.asarray(gold, dtype=np.float64), np.cumsum(np.asarray(tokens, dtype=np.float64), axis=2)
    values = np.stack([stats.mean_score(scores[:, :, round_]) for round_ in range(scores.shape[2])])
    return Curve(
        name="revision",
        ks=tuple(range(1, scores.shape[2] + 1)),
        tokens=np.array([_mean(spent[:, :, round_]) for round_ in range(scores.shape[2])]),
        values=values,
        clusters=grid.clusters,
    )


def _curve(name: str, grid: Grid, ks: Sequence[int], value: Callable[[int], Floats]) -> Curve:
    one = _mean(grid.tokens())
    return Curve(
        name=name,
        ks=tuple(ks),
        tokens=np.array([k * one for k in ks]),
        values=np.stack([value(k) for k in ks]),
        clusters=grid.clusters,
    )


def _mean(tokens: Floats) -> float:
    """Mean over tasks of the mean over attempts; NaN where a task has none that is known."""
    with np.errstate(invalid="ignore"):
        known = ~np.isnan(tokens)
        return float((np.where(known, tokens, 0.0).sum(axis=1) / known.sum(axis=1)).mean())
