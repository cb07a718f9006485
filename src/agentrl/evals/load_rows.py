"""Attempts from plain tables: CSV with a header line, or one JSON object a line.

    task, score                       needed
    attempt                           from 0 or 1; may be missing when every task has one attempt
    checkpoint, cluster, family       labels
    status                            scored, errored, timed_out or unscored; scored where it is empty
    tokens, seconds                   numbers
    score:NAME                        further scores, such as score:visible_tests
    trace                             an id for `agentrl show`

Other columns are not read, unless their name is nearly one of these.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.evals.attempts import Attempt, Status

COLUMNS = (
    "task",
    "attempt",
    "score",
    "checkpoint",
    "cluster",
    "family",
    "status",
    "tokens",
    "seconds",
    "trace",
)
OTHER = "score:"
_TRUTH = {"true": 1.0, "false": 0.0}

Row = Mapping[str, Any]


def read_csv(path: Path, label: str) -> list[Attempt]:
    """The attempts of a CSV file.

    Args:
        path: the file, in UTF-8.
        label: the checkpoint of rows that name none.

    Raises:
        StoreError: a column is missing or misspelled, or a value is impossible, by its line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            rows = [(f"{path.name} line {reader.line_num}", row) for row in reader]
            columns = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StoreError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    for origin, row in rows:
        if "" in row or None in row.values():
            raise StoreError(f"{origin}: as many values are needed as there are columns ({len(columns)})")
    _check_columns(path, columns)
    return list(_attempts(rows, label))


def read_jsonl(path: Path, label: str) -> list[Attempt]:
    """The attempts of a file with one JSON object a line, with the keys of the CSV columns; see `read_csv`."""
    rows: list[tuple[str, Row]] = []
    for origin, row in json_lines(path):
        _check_columns(path, row)
        rows.append((origin, row))
    return list(_attempts(rows, label))


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a JSONL file with the words for where it stands. Raises StoreError for what is no object."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: cannot be read as text in UTF-8 ({error})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        origin = f"{path.name} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise StoreError(f"{origin}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise StoreError(f"{origin}: {line[:60]!r} is no JSON object")
        yield origin, row


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    given = list(columns)
    for name in ("task", "score"):
        if name not in given:
            raise StoreError(f"{path}: no column {name!r} among {', '.join(given)}; task and score are needed")
    for name in given:
        near = difflib.get_close_matches(name.lower(), COLUMNS, n=1, cutoff=0.8)
        if name not in COLUMNS and near and near[0] not in given:
            raise StoreError(f"{path}: column {name!r} would not be read; did you mean {near[0]!r}?")


def _attempts(rows: Iterable[tuple[str, Row]], label: str) -> Iterator[Attempt]:
    alone: dict[tuple[str, str], str] = {}
    for origin, row in rows:
        found = _attempt(origin, row, label)
        if row.get("attempt") in (None, ""):
            before = alone.setdefault((found.checkpoint, found.task), origin)
            if before != origin:
                raise StoreError(
                    f"{origin}: task {found.task!r} stands at {before} too, and neither says which attempt it is; add "
                    "a column attempt with 0, 1, ..."
                )
        yield found


def _attempt(origin: str, row: Row, label: str) -> Attempt:
    status = _status(origin, row)
    text = row["score"]
    if text in (None, "") and status is Status.SCORED:
        status = Status.UNSCORED
    return Attempt(
        checkpoint=str(row.get("checkpoint") or label),
        task=_task(origin, row["task"]),
        number=_number_of_attempt(origin, row.get("attempt")),
        status=status,
        score=_number(origin, "score", text),
        cluster=None if row.get("cluster") in (None, "") else str(row["cluster"]),
        family=str(row.get("family") or ""),
        trace_id=str(row.get("trace") or ""),
        tokens=_number(origin, "tokens", row.get("tokens")),
        seconds=_number(origin, "seconds", row.get("seconds")),
        others={
            name.removeprefix(OTHER): value
            for name in row
            if name.startswith(OTHER) and (value := _number(origin, name, row[name])) is not None
        },
        origin=origin,
    )


def _task(origin: str, value: Any) -> str:
    if value in (None, ""):
        raise StoreError(f"{origin}: no task")
    return str(value)


def _status(origin: str, row: Row) -> Status:
    text = row.get("status") or Status.SCORED
    if text not in set(Status):
        raise StoreError(f"{origin}: status {text!r} is unknown; write one of {', '.join(Status)}")
    return Status(text)


def _number_of_attempt(origin: str, value: Any) -> int:
    if value in (None, ""):
        return 0
    try:
        if isinstance(value, bool) or float(value) != int(value):
            raise ValueError
    except (TypeError, ValueError):
        raise StoreError(f"{origin}: attempt {value!r} is no whole number; number them 0, 1, ...") from None
    return int(value)


def _number(origin: str, name: str, value: Any) -> float | None:
    """A number; None for what is empty. Truth values are 1 and 0."""
    if value in (None, ""):
        return None
    if isinstance(value, str):
        value = _TRUTH.get(value.strip().lower(), value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise StoreError(f"{origin}: {name} {value!r} is no number") from None
    if not math.isfinite(number):
        raise StoreError(f"{origin}: {name} {value!r} is not finite; leave it empty where there is no {name}")
    return number
