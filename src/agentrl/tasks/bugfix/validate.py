"""Proof that a candidate is a task: its reference is right, its bug shows, and no other task is the same."""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, get_args

from agentrl.errors import TaskError
from agentrl.sandbox.jobs import Batch, Calls, Job, JobResult, Outcome
from agentrl.sandbox.pool import Pool, Ticket
from agentrl.sandbox.values import is_plain, same
from agentrl.tasks.bugfix.candidate import Arguments, Candidate

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_LOTS = (32, 64, 128)
_NUM_SHARED = 2
_JOBS = 2
_PATIENCE = 20_000


class Drop(StrEnum):
    """Why a candidate is no task."""

    OTHER_SPLIT = "other_split"
    DUPLICATE = "duplicate"
    REFERENCE_FAILS = "reference_fails"
    TIMEOUT = "timeout"
    EQUIVALENT = "equivalent"
    HIDDEN_PASS = "hidden_pass"
    VISIBLE_PASS = "visible_pass"
    INEXPRESSIBLE = "inexpressible"
    GUESSABLE = "guessable"
    """One answer is right on all hidden inputs: a table of the visible ones with that default would pass."""


@dataclass(frozen=True, kw_only=True)
class Validated:
    """A candidate that is a task.

    Attributes:
        candidate: the candidate.
        visible: the reference's value at each visible input.
        hidden: the reference's value at each hidden call.
        outcomes: what the broken program does at each visible input.
        failing: number (from 1) of the first visible test that fails.
    """

    candidate: Candidate
    visible: tuple[Any, ...]
    hidden: tuple[Any, ...]
    outcomes: tuple[Outcome, ...]
    failing: int


@dataclass(frozen=True, kw_only=True)
class _Lot:
    """Candidates whose programs run: what is known without, and two jobs for each of which nothing is known."""

    candidates: tuple[Candidate, ...]
    known: tuple[Drop | None, ...]
    jobs: Sequence[Job]
    tickets: Sequence[Ticket]


Expressible = Callable[[Validated], bool]


@dataclass(frozen=True, kw_only=True)
class ValidationReport:
    """How many candidates were generated and kept, and how many were dropped for which reason."""

    generated: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items() if count)
        return f"{self.generated} generated, {self.kept} kept; dropped: {reasons or 'none'}"


def split_of(reference: Mapping[str, str], kin: str = "") -> Split:
    """The split that a reference program belongs to: by the digest of what it shares with its kin, else by that of its
    code without docstrings and comments.

    Of ten programs seven are for training, one for validation and two for testing.
    """
    code = kin or "\n".join(f"{path}\n{_code(text)}" for path, text in sorted(reference.items()))
    bucket = int(hashlib.sha256(code.encode()).hexdigest(), 16) % 10
    return "train" if bucket < 7 else "validation" if bucket < 8 else "test"


def hidden_calls(candidate: Candidate) -> tuple[tuple[str, Arguments], ...]:
    """Every call that decides: the hidden inputs, then those of the regression tests."""
    return (*((candidate.function, arguments) for arguments in candidate.hidden), *candidate.regression)


