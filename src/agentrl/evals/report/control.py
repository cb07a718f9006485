"""A run beside a control run, such as one whose reward is drawn: how much of the gain the reward taught."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.config import TrainConfig
from agentrl.errors import StoreError
from agentrl.evals import stats
from agentrl.evals.table import Table

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Control:
    """Gains in the mean score from before RL to after it, on the tasks that all four evaluations share.

    Attributes:
        name: of the control's folder.
        reward: what its reward was.
        differing: settings in which the two runs differ, as ``key: run's value, control's value``.
        same_base: whether both began RL with the same weights, to the bit.
        gain: of the run, and ``gain_control`` of the control.
        excess: mean over tasks of the run's gain minus that of the control, with its paired interval.
        num_tasks: shared by all four.
    """

    name: str
    reward: str
    differing: tuple[str, ...]
    same_base: bool
    gain: stats.Interval
    gain_control: stats.Interval
    excess: stats.Interval
    num_tasks: int


def against_control(
    run: Table, control: Table, *, name: str, configs: tuple[TrainConfig, TrainConfig], same_base: bool
) -> Control:
    """Compare the gains of two runs task by task.

    Args:
        run: two checkpoints, before RL and after it.
        control: those of the control.
        name: of the control.
        configs: of the run and of the control.
        same_base: whether both began with the same weights.

    Raises:
        StoreError: fewer than two tasks were scored in all four evaluations.
    """
    first, second = run.shared(), control.shared()
    places = {task: t for t, task in enumerate(second.tasks)}
    mine = [t for t, task in enumerate(first.tasks) if task in places]
    if len(mine) < 2:
        raise StoreError(f"{name} and the run share {len(mine)} evaluated task(s); evaluate both on the same tasks")
    theirs = [places[first.tasks[t]] for t in mine]
    clusters = None if first.clusters is None else first.clusters[mine]
    gains = [_gains(first)[mine], _gains(second)[theirs]]
    ends = [stats.interval_of(one, clusters=clusters, bounds=(-1.0, 1.0)) for one in gains]
    return Control(
        name=name,
        reward=configs[1].tasks.reward,
        differing=differing(*configs),
        same_base=same_base,
        gain=ends[0],
        gain_control=ends[1],
        excess=stats.interval_of(gains[0] - gains[1], clusters=clusters, bounds=(-2.0, 2.0)),
        num_tasks=len(mine),
    )


def _gains(table: Table) -> Floats:
    means = stats.mean_score(table.within(0.0, 1.0).scores)
    return np.asarray(means[:, 1] - means[:, 0])


def differing(run: TrainConfig, control: TrainConfig) -> tuple[str, ...]:
    """The settings of two configurations that are not equal."""
    first, second = (_flat(config.model_dump(mode="json")) for config in (run, control))
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return tuple(f"{key}: {first.get(key)!r} and {second.get(key)!r}" for key in keys)


def _flat(data: dict[str, object], before: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return found
