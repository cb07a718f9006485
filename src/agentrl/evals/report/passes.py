"""pass@k of the policy before and after reinforcement learning, paired by task, and the tasks that only one solves.

Training may raise pass@1 and lower pass@k for large k: it sharpens what the base finds at times, and loses what it
finds rarely. Where the two curves cross is estimated by resampling clusters of tasks with a fixed seed.

Source: Yue et al. 2025, "Does Reinforcement Learning Really Incentivize Reasoning Capacity in LLMs Beyond the Base
Model?", arXiv 2504.13837.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.evals import stats
from agentrl.evals.stats.bootstrap import resample
from agentrl.evals.table import Table

Floats = NDArray[np.float64]
Who = Literal["both", "trained only", "base only", "neither"]
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class AtK:
    """pass@k of both on the same tasks; ``p_value`` is adjusted by Holm over all k of the report."""

    k: int
    comparison: stats.Comparison
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """The smallest k at which the base is ahead although the trained policy is ahead at k = 1.

    ``k`` is None where that does not happen up to the attempts that there are. ``low`` and ``high`` are the ends of the
    95 % interval; ``math.inf`` stands for "not up to there". ``share`` of the resampled task sets have a crossing.
    """

    k: int | None
    low: float
    high: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Both curves. ``crossing`` is None where the trained policy is not ahead at k = 1, so that nothing can cross.

    ``left_out`` counts the tasks that only one side has scores for.
    """

    at: tuple[AtK, ...]
    attempts: int
    num_tasks: int
    num_clusters: int
    left_out: int
    crossing: Crossing | None


def passes(table: Table, *, seed: int = 0) -> Passes:
    """Compare the second checkpoint of a table, the trained policy, with the first, the base.

    Args:
        table: two checkpoints, scores of 0 and 1.
        seed: of the resamples.

    Raises:
        ValueError: fewer than two tasks or clusters that both have scores for.
    """
    shared = table.shared()
    fewest = int((~np.isnan(shared.scores)).sum(axis=1).min()) if len(shared.tasks) else 0
    ks = sorted({2**power for power in range(fewest.bit_length())} | {fewest} - {0})
    values = {k: stats.pass_at_k(shared.scores, k) for k in ks}
    found = [stats.compare(one[:, 0], one[:, 1], clusters=shared.clusters) for one in values.values()]
    if not found:
        raise ValueError("no task has scores of both policies; evaluate both on the same tasks")
    adjusted = stats.holm([one.p_value for one in found])
    return Passes(
        at=tuple(AtK(k=k, comparison=one, p_value=float(p)) for k, one, p in zip(ks, found, adjusted, strict=True)),
        attempts=fewest,
        num_tasks=len(shared.tasks),
        num_clusters=len(shared.tasks) if shared.clusters is None else len(set(shared.clusters.tolist())),
        left_out=len(table.tasks) - len(shared.tasks),
        crossing=crossing(shared, fewest, seed=seed) if found[0].difference.mean > 0 else None,
    )


def crossing(table: Table, most: int, *, seed: int) -> Crossing:
    """Where the base overtakes, for k = 1 to ``most``; see `Crossing`."""
    columns = [stats.pass_at_k(table.scores, k) for k in range(1, most + 1)]
    gaps = np.stack([one[:, 1] - one[:, 0] for one in columns], axis=1)
    labels = np.arange(len(gaps)) if table.clusters is None else np.unique(table.clusters, return_inverse=True)[1]
    units = np.zeros(int(labels.max()) + 1, dtype=np.int64)
    draws = resample(units, seed=seed, resamples=RESAMPLES, width=len(gaps))
    drawn = np.concatenate([_first_below(np.take(weights, labels, axis=1) @ gaps) for weights in draws])
    low, high = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    at = float(_first_below(gaps.sum(axis=0)[None])[0])
    return Crossing(
        k=int(at) if math.isfinite(at) else None,
        low=float(low),
        high=float(high),
        share=float(np.isfinite(drawn).mean()),
    )


