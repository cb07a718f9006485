"""Attempts from the logs of other tools: Inspect (`.json`, `.eval`) and lm-evaluation-harness (`samples_*.jsonl`)."""

from __future__ import annotations

import importlib
import json
import math
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.evals.attempts import Attempt, Status
from agentrl.evals.load_rows import json_lines

INSPECT_VERSION = 2
"""The newest version of Inspect's log format that is read."""
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's own values of its letters: correct, incorrect, partial, no answer."""
_ZSTANDARD = 93
_SAMPLES_FILE = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT[\d-]+(?:\.\d+)?)\.jsonl")

Sample = Mapping[str, Any]


def read_inspect(path: Path, label: str, *, score: str | None) -> list[Attempt]:
    """The attempts of an Inspect log, one for each sample and epoch.

    A sample with an error is errored; one that ran into a limit and was not scored has timed out; one without a
    score, or with NaN, is unscored.

    Args:
        path: a ``.json`` or ``.eval`` file.
        label: the name of the checkpoint.
        score: which scorer, as ``NAME`` or ``NAME.KEY`` where its value is a dict; may be None when there is one.

    Raises:
        StoreError: not such a log, one of a newer version, or several scorers and none chosen.
    """
    header, samples = _inspect_zip(path) if path.suffix == ".eval" else _inspect_json(path)
    version = header.get("version")
    if not isinstance(version, int) or "eval" not in header:
        raise StoreError(f"{path}: no Inspect log: its header has no version and eval")
    if version > INSPECT_VERSION:
        raise StoreError(
            f"{path}: version {version} of the Inspect log is newer than {INSPECT_VERSION}, which this version reads; "
            "update agentrl"
        )
    found = list(samples)
    if not found:
        raise StoreError(f"{path}: the log has no samples (status {header.get('status')!r}); log them")
    chosen = _chosen(path, {name for sample in found for name in sample.get("scores") or ()}, score)
    return [_inspect_attempt(path, label, sample, chosen) for sample in found]


def _inspect_attempt(path: Path, label: str, sample: Sample, chosen: tuple[str, str]) -> Attempt:
    origin = f"{path.name} sample {sample['id']!r} epoch {sample.get('epoch', 1)}"
    value = _inspect_value(origin, sample, chosen)
    status = Status.SCORED if value is not None else Status.UNSCORED
    if sample.get("error"):
        status, value = Status.ERRORED, None
    elif sample.get("limit") and value is None:
        status = Status.TIMED_OUT
    usage = (sample.get("model_usage") or {}).values()
    return Attempt(
        checkpoint=label,
        task=str(sample["id"]),
        number=int(sample.get("epoch", 1)) - 1,
        status=status,
        score=value,
        tokens=float(sum(one.get("output_tokens", 0) for one in usage)) if usage else None,
        seconds=sample.get("working_time"),
        origin=origin,
    )


def _inspect_value(origin: str, sample: Sample, chosen: tuple[str, str]) -> float | None:
    name, key = chosen
    score = (sample.get("scores") or {}).get(name)
    value = None if score is None else score["value"]
    if isinstance(value, Mapping):
        if key not in value:
            raise StoreError(
                f"{origin}: score {name!r} has the values {', '.join(value)}; choose one with --score {name}.KEY"
            )
        value = value[key]
    if isinstance(value, str):
        if value not in _GRADES:
            raise StoreError(f"{origin}: score {value!r} is neither a number nor one of {', '.join(_GRADES)}")
        return _GRADES[value]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return _as_float(origin, value)


def _chosen(path: Path, names: set[str], score: str | None) -> tuple[str, str]:
    """The scorer and the key of its value."""
    if score is not None:
        name, _, key = (score, "", "") if score in names else score.rpartition(".")
        if name in names:
            return name, key
        raise StoreError(f"{path}: no score {score!r}; there are {', '.join(sorted(names)) or 'none'}")
    if len(names) > 1:
        raise StoreError(f"{path}: several scores ({', '.join(sorted(names))}); choose one with --score NAME")
    return next(iter(names), ""), ""


