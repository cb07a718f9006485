"""Asynchronous reinforcement learning: the six steps of `agentrl.loops.rl`, with attempts that are played ahead.

While the trainer learns a step, the sampler plays the groups of the next ones, with weights that are at most
``rl.max_staleness`` steps old when their tokens are trained (`agentrl.rollout.pacing` says why that holds). The event
loop plays, publishes and saves; the trainer works in a thread of its own, and nothing changes its weights meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from agentrl.algorithms.presets import Preset
from agentrl.loops.canary import Canary, InTrainer
from agentrl.loops.clock import StepClock
from agentrl.loops.context import RunContext
from agentrl.loops.rl import configured_preset, evaluates, learn, make_learner, record, refilled, rollout_metrics
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.rollout.bias import Bias
from agentrl.rollout.buffer import Buffer
from agentrl.rollout.generation import Generation
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupPlan, GroupShape, is_repeatable, plan_group
from agentrl.rollout.staleness import Staleness
from agentrl.types import Group, Task

SCORING_S = 60.0
"""What an attempt may take beyond the limits of its harness, to be scored and to clean up."""
SWITCH_S = 5e-4
"""How long one thread may keep Python from another that waits for it. Steps of a TinyAgent run took 8 % to 25 % less
time with it than with the 5 ms that are usual (two pairs of runs, on two cores that others used as well)."""
LEGEND = (
    "attempts are played ahead; staleness: mean age in steps of the tokens of a step, {} at most · dropped: groups "
    "that were too old · overlap: share of a step in which attempts were in flight while the trainer worked"
)
T = TypeVar("T")


def reinforce_async(run: RunContext) -> None:
    """Train the policy on its own attempts, which are played while it learns.

    With ``rl.max_staleness`` 0 nothing overlaps: the weights, metrics and traces are those of the synchronous loop.
    """
    run.train_tasks()  # made here, since that would keep the event loop waiting
    if run.config.rl.eval_every:
        run.validation_tasks()
    with _side_by_side(run) as number, ThreadPoolExecutor(1, "trainer", torch.set_num_threads, (number,)) as trainer:

        def in_trainer(work: Callable[..., T], *values: Any) -> Awaitable[T]:
            return asyncio.get_running_loop().run_in_executor(trainer, partial(work, *values))

        asyncio.run(_reinforce(run, in_trainer))


async def _reinforce(run: RunContext, in_trainer: InTrainer) -> None:
    settings = run.config.rl
    algorithm = configured_preset(settings)
    learner = make_learner(run, algorithm)
    await run.publish(run.progress.step, restored=True)
    run.reporter.phase("rl", settings.steps)
    if settings.overlaps:
        run.reporter.note(LEGEND.format(settings.max_staleness))
    async with run.connected(), _generation(run, algorithm) as generation:
        canary, bias = Canary.of(run, every=settings.publish_every) if settings.overlaps else None, Bias()
        generation.begin(run.progress.step)
        for step in range(run.progress.step, settings.steps):
            clock = StepClock(run, generation)
            if canary is not None:
                canary.begin(step)
            credited = await refilled(run, step, algorithm, await generation.take(), _playing(run, generation))
            if canary is not None:
                await canary.check(in_trainer, learnt=False)
            clock.taken()
            metrics = await in_trainer(learn, run, learner, credited, step)
            clock.learnt()
            if canary is not None:
                await canary.check(in_trainer, learnt=True)
            await generation.publish(partial(run.publish, step + 1))
            if canary is not None:
                canary.compare_weights(step + 1)
            ended = Staleness.of(generation.buffer.pop_ended())
            bias = bias.merged(ended.bias)
            ages = replace(ended, bias=bias).row(updates_per_step=settings.epochs * settings.minibatches)
            record(run, step + 1, metrics | rollout_metrics(credited) | ages | clock.row(), credited)
            if evaluates(settings, step + 1):
                await run.measure_beside(step + 1)
            due = (step + 1) % settings.checkpoint_every == 0
            run.finish_step(step + 1, checkpoint=due, last=step + 1 == settings.steps)
            generation.begin(step + 1)


def _generation(run: RunContext, algorithm: Preset) -> Generation:
    """Plays what the synchronous loop would play: the same tasks, names and seeds, step after step."""
    settings, tasks = run.config.rl, run.train_tasks()
    size, limits = settings.groups_per_step, run.config.harness
    shape = GroupShape(attempts=settings.group_size, greedy=algorithm.greedy, extra=settings.extra_attempts)
    pacing = Pacing(
        groups_per_step=size,
        max_staleness=settings.max_staleness,
        steps=settings.steps,
        publish_every=settings.publish_every,
    )

    def plan(number: int) -> GroupPlan:
        step, place = divmod(number, size)
        index = run.draw(len(tasks), size, step, "rl")[place]
        return plan_group(tasks, index, shape=shape, name=f"rl-{step + 1}", place=place, seed=run.config.seed)

    def play(task: Task, identity: AttemptId, greedy: bool) -> Any:
        return attempt(tasks, task, run.harness, run.engine.session(identity.seed, greedy=greedy), identity)

    return Generation(
        run.start_buffer(Buffer(pacing, shape, order=settings.order)),
        plan=plan,
        play=play,
        sampler=run.engine,
        note=run.reporter.note,
        deadline_s=settings.attempt_s or limits.total_s + limits.call_s + SCORING_S,
        at_publication=settings.at_publication,
        repeatable=is_repeatable(tasks),
    )


def _playing(run: RunContext, generation: Generation) -> Callable[[Sequence[int], str], Awaitable[list[Group]]]:
    """Plays groups for one step alone, while the trainer waits."""

    async def play(indices: Sequence[int], name: str) -> list[Group]:
        make = partial(plan_group, run.train_tasks(), shape=generation.buffer.shape, name=name, seed=run.config.seed)
        return await generation.play_now([make(index, place=place) for place, index in enumerate(indices)])

    return play


@contextmanager
def _side_by_side(run: RunContext) -> Iterator[int]:
    """How many threads the trainer's work is cut into; the sampler's into as many, where both work at a time in this
    process.

    Each of them says how many before it begins, and MKL has one number for the process: with two different ones, how
    fast and in which order of summation one computes would depend on what the other did last. Python lets the one wait
    for the other no longer than a fraction of a sampling step.
    """
    before, switch_s = torch.get_num_threads(), sys.getswitchinterval()
    shared = run.config.rl.overlaps and run.served is None
    number = (run.model.sampling_threads or max(1, before // 2)) if shared else before
    torch.set_num_threads(number)
    sys.setswitchinterval(SWITCH_S if run.config.rl.overlaps else switch_s)
    try:
        yield number
    finally:
        sys.setswitchinterval(switch_s)
        torch.set_num_threads(before)
