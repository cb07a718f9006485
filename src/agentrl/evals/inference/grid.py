"""The attempts of one evaluation as a grid of tasks and attempts, and what can be read off each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import StoreError
from agentrl.evals.attempts import attempt_of
from agentrl.types import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Scored attempts, [tasks, attempts]; None where an attempt is missing or could not be scored.

    Attributes:
        tasks: their ids.
        clusters: [tasks], one number for tasks that are not independent; None where no attempt says so.
    """

    tasks: tuple[str, ...]
    traces: tuple[tuple[Trace | None, ...], ...]
    clusters: NDArray[np.int64] | None

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Grid:
        """The grid of an evaluation's traces. Raises StoreError when none was scored, or one occurs twice."""
        scored = [trace for trace in traces if trace.error is None]
        if not scored:
            raise StoreError(f"none of {len(traces)} attempts was scored; there is nothing to choose from")
        rows: dict[str, dict[int, Trace]] = {}
        for trace in scored:
            row = rows.setdefault(trace.task_id, {})
            if trace.attempt in row:
                raise StoreError(f"attempt {trace.attempt} at {trace.task_id} occurs twice; give one evaluation")
            row[trace.attempt] = trace
        width = 1 + max(number for row in rows.values() for number in row)
        grid = tuple(tuple(row.get(number) for number in range(width)) for row in rows.values())
        return cls(tasks=tuple(rows), traces=grid, clusters=_clusters(list(rows.values())))

    def read(self, value: Callable[[Trace], float | None]) -> Floats:
        """One number of each attempt, [tasks, attempts]; NaN where it has none."""
        return np.array([[_number(value, trace) for trace in row] for row in self.traces])

    def score(self, name: str) -> Floats:
        """A score of each attempt by its name. Raises StoreError when no attempt has it."""
        found = self.read(lambda trace: next((one.value for one in trace.scores if one.name == name), None))
        if np.isnan(found).all():
            raise StoreError(f"no attempt has a score {name!r}")
        return found

    def rewards(self) -> Floats:
        """The reward of each attempt."""
        return self.read(lambda trace: trace.reward)

    def tokens(self) -> Floats:
        """Tokens that were sampled in each attempt; NaN where it is not known."""
        return self.read(lambda trace: attempt_of(trace, "").tokens)

    def answers(self, answer: Callable[[Trace], str | None]) -> Floats:
        """A number for each attempt, equal within a task where the answers are; negative for none, NaN missing."""
        return np.array([_codes(row, answer) for row in self.traces])


def _number(value: Callable[[Trace], float | None], trace: Trace | None) -> float:
    found = None if trace is None else value(trace)
    return float("nan") if found is None else float(found)


def _codes(row: Sequence[Trace | None], answer: Callable[[Trace], str | None]) -> list[float]:
    found = [None if trace is None else (answer(trace),) for trace in row]
    texts = dict.fromkeys(one[0] for one in found if one is not None and one[0] is not None)
    numbers = {text: float(number) for number, text in enumerate(texts)}
    return [float("nan") if one is None else -1.0 if one[0] is None else numbers[one[0]] for one in found]


def _clusters(rows: Sequence[dict[int, Trace]]) -> NDArray[np.int64] | None:
    labels = [next(iter(row.values())).metadata.get("cluster") for row in rows]
    if any(label is None for label in labels):
        return None
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.array([numbers[label] for label in labels])
