"""Before an evaluation: how many tasks and attempts show a difference of a given size, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from agentrl.errors import StoreError
from agentrl.evals import stats
from agentrl.evals.table import Table

ATTEMPTS = (1, 2, 4, 8, 16)
UNKNOWN = stats.PairedVariance(task=1 / 9, before=1 / 6, after=1 / 6)
"""What is assumed of a run that is not known: task means anywhere in [0, 1] alike, so that attempts have a variance of
1/6, and a difference between two checkpoints whose variance over tasks is 1/9.

Source: the worked example of Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What an attempt costs on average, of one side: sampled tokens, and seconds of the whole evaluation (attempts run
    side by side). None where it is not known."""

    tokens: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What a plan is made from, and in words where it comes from. ``design_effect`` multiplies the number of tasks,
    for clusters; ``tasks`` are there in the run, 0 where none is known."""

    variance: stats.PairedVariance
    design_effect: float
    tasks: int
    source: str


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to see the difference. Costs are those of both sides together; None where no rate is known."""

    attempts: int
    tasks: int
    tokens: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ways to see a difference of ``delta``, and with the tasks at hand the attempts that it takes.

    ``attempts_with_tasks`` is None where no number of attempts is enough; ``limit`` is then the smallest difference
    that those tasks can show.
    """

    delta: float
    level: float
    power: float
    assumed: Assumed
    options: tuple[Option, ...]
    tasks: int
    attempts_with_tasks: int | None
    limit: float | None

    @property
    def cheapest(self) -> Option:
        """The option with the fewest attempts in all."""
        return min(self.options, key=lambda option: option.attempts * option.tasks)


def assume(table: Table | None, *, correlation: float = 0.5) -> Assumed:
    """The variances to plan with.

    Args:
        table: None for `UNKNOWN`; one checkpoint, whose task noise is taken for that of two checkpoints whose task
            means have this correlation: omega^2 = 2 (1 - correlation) * variance; or two, from which all is measured.
        correlation: in [0, 1).

    Raises:
        StoreError: more than two checkpoints, or scores outside [0, 1].
        ValueError: too few tasks with two attempts, or a correlation outside [0, 1).
    """
    if table is None:
        return Assumed(variance=UNKNOWN, design_effect=1.0, tasks=0, source="assumed: tasks of all difficulties alike")
    if not 0.0 <= correlation < 1.0:
        raise ValueError(f"correlation {correlation} is not in [0, 1); 0.5 is usual, 0 the most careful")
    if len(table.checkpoints) > 2:
        raise StoreError(f"a plan is made from one or two checkpoints, not {', '.join(table.checkpoints)}")
    shared = table.within(0.0, 1.0).shared()
    if len(table.checkpoints) == 2:
        variance = stats.paired_variance(shared.scores[:, :, 0], shared.scores[:, :, 1])
        means = stats.mean_score(shared.scores)
        effect = _design_effect(shared, means[:, 1] - means[:, 0])
        source = f"measured on {variance.num_tasks} tasks of {' and '.join(table.checkpoints)}"
        return Assumed(variance=variance, design_effect=effect, tasks=len(shared.tasks), source=source)
    scores = shared.scores[:, :, 0]
    split = stats.variance_split(scores)
    noise = split.attempt
    task = 2.0 * (1.0 - correlation) * max(0.0, split.task)
    return Assumed(
        variance=stats.PairedVariance(task=task, before=noise, after=noise, num_tasks=split.num_tasks),
        design_effect=_design_effect(shared, stats.mean_score(scores)),
        tasks=len(shared.tasks),
        source=f"measured on {split.num_tasks} tasks of {table.checkpoints[0]}, and a correlation of {correlation:g} "
        "between the checkpoints",
    )


def plan(
    assumed: Assumed,
    delta: float,
    *,
    rates: Rates,
    tasks: int | None = None,
    level: float = 0.95,
    power: float = 0.8,
) -> Plan:
    """The ways to see a difference.

    Args:
        assumed: see `assume`.
        delta: the difference to be seen, in (0, 1].
        rates: what an attempt costs.
        tasks: how many there are; those of the run when None.
        level: of the interval.
        power: the share of evaluations in which a difference of ``delta`` shall be seen.

    Raises:
        ValueError: a value outside its range.
    """
    if not 0.0 < delta <= 1.0:
        raise ValueError(f"delta {delta:g} is not in (0, 1]; 0.03 is a difference of 3 points")
    if tasks is not None and tasks < 2:
        raise ValueError(f"tasks {tasks}: a comparison needs two tasks or more")
    options = tuple(_option(assumed, delta, attempts, rates, level, power) for attempts in ATTEMPTS)
    there = assumed.tasks if tasks is None else tasks
    needed = _attempts(assumed, delta, there, level, power) if there else None
    return Plan(
        delta=delta,
        level=level,
        power=power,
        assumed=assumed,
        options=options,
        tasks=there,
        attempts_with_tasks=needed,
        limit=_limit(assumed, there, level, power) if there else None,
    )


def _option(assumed: Assumed, delta: float, attempts: int, rates: Rates, level: float, power: float) -> Option:
    alone = stats.tasks_needed(
        assumed.variance, delta=delta, attempts_before=attempts, attempts_after=attempts, level=level, power=power
    )
    tasks = max(2, math.ceil(alone * assumed.design_effect))
    number = 2 * tasks * attempts
    return Option(
        attempts=attempts,
        tasks=tasks,
        tokens=None if rates.tokens is None else rates.tokens * number,
        seconds=None if rates.seconds is None else rates.seconds * number,
    )


def _effective(assumed: Assumed, tasks: int) -> int:
    """As many independent tasks as say what ``tasks`` clustered ones do."""
    return max(2, math.floor(tasks / assumed.design_effect))


def _attempts(assumed: Assumed, delta: float, tasks: int, level: float, power: float) -> int | None:
    if _limit(assumed, tasks, level, power) >= delta:
        return None
    return stats.attempts_needed(
        assumed.variance, delta=delta, tasks=_effective(assumed, tasks), level=level, power=power
    )


def _limit(assumed: Assumed, tasks: int, level: float, power: float) -> float:
    """The difference that these tasks show with attempts without end."""
    return stats.minimum_detectable(
        assumed.variance,
        tasks=_effective(assumed, tasks),
        attempts_before=math.inf,
        attempts_after=math.inf,
        level=level,
        power=power,
    )


def _design_effect(table: Table, values: np.ndarray) -> float:
    """How many times more tasks are needed since tasks of one cluster come out alike; at least 1."""
    if table.clusters is None or np.ptp(values) == 0.0:
        return 1.0
    return max(1.0, float(stats.cluster_errors(values, table.clusters).design_effect))
