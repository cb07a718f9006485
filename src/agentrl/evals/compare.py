"""Checkpoints beside each other on the tasks that they share, and what may be concluded from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import StoreError
from agentrl.evals import stats
from agentrl.evals.metric import Metric
from agentrl.evals.table import Bounds, Counts, Table

Requirement = Literal["better", "not-worse"]
SHOWN = 3
"""Task ids that a message names."""


class Verdict(StrEnum):
    """Whether a requirement holds: the whole interval of the difference says yes, says no, or does not say."""

    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One checkpoint: its metric over the shared tasks, and what became of its attempts there."""

    name: str
    interval: stats.Interval
    counts: Counts
    bounds: Bounds
    attempts: tuple[int, int]
    tokens: float | None


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A task on which two checkpoints differ most: its value for each, and an attempt of each to look at."""

    task: str
    before: float
    after: float
    trace_before: str
    trace_after: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A later checkpoint against the first.

    ``p_value`` is adjusted by Holm over all comparisons of the report, and ``different`` says that it is below
    1 - level. ``blind`` says that the evaluation would have missed a difference of the size that was seen in more than
    one of five cases.
    """

    first: str
    second: str
    comparison: stats.Comparison
    p_value: float
    different: bool
    blind: bool
    gained: tuple[Flip, ...]
    lost: tuple[Flip, ...]
    sentence: str
    verdict: Verdict | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `agentrl compare` says. ``left_out`` are tasks that not all have, by the checkpoint that has them."""

    metric: str
    num_tasks: int
    num_clusters: int
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    left_out: dict[str, tuple[str, ...]]
    undefined: tuple[str, ...]


def compare(
    table: Table,
    metric: Metric,
    *,
    require: Requirement | None = None,
    margin: float = 0.0,
    level: float = 0.95,
    drop_undefined: bool = False,
) -> Report:
    """Every checkpoint of a table against its first one, on the tasks that all of them have a score for.

    Args:
        table: at least two checkpoints.
        metric: what is compared.
        require: what each later checkpoint shall be; see `judge`.
        margin: in the units of the metric, at least 0.
        level: of the intervals.
        drop_undefined: leave out tasks with too few attempts for the metric instead of refusing.

    Raises:
        StoreError: fewer than two checkpoints or shared tasks, or scores that need a threshold.
        ValueError: a task has too few attempts for the metric.
    """
    if len(table.checkpoints) < 2:
        raise StoreError(f"{table.checkpoints[0]} is one checkpoint; a comparison needs two or more")
    shared = metric.table(_shared(table))
    shared, values, undefined = _defined(shared, metric, drop_undefined)
    rows = tuple(_row(shared, values, name, metric, level) for name in shared.checkpoints)
    compared = [
        stats.compare(values[:, 0], values[:, c], clusters=shared.clusters, level=level, bounds=metric.range)
        for c in range(1, len(shared.checkpoints))
    ]
    adjusted = stats.holm([one.p_value for one in compared])
    differences = tuple(
        _difference(shared, metric.label, values, c, one, float(p), rows, require, margin)
        for c, (one, p) in enumerate(zip(compared, adjusted, strict=True), start=1)
    )
    return Report(
        metric=metric.label,
        num_tasks=len(shared.tasks),
        num_clusters=len(shared.tasks) if shared.clusters is None else len(set(shared.clusters.tolist())),
        rows=rows,
        differences=differences,
        left_out=_left_out(table, shared),
        undefined=undefined,
    )


def judge(difference: stats.Interval, require: Requirement, margin: float) -> Verdict:
    """Whether the interval of a difference shows what is required.

    ``better`` is met when all of the interval is above ``margin``, and ``not-worse`` when all of it is above
    ``-margin``. Neither is met when all of it is at or below that bound; else it is undecided.
    """
    bound = margin if require == "better" else -margin
    if difference.low > bound:
        return Verdict.MET
    return Verdict.NOT_MET if difference.high <= bound else Verdict.UNDECIDED


def _shared(table: Table) -> Table:
    shared = table.shared()
    if len(shared.tasks) < 2:
        each = "; ".join(f"{name}: {_some(sorted(table.tasks_of(name)))}" for name in table.checkpoints)
        raise StoreError(f"{len(shared.tasks)} task(s) have a score of every checkpoint; two are needed. Tasks: {each}")
    return shared


def _defined(table: Table, metric: Metric, drop: bool) -> tuple[Table, NDArray[np.float64], tuple[str, ...]]:
    """The tasks for which the metric is defined, its values [T, C], and the tasks that were dropped."""
    values = metric.values(table.scores)
    defined: NDArray[np.bool_] = np.all(~np.isnan(values), axis=1)
    if defined.all():
        return table, values, ()
    undefined = tuple(task for task, there in zip(table.tasks, defined, strict=True) if not there)
    if not drop:
        raise ValueError(
            f"{metric.label} needs {metric.k} attempts at a task, and {len(undefined)} of {len(table.tasks)} tasks "
            f"have fewer scored ({_some(undefined)}); make more attempts, ask for a smaller k, or leave them out "
            "with --drop-undefined"
        )
    return table.select(defined), values[defined], undefined


def _row(table: Table, values: NDArray[np.float64], name: str, metric: Metric, level: float) -> Row:
    c = table.index(name)
    scored = (~np.isnan(table.scores[:, :, c])).sum(axis=1)
    tokens = table.tokens[:, :, c]
    return Row(
        name=name,
        interval=stats.interval_of(
            values[:, c], clusters=table.clusters, level=level, bounds=metric.range, num_attempts=int(scored.sum())
        ),
        counts=table.counts(name),
        bounds=table.bounds(name),
        attempts=(int(scored.min()), int(scored.max())),
        tokens=None if np.isnan(tokens).all() else float(np.nanmean(tokens)),
    )


def _difference(
    table: Table,
    metric: str,
    values: NDArray[np.float64],
    c: int,
    found: stats.Comparison,
    p_value: float,
    rows: Sequence[Row],
    require: Requirement | None,
    margin: float,
) -> Difference:
    different = p_value < 1 - found.difference.level
    verdict = None if require is None else judge(found.difference, require, margin)
    if verdict is Verdict.MET and require == "better" and not different:
        verdict = Verdict.UNDECIDED  # after Holm, one of several may be chance
    gained, lost = _flips(table, values, c)
    return Difference(
        first=table.checkpoints[0],
        second=table.checkpoints[c],
        comparison=found,
        p_value=p_value,
        different=different,
        blind=not different and abs(found.difference.mean) < found.minimum_detectable,
        gained=gained,
        lost=lost,
        sentence=sentence(table, metric, found, rows[0], rows[c], different=different),
        verdict=verdict,
    )


def sentence(table: Table, metric: str, found: stats.Comparison, before: Row, after: Row, *, different: bool) -> str:
    """The comparison in plain words, in points of 0.01."""
    points, low, high = (100 * x for x in (found.difference.mean, found.difference.low, found.difference.high))
    if metric == "mean" and table.is_binary():
        size = f"{after.name} solves {_size(points, ('more', 'fewer'), 'as many')} {before.name}"
    else:
        name = "a mean score" if metric == "mean" else metric
        size = f"{after.name} has {name} {_size(points, ('higher', 'lower'), 'as high')} {before.name}"
    spans = list(dict.fromkeys((_span(before.attempts), _span(after.attempts))))
    attempts = f"{' and '.join(spans)} attempt{'' if spans == ['1'] else 's'}"
    chance = "not explained by chance" if different else "chance may explain it"
    if not different and not low <= 0.0 <= high:
        chance = f"the interval just leaves out 0, the test does not reject it: {chance}"
    interval = f"{found.difference.level:.0%} interval {low:.1f} to {high:.1f}".replace("%", " %")
    return f"{size}, {interval}, {len(table.tasks)} tasks, {attempts}; {chance}"


def _size(points: float, words: tuple[str, str], equal: str) -> str:
    return f"{abs(points):.1f} points {words[points < 0]} than" if points else f"{equal} as"


def _span(attempts: tuple[int, int]) -> str:
    least, most = attempts
    return f"{least}" if least == most else f"{least} to {most}"


def _flips(table: Table, values: NDArray[np.float64], c: int) -> tuple[tuple[Flip, ...], tuple[Flip, ...]]:
    """The tasks whose value crosses one half, from 0.5 or below to above it and the other way, largest change first."""
    before, after = values[:, 0], values[:, c]
    change = after - before
    order = np.argsort(-np.abs(change), kind="stable")
    gained = [t for t in order if before[t] <= 0.5 < after[t]]
    lost = [t for t in order if after[t] <= 0.5 < before[t]]
    return (
        tuple(_flip(table, values, t, c, best_after=True) for t in gained),
        tuple(_flip(table, values, t, c, best_after=False) for t in lost),
    )


def _flip(table: Table, values: NDArray[np.float64], t: int, c: int, *, best_after: bool) -> Flip:
    return Flip(
        task=table.tasks[t],
        before=float(values[t, 0]),
        after=float(values[t, c]),
        trace_before=_telling_trace(table, t, 0, best=not best_after),
        trace_after=_telling_trace(table, t, c, best=best_after),
    )


def _telling_trace(table: Table, t: int, c: int, *, best: bool) -> str:
    """The attempt with the highest or the lowest score."""
    scores = table.scores[t, :, c]
    place = int(np.nanargmax(scores) if best else np.nanargmin(scores))
    return str(table.trace_ids[t, place, c])


def _left_out(table: Table, shared: Table) -> dict[str, tuple[str, ...]]:
    kept = set(shared.tasks)
    every = {name: table.tasks_of(name) for name in table.checkpoints}
    in_all = set.intersection(*every.values())
    found = {name: tuple(sorted(tasks - in_all)) for name, tasks in every.items()}
    found["attempted by all and not scored by all"] = tuple(sorted(in_all - kept))
    return {name: tasks for name, tasks in found.items() if tasks}


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:SHOWN])
    return shown if len(ids) <= SHOWN else f"{shown} and {len(ids) - SHOWN} more"
