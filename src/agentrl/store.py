"""The run folder: the configuration, metrics, traces, summary, versions and checkpoints of one run.

    config.toml         the whole configuration; `agentrl train config.toml` repeats the run
    versions.json       libraries and machine
    sandbox.json        which walls untrusted programs ran behind
    metrics.jsonl       one row a line: {"phase": "rl", "step": 3, "reward": 0.5, ...}
    traces/             <phase>-<step>.jsonl.gz
    checkpoints/        one folder a checkpoint
    tokenizer/          that of a Hugging Face model, with its chat template
    summary.json        the result
    curves.png          the learning curve

Only one process writes to a run folder; any number may read while it does.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, SupportsFloat

from agentrl.config import TrainConfig, read_toml, to_toml
from agentrl.errors import StoreError
from agentrl.files import write_atomic
from agentrl.records import SCHEMA, read_traces, trace_from_json, trace_to_json, write_traces
from agentrl.types import Trace

__all__ = ["SCHEMA", "RunFolder", "trace_from_json", "trace_to_json", "versions"]

RESUMED_PHASES = ("rl", "eval")
_TRACE_FILE = re.compile(r"(?P<phase>[a-z][a-z0-9_]*)-(?P<step>\d+)\.jsonl\.gz")
_PHASE = re.compile(r"[a-z][a-z0-9_]*")
_LIBRARIES = ("agentrl", "torch", "numpy", "safetensors", "pydantic")


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One run on disk. Make it with `create` or `open`."""

    path: Path

    @classmethod
    def create(cls, root: Path | str, config: TrainConfig) -> RunFolder:
        """Make a new folder ``root/<recipe>-<seed>-<UTC stamp>[-n]``; one that exists is never touched.

        Raises:
            StoreError: the folder cannot be made.
        """
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        try:
            path = _new_folder(Path(root), f"{config.recipe}-{config.seed}-{stamp}")
            for name in ("traces", "checkpoints"):
                (path / name).mkdir()
            folder = cls(path=path)
            folder._write_json("versions.json", versions())
            # last, because `open` takes a folder with a config.toml for a whole run
            write_atomic(path / "config.toml", to_toml(config).encode())
        except OSError as error:
            raise StoreError(f"no run folder can be made in {root} ({error}); choose another with --runs") from error
        return folder

    @classmethod
    def open(cls, path: Path | str, *, runs: Path | str = "runs") -> RunFolder:
        """A run that exists.

        Args:
            path: the run's folder.
            runs: where else to look for runs that may have been meant.

        Raises:
            StoreError: the path is no run folder, with the runs nearby.
        """
        path = Path(path)
        if not (path / "config.toml").is_file():
            raise StoreError(f"{path} {_not_a_run(path)}; {_nearby(path, Path(runs))}")
        return cls(path=path)

    @classmethod
    def latest(cls, root: Path | str) -> RunFolder:
        """The run below ``root`` that was started last.

        Raises:
            StoreError: there is none.
        """
        configs = sorted(Path(root).glob("*/config.toml"), key=lambda file: (file.stat().st_mtime_ns, file))
        if not configs:
            raise StoreError(f"there is no run in {root}; start one with `agentrl train RECIPE`")
        return cls(path=configs[-1].parent)

    @property
    def config(self) -> TrainConfig:
        """The run's configuration. Raises ConfigError when the file was made invalid."""
        return read_toml(self.path / "config.toml")

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer; TinyAgent, whose words are known, has none."""
        return self.path / "tokenizer"

    # --- summary and vocabulary -------------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json`` in one step. Raises StoreError for NaN, infinity or what is not JSON."""
        self._write_json("summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        """The result, or None for a run that has not ended. Raises StoreError for a damaged file."""
        found = self._read_json("summary.json")
        return found if found is None else dict(found)

    def write_sandbox(self, record: Mapping[str, Any]) -> None:
        """Keep which backend programs ran in, at what level; a resumed run adds a line when it has others."""
        before, plain = self.sandboxes(), json.loads(json.dumps(record))  # tuples are read back as lists
        if not before or before[-1] != plain:
            self._write_json("sandbox.json", [*before, plain])

    def sandboxes(self) -> list[dict[str, Any]]:
        """The sandboxes of the run, oldest first; more than one only when it was resumed with another."""
        return list(self._read_json("sandbox.json") or [])

    def write_vocabulary(self, texts: Sequence[str]) -> None:
        """Keep the text of each token id (entry i for id i), so that traces can be shown without a tokenizer."""
        self._write_json("vocabulary.json", list(texts))

    def vocabulary(self) -> list[str] | None:
        """The text of each token id, or None when the run did not keep it."""
        found = self._read_json("vocabulary.json")
        return found if found is None else list(found)

    # --- metrics ----------------------------------------------------------------------------------------------------

    def append_metrics(self, phase: str, step: int, metrics: Mapping[str, SupportsFloat | None]) -> None:
        """Add one row. NaN and infinity become null and are named under ``nonfinite``, so the file stays strict JSON.

        Raises:
            StoreError: a value that is no number, by the metric's name; a bad phase name.
        """
        _check_phase(phase)
        values = {name: _number(name, value) for name, value in metrics.items()}
        bad = [name for name, value in values.items() if value is not None and not math.isfinite(value)]
        row: dict[str, Any] = {"phase": phase, "step": step, **values, **dict.fromkeys(bad)}
        if bad:
            row["nonfinite"] = bad
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def metrics(self, phase: str | None = None) -> list[dict[str, Any]]:
        """The rows in the order of writing, of one phase or all. A last line that a kill cut short is left out.

        Raises:
            StoreError: a damaged line that is not the last.
        """
        rows = [json.loads(line) for line in self._metric_lines()]
        return [row for row in rows if phase in (None, row["phase"])]

    def _metric_lines(self) -> list[str]:
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        if lines and not (lines[-1].endswith("\n") and _is_row(lines[-1])):
            lines.pop()
        for number, line in enumerate(lines, start=1):
            if not _is_row(line):
                raise StoreError(f"{path}: line {number} is damaged: {line.strip()[:80]!r}; remove or mend it")
        return lines

    # --- traces -----------------------------------------------------------------------------------------------------

    def write_traces(self, phase: str, step: int, traces: Sequence[Trace]) -> None:
        """Write the attempts of one step, replacing what an interrupted run left there.

        Raises:
            StoreError: a trace that JSON cannot hold exactly; a bad phase name.
        """
        _check_phase(phase)
        write_traces(self.path / "traces" / f"{phase}-{step:06d}.jsonl.gz", traces, phase=phase, step=step)

    def trace_files(self) -> list[tuple[str, int, Path]]:
        """Phase, step and path of every trace file, sorted by phase and step; none where their folder is missing."""
        found = ((_TRACE_FILE.fullmatch(path.name), path) for path in (self.path / "traces").glob("*"))
        return sorted((match["phase"], int(match["step"]), path) for match, path in found if match)

    def iter_traces(self, phase: str | None = None, step: int | None = None) -> Iterator[Trace]:
        """Every stored attempt, of one phase or step or of all. Raises StoreError for a damaged file."""
        for file_phase, file_step, path in self.trace_files():
            if phase in (None, file_phase) and step in (None, file_step):
                yield from read_traces(path)

    def find_trace(self, trace_id: str) -> Trace:
        """The attempt with this id, or the only one whose id starts so.

        Raises:
            StoreError: no such attempt (with the nearest ids), or several that start so.
        """
        starts: dict[str, Trace] = {}
        ids: list[str] = []
        for trace in self.iter_traces():
            if trace.id == trace_id:
                return trace
            ids.append(trace.id)
            if trace.id.startswith(trace_id):
                starts[trace.id] = trace
        if len(starts) == 1:
            return next(iter(starts.values()))
        if starts:
            raise StoreError(
                f"{len(starts)} traces start with {trace_id!r}: {_some(list(starts))}; give more of the id"
            )
        near = difflib.get_close_matches(trace_id, ids, n=3, cutoff=0.0)
        raise StoreError(f"no trace {trace_id!r} in {self.path}; the nearest are {_some(near) or 'none: no traces'}")

    # --- resuming ---------------------------------------------------------------------------------------------------

    def remove_leftovers(self) -> None:
        """Remove the files and folders, all hidden, that a killed writer left half made. For the only writer."""
        for folder in (self.path, self.path / "traces", self.checkpoints):
            for path in folder.glob(".*"):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def truncate_after(self, step: int, phases: Collection[str] = RESUMED_PHASES) -> None:
        """Remove the rows and trace files of ``phases`` at later steps, and a torn last line, before a resume.

        What the resumed run does again is then counted once. Write what belongs to a step (its evaluation too)
        before its checkpoint. Safe to repeat after a kill.
        """
        rows = self._metric_lines()
        kept = [line for line in rows if (row := json.loads(line))["phase"] not in phases or row["step"] <= step]
        write_atomic(self.path / "metrics.jsonl", "".join(kept).encode())
        for phase, file_step, path in self.trace_files():
            if phase in phases and file_step > step:
                path.unlink()

    def _write_json(self, name: str, data: Any) -> None:
        try:
            text = json.dumps(data, indent=2, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise StoreError(f"{name}: {error}; only finite numbers, text, lists and dicts can be stored") from error
        write_atomic(self.path / name, f"{text}\n".encode())

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(f"{self.path / name}: damaged ({error})") from error


def versions() -> dict[str, Any]:
    """Versions of the libraries (read without importing them) and the machine's kind."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "byte_order": sys.byteorder,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _new_folder(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _not_a_run(path: Path) -> str:
    if path.is_dir():
        return "has no config.toml, so it is no run folder"
    return "is a file, and a run is a folder" if path.exists() else "does not exist"


def _nearby(path: Path, runs: Path) -> str:
    """Runs inside or beside a path or below ``runs``, for an error message."""
    roots = dict.fromkeys((path, path.parent, runs))
    found = [str(file.parent) for root in roots for file in sorted(root.glob("*/config.toml"))]
    close = difflib.get_close_matches(str(path), found, n=3, cutoff=0.0)
    return f"runs nearby: {', '.join(close)}" if close else "there are no runs nearby; start one with `agentrl train`"


def _some(ids: Sequence[str], limit: int = 5) -> str:
    return ", ".join(ids[:limit]) + (", ..." if len(ids) > limit else "")


def _is_row(line: str) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and isinstance(row.get("phase"), str) and isinstance(row.get("step"), int)


def _check_phase(phase: str) -> None:
    if not _PHASE.fullmatch(phase):
        raise StoreError(f"phase {phase!r} names files; write it in lower-case letters, digits and underscores")


def _number(name: str, value: SupportsFloat | None) -> float | int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    try:
        if isinstance(value, SupportsFloat):
            return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StoreError(f"metric {name!r} is {value!r}, which is not one number ({error})") from error
    raise StoreError(f"metric {name!r} is {value!r}, a {type(value).__name__}; metrics are numbers or None")
