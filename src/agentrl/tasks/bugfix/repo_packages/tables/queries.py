"""Questions to a table in text."""

from __future__ import annotations

from .columns import numbers, spread, to_number
from .reader import read_rows


def summarize(text: str, column: str) -> list[int]:
    """Count, sum and spread of the numbers in a column."""
    values = numbers(read_rows(text), column)
    return [len(values), sum(values), spread(values)]


def select(text: str, column: str, least: int) -> list[str]:
    """The names of the rows whose number in a column is at least a limit."""
    chosen = []
    for row in read_rows(text):
        number = to_number(row.get(column, ""))
        if number is not None and number >= least:
            chosen.append(row.get("name", ""))
    return chosen
