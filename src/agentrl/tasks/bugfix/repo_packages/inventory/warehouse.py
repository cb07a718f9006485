"""A day at the warehouse: orders one after the other."""

from __future__ import annotations

from typing import Any

from .orders import can_fill, combine_lines, fill
from .stock import add, available


def process(stock: dict[str, int], orders: list[list[list[Any]]]) -> list[Any]:
    """Fill the orders in turn, each whole or not at all. Gives the stock left and the indices of orders refused."""
    refused = []
    for index, lines in enumerate(orders):
        if can_fill(stock, lines):
            stock = fill(stock, lines)
        else:
            refused.append(index)
    return [stock, refused]


def shopping_list(stock: dict[str, int], orders: list[list[list[Any]]]) -> dict[str, int]:
    """What must be bought so that all orders can be filled, by item in alphabetical order."""
    needed = combine_lines([line for lines in orders for line in lines])
    bought: dict[str, int] = {}
    for item, amount in sorted(needed):
        lack = amount - available(stock, item)
        if lack > 0:
            bought = add(bought, item, lack)
    return bought
