"""When an evaluation may end early: the question is decided, by a test that may be looked at after every wave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.errors import StoreError
from agentrl.evals import stats
from agentrl.evals.attempts import attempt_of
from agentrl.evals.running import Standing
from agentrl.evals.table import Table


@dataclass(frozen=True, kw_only=True)
class Question:
    """Is the mean score above or below ``target``; or, with ``baseline``, is it above or below another policy's on
    the same tasks? Within ``margin`` of either also ends it.

    Attributes:
        target: in [0, 1].
        baseline: mean score of the other policy by task; None for none.
        margin: at least 0.
    """

    target: float | None = None
    baseline: Mapping[str, float] | None = None
    margin: float = 0.0

    def answer(self, standing: Standing) -> stats.Decision | None:
        """What the tasks that have been played to the end say; None while none has a score.

        Raises:
            StoreError: a score outside [0, 1], for which the test knows no bounds.
        """
        known = self._known(standing)
        if not known:
            return None
        values = np.array([known.get(place.task.id, np.nan) for place in standing.design])
        names = {name: n for n, name in enumerate(dict.fromkeys(place.cluster for place in standing.design))}
        clusters = np.array([names[place.cluster] for place in standing.design])
        if self.baseline is None:
            assert self.target is not None
            return stats.decided(values, against=self.target, margin=self.margin, clusters=clusters)
        return stats.decided(values, margin=self.margin, clusters=clusters, bounds=(-1.0, 1.0))

    def check(self, tasks: Sequence[str]) -> None:
        """Whether the other policy has a score of each of these tasks. Raises StoreError naming those that it lacks."""
        lacking = [] if self.baseline is None else [task for task in tasks if task not in self.baseline]
        if lacking:
            raise StoreError(
                f"what --against names has no score of {len(lacking)} of {len(tasks)} tasks, such as {lacking[0]}; "
                "evaluate both on the same tasks"
            )

    def _known(self, standing: Standing) -> dict[str, float]:
        """The mean score, or the difference from the other policy's, of each task that has been played to the end."""
        chosen = set(standing.complete)
        played = [attempt_of(trace, "policy") for trace in standing.traces if trace.task_id in chosen]
        means = means_of(Table.of(played)) if played else {}
        if self.baseline is None:
            return means
        return {task: mean - self.baseline[task] for task, mean in means.items()}


def means_of(table: Table) -> dict[str, float]:
    """Mean score by task of a table's first checkpoint. Raises StoreError for a score outside [0, 1]."""
    scored = table.within(0.0, 1.0).shared()
    return dict(zip(scored.tasks, stats.mean_score(scored.scores[:, :, 0]).tolist(), strict=True))
