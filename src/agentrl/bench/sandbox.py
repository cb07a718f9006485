"""How fast untrusted code runs and is graded here, in ratios to a bare interpreter and to pytest.

Every arm runs the same file of five asserts, or grades the same small program by five hidden tests. The floor beside
them is what the system takes to start and end the smallest program there is.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.bench.report import Aim, BenchError
from agentrl.bench.rounds import Arm, Rate, descendants, machine, pss_mib, rates, version_of
from agentrl.rewards.grading import CallGrader
from agentrl.rewards.judge import HiddenSuite, Judge, Verdict
from agentrl.rewards.programs import HiddenCalls
from agentrl.sandbox.base import Backend, Box, BoxLimits, Spec
from agentrl.sandbox.choose import WALLED
from agentrl.sandbox.jobs import Job, Suite
from agentrl.sandbox.pool import Pool
from agentrl.sandbox.zygote import ZygoteBackend
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tasks.humanevalfix import HumanEvalFix
from agentrl.types import ToolCall

PROGRAM = "def add(a, b):\n    return a + b\n"
FIVE = [(1, 2), (0, 0), (-5, 12345), (2**40, 1), (7, -7)]
ASSERTS = "".join(f"    assert add({a}, {b}) == {a + b}\n" for a, b in FIVE)
FILE = "test_five.py"
SOURCE = f"{PROGRAM}\n\ndef test_five():\n{ASSERTS}\n\ntest_five()\n"
TESTS = "from program import add\n" + "".join(
    f"\n\ndef test_{index}():\n    assert add({a}, {b}) == {a + b}\n    assert add([{a}], [{b}]) == [{a}, {b}]\n"
    for index, (a, b) in enumerate(FIVE)
)
SUITE = HiddenSuite(files={"test_hidden.py": TESTS}, modules=("program",))
CALLS = HiddenCalls(
    module="program", calls=tuple(("add", pair) for pair in FIVE), expected=tuple(a + b for a, b in FIVE)
)
JOB = Job(
    files={"program.py": PROGRAM, FILE: f"from program import add\n\n\ndef test_five():\n{ASSERTS}"},
    run=Suite(paths=(FILE,)),
)
PYTHON = ("python", "-I", "-S", FILE)
LANES = 2
ENDLESS = BoxLimits(cpu_s=1.0)
"""Of a grading of HumanEvalFix: some bugs are loops without an end, and no right solution takes a tenth of that."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """All that one run of the benchmark has measured."""

    rounds: int
    load: tuple[float, float]
    rates: Mapping[str, Rate]
    aims: tuple[Aim, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        floor = self.rates["true"].ms
        arms = {name: {**asdict(rate), "floors": rate.ms / floor} for name, rate in self.rates.items()}
        aims = [aim.as_record() for aim in self.aims]
        described = {"machine": machine(), "load_before": self.load[0], "load_after": self.load[1]}
        return {"bench": "sandbox", **described, "lanes": LANES, "rounds": self.rounds, "arms": arms, "aims": aims}


async def measure(*, quick: bool = False, data: str = "") -> Found:
    """Measure everything, which takes about a minute.

    Args:
        quick: one short round of each arm, to see that it works; the numbers mean little then.
        data: the tasks of HumanEvalFix as JSONL; they are left out when empty.

    Raises:
        SandboxError: the zygote backend does not work here.
        TaskError: ``data`` cannot be read.
        BenchError: a program or a grading came out wrong.
    """
    tasks = HumanEvalFix(data) if data else None
    rounds, size, limit = (1, 1, 4) if quick else (7, 20, None)
    before = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-bench-")))
        arms = outside(folder, size) + await stack.enter_async_context(inside(size))
        arms.append(await stack.enter_async_context(tool(size)))
        found = await rates(arms, rounds)
    aims = [*_ratios(found), await idle_memory(), *[aim async for aim in repairs(tasks, limit)]]
    return Found(rounds=rounds, load=(before, os.getloadavg()[0]), rates=found, aims=tuple(aims))


def outside(folder: Path, size: int) -> list[Arm]:
    """Without a sandbox: the smallest program, a bare interpreter, and pytest where it is installed."""
    (folder / FILE).write_text(SOURCE)
    commands = {"true": ["true"], "python": [sys.executable, *PYTHON[1:]]}
    if version_of("pytest"):
        commands["pytest"] = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", FILE]
    run = {name: partial(_start, command, folder) for name, command in commands.items()}
    return [Arm(name=name, run=run[name], runs=max(1, size // (10 if name == "pytest" else 1))) for name in commands]


async def _start(command: list[str], folder: Path, _lane: int) -> None:
    environment = {"PATH": os.environ.get("PATH", ""), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def start() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)

    done = await asyncio.to_thread(start)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise BenchError(f"{command} ended with status {done.returncode}: {said[-300:]}")


@asynccontextmanager
async def inside(size: int) -> AsyncIterator[list[Arm]]:
    """In the zygote's boxes: programs and jobs, each with nothing left of the one before, and gradings."""
    backend = ZygoteBackend()
    judge = Judge(backend)
    boxes = [await backend.start(Spec(files={FILE: SOURCE.encode()})) for _ in range(LANES)]
    with Pool(ZygoteBackend(), size=LANES, cache_size=0) as pool:
        try:
            yield [
                Arm(name="zygote job", run=partial(_run_job, pool), runs=2 * size),
                Arm(name="zygote warm-python", run=partial(_run_in, boxes, ["warm-python", FILE]), runs=size),
                Arm(name="zygote python", run=partial(_run_in, boxes, [*PYTHON]), runs=size),
                Arm(name="5 hidden tests", run=partial(_grade, judge, SUITE), runs=size),
                Arm(name="5 hidden calls", run=partial(_grade_calls, CallGrader(pool)), runs=2 * size),
            ]
        finally:
            await judge.close()
            await backend.close()


