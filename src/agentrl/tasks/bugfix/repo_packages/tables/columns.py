"""Columns of rows as numbers."""

from __future__ import annotations


def to_number(cell: str) -> int | None:
    """The whole number in a cell, None when there is none."""
    digits = cell.removeprefix("-")
    if not digits.isdigit():
        return None
    return -int(digits) if cell.startswith("-") else int(digits)


def numbers(rows: list[dict[str, str]], name: str) -> list[int]:
    """The numbers of a column; other cells are left out."""
    found = [to_number(row.get(name, "")) for row in rows]
    return [number for number in found if number is not None]


def spread(values: list[int]) -> int:
    """The distance between the smallest and the largest value, 0 without values."""
    if not values:
        return 0
    return max(values) - min(values)
