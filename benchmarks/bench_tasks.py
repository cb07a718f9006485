"""What tiny tasks, demonstrations and tool calls cost in processor time, and where it goes.

python benchmarks/bench_tasks.py [tasks]
"""

import asyncio
import itertools
import random
import resource
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from agentrl.engine.scripted import ScriptedSession
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.sandbox import Limits as SandboxLimits
from agentrl.sandbox import Pool
from agentrl.tasks.bugfix import tiny
from agentrl.tasks.bugfix.solver import Mistakes, solve
from agentrl.tasks.bugfix.taskset import BugFix, generate
from agentrl.tokens.tiny import TinyRenderer
from agentrl.types import Trace

RENDERER = TinyRenderer()
HARNESS = ToolLoop(RENDERER, Limits(turns=8, reply=24, context=320))


class Cost(NamedTuple):
    """Seconds of processor time: of this process, and of the workers and their children."""

    own: float
    workers: float

    @property
    def total(self) -> float:
        return self.own + self.workers


def cost_of(work: Callable[[], Any]) -> tuple[Cost, Any]:
    """What ``work`` costs; its workers must have ended when it returns."""
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result = work()
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, workers = (b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))
    return Cost(own, workers), result


def demonstrate(num_tasks: int, *, together: bool, score: bool) -> list[Trace]:
    """A solver's attempts at all tasks, 128 at a time."""
    with Pool(limits=SandboxLimits(wall_s=5.0, cpu_s=0.1)) as pool:
        task_set = BugFix("tiny", "train", num_tasks, pool=pool)
        played = task_set.together() if together else task_set
        traces: list[Trace] = []
        for first in range(0, num_tasks, 128):
            chosen = range(first, min(first + 128, num_tasks))
            traces += asyncio.run(_play(played, chosen, score=score))
    assert not any(trace.error for trace in traces)
    return traces


async def _play(task_set: BugFix, indices: range, *, score: bool) -> list[Trace]:
    return await asyncio.gather(*(_attempt(task_set, index, score=score) for index in indices))


async def _attempt(task_set: BugFix, index: int, *, score: bool) -> Trace:
    task = task_set[index]
    path = task.metadata["main_path"]
    right = task_set.solution(task.id)[path]
    script = solve(
        task.files[path],
        right,
        rng=random.Random(index),
        mistakes=Mistakes(wrong_edit=0.05, reverts=0.5, untested=0.0, gives_up=0.1),
    )
    session = ScriptedSession(script, RENDERER.write_call, RENDERER.decode)
    identity = AttemptId(group_id=str(index), attempt=0, seed=0)
    return await attempt(task_set, task, HARNESS, session, identity, score=score)


def tell(name: str, cost: Cost, count: int) -> None:
    """One line about a stage."""
    shares = f"{cost.own / cost.total:4.0%} here, {cost.workers / cost.total:4.0%} in the workers"
    print(f"{name:<38} {count / cost.total:8,.0f} per second of processor time   ({shares})")


def main() -> None:
    num_tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    generated, (_, report) = cost_of(lambda: generate("tiny", "train", num_tasks))
    drawn, _ = cost_of(lambda: list(itertools.islice(tiny.candidates(random.Random(0)), report.generated)))
    print(report)
    tell("tasks", generated, num_tasks)
    print(f"  drawing {drawn.total / generated.total:.0%} of it, {report.generated / num_tasks:.2f} candidates a task")
    alone, traces = cost_of(lambda: demonstrate(num_tasks, together=False, score=False))
    shared, same = cost_of(lambda: demonstrate(num_tasks, together=True, score=False))
    assert [trace.nodes for trace in traces] == [trace.nodes for trace in same]
    tell("demonstrations in shared processes", shared, num_tasks)
    tell("demonstrations, a process a job", alone, num_tasks)
    print(f"  ratio alone / shared: {alone.total / shared.total:.2f}")
    scored, _ = cost_of(lambda: demonstrate(num_tasks, together=False, score=True))
    calls = sum(len(node.message.tool_calls) for trace in traces for node in trace.nodes)
    tell("tool calls, a process a job, scored", scored, calls)
    print(f"  ratio scored / not scored: {scored.total / alone.total:.2f}")


if __name__ == "__main__":
    main()
