"""The one object of evaluation: attempts x tasks x clusters x checkpoints, a missing attempt being missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import StoreError
from agentrl.evals.attempts import Attempt, Status

Errors = Literal["zero", "missing"]
Floats = NDArray[np.float64]

ABSENT = -1
STATUSES = tuple(Status)
"""Entry i of ``Table.status`` is ``STATUSES[i]``; ``ABSENT`` where nobody tried."""
_OWN_FAILURES = tuple(STATUSES.index(status) for status in (Status.ERRORED, Status.TIMED_OUT))


class Counts(NamedTuple):
    """Attempts of one checkpoint by what became of them. ``absent`` would have made all tasks' attempts as many as the
    longest."""

    scored: int
    errored: int
    timed_out: int
    unscored: int
    absent: int

    @property
    def made(self) -> int:
        """Attempts that were made, scored or not."""
        return self.scored + self.errored + self.timed_out + self.unscored


class Bounds(NamedTuple):
    """The mean over tasks if every missing attempt had failed, and if every one had passed."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Scores of attempts at tasks by checkpoints.

    Attributes:
        checkpoints: their names, [C].
        tasks: their ids, [T].
        scores: float64 [T, K, C]; NaN where an attempt is missing. Errored and timed-out attempts are 0 or missing,
            as ``errors`` said when the table was made.
        status: int8 [T, K, C]: an index of `STATUSES`, or `ABSENT`.
        clusters: int64 [T], equal for tasks of one cluster; None where no cluster is known.
        families: a label for each task, [T].
        trace_ids: object [T, K, C]: text, empty where there is no trace.
        show: the folder that `agentrl show` takes for each checkpoint, [C]; empty where there is none.
        tokens: float64 [T, K, C], NaN where unknown. ``seconds`` likewise.
        others: further scores by name, float64 [T, K, C], NaN where missing.
        errors: ``zero`` where errored and timed-out attempts count as 0, ``missing`` where they are left out.
    """

    checkpoints: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: Floats
    status: NDArray[np.int8]
    clusters: NDArray[np.int64] | None
    families: tuple[str, ...]
    trace_ids: NDArray[np.object_]
    show: tuple[str, ...]
    tokens: Floats
    seconds: Floats
    others: Mapping[str, Floats]
    errors: Errors

    @classmethod
    def of(cls, attempts: Iterable[Attempt], *, errors: Errors = "zero") -> Table:
        """A table of attempts, with tasks and checkpoints in the order of their first attempt.

        Args:
            attempts: at least one.
            errors: whether an errored or timed-out attempt is a zero or missing.

        Raises:
            StoreError: no attempts, an attempt that occurs twice, or a task in two clusters or families.
        """
        rows = list(attempts)
        if not rows:
            raise StoreError("there are no attempts; a table needs at least one")
        place = _Places(rows)
        shape = (len(place.tasks), max(place.width.values()), len(place.checkpoints))
        floats = {name: np.full(shape, np.nan) for name in ("scores", "tokens", "seconds")}
        others = {name: np.full(shape, np.nan) for name in dict.fromkeys(n for row in rows for n in row.others)}
        status = np.full(shape, ABSENT, dtype=np.int8)
        trace_ids = np.full(shape, "", dtype=object)
        for row in rows:
            at = place(row)
            status[at] = STATUSES.index(row.status)
            trace_ids[at] = row.trace_id
            floats["scores"][at] = _score(row, errors)
            floats["tokens"][at] = np.nan if row.tokens is None else row.tokens
            floats["seconds"][at] = np.nan if row.seconds is None else row.seconds
            for name, value in row.others.items():
                others[name][at] = value
        show = {row.checkpoint: row.show for row in rows}
        return cls(
            checkpoints=tuple(place.checkpoints),
            tasks=tuple(place.tasks),
            status=status,
            clusters=_clusters(rows, place.tasks),
            families=tuple(_labels(rows, place.tasks, "family").values()),
            trace_ids=trace_ids,
            show=tuple(show[name] for name in place.checkpoints),
            others=others,
            errors=errors,
            **floats,
        )

    def of_checkpoint(self, name: str) -> Floats:
        """The scores of one checkpoint, [T, K]. Raises StoreError for a name that is not there."""
        return self.scores[:, :, self.index(name)]

    def index(self, name: str) -> int:
        """The place of a checkpoint. Raises StoreError for a name that is not there."""
        if name not in self.checkpoints:
            raise StoreError(f"no checkpoint {name!r}; there are {', '.join(self.checkpoints)}")
        return self.checkpoints.index(name)

    def counts(self, name: str) -> Counts:
        """What became of the attempts of one checkpoint, over all tasks of the table."""
        found = Counter(self.status[:, :, self.index(name)].ravel().tolist())
        scored, errored, timed_out, unscored = (found[STATUSES.index(status)] for status in STATUSES)
        return Counts(scored, errored, timed_out, unscored, found[ABSENT])

    def bounds(self, name: str) -> Bounds:
        """How far missing attempts could move the mean over tasks: every task's unscored attempts all 0, or all 1.

        Attempts that nobody made are not in it; a task without any attempt is left out.
        """
        c = self.index(name)
        scores, made = self.scores[:, :, c], self.status[:, :, c] != ABSENT
        tasks = made.any(axis=1)
        ends = [np.where(np.isnan(scores), value, scores) for value in (0.0, 1.0)]
        means = [np.sum(np.where(made, end, 0.0), axis=1)[tasks] / made.sum(axis=1)[tasks] for end in ends]
        return Bounds(*(float(mean.mean()) for mean in means))

    def select(self, tasks: NDArray[np.bool_]) -> Table:
        """The same table with some of its tasks; ``tasks`` is bool [T]."""
        kept = np.flatnonzero(tasks)
        return replace(
            self,
            tasks=tuple(self.tasks[i] for i in kept),
            families=tuple(self.families[i] for i in kept),
            clusters=None if self.clusters is None else self.clusters[kept],
            others={name: values[kept] for name, values in self.others.items()},
            **{name: getattr(self, name)[kept] for name in ("scores", "status", "trace_ids", "tokens", "seconds")},
        )

    def shared(self, checkpoints: Sequence[str] | None = None) -> Table:
        """The tasks of which every named checkpoint (all by default) has a score."""
        chosen = [self.index(name) for name in checkpoints or self.checkpoints]
        scored: NDArray[np.bool_] = ~np.isnan(self.scores[:, :, chosen])
        return self.select(np.all(np.any(scored, axis=1), axis=1))

    def tasks_of(self, name: str) -> set[str]:
        """The tasks that a checkpoint attempted."""
        made = (self.status[:, :, self.index(name)] != ABSENT).any(axis=1)
        return {task for task, there in zip(self.tasks, made, strict=True) if there}

    def passing(self, threshold: float | None) -> Table:
        """The table with scores of 0 and 1: whether a score reaches the threshold.

        Args:
            threshold: the least score that passes; None where all scores are 0 or 1 already.

        Raises:
            StoreError: without a threshold, a score that is neither 0 nor 1, by its task.
        """
        if threshold is not None:
            passed = np.where(np.isnan(self.scores), np.nan, (self.scores >= threshold).astype(float))
            return replace(self, scores=passed)
        self._refuse((self.scores == 0.0) | (self.scores == 1.0), "is neither 0 nor 1")
        return self

    def within(self, low: float, high: float) -> Table:
        """The table as it is. Raises StoreError for a score outside [low, high], by its task."""
        self._refuse((self.scores >= low) & (self.scores <= high), f"is not in [{low:g}, {high:g}]")
        return self

    def bounds_of_scores(self) -> tuple[float, float] | None:
        """(0, 1) where all scores are in there; None where they are not, and nothing is known of what they can be."""
        inside = (self.scores >= 0.0) & (self.scores <= 1.0)
        return (0.0, 1.0) if bool(np.all(inside | np.isnan(self.scores))) else None

    def is_binary(self) -> bool:
        """Whether every score is 0 or 1."""
        return bool(np.all(np.isnan(self.scores) | (self.scores == 0.0) | (self.scores == 1.0)))

    def _refuse(self, allowed: NDArray[np.bool_], what: str) -> None:
        wrong = np.argwhere(~(allowed | np.isnan(self.scores)))
        if len(wrong):
            t, k, c = wrong[0]
            raise StoreError(
                f"{self.checkpoints[c]}: score {self.scores[t, k, c]:g} of task {self.tasks[t]!r}, attempt {k}, {what} "
                f"({len(wrong)} such scores); say with --threshold X from which score on an attempt passes, or for "
                "means with --bounds LOW,HIGH what a score can be"
            )


class _Places:
    """Where each attempt stands in the table."""

    def __init__(self, rows: Sequence[Attempt]) -> None:
        self.tasks = {task: t for t, task in enumerate(dict.fromkeys(row.task for row in rows))}
        self.checkpoints = {name: c for c, name in enumerate(dict.fromkeys(row.checkpoint for row in rows))}
        self.width: Counter[tuple[str, str]] = Counter()
        self._places: dict[tuple[str, str, int], tuple[int, int, int]] = {}
        self._add(sorted(rows, key=lambda row: row.number))

    def _add(self, rows: Sequence[Attempt]) -> None:
        """Attempts of a task stand side by side in the order of their numbers, which need not begin at 0."""
        origins: dict[tuple[str, str, int], str] = {}
        for row in rows:
            key = (row.checkpoint, row.task, row.number)
            if key in self._places:
                raise StoreError(
                    f"{row.checkpoint}: attempt {row.number} at task {row.task!r} occurs twice ({origins[key]} and "
                    f"{row.origin}); number the attempts at a task 0, 1, ..., and give tasks of different sets "
                    "different ids"
                )
            origins[key] = row.origin
            place = self.width[row.checkpoint, row.task]
            self._places[key] = (self.tasks[row.task], place, self.checkpoints[row.checkpoint])
            self.width[row.checkpoint, row.task] += 1

    def __call__(self, row: Attempt) -> tuple[int, int, int]:
        return self._places[row.checkpoint, row.task, row.number]


def _score(row: Attempt, errors: Errors) -> float:
    if row.score is not None:
        return row.score
    return 0.0 if errors == "zero" and STATUSES.index(row.status) in _OWN_FAILURES else np.nan


def _labels(rows: Sequence[Attempt], tasks: Iterable[str], name: str) -> dict[str, Any]:
    """A label of each task; the attempts at a task that have one must agree."""
    found: dict[str, Any] = {}
    for row in rows:
        label = getattr(row, name)
        if label not in (None, "") and found.setdefault(row.task, label) != label:
            raise StoreError(
                f"{row.origin}: task {row.task!r} is of {name} {label!r} here and of {found[row.task]!r} elsewhere; "
                f"a task has one {name}"
            )
    empty = "" if name == "family" else None
    return {task: found.get(task, empty) for task in tasks}


def _clusters(rows: Sequence[Attempt], tasks: Mapping[str, int]) -> NDArray[np.int64] | None:
    """Numbers of clusters; a task without one is a cluster of its own."""
    labels = _labels(rows, tasks, "cluster")
    if all(label is None for label in labels.values()):
        return None
    numbers: dict[tuple[bool, str], int] = {}
    keys = [(label is None, task if label is None else str(label)) for task, label in labels.items()]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
