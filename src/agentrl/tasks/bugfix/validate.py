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
from agentrl.sandbox.jobs import Calls, Job, JobResult, Outcome
from agentrl.sandbox.values import is_plain, same
from agentrl.sandbox.worker import WorkerPool
from agentrl.tasks.bugfix.candidate import Arguments, Candidate

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_BATCH = 64
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


def split_of(reference: Mapping[str, str]) -> Split:
    """The split that a reference program belongs to, by the digest of its code without docstrings and comments.

    Of ten programs seven are for training, one for validation and two for testing.
    """
    code = "\n".join(f"{path}\n{_code(text)}" for path, text in sorted(reference.items()))
    bucket = int(hashlib.sha256(code.encode()).hexdigest(), 16) % 10
    return "train" if bucket < 7 else "validation" if bucket < 8 else "test"


def hidden_calls(candidate: Candidate) -> tuple[tuple[str, Arguments], ...]:
    """Every call that decides: the hidden inputs, then those of the regression tests."""
    return (*((candidate.function, arguments) for arguments in candidate.hidden), *candidate.regression)


class Validator:
    """Picks the tasks of one split out of a stream of candidates, in order, by running them.

    Args:
        pool: where the programs run. Its wall clock limit is what an endless loop costs.
        split: the split to keep; None keeps all.
        expressible: a last condition of the level's own.
    """

    def __init__(self, pool: WorkerPool, *, split: Split | None = None, expressible: Expressible | None = None) -> None:
        self._pool = pool
        self._split = split
        self._expressible = expressible
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
        stream = iter(candidates)
        while batch := list(itertools.islice(stream, _BATCH)):
            for verdict in self._judge(batch):
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

    def _judge(self, batch: Sequence[Candidate]) -> list[Validated | Drop]:
        """One verdict per candidate; programs run in two rounds, the second only where the first shows a bug."""
        verdicts: dict[int, Validated | Drop] = {}
        for index, candidate in enumerate(batch):
            known = self._known(candidate)
            if known is not None:
                verdicts[index] = known
        fresh = [index for index in range(len(batch)) if index not in verdicts]
        jobs = [job for index in fresh for job in (_reference_job(batch[index]), _visible_job(batch[index]))]
        results = self._run(jobs)
        drafts: dict[int, Validated] = {}
        for place, index in enumerate(fresh):
            verdict = _draft(batch[index], *results[2 * place : 2 * place + 2])
            if isinstance(verdict, Drop):
                verdicts[index] = verdict
            else:
                drafts[index] = verdict
        for (index, draft), result in zip(
            drafts.items(), self._run([_hidden_job(draft.candidate) for draft in drafts.values()]), strict=True
        ):
            verdicts[index] = self._last_word(draft, result)
        return [verdicts[index] for index in range(len(batch))]

    def _known(self, candidate: Candidate) -> Drop | None:
        if self._split is not None and split_of(candidate.reference) != self._split:
            return Drop.OTHER_SPLIT
        text = "\0".join(itertools.chain.from_iterable(sorted(candidate.files.items())))
        if text in self._seen:
            return Drop.DUPLICATE
        self._seen.add(text)
        return None

    def _run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """The results of jobs; what timed out runs once more, so that a stall of the machine changes no task."""
        results = self._pool.run_sync(jobs)
        late = [index for index, result in enumerate(results) if result.end == "timeout"]
        for index, result in zip(late, self._pool.run_sync([jobs[index] for index in late]), strict=True):
            results[index] = result
        return results

    def _last_word(self, draft: Validated, result: JobResult) -> Validated | Drop:
        if result.end == "timeout":
            return Drop.TIMEOUT
        fails = not all(map(_passes, result.outcomes, draft.hidden))
        if not draft.failing:
            return Drop.VISIBLE_PASS if fails else Drop.EQUIVALENT
        if not fails:
            return Drop.HIDDEN_PASS
        if self._expressible is not None and not self._expressible(draft):
            return Drop.INEXPRESSIBLE
        return draft


def _code(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _reference_job(candidate: Candidate) -> Job:
    """All calls twice, the second time backwards, so that a value that depends on earlier calls is found."""
    calls = (*((candidate.function, arguments) for arguments in candidate.visible), *hidden_calls(candidate))
    return Job(files=candidate.reference, run=Calls(module=candidate.module, calls=(*calls, *reversed(calls))))


def _visible_job(candidate: Candidate) -> Job:
    calls = tuple((candidate.function, arguments) for arguments in candidate.visible)
    return Job(files=candidate.files, run=Calls(module=candidate.module, calls=calls))


def _hidden_job(candidate: Candidate) -> Job:
    return Job(files=candidate.files, run=Calls(module=candidate.module, calls=hidden_calls(candidate)))


def _draft(candidate: Candidate, reference: JobResult, broken: JobResult) -> Validated | Drop:
    half = len(reference.outcomes) // 2
    first, second = reference.outcomes[:half], reference.outcomes[half:][::-1]
    values = tuple(outcome.value for outcome in first)
    if not all(o.status == "value" and is_plain(o.value) for o in first) or not all(map(_passes, second, values)):
        return Drop.REFERENCE_FAILS
    if broken.end == "timeout":
        return Drop.TIMEOUT
    count = len(candidate.visible)
    passes = list(map(_passes, broken.outcomes, values[:count]))
    return Validated(
        candidate=candidate,
        visible=values[:count],
        hidden=values[count:],
        outcomes=broken.outcomes,
        failing=0 if all(passes) else passes.index(False) + 1,
    )


def _passes(outcome: Outcome, value: Any) -> bool:
    return outcome.status == "value" and same(outcome.value, value)
