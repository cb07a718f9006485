"""Held-out evaluation: the same harness, renderer and limits as in training, other tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import SamplerError
from agentrl.evals.running import labelled
from agentrl.evals.stats import Interval, pass_at_1
from agentrl.harness.loop import ToolLoop
from agentrl.protocols import Sampler, TaskSet
from agentrl.rollout.group import rollout
from agentrl.types import Group, Trace


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Rewards by task, what tasks have in common (such as a program) where that is known, the attempts labelled with
    it, and pass@1 with its interval, clustered as that of `agentrl eval`."""

    outcomes: dict[str, tuple[float | None, ...]]
    clusters: dict[str, str]
    traces: tuple[Trace, ...]
    pass_at_1: Interval


async def evaluate(
    task_set: TaskSet,
    *,
    harness: ToolLoop,
    sampler: Sampler,
    attempts: int,
    seed: int,
    name: str,
    at_once: int | None = None,
) -> Evaluation:
    """Attempt every task of a set ``attempts`` times with one version of the policy.

    At most ``at_once`` attempts are played side by side (but always those at one task), all of them when it is None.
    The draws are the same either way.

    Raises:
        SamplerError: the policy changed while it was being evaluated.
        ValueError: fewer than two tasks could be scored.
    """
    tasks = [task_set[index] for index in range(len(task_set))]
    measuring = harness.for_evaluation()
    size = len(tasks) if at_once is None else max(1, at_once // attempts)
    groups: list[Group] = []
    for first in range(0, len(tasks), size):
        groups += await rollout(
            task_set,
            tasks[first : first + size],
            harness=measuring,
            sampler=sampler,
            attempts=attempts,
            seed=seed,
            name=name,
            first=first,
        )
    traces = tuple(labelled(trace, task_set, group.task) for group in groups for trace in group.traces)
    _one_version(traces)
    outcomes = {group.task.id: group.rewards for group in groups}
    clusters = {trace.task_id: str(trace.metadata["cluster"]) for trace in traces if "cluster" in trace.metadata}
    found = pass_at_1(outcomes, clusters)
    return Evaluation(outcomes=outcomes, clusters=clusters, traces=traces, pass_at_1=found)


def _one_version(traces: Sequence[Trace]) -> None:
    versions = {version for trace in traces for node in trace.nodes for version in node.versions}
    if len(versions) > 1:
        raise SamplerError(f"an evaluation mixed policy versions {sorted(versions)}; publish before or after it")
