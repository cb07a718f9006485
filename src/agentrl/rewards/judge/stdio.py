"""Hidden tests of whole programs: what is typed in, and what must be printed.

The candidate's program runs in the box as a process with real pipes, once for each case and each time in a workspace
as it was handed in, so that nothing of one case is there in the next. What it should print stays in our process, which
compares bytes and runs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError, ScorerError, TaskError
from agentrl.rewards.judge import launcher
from agentrl.rewards.judge.boxes import Boxes
from agentrl.rewards.judge.printed import COMPARES, Compare, same_output
from agentrl.sandbox.base import BoxLimits, Finished, check_path

LAUNCHER_PATH = ".agentrl/launcher.py"
LAUNCHER = Path(str(launcher.__file__)).read_bytes()
MAX_CPU_S = 3600
MAX_ARGUMENTS = 32_768
_NOT_STARTED = (126, 127)
_WHY_SIZE = 300
Text = str | bytes


@dataclass(frozen=True, kw_only=True)
class ProgramCase:
    """One run of a program.

    Args:
        stdin: what it can read; text is sent as UTF-8.
        stdout: what it must print, or several answers of which each is right.
        arguments: words after its name.
        status: the exit status with which it must end.

    Raises:
        TaskError: no answer, text or words that no process can be given, or a status that none has.
    """

    stdin: Text = b""
    stdout: Text | tuple[Text, ...]
    arguments: tuple[str, ...] = ()
    status: int = 0

    def __post_init__(self) -> None:
        if self.stdout == ():
            raise TaskError("a case without a right answer; give stdout one text at least")
        try:
            size = sum(len(_as_bytes(word)) for word in self.arguments)
            _ = self.answers, _as_bytes(self.stdin)
        except UnicodeEncodeError as error:
            raise TaskError(
                f"text with half a character ({error.object[error.start : error.end]!r}); give bytes"
            ) from error
        if any("\0" in word for word in self.arguments):
            raise TaskError(f"arguments {self.arguments!r}: no program can be given a NUL")
        if size > MAX_ARGUMENTS:
            raise TaskError(f"arguments of {size} bytes; give {MAX_ARGUMENTS} at most, and the rest as stdin")
        if not 0 <= self.status <= 255:
            raise TaskError(f"status is {self.status}; an exit status is a number from 0 to 255")

    @property
    def answers(self) -> tuple[bytes, ...]:
        """The outputs that are right."""
        given = self.stdout if isinstance(self.stdout, tuple) else (self.stdout,)
        return tuple(map(_as_bytes, given))


@dataclass(frozen=True, kw_only=True)
class HiddenPrograms:
    """Runs of the candidate's program, each of which must print the right thing and end with the right status.

    A program that prints it and then crashes, hangs, or is ended for a limit has failed. The standard library is there
    and nothing else.

    Args:
        program: path of the file to run, such as ``main.py``, or the dotted name of a module to run as with ``-m``.
        cases: the runs, in this order.
        compare: how outputs are compared; see `printed.same_output`.
        tolerance: for ``numbers``.
        cpu_s: whole seconds of processor time of each run. The clock on the wall bounds it as well, by the box's
            ``wall_s``, which should be several times as much: how busy the machine is must decide nothing.
        task_id: for messages.

    Raises:
        TaskError: what cannot be a program, a way to compare, a tolerance or a time; no cases, or none with an output.
    """

    program: str
    cases: tuple[ProgramCase, ...]
    compare: Compare = "lines"
    tolerance: float = 1e-6
    cpu_s: int = 5
    task_id: str = ""
    tier: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        problem = _problem_of(self)
        if problem:
            raise TaskError(f"{self.task_id or self.program}: {problem}")

    @property
    def ids(self) -> tuple[str, ...]:
        """One for each case."""
        return tuple(map(str, range(len(self.cases))))

    def is_right(self, case: ProgramCase, printed: bytes) -> bool:
        """Whether an output is one of the right answers."""
        return any(
            same_output(printed, answer, compare=self.compare, tolerance=self.tolerance) for answer in case.answers
        )


def _problem_of(hidden: HiddenPrograms) -> str:
    """What is wrong with it, and what to write; nothing when all is right."""
    if not _can_be_run(hidden.program):
        return f"program {hidden.program!r}: give a path such as src/main.py, or a module such as pkg.main"
    if not any(answer.strip() for case in hidden.cases for answer in case.answers):
        return "no case expects any output, so that a program which does nothing would pass; add one"
    if hidden.compare not in COMPARES:
        return f"compare {hidden.compare!r}: write one of {', '.join(COMPARES)}"
    if not 0 <= hidden.tolerance < 1:
        return f"tolerance is {hidden.tolerance}; it must be at least 0 and below 1"
    if type(hidden.cpu_s) is not int or not 1 <= hidden.cpu_s <= MAX_CPU_S:
        return f"cpu_s is {hidden.cpu_s!r}; give whole seconds from 1 to {MAX_CPU_S}"
    return ""


def _can_be_run(program: str) -> bool:
    if not program.endswith(".py"):
        return all(part.isidentifier() for part in program.split("."))
    try:
        check_path(program)
    except SandboxError:
        return False
    return not program.startswith((".", "-"))


async def grade_programs(
    boxes: Boxes, python: Sequence[str], files: Mapping[str, bytes], hidden: HiddenPrograms, limits: BoxLimits
) -> dict[str, Any]:
    """Run each case in a box of its own and compare; those after one that ran out of time are not run.

    Args:
        boxes: where programs run.
        python: the words before a file that have the box's interpreter run it.
        files: the candidate's, path to content.
        hidden: the cases.
        limits: of the boxes.

    Returns:
        ``passed``: the ids that passed; ``why``: what became of the others, for people only; ``repeatable``: whether
        every program ended by itself.

    Raises:
        ScorerError: an answer is longer than what is kept of an output, or there is no interpreter in the box.
        SandboxError: a box was lost.
    """
    _check_room(hidden, limits)
    passed: list[str] = []
    why: dict[str, str] = {}
    repeatable = True
    for name, case in zip(hidden.ids, hidden.cases, strict=True):
        finished = await _run(boxes, [*python, LAUNCHER_PATH, *_words(hidden, case)], files, case)
        if finished.status in _NOT_STARTED:
            await _check_interpreter(boxes, python, hidden)
        fault = _fault_of(hidden, case, finished, limits)
        if not fault:
            passed.append(name)
            continue
        why[name] = fault
        repeatable &= finished.killed_for is None and finished.signal is None
        if finished.killed_for == "time":
            why |= dict.fromkeys(hidden.ids[int(name) + 1 :], "not run")
            break
    return {"passed": passed, "why": why, "repeatable": repeatable}


def _words(hidden: HiddenPrograms, case: ProgramCase) -> list[str]:
    return [str(hidden.cpu_s), hidden.program, *case.arguments]


async def _run(boxes: Boxes, argv: Sequence[str], files: Mapping[str, bytes], case: ProgramCase) -> Finished:
    async with boxes.box({**files, LAUNCHER_PATH: LAUNCHER}) as lent:
        return await lent.box.exec(argv, stdin=_as_bytes(case.stdin))


async def _check_interpreter(boxes: Boxes, python: Sequence[str], hidden: HiddenPrograms) -> None:
    """A status that a program may have chosen, or that says that there is no interpreter.

    Raises:
        ScorerError: there is none, which is no fault of the candidate's.
    """
    finished = await _run(boxes, [*python, LAUNCHER_PATH], {}, hidden.cases[0])
    if finished.stdout != launcher.READY.encode():
        said = finished.stderr.decode(errors="replace").strip()[-_WHY_SIZE:]
        raise ScorerError(f"no Python runs in the box (status {finished.status}): {said}")


def _check_room(hidden: HiddenPrograms, limits: BoxLimits) -> None:
    longest = max(len(answer) for case in hidden.cases for answer in case.answers)
    if longest >= limits.output_bytes:
        needed = f"give the judge limits with output_bytes above {longest}"
        raise ScorerError(f"an answer has {longest} bytes and {limits.output_bytes} are kept of an output; {needed}")


def _fault_of(hidden: HiddenPrograms, case: ProgramCase, finished: Finished, limits: BoxLimits) -> str:
    """Why a run does not count as right; nothing when it does."""
    said = finished.stderr.decode(errors="replace").strip()[-_WHY_SIZE:]
    if finished.killed_for:
        return f"ended for its use of {finished.killed_for}"
    if finished.signal is not None:
        return f"ended by signal {finished.signal}"
    if finished.status != case.status:
        return f"exit status {finished.status}, not {case.status}: {said}"
    if len(finished.stdout) >= limits.output_bytes:  # its middle may be missing
        return f"printed {limits.output_bytes} bytes or more"
    return "" if hidden.is_right(case, finished.stdout) else "printed something else"


def _as_bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text
