"""Orders: lists of lines [item, amount]."""

from __future__ import annotations

from typing import Any

from .stock import available, remove


def combine_lines(lines: list[list[Any]]) -> list[list[Any]]:
    """One line per item, its amounts added up, in the order in which items first appear."""
    totals: dict[str, int] = {}
    for item, amount in lines:
        name = item.strip().lower()
        totals[name] = totals.get(name, 0) + amount
    return [[name, total] for name, total in totals.items()]


def can_fill(stock: dict[str, int], lines: list[list[Any]]) -> bool:
    """Whether the stock has enough for all lines of an order together."""
    return all(available(stock, item) >= amount for item, amount in combine_lines(lines))


def fill(stock: dict[str, int], lines: list[list[Any]]) -> dict[str, int]:
    """The stock after an order that can be filled."""
    for item, amount in combine_lines(lines):
        stock = remove(stock, item, amount)
    return stock
