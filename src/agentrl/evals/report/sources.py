"""What a run has left to report on: its checkpoints, and the attempts of the policy before and after RL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from agentrl.errors import StoreError
from agentrl.evals.attempts import attempt_of
from agentrl.evals.folder import EvaluationFolder
from agentrl.evals.table import Table
from agentrl.store import RunFolder
from agentrl.types import Trace

BASE, TRAINED = "base", "trained"
_CHECKPOINT = re.compile(r"(?P<phase>warm_start|rl)-(?P<step>\d{6})(?P<end>-end)?")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A checkpoint: the steps of RL that made it, 0 for the policy that RL began with."""

    step: int
    path: Path


def checkpoints(run: RunFolder) -> list[Stored]:
    """The policy that RL began with and the checkpoints of RL that the run keeps, by step.

    Raises:
        StoreError: there is no checkpoint of the beginning, or none of RL.
    """
    names = {path.name: match for path in run.checkpoints.glob("*") if (match := _CHECKPOINT.fullmatch(path.name))}
    base = sorted(name for name, match in names.items() if match["phase"] == "warm_start" and match["end"])
    if not base:
        raise StoreError(f"{run.path} keeps no checkpoint of the policy before RL (warm_start-...-end)")
    later = {int(match["step"]): run.checkpoints / name for name, match in names.items() if match["phase"] == "rl"}
    if not later:
        raise StoreError(f"{run.path} keeps no checkpoint of RL; go on with it: agentrl train --resume {run.path}")
    found = [Stored(step=step, path=path) for step, path in sorted(later.items())]
    return [Stored(step=0, path=run.checkpoints / base[-1]), *found]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Attempts of the base and of the trained policy at the same tasks, as a table of two checkpoints.

    ``source`` says in words where they come from.
    """

    table: Table
    source: str


def evidence(run: RunFolder, step: int) -> Evidence:
    """The stored pair of evaluations with most attempts at a task, and among those with most tasks.

    Args:
        run: its own evaluations count, and those that `agentrl eval` has kept below it.
        step: of the trained policy.

    Raises:
        StoreError: there is no pair, with what to do.
    """
    found = list(_pairs(run, step))
    if not found:
        raise StoreError(
            f"{run.path} has no evaluations of the same tasks before RL and after {step} steps; make them: "
            f"{' && '.join(commands(run, step, 8))}"
        )
    return max(found, key=_richness)


def commands(run: RunFolder, step: int, attempts: int) -> list[str]:
    """The commands that evaluate both policies with more attempts at a task."""
    words = f"agentrl eval {run.path / 'config.toml'} --attempts {attempts} --policy {run.path}"
    return [f"{words}@before", f"{words}@{step}"]


def _richness(one: Evidence) -> tuple[int, int]:
    shared = one.table.shared()
    made = (~np.isnan(shared.scores)).sum(axis=1)
    return (int(made.min()) if made.size else 0, len(shared.tasks))


def _pairs(run: RunFolder, step: int) -> Iterator[Evidence]:
    own = [tuple(run.iter_traces(phase, at)) for phase, at in (("eval_before", 0), ("eval", step))]
    if all(own):
        yield _evidence(own[0], own[1], (run.path, run.path), "the evaluations of the run itself, before and after RL")
    folders = EvaluationFolder.below(run.path)
    for base in folders:
        for trained in folders:
            if _of_base(base) and _of_step(trained, step) and _comparable(base) == _comparable(trained):
                sides = [tuple(one.traces()) for one in (base, trained)]
                if all(sides):
                    words = f"the evaluations {base.path.name} and {trained.path.name}, kept below the run"
                    yield _evidence(sides[0], sides[1], (base.path, trained.path), words)


def _of_base(folder: EvaluationFolder) -> bool:
    return folder.spec.version == 0 and folder.spec.weights.startswith("warm_start-")


def _of_step(folder: EvaluationFolder, step: int) -> bool:
    return folder.spec.version == step and folder.spec.weights.startswith("rl-")


def _comparable(folder: EvaluationFolder) -> str:
    spec = asdict(folder.spec)
    return json.dumps([spec[name] for name in ("task_set", "settings", "harness", "temperature")], sort_keys=True)


def _evidence(base: Sequence[Trace], trained: Sequence[Trace], show: tuple[Path, Path], source: str) -> Evidence:
    sides = ((BASE, base, show[0]), (TRAINED, trained, show[1]))
    rows = [attempt_of(trace, name, show=str(path)) for name, traces, path in sides for trace in traces]
    return Evidence(table=Table.of(rows), source=source)
