"""Groups of attempts at the same tasks, played side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.engine.random import derive_seed
from agentrl.harness.loop import ToolLoop
from agentrl.protocols import Sampler, TaskSet
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.types import Group, Task


async def rollout(
    task_set: TaskSet,
    tasks: Sequence[Task],
    *,
    harness: ToolLoop,
    sampler: Sampler,
    attempts: int,
    seed: int,
    name: str,
) -> list[Group]:
    """Play ``attempts`` attempts at each task, all at the same time. Groups come back in the order of the tasks.

    The draws of an attempt depend on ``seed``, ``name``, the task and the attempt's number, and on nothing else.
    """
    plans = [
        (task, AttemptId(group_id=f"{name}-{g}", attempt=n, seed=derive_seed(seed, name, task.id, g, n)))
        for g, task in enumerate(tasks)
        for n in range(attempts)
    ]
    sessions = [sampler.session(identity.seed) for _, identity in plans]
    traces = await asyncio.gather(
        *(
            attempt(task_set, task, harness, session, identity)
            for (task, identity), session in zip(plans, sessions, strict=True)
        )
    )
    return [
        Group(id=f"{name}-{g}", task=task, traces=tuple(traces[g * attempts : (g + 1) * attempts]))
        for g, task in enumerate(tasks)
    ]
