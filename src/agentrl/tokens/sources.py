"""Files of conversations: JSON lines, JSON, Parquet, and the traces of runs; one of them or a folder of them.

What is read keeps its place, so that an error can name the line.
"""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agentrl.errors import ConfigError, StoreError
from agentrl.records import SCHEMA, trace_from_json
from agentrl.types import Trace

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".parquet")
_EVALUATIONS = ("eval", "eval_before")
_OF_AN_EVALUATION = "evaluation.json"
"""What a folder of `agentrl eval` holds and that of a run does not."""
_HELD_OUT = ("validation", "test")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a file: a row of a data set as plain data, or an attempt. ``name`` says where it stands."""

    name: str
    content: Any | Trace


def read_entries(path: Path | str) -> Iterator[Entry]:
    """The entries of a file, or of all files of a folder in the order of their names.

    Of a run's folder its attempts in training are read and those of its evaluations are not; of the folder of an
    evaluation all are, such as attempts of another model at training tasks (``agentrl eval --split train``).

    Raises:
        ConfigError: there is no such file, or none in the folder; a line is damaged or empty (with its number); an
            attempt was at a held-out task.
    """
    for file in data_files(Path(path)):
        yield from _entries(file)


def data_files(path: Path) -> list[Path]:
    """The files that a path means.

    Raises:
        ConfigError: it does not exist, has another ending than those that are read, or is a folder without such files.
    """
    if path.is_file():
        if not path.name.endswith(ENDINGS):
            raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}; files of {', '.join(ENDINGS)} are read")
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path} does not exist; give a file of {', '.join(ENDINGS)} or a folder of such files")
    is_run = (path / "traces").is_dir()
    found = sorted(file for file in (path / "traces" if is_run else path).iterdir() if file.name.endswith(ENDINGS))
    if is_run and not (path / _OF_AN_EVALUATION).is_file():
        found = [file for file in found if file.name.rpartition("-")[0] not in _EVALUATIONS]
    if not found:
        what = "attempts of training" if is_run else f"files of {', '.join(ENDINGS)}"
        raise ConfigError(f"{path} has no {what}; give another folder, or a file")
    return found


def _entries(path: Path) -> Iterator[Entry]:
    try:
        if path.suffix == ".parquet":
            rows = _parquet(path)
            yield from (Entry(name=f"{path}, row {number}", content=row) for number, row in enumerate(rows, start=1))
        elif path.suffix == ".json":
            yield from _json(path)
        else:
            yield from _lines(path)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); copy it again, or leave it out") from error


def _json(path: Path) -> Iterator[Entry]:
    """A file that is one list."""
    rows = _parsed(path.read_text(encoding="utf-8-sig"), str(path))
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: a .json file holds a list of conversations; name it .jsonl if it has one a line")
    yield from (Entry(name=f"{path}, item {number}", content=row) for number, row in enumerate(rows, start=1))


def _lines(path: Path) -> Iterator[Entry]:
    """A file with one row a line. Its first line says whether these are the attempts of a run."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8-sig") as file:
        header: Mapping[str, Any] | None = None
        count, empty = 0, 0
        for number, line in enumerate(file, start=1):
            name = f"{path}, line {number}"
            if not line.strip():
                empty = empty or number
                continue
            if empty:
                raise ConfigError(f"{path}, line {empty}: the line is empty; remove it")
            row = _parsed(line, name)
            if number == 1 and _is_header(row, name):
                header = row
                continue
            count += 1
            yield Entry(name=name, content=row if header is None else _attempt(row, name))
        if header is not None and header.get("traces", count) != count:
            raise ConfigError(f"{path}: {count} attempts where its first line promises {header['traces']}; it was cut")


def _is_header(row: Any, name: str) -> bool:
    """Whether a line is the first of a file of attempts."""
    if not isinstance(row, dict) or not isinstance(row.get("schema"), int) or "phase" not in row:
        return False
    if row["schema"] > SCHEMA:
        raise ConfigError(f"{name}: schema {row['schema']} is newer than {SCHEMA}, which is read; update agentrl")
    return True


def _attempt(row: Any, name: str) -> Trace:
    try:
        trace = trace_from_json(row)
    except (StoreError, AttributeError) as error:
        raise ConfigError(f"{name}: no attempt ({error})") from error
    parts = trace.task_id.split("/")
    held_out = [part for part in parts[1:-1] if part in _HELD_OUT]
    if held_out:
        raise ConfigError(
            f"{name}: the attempt is at {trace.task_id}, a task of the split {held_out[0]}; who trains on it can no "
            "longer be measured on it: take attempts at training tasks"
        )
    return trace


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        shown = text.strip()
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise ConfigError(f"{name}: not JSON ({reason}): {shown!r}; write one object, or remove the line") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _parquet(path: Path) -> Iterator[Any]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # optional: only this kind of file needs it
        arrow_error = importlib.import_module("pyarrow").ArrowInvalid
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow: pip install 'agentrl[parquet]', or write JSON lines"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from map(_without_nulls, batch.to_pylist())
    except arrow_error as error:
        raise ConfigError(f"{path} is no Parquet file ({error}); copy it again, or leave it out") from error


def _without_nulls(value: Any) -> Any:
    """What was written. A column of objects has each field of any of them, null where an object has none: a null of
    its own can only be kept by writing arguments and schemas as a text of JSON."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
