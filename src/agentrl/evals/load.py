"""Attempts from whatever holds them: runs, evaluations, trace files, tables, logs of other tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.evals.attempts import Attempt, attempt_of
from agentrl.evals.baselines import CEILING, FLOORS
from agentrl.evals.folder import EvaluationFolder
from agentrl.evals.load_logs import read_inspect, read_lm_eval
from agentrl.evals.load_rows import read_csv, read_jsonl
from agentrl.evals.table import Errors, Table
from agentrl.records import read_traces
from agentrl.store import RunFolder
from agentrl.types import Trace

KINDS = (
    "a run (RUN, RUN@before, RUN@after, RUN@STEP), an evaluation's folder, a trace file (.jsonl.gz), a table (.csv, "
    ".jsonl), an Inspect log (.json, .eval) or the folder of lm-eval's samples_*.jsonl"
)


def load_table(words: Sequence[str], *, runs: Path, score: str | None = None, errors: Errors = "zero") -> Table:
    """One table of several sources, each a checkpoint or, for a file with a column ``checkpoint``, several.

    Args:
        words: what to read; see `KINDS`.
        runs: where runs are looked for by name.
        score: which score of a log that has several.
        errors: see `Table.of`.

    Raises:
        StoreError: a source that does not exist or cannot be read, the same one twice, or attempts that contradict
            each other.
    """
    twice = [word for word, times in Counter(words).items() if times > 1]
    if twice:
        raise StoreError(f"{twice[0]} is given twice; compare two different ones")
    loaded = [load(word, runs=runs, score=score, label=label) for word, label in _labels(words).items()]
    owners = Counter(name for attempts in loaded for name in {one.checkpoint for one in attempts})
    rows = [
        replace(one, checkpoint=f"{word}:{one.checkpoint}") if owners[one.checkpoint] > 1 else one
        for word, attempts in zip(words, loaded, strict=True)
        for one in attempts
    ]
    return Table.of(rows, errors=errors)


def _labels(words: Sequence[str]) -> dict[str, str]:
    """A name for each source, as short as tells them apart: the policy of an evaluation, or the end of the path."""
    for shorten in (_policy, _end):
        names = [shorten(word) for word in words]
        if len(set(names)) == len(names):
            return dict(zip(words, names, strict=True))
    return dict(zip(words, words, strict=True))


def _policy(word: str) -> str:
    path = Path(word)
    return _end(EvaluationFolder.open(path).spec.policy if (path / EvaluationFolder.MARK).is_file() else word)


def _end(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


def load(word: str, *, runs: Path, score: str | None = None, label: str | None = None) -> list[Attempt]:
    """The attempts that a word of the command line means, under a label (the word itself by default).

    Raises:
        StoreError: see `load_table`.
    """
    path, label = Path(word), label or word
    if path.is_file():
        return _file(path, label, score)
    if (path / EvaluationFolder.MARK).is_file():
        folder = EvaluationFolder.open(path)
        return _attempts(folder.traces(), label, path)
    samples = sorted({*path.glob("samples_*.jsonl"), *path.glob("*/samples_*.jsonl")}) if path.is_dir() else []
    if samples and not (path / "config.toml").is_file():
        return read_lm_eval(samples, label, score=score)
    return _run(word, runs, label)


def _file(path: Path, label: str, score: str | None) -> list[Attempt]:
    if path.name.endswith(".jsonl.gz"):
        return _attempts(read_traces(path), label, path.parent.parent, origin=path.name)
    if path.suffix == ".csv":
        return read_csv(path, label)
    if path.suffix == ".eval":
        return read_inspect(path, label, score=score)
    if path.suffix == ".json":
        _refuse_aggregates(path)
        return read_inspect(path, label, score=score)
    if path.suffix == ".jsonl":
        return read_lm_eval([path], label, score=score) if _is_lm_eval(path) else read_jsonl(path, label)
    raise StoreError(f"{path}: attempts are read from {KINDS}; rename the file if it is one of these")


def _is_lm_eval(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            first = json.loads(file.readline())
        except ValueError:
            return False
    return isinstance(first, dict) and "doc_id" in first


def _refuse_aggregates(path: Path) -> None:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return
    if isinstance(found, dict) and "results" in found and "eval" not in found:
        raise StoreError(
            f"{path}: results of all tasks together have no attempts; run lm-eval with --log_samples and "
            "give the folder of its samples_*.jsonl"
        )


def _attempts(traces: Iterable[Trace], label: str, show: Path, *, origin: str = "") -> list[Attempt]:
    shown = str(show) if (show / "config.toml").is_file() else ""
    return [attempt_of(trace, label, show=shown, origin=f"{origin} trace {trace.id}".strip()) for trace in traces]


def find_run(word: str, runs: Path) -> RunFolder:
    """The run that a path, a name below ``runs`` or ``latest`` means. Raises StoreError when there is none."""
    if word == "latest":
        return RunFolder.latest(runs)
    below = runs / word
    return RunFolder.open(below if (below / "config.toml").is_file() else word, runs=runs)


def split_step(word: str) -> tuple[str, str]:
    """A run's word and what stands behind its last ``@``, empty where nothing does."""
    if Path(word).exists() or "@" not in word:
        return word, ""
    run, _, step = word.rpartition("@")
    return run, step


def _run(word: str, runs: Path, label: str) -> list[Attempt]:
    name, step = split_step(word)
    try:
        folder = find_run(name, runs)
    except StoreError as error:
        raise StoreError(f"{error}; what can be compared is {KINDS}") from error
    phase, number = _chosen_evaluation(folder, word, step)
    if phase:
        return _attempts(folder.iter_traces(phase, number), label, folder.path)
    return _evaluation_of_step(folder, word, int(step), label)


def _chosen_evaluation(folder: RunFolder, word: str, step: str) -> tuple[str, int]:
    """Phase and step of the run's own evaluation that is meant; no phase where the run made none at that step."""
    own = [(phase, number) for phase, number, _ in folder.trace_files() if phase in ("eval", "eval_before")]
    if step in ("", "after"):
        after = [one for one in own if one[0] == "eval"]
        if not after:
            hint = f"{folder.path}@before" if own else f"agentrl eval RECIPE --policy {folder.path}@STEP"
            raise StoreError(f"{word}: the run has not been evaluated at its end; use {hint}")
        return after[-1]
    if step == "before":
        if ("eval_before", 0) not in own:
            raise StoreError(f"{word}: the run was not evaluated before RL")
        return "eval_before", 0
    if not step.isdecimal():
        raise StoreError(f"{word}: {step!r} is no step; write before, after or a number")
    return next((one for one in own if one[1] == int(step)), ("", 0))


def _evaluation_of_step(folder: RunFolder, word: str, step: int, label: str) -> list[Attempt]:
    scripts = (*FLOORS, CEILING)
    evaluations = [one for one in EvaluationFolder.below(folder.path) if one.spec.weights not in scripts]
    found = [one for one in evaluations if one.spec.version == step]
    if len(found) == 1:
        return _attempts(found[0].traces(), label, found[0].path)
    if found:
        raise StoreError(f"{word}: several evaluations of that step; give one: {', '.join(str(f.path) for f in found)}")
    raise StoreError(f"{word}: no evaluation of step {step}; make one: agentrl eval RECIPE --policy {word}")
