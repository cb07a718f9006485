"""Grades a workspace: starts a box with the candidate's files, and compares what comes out, or has it compared."""

from __future__ import annotations
import __future__

import ast
import asyncio
import contextlib
import json
import marshal
import secrets
import time
import types
from collections.abc import Iterable, Mapping
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError, ScorerError
from agentrl.rewards.judge import agent, codec, fixtures, inside, minitest, stream, suites
from agentrl.rewards.judge.boxes import Boxes
from agentrl.rewards.judge.candidate import Candidate, NoAnswer, candidate_in
from agentrl.rewards.judge.hearing import Hearing
from agentrl.rewards.judge.hidden import Hidden, InsideSuite
from agentrl.rewards.judge.process import JudgeProcess
from agentrl.rewards.judge.stdio import HiddenPrograms, grade_programs
from agentrl.rewards.judge.verdict import Verdict
from agentrl.sandbox.base import Backend, BoxFull, BoxLimits, Spec

AGENT_PATH, INSIDE_PATH, PYTEST_PATH = ".agentrl/agent.pyc", ".agentrl/inside.pyc", ".agentrl/lib/pytest.py"
WARM_PATH = ".agentrl/agent.py"
PYTHON = ("python", "-I", "-S", "-B", "--check-hash-based-pycs", "always")
LIMITS = BoxLimits(cpu_s=10.0, wall_s=40.0)
"""Processor time decides, since the clock scores the machine: it only ends a candidate that waits for ever."""


class Judge:
    """Grades workspaces by hidden tests, as many at a time as one likes.

    Hidden tests that are programs run in a process of their own; the candidate runs in a box and is asked for one call
    after the other. No failure of ours is ever raised or becomes a zero: the verdict is ``error`` then.

    Args:
        backend: where candidates run.
        limits: of each box, `LIMITS` when None. ``wall_s`` bounds the whole grading; give several times ``cpu_s``, as a
            busy machine takes that long. A candidate that uses up a limit, of processor time too, fails, and the
            verdict is not `Verdict.repeatable`.
    """

    def __init__(self, backend: Backend, *, limits: BoxLimits | None = None) -> None:
        self.backend = backend
        self._limits = limits or LIMITS
        self._process = JudgeProcess()
        # a fork of the zygote's own interpreter saves the start of another, half of what a grading costs
        self._argv = ["warm-python", WARM_PATH] if backend.name == "zygote" else [*PYTHON, AGENT_PATH]
        self._boxes = Boxes(backend, Spec(files=START_FILES, limits=self._limits))

    async def grade(self, files: Mapping[str, bytes], hidden: Hidden, *, seed: int | None = None) -> Verdict:
        """The verdict on a workspace of source files.

        Args:
            files: path to content of what counts; see `collect.collect`.
            hidden: the tests.
            seed: of inputs that are drawn anew; a secret one when None.
        """
        started = time.monotonic()
        drawn = secrets.randbits(63) if seed is None else seed
        try:
            report = await self._report(_without_ours(files), hidden, drawn)
        except BoxFull as error:  # what a candidate hands in is its own doing
            report = {"passed": [], "why": {"": str(error)}, "repeatable": True}
        except (SandboxError, ScorerError) as error:
            report = {"broken": str(error)}
        wall_ms = 1000 * (time.monotonic() - started)
        return _verdict(report, [*hidden.ids], tier=hidden.tier, wall_ms=wall_ms, seed=drawn)

    async def close(self) -> None:
        """End the judge's process and its boxes; the backend is whose it is. Safe to call twice."""
        await self._boxes.close()
        await asyncio.to_thread(self._process.close)

    async def _report(self, files: Mapping[str, bytes], hidden: Hidden, seed: int) -> dict[str, Any]:
        if isinstance(hidden, InsideSuite):
            return await self._inside(files, hidden, seed)
        if isinstance(hidden, HiddenPrograms):
            return await grade_programs(self._boxes, self._argv[:-1], files, hidden, self._limits)
        return await self._judged(files, {**hidden.for_judge(), "seed": seed, "wall_s": self._limits.wall_s})

    async def _judged(self, files: Mapping[str, bytes], job: Mapping[str, Any]) -> dict[str, Any]:
        """Have the judge's process run tests that are programs."""
        hearing = Hearing(self._process.open())  # its child starts while the box does
        try:
            async with self._boxes.box(files) as lent, candidate_in(lent, self._argv, self._limits.wall_s) as there:
                found = await hearing.verdict(job, there)
            return _with_its_end(found, there)
        finally:
            hearing.close()

    async def _inside(self, files: Mapping[str, bytes], hidden: InsideSuite, seed: int) -> dict[str, Any]:
        """Run a suite in the candidate's own process. All tests pass when all do and all canaries fail; else none."""
        mixed = hidden.mixed(seed)
        argv = [*PYTHON, INSIDE_PATH]
        async with (
            self._boxes.box({**hidden.laid_over(files, mixed.files), **INSIDE_FILES}) as lent,
            candidate_in(lent, argv, self._limits.wall_s) as there,
        ):
            answers = await ask_each(mixed.expected, there)
        wrong = [name for name, expected in mixed.expected.items() if answers.get(name) is not expected]
        canaries = [name for name in wrong if not mixed.expected[name]]
        why = {name: "a canary passed" if name in canaries else "failed" for name in wrong}
        return _with_its_end({"passed": [] if wrong else [*hidden.ids], "why": why}, there)


