"""What one evaluation came to, as plain data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.evals import stats
from agentrl.evals.attempts import attempt_of
from agentrl.evals.metric import Metric
from agentrl.evals.table import Table
from agentrl.types import Trace


def table_of(name: str, traces: Sequence[Trace]) -> Table:
    """The attempts of one evaluation as a table. Raises StoreError when there are none."""
    return Table.of([attempt_of(trace, name) for trace in traces])


def mean_interval(table: Table) -> stats.Interval | None:
    """The mean score of the first checkpoint with its interval, over tasks that have a score.

    None for fewer than two such tasks, and where all scores are the same number outside [0, 1], which shows no spread.
    """
    scored = table.shared()
    return _interval(scored, Metric(name="mean")) if _has_interval(scored) else None


def summarize(table: Table, traces: Sequence[Trace]) -> dict[str, Any]:
    """Scores with intervals, what became of the attempts, how they ended, what they cost.

    ``pass@k`` and ``pass^k`` are there for scores of 0 and 1, for k = 2 to the fewest scored attempts at a task.
    """
    name = table.checkpoints[0]
    counts = table.counts(name)
    scored = table.shared()
    metrics = [Metric(name="mean")] if _has_interval(scored) else []
    if metrics and scored.is_binary():
        fewest = int((~np.isnan(scored.scores[:, :, 0])).sum(axis=1).min())
        metrics += [Metric(name=kind, k=fewest) for kind in ("pass@", "pass^") if fewest > 1]
    calls = [call for trace in traces for node in trace.events for call in node.message.tool_calls]
    tokens = table.tokens[~np.isnan(table.tokens)]
    return {
        "tasks": len(table.tasks),
        "clusters": len(table.tasks) if table.clusters is None else len(set(table.clusters.tolist())),
        "attempts": counts.made,
        "counts": counts._asdict(),
        "bounds": table.bounds(name)._asdict(),
        "scores": {one.label: dataclasses.asdict(_interval(scored, one)) for one in metrics},
        "stops": dict(Counter(str(trace.stop) for trace in traces)),
        "faults": dict(Counter(trace.error.boundary for trace in traces if trace.error is not None)),
        "calls": len(calls),
        "calls_malformed": sum(call.problem is not None for call in calls),
        "tokens_per_attempt": float(tokens.mean()) if len(tokens) else None,
    }


def _has_interval(scored: Table) -> bool:
    if len(scored.tasks) < 2:
        return False
    means = stats.mean_score(scored.scores[:, :, 0])
    return scored.bounds_of_scores() is not None or float(np.ptp(means)) > 0.0


def _interval(scored: Table, metric: Metric) -> stats.Interval:
    scores = scored.scores[:, :, 0]
    return stats.interval_of(
        metric.values(scores),
        clusters=scored.clusters,
        bounds=scored.bounds_of_scores(),
        num_attempts=int((~np.isnan(scores)).sum()),
    )
