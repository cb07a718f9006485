"""The warm start: supervised fine-tuning on demonstrations of a scripted solver that makes mistakes too."""

from __future__ import annotations

import asyncio
import random
import time

from agentrl.engine.random import derive_seed
from agentrl.engine.scripted import ScriptedSession
from agentrl.errors import TaskError
from agentrl.loops.context import RunContext
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tasks.bugfix.solver import Mistakes, solve
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tokens.samples import samples
from agentrl.train.trainer import OptimizerSettings, supervised
from agentrl.types import Sample, Task, Trace


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
    count = run.config.warm_start.demonstrations
    made: list[list[Sample]] = []
    for first in range(0, len(task_set), 128):
        tasks = [task_set[index] for index in range(first, min(first + 128, len(task_set)))]
        traces = await asyncio.gather(*(_demonstrate(run, task_set, task, n) for task in tasks for n in range(count)))
        for index in range(len(tasks)):
            mine = traces[index * count : (index + 1) * count]
            made.append([sample for trace in mine for sample in samples(trace, None, objective="ce")])
        if first == 0:
            run.folder.write_traces("warm_start", 0, traces)
    return made


async def _demonstrate(run: RunContext, task_set: BugFix, task: Task, number: int) -> Trace:
    settings = run.config.warm_start
    mistakes = Mistakes(
        meddles=settings.meddles,
        wrong_edit=settings.wrong_edit,
        untested=settings.untested,
        gives_up=settings.gives_up,
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