async def ask_each(names: Iterable[str], candidate: Candidate) -> dict[str, object]:
    """What the candidate's process says of each test, as far as it says anything."""
    answers: dict[str, object] = {}
    with contextlib.suppress(NoAnswer, ValueError, RecursionError):  # what is missing did not pass
        for name in names:
            answers[name] = json.loads(await candidate.ask(framed(name)))
    return answers


def framed(message: Any) -> bytes:
    """A message as the programs in a box read it."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


def _with_its_end(report: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """A report with why the candidate stopped answering, if it did, and whether it would do so again."""
    why = {**({"": candidate.fault} if candidate.fault else {}), **report.get("why", {})}
    return {**report, "why": why, "repeatable": report.get("repeatable", True) and candidate.repeatable}


def _verdict(report: Mapping[str, Any], ids: list[str], *, tier: int, wall_ms: float, seed: int) -> Verdict:
    """A pass only when every id of our own list passed."""
    shared: dict[str, Any] = {"tier": tier, "num_tests": len(ids), "wall_ms": wall_ms, "seed": seed}
    if "broken" in report:
        return Verdict(verdict="error", num_passed=0, why=report["broken"], **shared)
    passed = [name for name in ids if name in set(report["passed"])]
    why = "; ".join(f"{name}: {text}" if name else text for name, text in report["why"].items())
    return Verdict(
        verdict="pass" if ids and len(passed) == len(ids) else "fail",
        num_passed=len(passed),
        why=why.encode(errors="replace").decode(),  # the candidate's words may hold half characters
        repeatable=report["repeatable"],
        **shared,
    )


def _without_ours(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A candidate's files without those that would lie over our programs."""
    return {path: content for path, content in files.items() if path.partition("/")[0] != ".agentrl"}


def compiled(*modules: types.ModuleType) -> bytes:
    """Modules of ours as one compiled program: compiling it anew would cost each grading as much as its start.

    Imports from our package are left out: each module uses only those before it.
    """
    body: list[ast.stmt] = []
    for module in modules:
        tree = ast.parse(Path(str(module.__file__)).read_bytes())
        body += [node for node in tree.body if not _is_ours_or_future(node)]
    flags = __future__.annotations.compiler_flag
    code = compile(ast.Module(body, []), "agent.py", "exec", flags=flags, dont_inherit=True, optimize=2)
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _is_ours_or_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and str(node.module).startswith(("agentrl", "__future__"))


_WARM = f"import marshal\nexec(marshal.loads(open({AGENT_PATH!r}, 'rb').read()[16:]))\n"
START_FILES = {AGENT_PATH: compiled(codec, stream, agent), WARM_PATH: _WARM.encode()}
"""What every box of the judge holds before the candidate's files come."""
INSIDE_FILES = {
    INSIDE_PATH: compiled(fixtures, suites, inside),
    PYTEST_PATH: Path(str(minitest.__file__)).read_bytes(),
}
"""What a box holds for a suite that runs there."""