def _first_below(sums: Floats) -> Floats:
    """For each row of gaps by k, the first k at which it is below zero; infinity where it never is."""
    below = sums < -1e-9
    return np.where(below.any(axis=1), below.argmax(axis=1) + 1.0, np.inf)


@dataclass(frozen=True, kw_only=True)
class Solved:
    """A task: how many of its attempts passed, before and after, and an attempt of each to look at.

    ``p_value`` is of Fisher's exact test, two-sided, adjusted by Benjamini and Hochberg over all tasks: large where the
    same chance of passing on both sides explains the counts.
    """

    task: str
    who: Who
    base: tuple[int, int]
    trained: tuple[int, int]
    p_value: float
    trace_base: str
    trace_trained: str


@dataclass(frozen=True, kw_only=True)
class SolvedBy:
    """All tasks by who solves them, at least once in the attempts that were made; shares with intervals.

    ``show`` are the folders in which `agentrl show` finds the attempts of the base and of the trained policy.
    """

    tasks: tuple[Solved, ...]
    shares: dict[Who, stats.Interval]
    show: tuple[str, ...]


def solved_by(table: Table) -> SolvedBy:
    """Who solves which task of a table of two checkpoints with scores of 0 and 1.

    Raises:
        ValueError: fewer than two tasks or clusters that both have scores for.
    """
    shared = table.shared()
    counts = [_counts(shared.scores[:, :, c]) for c in (0, 1)]
    p_values = stats.benjamini_hochberg([fisher(*pair) for pair in zip(*counts, strict=True)])
    tasks = tuple(
        Solved(
            task=shared.tasks[t],
            who=_who(base[0] > 0, trained[0] > 0),
            base=base,
            trained=trained,
            p_value=float(p_values[t]),
            trace_base=_telling(shared, t, 0, passed=base[0] > 0),
            trace_trained=_telling(shared, t, 1, passed=trained[0] > 0),
        )
        for t, (base, trained) in enumerate(zip(*counts, strict=True))
    )
    names: tuple[Who, ...] = ("both", "trained only", "base only", "neither")
    shares = {
        name: stats.interval_of([float(one.who == name) for one in tasks], clusters=shared.clusters) for name in names
    }
    return SolvedBy(tasks=tasks, shares=shares, show=shared.show)


def fisher(base: tuple[int, int], trained: tuple[int, int]) -> float:
    """Two-sided p of Fisher's exact test, twice the smaller tail; ``(passes, attempts)`` of each side.

    >>> round(fisher((0, 4), (4, 4)), 6)
    0.028571
    """
    (c_base, n_base), (c_trained, n_trained) = base, trained
    passes_of_both = c_base + c_trained
    counts = range(max(0, passes_of_both - n_base), min(n_trained, passes_of_both) + 1)
    ways = {c: math.comb(n_trained, c) * math.comb(n_base, passes_of_both - c) for c in counts}
    total = sum(ways.values())
    above = sum(w for c, w in ways.items() if c >= c_trained) / total
    below = sum(w for c, w in ways.items() if c <= c_trained) / total
    return min(1.0, 2 * min(above, below))


def _counts(scores: Floats) -> list[tuple[int, int]]:
    made = (~np.isnan(scores)).sum(axis=1).tolist()
    passed = (scores == 1.0).sum(axis=1).tolist()
    return list(zip(passed, made, strict=True))


def _who(base: bool, trained: bool) -> Who:
    if base and trained:
        return "both"
    if trained:
        return "trained only"
    return "base only" if base else "neither"


def _telling(table: Table, t: int, c: int, *, passed: bool) -> str:
    """An attempt that passed where one did, else one that failed."""
    places: Sequence[int] = np.flatnonzero(table.scores[t, :, c] == float(passed)).tolist()
    return str(table.trace_ids[t, places[0], c])
