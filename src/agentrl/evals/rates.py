"""What an attempt of an evaluation cost, from its own records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.errors import StoreError
from agentrl.evals.folder import EvaluationFolder
from agentrl.evals.load import find_run, split_step
from agentrl.evals.plan import Rates
from agentrl.evals.table import Table
from agentrl.store import RunFolder


def rates_of(table: Table, word: str, runs: Path) -> Rates:
    """The rates of a source: tokens from its attempts; seconds of wall-clock time from the run or the evaluation, since
    attempts run side by side; None where no record says so.

    Args:
        table: its attempts; the last checkpoint counts.
        word: the source as `load` took it.
        runs: where runs are looked for by name.
    """
    tokens = table.tokens[:, :, -1]
    return Rates(
        tokens=None if np.isnan(tokens).all() else float(np.nanmean(tokens)), seconds=_seconds(Path(word), word, runs)
    )


def _seconds(path: Path, word: str, runs: Path) -> float | None:
    if (path / EvaluationFolder.MARK).is_file():
        found = path / "result.json"
        result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
        return result.get("seconds_per_attempt")
    if path.is_file():
        return None
    try:
        return _seconds_of_run(find_run(split_step(word)[0], runs))
    except StoreError:  # a folder of another tool's logs
        return None


def _seconds_of_run(folder: RunFolder) -> float | None:
    """The run's time for evaluation over the attempts that it evaluated."""
    summary = folder.summary() or {}
    seconds = summary.get("seconds", {}).get("evaluation")
    made = sum(row["episodes_scored"] + row["episodes_unscored"] for row in folder.metrics("eval"))
    return seconds / made if seconds and made else None
