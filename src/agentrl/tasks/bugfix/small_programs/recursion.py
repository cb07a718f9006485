"""Functions that call themselves: nested lists, counting, trees as nested pairs."""

from __future__ import annotations

from typing import Any

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def flatten(items: list[Any]) -> list[int]:
    """List the numbers of a nested list from left to right, however deep they lie."""
    flat: list[int] = []
    for item in items:
        if isinstance(item, list):
            flat.extend(flatten(item))
        else:
            flat.append(item)
    return flat


def depth(items: list[Any]) -> int:
    """Measure how deep a list is nested. A list without lists in it, the empty one too, has depth 1."""
    deepest = 0
    for item in items:
        if isinstance(item, list):
            deepest = max(deepest, depth(item))
    return deepest + 1


def power(base: int, exponent: int) -> int:
    """Raise a base to an exponent that is not negative, by squaring."""
    if exponent == 0:
        return 1
    half = power(base, exponent // 2)
    if exponent % 2 == 1:
        return half * half * base
    return half * half


def fibonacci(n: int, known: dict[int, int] | None = None) -> int:
    """Give the n-th Fibonacci number, from 0 and 1 on. Numbers once found are looked up."""
    if known is None:
        known = {}
    if n < 2:
        return n
    if n not in known:
        known[n] = fibonacci(n - 1, known) + fibonacci(n - 2, known)
    return known[n]


def count_paths(rows: int, columns: int) -> int:
    """Count the ways through a grid from one corner to the opposite one, going only right and down. An empty
    grid has none."""
    if rows <= 0 or columns <= 0:
        return 0
    if rows == 1 or columns == 1:
        return 1
    return count_paths(rows - 1, columns) + count_paths(rows, columns - 1)


def subsets(values: list[int]) -> list[list[int]]:
    """List all subsets of a list: for each one without the first value, then the same with it."""
    if not values:
        return [[]]
    found = []
    for subset in subsets(values[1:]):
        found.append(subset)
        found.append([values[0], *subset])
    return found


def count_change(amount: int, coins: list[int]) -> int:
    """Count the ways to pay an amount with coins, each of which may be used again. There is one way to pay
    nothing."""
    if amount == 0:
        return 1
    if amount < 0 or not coins:
        return 0
    return count_change(amount - coins[0], coins) + count_change(amount, coins[1:])


def weighted_sum(items: list[Any], level: int = 1) -> int:
    """Sum the numbers of a nested list, each times the level that it lies on. The outer list is level 1."""
    total = 0
    for item in items:
        if isinstance(item, list):
            total += weighted_sum(item, level + 1)
        else:
            total += item * level
    return total


def collect_even(items: list[Any], found: list[int] | None = None) -> list[int]:
    """Collect the even numbers of a nested list from left to right."""
    if found is None:
        found = []
    for item in items:
        if isinstance(item, list):
            collect_even(item, found)
        elif item % 2 == 0:
            found.append(item)
    return found


INPUTS: dict[str, Inputs] = {
    "flatten": lambda rng: (draw.nested(rng),),
    "depth": lambda rng: (draw.nested(rng),),
    "power": lambda rng: (rng.randint(-3, 4), rng.randint(0, 7)),
    "fibonacci": lambda rng: (rng.randint(0, 18),),
    "count_paths": lambda rng: (rng.randint(0, 5), rng.randint(0, 5)),
    "subsets": lambda rng: (rng.sample(range(10), rng.randint(0, 4)),),
    "count_change": lambda rng: (rng.randint(0, 12), rng.sample((1, 2, 3, 5, 7), rng.randint(0, 3))),
    "weighted_sum": lambda rng: (draw.nested(rng),),
    "collect_even": lambda rng: (draw.nested(rng),),
}
