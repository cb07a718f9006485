"""The folder of one evaluation: what was evaluated, every attempt as it comes, the result.

    evaluation.json     what was evaluated on what, with a schema version
    journal.jsonl       attempts since the last end, one a line, written as they come
    traces/             the attempts up to the last end, as in a run folder
    config.toml         that of the run, so that `agentrl show` works here too; missing where no run is behind it
    result.json         scores with intervals
    *.png               figures

Only one process writes to it. What a kill leaves is read: a line that was cut short is an attempt that was not made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from agentrl.errors import StoreError
from agentrl.files import write_atomic
from agentrl.records import read_traces, trace_from_json, trace_to_json, write_traces
from agentrl.types import Task, Trace

SCHEMA = 1
Key = tuple[str, int]
"""A task's id and the number of the attempt."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What was evaluated. Two evaluations that differ in any of these but ``policy`` never share a folder.

    Attributes:
        policy: as the user named it.
        weights: a digest of the weights, or the name of a scripted policy.
        version: of the policy, for all attempts.
        task_set: its id and split.
        settings: of the environment, JSON-plain.
        harness: fingerprint of the agent's loop, renderer and limits.
        temperature: of sampling; None for scripted policies.
        seed: of the attempts' draws.
    """

    policy: str
    weights: str
    version: int
    task_set: str
    settings: Mapping[str, Any]
    harness: str
    temperature: float | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class EvaluationFolder:
    """One evaluation on disk. Make it with `begin` or `open`."""

    MARK: ClassVar[str] = "evaluation.json"

    path: Path
    spec: Spec
    digests: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> EvaluationFolder:
        """An evaluation that exists. Raises StoreError for one that does not, or is damaged or of a newer schema."""
        file = path / cls.MARK
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            schema = data["schema"]
            if schema > SCHEMA:
                raise StoreError(f"{file}: schema {schema} is newer than {SCHEMA}, which is read; update agentrl")
            return cls(path=path, spec=Spec(**data["spec"]), digests=data["tasks"])
        except FileNotFoundError as error:
            raise StoreError(f"{path}: no evaluation, it has no {cls.MARK}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{file}: damaged ({error!r})") from error

    @classmethod
    def begin(cls, path: Path, spec: Spec, tasks: Sequence[Task]) -> EvaluationFolder:
        """A new evaluation, or one to go on with.

        Raises:
            StoreError: the folder holds an evaluation of something else, with what differs; or a task was changed.
        """
        digests = {task.id: digest(task) for task in tasks}
        if (path / cls.MARK).exists():
            there = cls.open(path)
            _refuse_other(path, there, spec, digests)
            digests = {**there.digests, **digests}
        elif path.exists() and any(path.iterdir()):
            raise StoreError(f"{path} holds something else than an evaluation; choose another folder with --out")
        try:
            (path / "traces").mkdir(parents=True, exist_ok=True)
            data = {"schema": SCHEMA, "spec": asdict(spec), "tasks": digests}
            write_atomic(path / cls.MARK, json.dumps(data, indent=2, allow_nan=False).encode())
        except OSError as error:
            raise StoreError(f"no evaluation can be kept in {path} ({error}); choose a folder with --out") from error
        return cls(path=path, spec=spec, digests=digests)

    @classmethod
    def below(cls, run: Path) -> list[EvaluationFolder]:
        """The evaluations of a run, by name."""
        return [cls.open(file.parent) for file in sorted((run / "evals").glob(f"*/{cls.MARK}"))]

    def traces(self) -> list[Trace]:
        """The attempts that count: of two with the same task and number the later, which was made since the earlier
        could not be scored. Raises StoreError for a damaged file."""
        found: dict[Key, Trace] = {}
        for path in sorted((self.path / "traces").glob("*.jsonl.gz")):
            found |= {(trace.task_id, trace.attempt): trace for trace in read_traces(path)}
        found |= {(trace.task_id, trace.attempt): trace for trace in self._journal()}
        return list(found.values())

    def result(self) -> dict[str, Any] | None:
        """The result, or None for an evaluation that has not ended. Raises StoreError for a damaged file."""
        file = self.path / "result.json"
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(f"{file}: damaged ({error})") from error

    def append(self, trace: Trace) -> None:
        """Keep one attempt; it is safe from a kill of this process when this returns."""
        line = json.dumps(trace_to_json(trace), separators=(",", ":"), allow_nan=False)
        with self._journal_path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def mend(self) -> None:
        """Cut off a last line that a kill left half written. For the only writer, before it appends."""
        if self._journal_path.exists():
            data = self._journal_path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                write_atomic(self._journal_path, whole)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, and move the attempts from the journal to the trace file."""
        traces = sorted(self.traces(), key=lambda trace: (trace.task_id, trace.attempt))
        file = self.path / "traces" / f"eval-{self.spec.version:06d}.jsonl.gz"
        write_traces(file, traces, phase="eval", step=self.spec.version)
        self._journal_path.unlink(missing_ok=True)
        write_atomic(self.path / "result.json", json.dumps(result, indent=2, allow_nan=False).encode())

    def adopt(self, run: Path) -> None:
        """Copy from a run what `agentrl show` needs."""
        for name in ("config.toml", "vocabulary.json"):
            if (run / name).is_file() and not (self.path / name).exists():
                write_atomic(self.path / name, (run / name).read_bytes())

    @property
    def _journal_path(self) -> Path:
        return self.path / "journal.jsonl"

    def _journal(self) -> Iterator[Trace]:
        if not self._journal_path.exists():
            return
        lines = self._journal_path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):  # what stands behind the last line break is cut short
            try:
                yield trace_from_json(json.loads(line))
            except (ValueError, AttributeError, StoreError) as error:
                raise StoreError(f"{self._journal_path}: line {number} is damaged ({error}); remove it") from error


def digest(task: Task) -> str:
    """A digest of what a task gives the policy and its world: prompt, tools and files."""
    parts = {"prompt": [asdict(m) for m in task.prompt], "tools": [asdict(t) for t in task.tools], "files": task.files}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _refuse_other(path: Path, there: EvaluationFolder, spec: Spec, digests: Mapping[str, str]) -> None:
    old, new = asdict(there.spec), asdict(spec)
    names = [field.name for field in fields(Spec) if field.name != "policy"]
    differing = [f"{name}: {old[name]!r} there, {new[name]!r} here" for name in names if old[name] != new[name]]
    if differing:
        raise StoreError(
            f"{path} holds the evaluation of something else ({'; '.join(differing)}); choose another folder with --out"
        )
    for task, value in digests.items():
        if there.digests.get(task, value) != value:
            raise StoreError(
                f"{path}: task {task} was changed since (digest {there.digests[task]} there, {value} here); evaluate "
                "into another folder with --out"
            )