async def _run_job(pool: Pool, _lane: int) -> None:
    result = await pool.run(JOB)
    if not result.all_passed:
        raise BenchError(f"a right program did not pass: {result}")


async def _run_in(boxes: Sequence[Box], argv: list[str], lane: int) -> None:
    await boxes[lane].reset()
    done = await boxes[lane].exec(argv)
    if not done.ok:
        raise BenchError(f"{argv} ended with {done.status} in the box: {done.stderr.decode(errors='replace')[-300:]}")


async def _grade(judge: Judge, hidden: HiddenSuite, _lane: int) -> None:
    _check(await judge.grade({"program.py": PROGRAM.encode()}, hidden))


async def _grade_calls(grader: CallGrader, _lane: int) -> None:
    _check(await grader.grade({"program.py": PROGRAM.encode()}, CALLS))


def _check(verdict: Verdict) -> None:
    if verdict.verdict != "pass":
        raise BenchError(f"a right program did not pass: {verdict}")


@asynccontextmanager
async def tool(size: int) -> AsyncIterator[Arm]:
    """The gym's tool ``test`` on a task of the small level, one call after the other."""
    with Pool(ZygoteBackend(), size=1, cache_size=0) as pool:
        tasks = BugFix("small", num_tasks=1, pool=pool)
        environment = tasks.environment(tasks[0])

        async def call(_lane: int) -> None:
            answer = await environment.call(ToolCall(name="test"))
            if "test_" not in answer.content:
                raise BenchError(f"the tool test answered {answer.content!r}")

        yield Arm(name="gym's test tool", run=call, runs=size, lanes=1)


def _ratios(found: Mapping[str, Rate]) -> list[Aim]:
    job = found["zygote job"].per_s
    over_pytest = job / found["pytest"].per_s if "pytest" in found else None
    note = "" if "pytest" in found else "pytest is not installed"
    return [
        Aim(name="zygote job / python", value=job / found["python"].per_s, wanted=2.5),
        Aim(name="zygote job / pytest", value=over_pytest, wanted=40.0, note=note),
        Aim(name="5 hidden tests", value=found["5 hidden tests"].per_s, wanted=80.0, unit="gradings/s"),
        Aim(name="5 hidden calls", value=found["5 hidden calls"].per_s, wanted=80.0, unit="gradings/s"),
        Aim(name="gym's test tool", value=found["gym's test tool"].ms, wanted=10.0, at_most=True, unit="ms"),
    ]


async def idle_memory() -> Aim:
    """Memory of a pool of two boxes that wait for work, with the fork server and the judge's process."""
    before = descendants().keys()
    with Pool(ZygoteBackend(), size=LANES, cache_size=0) as pool:
        tasks = BugFix("small", num_tasks=1, pool=pool)
        judge = Judge(pool.backend)
        test = ToolCall(name="test")
        await asyncio.gather(*(tasks.environment(tasks[0]).call(test) for _ in range(LANES)))
        await pool.call(_grade(judge, SUITE, 0))
        processes = [pid for pid in descendants() if pid not in before]
        used = pss_mib(processes)
        await pool.call(judge.close())
    note = f"{len(processes)} processes" if used else "the kernel does not tell what processes use"
    return Aim(name="idle pool of 2 and judge", value=used or None, wanted=120.0, at_most=True, unit="MiB", note=note)


async def repairs(tasks: HumanEvalFix | None, limit: int | None) -> AsyncIterator[Aim]:
    """The right and the buggy solution of every task of HumanEvalFix, graded in every backend that works here."""
    for name, make in WALLED.items():
        told = partial(Aim, name=f"HumanEvalFix in {name}", wanted=10.0, at_most=True, unit="s")
        if tasks is None:
            yield told(value=None, note="give its tasks with --data FILE")
        elif not (support := make().probe()).works:
            yield told(value=None, note="; ".join(support.missing))
        else:
            yield told(value=await _graded_all(make(), tasks, range(min(len(tasks), limit or len(tasks)))))


async def _graded_all(backend: Backend, tasks: HumanEvalFix, indices: range) -> float:
    """Seconds. Raises BenchError when a right solution does not pass or a buggy one does."""
    judge, turn = Judge(backend, limits=ENDLESS), asyncio.Semaphore(LANES)

    async def one(index: int, *, right: bool) -> None:
        task = tasks[index]
        files = tasks.solution(task.id) if right else task.files
        async with turn:
            program = {path: text.encode() for path, text in files.items() if not path.startswith("test_")}
            verdict = await judge.grade(program, tasks.hidden(task.id))
        if verdict.verdict != ("pass" if right else "fail"):
            raise BenchError(f"{task.id}: the {'right' if right else 'buggy'} solution came to {verdict}")

    started = time.perf_counter()
    try:
        await asyncio.gather(*(one(index, right=right) for index in indices for right in (True, False)))
    finally:
        await judge.close()
        await backend.close()
    return time.perf_counter() - started
