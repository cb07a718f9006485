"""What supervised fine-tuning imitates: conversations of a file, or a scripted solver that makes mistakes too."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from agentrl.engine.random import derive_seed
from agentrl.engine.scripted import Script, ScriptedSession
from agentrl.errors import ConfigError, TaskError
from agentrl.evals.baselines import edits
from agentrl.loops.context import RunContext
from agentrl.loops.notes import trained_on
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tasks.bugfix.mutations import Mutation, mutations
from agentrl.tasks.bugfix.solver import Mistakes, solve
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tokens.dataset import Unit, load_dataset
from agentrl.tokens.rows import as_writer
from agentrl.tokens.samples import samples
from agentrl.types import Message, Stop, Task, ToolCall, Trace

LOT = 128
"""Tasks that are demonstrated at the same time, and conversations of a file that are kept in the run's folder."""


def demonstrations(run: RunContext) -> list[Unit]:
    """All that there is to imitate: one unit for each conversation of the configured file, or for each training task.

    The first of them are kept in the run's folder as traces.

    Raises:
        ConfigError: the file is none of conversations, naming the line and what to write.
        TaskError: a demonstration failed.
    """
    settings = run.config.warm_start
    if settings.data is None:
        return asyncio.run(_demonstrate_all(run))
    found = load_dataset(
        settings.data,
        run.renderer,
        context=run.config.model.context,
        overlong=settings.overlong,
        min_reward=settings.min_reward,
        tools=BugFixEnvironment.tool_specs,
    )
    run.reporter.note(found.told())
    run.folder.write_traces("warm_start", 0, [trained_on(trace, "ce") for trace in found.traces[:LOT]])
    return found.units


async def _demonstrate_all(run: RunContext) -> list[Unit]:
    task_set = run.train_tasks()
    if run.config.tasks.level == "tiny":
        task_set = task_set.together(run.config.sandbox.workers)  # the solver's programs are our own
    run.reporter.note(f"demonstrating {len(task_set)} tasks")
    free = asyncio.Semaphore(2)  # while the programs of one lot run, the next lot is written

    async def lot(first: int) -> list[Unit]:
        async with free:
            return await _demonstrate_lot(run, task_set, range(first, min(first + LOT, len(task_set))))

    lots = await asyncio.gather(*(lot(first) for first in range(0, len(task_set), LOT)))
    return [made for lot in lots for made in lot]


async def _demonstrate_lot(run: RunContext, task_set: BugFix, indices: range) -> list[Unit]:
    count = run.config.warm_start.demonstrations
    tasks = [task_set[index] for index in indices]
    traces = await asyncio.gather(*(_demonstrate(run, task_set, task, n) for task in tasks for n in range(count)))
    if indices.start == 0:
        run.folder.write_traces("warm_start", 0, [trained_on(trace, "ce") for trace in traces])
    _tell_of_limits(run, traces)
    by_task = (traces[start : start + count] for start in range(0, len(traces), count))
    return [
        Unit(task.id, tuple(sample for trace in mine for sample in samples(trace, None, objective="ce")))
        for task, mine in zip(tasks, by_task, strict=True)
    ]


def _tell_of_limits(run: RunContext, traces: list[Trace]) -> None:
    """A demonstration that a limit cut teaches no end. A vocabulary of a tiny level has short ones, and some are."""
    cut = Counter(str(trace.stop) for trace in traces if trace.stop is not Stop.DONE)
    if cut and run.config.tasks.level != "tiny":
        reasons = ", ".join(f"{count} by {stop}" for stop, count in cut.items())
        run.reporter.note(f"of {len(traces)} demonstrations a limit ended {cut.total()} ({reasons})")


async def _demonstrate(run: RunContext, task_set: BugFix, task: Task, number: int) -> Trace:
    rng = random.Random(derive_seed(run.config.seed, "demonstration", task.id, number))
    writer = as_writer(run.renderer)

    def write(call: ToolCall) -> tuple[int, ...]:
        return writer.write_reply(Message(role="assistant", tool_calls=(call,)))

    session = ScriptedSession(_script(run, task_set, task, rng), write, run.renderer.decode)
    identity = AttemptId(group_id=f"demonstration-{task.id}", attempt=number, seed=0)
    trace = await attempt(task_set, task, run.harness, session, identity, score=False)
    if trace.error is not None:
        raise TaskError(f"the demonstration of {task.id} failed at the {trace.error.boundary}: {trace.error.message}")
    return trace


def _script(run: RunContext, task_set: BugFix, task: Task, rng: random.Random) -> Script:
    settings = run.config.warm_start
    mistakes = Mistakes(
        reverts=settings.reverts,
        wrong_edit=settings.wrong_edit,
        untested=settings.untested,
        gives_up=settings.gives_up,
        meddles=settings.meddles,
    )
    solution = task_set.solution(task.id)
    if run.config.tasks.level == "tiny":
        path = task.metadata["main_path"]
        return solve(task.files[path], solution[path], rng=rng, mistakes=mistakes)
    if mistakes.meddles:
        raise ConfigError(
            f"warm_start.meddles {mistakes.meddles}: the solver meddles at the level tiny alone; set it to 0"
        )
    path = next(path for path, text in solution.items() if task.files[path] != text)
    named = {} if path == task.metadata["main_path"] else {"path": path}
    return repair(task.files[path], solution[path], named, rng=rng, mistakes=mistakes)


def repair(broken: str, right: str, named: dict[str, str], *, rng: random.Random, mistakes: Mistakes) -> Script:
    """Read the file, edit, test, edit again, submit; for tasks whose prompt does not show the program.

    Args:
        broken: the file as it is.
        right: as it should be.
        named: how the tools are told the file; nothing for the main one.
        rng: of the mistakes.
        mistakes: what goes wrong how often.
    """
    yield ToolCall(name="read", arguments=dict(named))
    now = broken
    for wanted in _guesses(broken, right, rng, mistakes):
        yield from _edits(now, wanted, named)
        now = wanted
        if rng.random() < mistakes.untested:
            break
        observed = yield ToolCall(name="test")
        if _passed(observed):
            if rng.random() < mistakes.reverts:
                yield from _edits(now, broken, named)
            break
        if rng.random() < mistakes.gives_up:
            break
    yield ToolCall(name="submit")


def _edits(now: str, wanted: str, named: dict[str, str]) -> Iterator[ToolCall]:
    for line, text in edits(now, wanted):
        yield ToolCall(name="edit", arguments={"line": line, "text": text, **named})


def _guesses(broken: str, right: str, rng: random.Random, mistakes: Mistakes) -> list[str]:
    """The texts that the file is given one after the other, the right one at their end."""
    if rng.random() >= mistakes.wrong_edit:
        return [right]
    pairs = zip(broken.split("\n"), right.split("\n"), strict=False)
    line = next((number for number, (left, other) in enumerate(pairs, start=1) if left != other), 0)
    wrong = sorted(one.source for one in _bugs(right) if one.line == line and one.source != broken)
    return [rng.choice(wrong), right] if wrong else [right]


@lru_cache(maxsize=512)
def _bugs(source: str) -> tuple[Mutation, ...]:
    """All single bugs of a program; many tasks have the same one."""
    return mutations(source)


def _passed(observed: str) -> bool:
    """Whether a test run, in either style of its report, had no failure."""
    return ", 0 failed" in observed or ("passed" in observed and "failed" not in observed)
