"""The warm start: supervised fine-tuning on demonstrations of a scripted solver that makes mistakes too."""

from __future__ import annotations

import asyncio
import random
import time

from agentrl.engine.random import derive_seed
from agentrl.engine.scripted import ScriptedSession
from agentrl.errors import TaskError
from agentrl.loops.context import RunContext, trained_on
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tasks.bugfix.solver import Mistakes, solve
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tokens.samples import samples
from agentrl.train.losses import supervised
from agentrl.train.trainer import OptimizerSettings
from agentrl.types import Sample, Task, Trace

LOT = 128
"""Tasks that are demonstrated at the same time."""


def warm_start(run: RunContext) -> None:
    """Teach the policy the tools, and what a repair looks like."""
    settings = run.config.warm_start
    trainer = run.start_phase(
        "warm_start",
        OptimizerSettings(
            learning_rate=settings.learning_rate,
            matrix_learning_rate=settings.matrix_learning_rate,
            total_steps=settings.steps,
            warmup_steps=20,
            final_fraction=0.05,
        ),
    )
    if settings.steps == 0:
        run.save("warm_start-000000-end")  # else what reinforcement learning began with would be kept nowhere
    if run.progress.step >= settings.steps:
        return
    with run.timed("demonstrations"):
        demonstrated = asyncio.run(_demonstrate_all(run))
    tasks_per_step = max(1, settings.batch_size // settings.demonstrations)
    run.reporter.phase("warm start", settings.steps)
    for step in range(run.progress.step, settings.steps):
        started = time.perf_counter()
        groups = run.draw(len(demonstrated), tasks_per_step, step, "demonstrations")
        batch = [sample for index in groups for sample in demonstrated[index]]
        metrics = trainer.step(batch, supervised)
        seconds = time.perf_counter() - started
        run.add_seconds("warm_start", seconds)
        metrics |= {"seconds_step": seconds, "seconds_training": seconds}
        run.folder.append_metrics("warm_start", step + 1, metrics)
        run.reporter.step(step + 1, metrics)
        run.finish_step(step + 1, checkpoint=(step + 1) % 100 == 0, last=step + 1 == settings.steps)


async def _demonstrate_all(run: RunContext) -> list[list[Sample]]:
    """The samples of every training task's demonstrations, one list a task."""
    task_set = run.train_tasks().together(run.config.sandbox.workers)  # the solver's programs are our own
    run.reporter.note(f"demonstrating {len(task_set)} tasks")
    free = asyncio.Semaphore(2)  # while the programs of one lot run, the next lot is written

    async def lot(first: int) -> list[list[Sample]]:
        async with free:
            return await _demonstrate_lot(run, task_set, range(first, min(first + LOT, len(task_set))))

    lots = await asyncio.gather(*(lot(first) for first in range(0, len(task_set), LOT)))
    return [made for lot in lots for made in lot]


async def _demonstrate_lot(run: RunContext, task_set: BugFix, indices: range) -> list[list[Sample]]:
    count = run.config.warm_start.demonstrations
    tasks = [task_set[index] for index in indices]
    traces = await asyncio.gather(*(_demonstrate(run, task_set, task, n) for task in tasks for n in range(count)))
    if indices.start == 0:
        run.folder.write_traces("warm_start", 0, [trained_on(trace, "ce") for trace in traces])
    by_task = (traces[start : start + count] for start in range(0, len(traces), count))
    return [[sample for trace in mine for sample in samples(trace, None, objective="ce")] for mine in by_task]


async def _demonstrate(run: RunContext, task_set: BugFix, task: Task, number: int) -> Trace:
    settings = run.config.warm_start
    mistakes = Mistakes(
        reverts=settings.reverts,
        wrong_edit=settings.wrong_edit,
        untested=settings.untested,
        gives_up=settings.gives_up,
        meddles=settings.meddles,
    )
    rng = random.Random(derive_seed(run.config.seed, "demonstration", task.id, number))
    path = task.metadata["main_path"]
    script = solve(task.files[path], task_set.solution(task.id)[path], rng=rng, mistakes=mistakes)
    session = ScriptedSession(script, run.renderer.write_call, run.renderer.decode)
    identity = AttemptId(group_id=f"demonstration-{task.id}", attempt=number, seed=0)
    trace = await attempt(task_set, task, run.harness, session, identity, score=False)
    if trace.error is not None:
        raise TaskError(f"the demonstration of {task.id} failed at the {trace.error.boundary}: {trace.error.message}")
    return trace
