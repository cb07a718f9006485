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
    greedy: bool = False,
    first: int = 0,
) -> list[Group]:
    """Play ``attempts`` attempts at each task, all at the same time. Groups come back in the order of the tasks.

    With ``greedy`` one more is played at each task, in which the policy takes its likeliest token each time.

    The draws of an attempt depend on ``seed``, ``name``, the task, the number of the group (which begin with ``first``,
    for whoever plays a part of many) and that of the attempt, and on nothing else.
    """
    plans = [
        (task, AttemptId(group_id=f"{name}-{g}", attempt=n, seed=derive_seed(seed, name, task.id, g, n)))
        for g, task in enumerate(tasks, first)
        for n in range(attempts + greedy)
    ]
    sessions = [sampler.session(identity.seed, greedy=identity.attempt == attempts) for _, identity in plans]
    traces = await asyncio.gather(
        *(
            attempt(task_set, task, harness, session, identity)
            for (task, identity), session in zip(plans, sessions, strict=True)
        )
    )
    by_task = [traces[start : start + attempts + greedy] for start in range(0, len(traces), attempts + greedy)]
    return [
        Group(id=f"{name}-{g}", task=task, traces=tuple(mine[:attempts]), greedy=mine[attempts] if greedy else None)
        for g, (task, mine) in enumerate(zip(tasks, by_task, strict=True), first)
    ]
