"""Groups that are to be played: which task, which attempts, the seed of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.engine.random import derive_seed
from agentrl.errors import ConfigError, StoreError
from agentrl.protocols import TaskSet
from agentrl.rollout.attempt import AttemptId
from agentrl.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupShape:
    """The attempts that are played at a task.

    Attributes:
        attempts: sampled attempts that a group is made of.
        greedy: whether one more is played in which the policy takes its likeliest token each time. Its number is
            ``attempts``.
        extra: sampled attempts that are played besides, with the numbers that follow. The first ``attempts`` to end
            without a fault make the group and the others are given up. **Biased**: what is quick is kept, so attempts
            that are short, or that meet a quick tool, are trained more often than they are sampled, and a reward that
            goes with length is misjudged. Of attempts that are given up neither length nor reward is ever known, so
            no run can measure this bias of its own; it grows with ``extra / attempts``.

    Raises:
        ConfigError: no attempt, or a negative number of extra ones.
    """

    attempts: int
    greedy: bool = False
    extra: int = 0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.extra < 0:
            raise ConfigError(
                f"a group of {self.attempts} attempts and {self.extra} extra ones; write at least 1 and at least 0"
            )

    @property
    def size(self) -> int:
        """Attempts that are dispatched for a group."""
        return self.attempts + self.greedy + self.extra

    def is_greedy(self, attempt: int) -> bool:
        """Whether the attempt of this number is the greedy one."""
        return self.greedy and attempt == self.attempts


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """One group before it is played: its id, its task and the task's index in the set, and a seed per attempt."""

    id: str
    index: int
    task: Task
    seeds: tuple[int, ...]

    def identity(self, attempt: int) -> AttemptId:
        """Which attempt of the group this is."""
        return AttemptId(group_id=self.id, attempt=attempt, seed=self.seeds[attempt])

    def to_json(self) -> dict[str, Any]:
        """JSON-plain data; the task itself stays with its set."""
        return {"id": self.id, "index": self.index, "task_id": self.task.id, "seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], task_set: TaskSet) -> GroupPlan:
        """The plan that `to_json` wrote.

        Raises:
            StoreError: the set has another task at its index.
        """
        index = data["index"]
        found = task_set[index].id if index < len(task_set) else None
        if found != data["task_id"]:
            raise StoreError(
                f"group {data['id']!r} was begun at task {data['task_id']!r}, and {task_set.id!r} has {found!r} at "
                f"index {index}; resume with the task set that the run began with"
            )
        return cls(id=data["id"], index=index, task=task_set[index], seeds=tuple(data["seeds"]))


def is_repeatable(task_set: TaskSet) -> bool:
    """Whether a task set says, by ``repeatable = True``, that playing an attempt again has no effect outside of it.

    Where it says nothing, an attempt that broke is not played again: what it did may have been done already.

    Raises:
        ConfigError: ``repeatable`` is neither True nor False.
    """
    said = getattr(task_set, "repeatable", False)
    if not isinstance(said, bool):
        raise ConfigError(f"repeatable of {task_set.id!r} is {said!r}; write True or False")
    return said


def plan_group(task_set: TaskSet, index: int, *, shape: GroupShape, name: str, place: int, seed: int) -> GroupPlan:
    """The group at a task, with the ids and the seeds that `agentrl.rollout.group.rollout` gives.

    Args:
        task_set: what is trained on.
        index: of the task.
        shape: the attempts.
        name: of all groups that are drawn together, such as ``rl-3``.
        place: of this one among them, from 0.
        seed: of the run.
    """
    task = task_set[index]
    seeds = tuple(derive_seed(seed, name, task.id, place, attempt) for attempt in range(shape.size))
    return GroupPlan(id=f"{name}-{place}", index=index, task=task, seeds=seeds)
