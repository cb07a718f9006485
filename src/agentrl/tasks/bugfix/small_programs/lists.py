"""Lists of numbers: searching, grouping, reordering, running values."""

from __future__ import annotations

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def running_total(values: list[int]) -> list[int]:
    """Give the sum of the values up to and including each place."""
    totals = []
    total = 0
    for value in values:
        total += value
        totals.append(total)
    return totals


def second_largest(values: list[int]) -> int | None:
    """Find the second largest of the distinct values, None when there are fewer than two."""
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return None
    return distinct[-2]


def binary_search(values: list[int], target: int) -> int:
    """Find the index of a target in an ascending list without repeats, -1 when it is not there."""
    low = 0
    high = len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == target:
            return middle
        if values[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1


def rotate(values: list[int], steps: int) -> list[int]:
    """Move every value a number of places to the right, those at the end to the front. The input is kept."""
    if not values:
        return []
    cut = len(values) - steps % len(values)
    return values[cut:] + values[:cut]


def chunks(values: list[int], size: int) -> list[list[int]]:
    """Cut a list into pieces of a size of at least one. The last piece may be shorter."""
    pieces = []
    for start in range(0, len(values), size):
        pieces.append(values[start : start + size])
    return pieces


def merge_sorted(first: list[int], second: list[int]) -> list[int]:
    """Merge two ascending lists into one ascending list that has all values of both."""
    merged = []
    i = 0
    j = 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            merged.append(first[i])
            i += 1
        else:
            merged.append(second[j])
            j += 1
    return merged + first[i:] + second[j:]


def longest_increase(values: list[int]) -> int:
    """Count the values of the longest stretch of neighbours in which each is greater than the one before."""
    if not values:
        return 0
    best = 1
    length = 1
    for i in range(1, len(values)):
        if values[i] > values[i - 1]:
            length += 1
        else:
            length = 1
        best = max(best, length)
    return best


def insert_sorted(values: list[int], new: int) -> list[list[int]]:
    """Give an ascending list as it was and as it is with a new value put in its place."""
    extended = values.copy()
    position = 0
    while position < len(extended) and extended[position] < new:
        position += 1
    extended.insert(position, new)
    return [values, extended]


def moving_average(values: list[int], width: int) -> list[float]:
    """Average every stretch of a width of neighbours, rounded to two places. Too few values give an empty list."""
    if width <= 0 or width > len(values):
        return []
    averages = []
    for start in range(len(values) - width + 1):
        window = values[start : start + width]
        averages.append(round(sum(window) / width, 2))
    return averages


INPUTS: dict[str, Inputs] = {
    "running_total": lambda rng: (draw.ints(rng, -9, 9),),
    "second_largest": lambda rng: (draw.ints(rng, -4, 6),),
    "binary_search": lambda rng: (
        values := sorted(set(draw.ints(rng, -9, 15, most=9))),
        draw.pick(rng, values, -10, 16),
    ),
    "rotate": lambda rng: (draw.ints(rng, 0, 9), rng.randint(-3, 9)),
    "chunks": lambda rng: (draw.ints(rng, 0, 9, most=8), rng.randint(1, 4)),
    "merge_sorted": lambda rng: (sorted(draw.ints(rng, 0, 9, most=5)), sorted(draw.ints(rng, 0, 9, most=5))),
    "longest_increase": lambda rng: (draw.ints(rng, 0, 7, most=9),),
    "insert_sorted": lambda rng: (sorted(draw.ints(rng, 0, 9, most=5)), rng.randint(-1, 10)),
    "moving_average": lambda rng: (draw.ints(rng, 0, 20), rng.randint(0, 4)),
}
