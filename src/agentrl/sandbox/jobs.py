"""What can be asked of the sandbox and what comes back. Plain frozen data; the pool and the scorers share it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

from agentrl.errors import SandboxError, TaskError
from agentrl.sandbox.values import NotPlain, decode, encode_plain

T = TypeVar("T")
End = Literal["finished", "timeout", "died"]
OutcomeStatus = Literal["value", "raised", "timeout", "died"]
CaseStatus = Literal["passed", "failed", "raised", "timeout", "died"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one job may use.

    Args:
        wall_s: seconds by the clock; at nine tenths of it the running call is interrupted, at all of it the job killed.
        cpu_s: seconds of processor time, which do not depend on what else the machine does. After them the running
            call is interrupted; a program that goes on nevertheless is killed after twice as many, or, when it meddles
            with signals, one to two seconds later.
        memory_mib: address space of each process of the job.
        output_bytes: the most that a job may report.

    Raises:
        SandboxError: a limit that is not positive.
    """

    wall_s: float = 2.0
    cpu_s: float = 2.0
    memory_mib: int = 512
    output_bytes: int = 65_536

    def __post_init__(self) -> None:
        for name in ("wall_s", "cpu_s", "memory_mib", "output_bytes"):
            if not getattr(self, name) > 0:
                raise SandboxError(f"limit {name} is {getattr(self, name)!r}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Import ``module`` and call its functions, each with a fresh copy of its arguments (plain data).

    ``then`` are more calls, of the same files imported anew; none is made when time was over before.
    """

    module: str
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    then: tuple[tuple[str, tuple[Any, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Run the tests (``def test_*``, methods ``test_*`` of classes ``Test*``) of the files at ``paths``."""

    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Several jobs that make calls or run tests, one after another in one process; modules are fresh in each.

    For programs of our own making only: nothing keeps one part from tampering with the next. Each part may use the
    processor time of a job; what a part that dies leaves undone has died, too.
    """

    parts: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One program (path -> text, importable from its root) and what to do with it. A batch has no files of its own."""

    files: Mapping[str, str]
    run: Calls | Suite | Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a call came to. ``value`` is plain data or Opaque; ``exception`` is a class name."""

    status: OutcomeStatus
    value: Any = None
    exception: str = ""
    message: str = ""
    line: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOutcome:
    """What one test came to.

    For a failing ``assert CALL == EXPRESSION``: ``call`` is the source of the call, ``got`` and ``expected`` are
    reprs. ``line`` is the source of the test's line that failed, ``where`` the innermost ``path:line`` of the
    workspace that raised. A file that cannot be imported is one failed test named after its path.
    """

    name: str
    status: CaseStatus
    call: str = ""
    got: str = ""
    expected: str = ""
    exception: str = ""
    message: str = ""
    line: str = ""
    where: str = ""

    @property
    def passed(self) -> bool:
        """Whether the test ran to its end without an exception."""
        return self.status == "passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """What came of a job. ``outcomes`` has one entry per call, ``tests`` one per test.

    ``parts`` has one result per part of a batch. ``repeatable`` says whether an equal job would come to the same: it
    finished, or its processor time was over and it took the interrupt.
    """

    end: End
    outcomes: tuple[Outcome, ...] = ()
    tests: tuple[CaseOutcome, ...] = ()
    parts: tuple[JobResult, ...] = ()
    repeatable: bool = False

    @property
    def all_passed(self) -> bool:
        """Whether the suite had tests and each of them passed."""
        return bool(self.tests) and all(test.passed for test in self.tests)


def encode_job(job: Job) -> bytes:
    """The job as the program in a box reads it; equal jobs give equal bytes.

    Raises:
        TaskError: an argument of a call is not plain data, a test path is not among the files, or a part of a batch
            does not make calls.
    """
    return json.dumps(_body(job), separators=(",", ":")).encode()


def _body(job: Job) -> dict[str, Any]:
    body: dict[str, Any] = {"files": dict(sorted(job.files.items()))}
    match job.run:
        case Calls(module=module, calls=calls, then=then):
            body |= {"kind": "calls", "module": module, "calls": [_encode_call(*call) for call in calls]}
            body |= {"then": [_encode_call(*call) for call in then]}
        case Suite(paths=paths):
            missing = [path for path in paths if path not in job.files]
            if missing:
                raise TaskError(f"test file {missing[0]!r} is not among the files: {', '.join(job.files)}")
            body |= {"kind": "suite", "paths": list(paths)}
        case Batch(parts=parts):
            other = next((part.run for part in parts if not isinstance(part.run, Calls | Suite)), None)
            if other is not None:
                raise TaskError(f"a batch has a part that is a {type(other).__name__}; a part must be Calls or Suite")
            body |= {"kind": "batch", "parts": [_body(part) for part in parts]}
    return body


def _encode_call(function: str, arguments: tuple[Any, ...]) -> list[Any]:
    try:
        return [function, [encode_plain(argument) for argument in arguments]]
    except NotPlain as error:
        raise TaskError(f"a call of {function} cannot be sent to the sandbox: {error}") from error


def read_result(job: Job, end: str, output: bytes) -> JobResult:
    """What the answer of a box means. Whatever the job left out, or wrote wrongly, counts as not finished.

    Args:
        end: how the process ended, as seen from outside of it: finished, timeout or died.
        output: the lines that the job wrote on its private pipe.
    """
    if isinstance(job.run, Batch):
        return _batch_result(job.run, end, _lines(output, list))
    return _result(job, end, _lines(output, dict))


def _batch_result(batch: Batch, end: str, lines: list[list[Any]]) -> JobResult:
    lines = [*lines[: len(batch.parts)], *[[] for _ in batch.parts[len(lines) :]]]
    parts = tuple(
        _result(part, end, [report for report in line if isinstance(report, dict)])
        for part, line in zip(batch.parts, lines, strict=True)
    )
    return JobResult(end=_end([part.end for part in parts]), parts=parts, repeatable=all(p.repeatable for p in parts))


def _result(job: Job, end: str, reports: list[dict[str, Any]]) -> JobResult:
    late = end == "timeout" or any(report.get("status") == "timeout" for report in reports)
    missing: Literal["timeout", "died"] = "timeout" if late else "died"
    in_time = end == "finished" and all(r.get("clock") == "processor" for r in reports if r.get("status") == "timeout")
    if isinstance(job.run, Suite):
        tests = _tests(job.run, reports, missing)
        ended = _end([test.status for test in tests])
        return JobResult(end=ended, tests=tests, repeatable=in_time and ended != "died")
    count = len(job.run.calls) + len(job.run.then) if isinstance(job.run, Calls) else 1
    outcomes = tuple(_outcome(report) for report in reports[:count])
    outcomes += (Outcome(status=missing, exception=_NAMES[missing]),) * (count - len(outcomes))
    ended = _end([outcome.status for outcome in outcomes])
    return JobResult(end=ended, outcomes=outcomes, repeatable=in_time and ended != "died")


_NAMES = {"timeout": "TimeoutError", "died": "ProcessDied"}


def _end(statuses: list[Any]) -> End:
    return "timeout" if "timeout" in statuses else "died" if "died" in statuses else "finished"


def _lines(output: bytes, kind: type[T]) -> list[T]:
    """The leading lines that are whole and well-formed; a candidate may have written anything after them."""
    found: list[T] = []
    for line in output.split(b"\n")[:-1]:
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(report, kind):
            break
        found.append(report)
    return found


def _outcome(report: dict[str, Any]) -> Outcome:
    status = report.get("status")
    if status == "value":
        value = report.get("value")
        if type(value) is int:
            return _whole_number(value)
        try:
            return Outcome(status="value", value=decode(value))
        except (ValueError, RecursionError):
            return Outcome(status="died", exception=_NAMES["died"])
    if status not in ("raised", "timeout"):
        return Outcome(status="died", exception=_NAMES["died"])
    return Outcome(status=status, **_texts(report, ("exception", "message", "line")))


@lru_cache(maxsize=4096)
def _whole_number(value: int) -> Outcome:
    return Outcome(status="value", value=value)


_TEST_TEXTS = ("call", "got", "expected", "exception", "message", "line", "where")


def _tests(suite: Suite, reports: list[dict[str, Any]], missing: Literal["timeout", "died"]) -> tuple[CaseOutcome, ...]:
    plan = reports[0].get("plan") if reports else None
    if not isinstance(plan, list):
        return tuple(CaseOutcome(name=path, status=missing, exception=_NAMES[missing]) for path in suite.paths)
    names = [_text(name) for name in plan]
    tests = [_test(name, report) for name, report in zip(names, reports[1:], strict=False)]
    tests += [CaseOutcome(name=name, status=missing, exception=_NAMES[missing]) for name in names[len(tests) :]]
    return tuple(tests)


def _test(name: str, report: dict[str, Any]) -> CaseOutcome:
    status = report.get("status")
    if status not in ("passed", "failed", "raised", "timeout"):
        return CaseOutcome(name=name, status="died", exception=_NAMES["died"])
    return CaseOutcome(name=name, status=status, **_texts(report, _TEST_TEXTS))


def _texts(report: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: _text(report[name]) for name in names if name in report}


def _text(told: object) -> str:
    """Text that a file and a tokenizer take. Half a character, which no program may end an attempt with, is spelled."""
    text = told if isinstance(told, str) else f"({type(told).__name__})"  # which can be too deep to be shown
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