class Validator:
    """Picks the tasks of one split out of a stream of candidates, in order, by running them.

    Args:
        pool: where the programs run. Its limit of processor time is what an endless loop costs.
        split: the split to keep; None keeps all.
        expressible: a last condition of the level's own.
        together: whether programs may share a process, which is cheaper: for those that import nothing and so have
            nothing to share. What does not finish there in time runs alone.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        split: Split | None = None,
        expressible: Expressible | None = None,
        together: bool = False,
    ) -> None:
        self._pool = pool
        self._split = split
        self._expressible = expressible
        self._together = together
        self._seen: set[str] = set()
        self._kept = 0
        self._dropped: Counter[Drop] = Counter()

    @property
    def report(self) -> ValidationReport:
        """The counts so far."""
        dropped = {reason.value: self._dropped[reason] for reason in Drop}
        return ValidationReport(generated=self._kept + self._dropped.total(), kept=self._kept, dropped=dropped)

    def tasks(self, candidates: Iterable[Candidate]) -> Iterator[Validated]:
        """The candidates that are tasks. Which they are does not depend on how many are asked for.

        Raises:
            TaskError: 20,000 candidates in a row brought nothing new: the level has no more tasks.
            SandboxError: the machinery that runs programs failed.
        """
        idle = 0
        for verdict in itertools.chain.from_iterable(self._judged(candidates)):
            idle += 1
            if isinstance(verdict, Drop):
                self._dropped[verdict] += 1
            else:
                self._kept += 1
                idle = 0
                yield verdict
            if idle >= _PATIENCE:
                wanted = f"{self._split} tasks" if self._split else "tasks"
                raise TaskError(f"the level has no more than {self._kept} different {wanted}; ask for fewer")

    def _judged(self, candidates: Iterable[Candidate]) -> Iterator[list[Validated | Drop]]:
        """Verdicts on one lot of candidates after another; while programs run, the next lot is generated. Who wants few
        tasks is not made to wait for a large lot."""
        stream = iter(candidates)
        sizes = itertools.chain(_LOTS, itertools.repeat(_LOTS[-1]))
        running: _Lot | None = None
        while lot := list(itertools.islice(stream, next(sizes))):
            started = self._start(lot)
            if running is not None:
                yield self._judge(running)
            running = started
        if running is not None:
            yield self._judge(running)

    def _start(self, candidates: Sequence[Candidate]) -> _Lot:
        """Set two jobs going for every candidate that is new."""
        known = tuple(map(self._known, candidates))
        fresh = [candidate for candidate, drop in zip(candidates, known, strict=True) if drop is None]
        jobs = [job for c in fresh for job in (_reference_job(c), _broken_job(c))]
        wanted = _shared(jobs) if self._together else jobs
        return _Lot(candidates=tuple(candidates), known=known, jobs=jobs, tickets=self._pool.start(wanted))

    def _judge(self, lot: _Lot) -> list[Validated | Drop]:
        results = iter(self._results(lot))
        verdicts: list[Validated | Drop] = []
        for candidate, drop in zip(lot.candidates, lot.known, strict=True):
            if drop is not None:
                verdicts.append(drop)
                continue
            reference, broken = itertools.islice(results, _JOBS)
            draft = _draft(candidate, reference, broken)
            hidden = broken.outcomes[len(candidate.visible) :]
            verdicts.append(draft if isinstance(draft, Drop) else self._last_word(draft, hidden))
        return verdicts

    def _known(self, candidate: Candidate) -> Drop | None:
        if self._split is not None and split_of(candidate.reference, candidate.kin) != self._split:
            return Drop.OTHER_SPLIT
        text = "\0".join(itertools.chain.from_iterable(sorted(candidate.files.items())))
        if text in self._seen:
            return Drop.DUPLICATE
        self._seen.add(text)
        return None

    def _results(self, lot: _Lot) -> list[JobResult]:
        """One result a job. What the clock on the wall ended runs once more, so that a stall of the machine changes no
        task; what did not finish in a shared process runs alone."""
        results = [ticket.result() for ticket in lot.tickets]
        if self._together:
            parts = [part for result in results for part in result.parts]
            results = self._again(lot.jobs, parts, lambda result: not result.repeatable or result.end == "timeout")
        return self._again(lot.jobs, results, lambda result: result.end == "timeout" and not result.repeatable)

    def _again(
        self, jobs: Sequence[Job], results: list[JobResult], doubtful: Callable[[JobResult], bool]
    ) -> list[JobResult]:
        indices = [index for index, result in enumerate(results) if doubtful(result)]
        fresh = dict(zip(indices, self._pool.run_sync([jobs[index] for index in indices]), strict=True))
        return [fresh.get(index, result) for index, result in enumerate(results)]

    def _last_word(self, draft: Validated, hidden: Sequence[Outcome]) -> Validated | Drop:
        fails = not all(map(_passes, hidden, draft.hidden))
        if not draft.failing:
            return Drop.VISIBLE_PASS if fails else Drop.EQUIVALENT
        if not fails:
            return Drop.HIDDEN_PASS
        if self._expressible is not None and not self._expressible(draft):
            return Drop.INEXPRESSIBLE
        return draft


def _shared(jobs: Sequence[Job]) -> list[Job]:
    """The jobs in their order as the parts of a few."""
    size = max(1, -(-len(jobs) // _NUM_SHARED))
    shares = [tuple(jobs[start : start + size]) for start in range(0, len(jobs), size)]
    return [Job(files={}, run=Batch(parts=share)) for share in shares]


def _code(text: str) -> str:
    tree = ast.parse(text)
    _drop_docstrings(tree)
    return ast.unparse(tree)


def _drop_docstrings(node: ast.AST) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            _drop_docstrings(child)
    if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]


def _reference_job(candidate: Candidate) -> Job:
    """All calls twice, the second time backwards, so that a value that depends on earlier calls is found."""
    calls = (*((candidate.function, arguments) for arguments in candidate.visible), *hidden_calls(candidate))
    return Job(files=candidate.reference, run=Calls(module=candidate.module, calls=(*calls, *reversed(calls))))


def _broken_job(candidate: Candidate) -> Job:
    """The visible calls, then the hidden ones of a fresh module, as the two will be made apart."""
    visible = tuple((candidate.function, arguments) for arguments in candidate.visible)
    return Job(files=candidate.files, run=Calls(module=candidate.module, calls=visible, then=hidden_calls(candidate)))


def _draft(candidate: Candidate, reference: JobResult, broken: JobResult) -> Validated | Drop:
    half = len(reference.outcomes) // 2
    first, second = reference.outcomes[:half], reference.outcomes[half:][::-1]
    values = tuple(outcome.value for outcome in first)
    if not all(o.status == "value" and is_plain(o.value) for o in first) or not all(map(_passes, second, values)):
        return Drop.REFERENCE_FAILS
    if broken.end == "timeout":
        return Drop.TIMEOUT
    count = len(candidate.visible)
    if len(set(map(repr, values[count : count + len(candidate.hidden)]))) == 1:
        return Drop.GUESSABLE
    passes = list(map(_passes, broken.outcomes, values[:count]))
    return Validated(
        candidate=candidate,
        visible=values[:count],
        hidden=values[count:],
        outcomes=broken.outcomes[:count],
        failing=0 if all(passes) else passes.index(False) + 1,
    )


def _passes(outcome: Outcome, value: Any) -> bool:
    return outcome.status == "value" and same(outcome.value, value)