def _inspect_json(path: Path) -> tuple[Sample, Iterable[Sample]]:
    header = _json(path, path.read_bytes())
    if not isinstance(header, dict):
        raise StoreError(f"{path}: no Inspect log: a JSON object is needed")
    return header, header.get("samples") or ()


def _inspect_zip(path: Path) -> tuple[Sample, Iterable[Sample]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            start = "header.json" if "header.json" in names else "_journal/start.json"  # a run that was cut short
            if start not in names:
                raise StoreError(f"{path}: no Inspect log: it has no header.json")
            samples = [name for name in names if name.startswith("samples/") and name.endswith(".json")]
            parts = [_json(path, _member(path, archive, name)) for name in (start, *samples)]
    except (OSError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path}: not a readable .eval file ({error})") from error
    return parts[0], parts[1:]


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """One file of the archive. Python's zipfile lacks Zstandard, which Inspect writes."""
    info = archive.getinfo(name)
    if info.compress_type != _ZSTANDARD:
        return archive.read(name)
    try:
        zstandard = importlib.import_module("zstandard")  # optional: only these files need it
    except ImportError as error:
        raise StoreError(
            f"{path}: compressed with Zstandard; pip install zstandard, or write it anew with "
            "`inspect log convert --to json`"
        ) from error
    with path.open("rb") as file:
        file.seek(info.header_offset)
        fixed = file.read(30)
        name_length, extra_length = struct.unpack("<HH", fixed[26:30])
        file.seek(name_length + extra_length, 1)
        packed = file.read(info.compress_size)
    data: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return data


def _json(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error})") from error


def read_lm_eval(paths: Sequence[Path], label: str, *, score: str | None) -> list[Attempt]:
    """The attempts of lm-evaluation-harness' sample logs: one for each document, of the family of its task.

    Args:
        paths: ``samples_TASK_TIME.jsonl`` files, of one run.
        label: the name of the checkpoint.
        score: which metric, as ``METRIC`` or ``METRIC,FILTER``; may be None when there is one.

    Raises:
        StoreError: two files of one task, several metrics or filters and none chosen, or a value that is no number.
    """
    seen: dict[str, Path] = {}
    found: list[Attempt] = []
    for path in paths:
        match = _SAMPLES_FILE.fullmatch(path.name)
        task = match["task"] if match else path.stem
        if task in seen:
            raise StoreError(f"{path} and {seen[task].name} are of the same task {task}; give one of the two files")
        seen[task] = path
        found.extend(_lm_eval_file(path, task, label, score))
    return found


def _lm_eval_file(path: Path, task: str, label: str, score: str | None) -> Iterator[Attempt]:
    rows = list(json_lines(path))
    for origin, row in rows:
        if "doc_id" not in row or not isinstance(row.get("metrics"), list):
            raise StoreError(
                f"{origin}: no doc_id and metrics; log samples with --log_samples of version 0.4.5 or later"
            )
    names = {(metric, str(row.get("filter", "none"))) for _, row in rows for metric in row["metrics"]}
    metric, chosen = _metric(path, names, score)
    for origin, row in rows:
        if str(row.get("filter", "none")) != chosen:
            continue
        value = row.get(metric)
        yield Attempt(
            checkpoint=label,
            task=f"{task}/{row['doc_id']}",
            number=0,
            status=Status.UNSCORED if value is None else Status.SCORED,
            score=None if value is None else _as_float(origin, value),
            family=task,
            origin=origin,
        )


def _metric(path: Path, names: set[tuple[str, str]], score: str | None) -> tuple[str, str]:
    fitting = [name for name in sorted(names) if score is None or score in (name[0], ",".join(name))]
    every = "; ".join(",".join(name) for name in sorted(names))
    if not fitting:
        raise StoreError(f"{path}: no metric {score!r}; there are {every}" if names else f"{path}: no samples")
    if len(fitting) > 1:
        raise StoreError(f"{path}: several metrics and filters ({every}); choose one with --score METRIC,FILTER")
    return fitting[0]


def _as_float(origin: str, value: Any) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise StoreError(f"{origin}: score {value!r} is not one finite number")
