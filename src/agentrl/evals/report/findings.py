"""Everything that a run's report says, measured; a part that cannot be measured says why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from agentrl.config import TrainConfig
from agentrl.errors import StoreError
from agentrl.evals import stats
from agentrl.evals.report.control import Control, against_control
from agentrl.evals.report.curve import LearningCurve, learning_curve
from agentrl.evals.report.drift import Drift, Reading, drift
from agentrl.evals.report.forecast import Fit, Forecast, forecast, refuse
from agentrl.evals.report.passes import Passes, SolvedBy, passes, solved_by
from agentrl.evals.report.sources import Evidence, Stored, checkpoints, evidence
from agentrl.evals.report.weights import Change, changes, read_weights
from agentrl.evals.table import Table
from agentrl.store import RunFolder

T = TypeVar("T")
Scorer = Callable[[RunFolder], list[Reading]]
"""What scores stored attempts under stored checkpoints. Raises StoreError where it cannot."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A part that was not measured, and why, with what to do about it."""

    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """All parts of a report. ``steps`` are those of the trained policy.

    ``outcome`` compares the mean scores of the two policies, in the units of the reward.
    """

    run: RunFolder
    config: TrainConfig
    steps: int
    source: str | Missing
    outcome: stats.Comparison | Missing
    curve: LearningCurve
    forecast: Forecast
    passes: Passes | Missing
    solved: SolvedBy | Missing
    drift: tuple[Drift, ...] | Missing
    changes: tuple[Change, ...] | Missing
    control: Control | Missing


def measure(
    run: RunFolder, scorer: Scorer, *, control: RunFolder | None = None, threshold: float | None = None, seed: int = 0
) -> Findings:
    """Everything that the folder of a run allows.

    Args:
        run: with at least one checkpoint of RL.
        scorer: see `Scorer`.
        control: a run to compare with, such as one whose reward was drawn.
        threshold: the least score that passes, where scores are not 0 or 1.
        seed: of the resamples.

    Raises:
        StoreError: the run keeps no checkpoint of RL, or of the policy before it, or one is damaged.
    """
    base, *later = checkpoints(run)
    last = later[-1]
    found = _tried(lambda: evidence(run, last.step))
    curve = learning_curve(run.metrics(), last.step)
    return Findings(
        run=run,
        config=run.config,
        steps=last.step,
        source=found if isinstance(found, Missing) else found.source,
        outcome=_with(found, lambda one: _outcome(one.table)),
        curve=curve,
        forecast=_forecast(run.config, curve),
        passes=_with(found, lambda one: passes(one.table.passing(threshold), seed=seed)),
        solved=_with(found, lambda one: solved_by(one.table.passing(threshold))),
        drift=_tried(lambda: drift(scorer(run))),
        changes=_tried(lambda: changes(read_weights(base.path), read_weights(last.path))),
        control=_control(run, found, base, control),
    )


def _forecast(config: TrainConfig, curve: LearningCurve) -> Forecast:
    if config.tasks.reward == "random":
        return refuse("the training reward was drawn and is no learning curve", len(curve.rewards))
    return forecast(curve.rewards)


def _tried(make: Callable[[], T]) -> T | Missing:
    try:
        return make()
    except (StoreError, ValueError) as error:
        return Missing(why=str(error))


def _with(found: Evidence | Missing, make: Callable[[Evidence], T]) -> T | Missing:
    return found if isinstance(found, Missing) else _tried(lambda: make(found))


def _outcome(table: Table) -> stats.Comparison:
    means = stats.mean_score(table.shared().scores)
    return stats.compare(means[:, 0], means[:, 1], clusters=table.shared().clusters, bounds=table.bounds_of_scores())


def _control(run: RunFolder, found: Evidence | Missing, base: Stored, control: RunFolder | None) -> Control | Missing:
    if control is None and run.config.tasks.reward == "random":
        return Missing(why="this run is a control itself; name it with --control in the report of another run")
    if control is None:
        line = f"agentrl train {run.path / 'config.toml'} --tasks.reward random"
        return Missing(why=f"no control was given; train one with the line `{line}` and add it with --control RUN")
    theirs = _tried(lambda: checkpoints(control))
    if isinstance(theirs, Missing):
        return theirs
    return _with(
        found,
        lambda one: against_control(
            one.table,
            evidence(control, theirs[-1].step).table,
            name=str(control.path),
            configs=(run.config, control.config),
            same_base=_same(base, theirs[0]),
        ),
    )


def _same(first: Stored, second: Stored) -> bool:
    sides = [read_weights(one.path) for one in (first, second)]
    same_names = sides[0].keys() == sides[1].keys()
    return same_names and all(np.array_equal(tensor, sides[1][name]) for name, tensor in sides[0].items())


def plain(found: Findings) -> dict[str, Any]:
    """The findings as JSON-plain data; infinity, which JSON lacks, is None, and a part that is missing says why."""
    parts = {
        "outcome": found.outcome,
        "learning_curve": {"bins": found.curve.bins, "evaluations": found.curve.points, "skipped": found.curve.skipped},
        "forecast": found.forecast,
        "pass_at_k": found.passes,
        "solved": found.solved,
        "drift": found.drift,
        "weights": found.changes,
        "control": found.control,
    }
    return {
        "run": str(found.run.path),
        "recipe": found.config.recipe,
        "seed": found.config.seed,
        "reward": found.config.tasks.reward,
        "steps": found.steps,
        "source": None if isinstance(found.source, Missing) else found.source,
        **{name: _plain(part) for name, part in parts.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Missing):
        return {"missing": value.why}
    if isinstance(value, Fit):
        names = ("start", "ceiling", "middle", "steepness", "num_steps", "dispersion", "correlation", "identified")
        return {name: _plain(getattr(value, name)) for name in names}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
