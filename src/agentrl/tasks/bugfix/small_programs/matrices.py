"""Matrices as lists of rows."""

from __future__ import annotations

import random

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def transpose(matrix: list[list[int]]) -> list[list[int]]:
    """Turn rows into columns. A matrix without rows stays empty."""
    if not matrix:
        return []
    return [[row[i] for row in matrix] for i in range(len(matrix[0]))]


def multiply(left: list[list[int]], right: list[list[int]]) -> list[list[int]]:
    """Multiply two matrices, where the left one has as many columns as the right one has rows."""
    product = [[0] * len(right[0]) for _ in range(len(left))]
    for i in range(len(left)):
        for j in range(len(right[0])):
            for k in range(len(right)):
                product[i][j] += left[i][k] * right[k][j]
    return product


def rotate_right(matrix: list[list[int]]) -> list[list[int]]:
    """Turn a matrix a quarter clockwise, so that the last row becomes the first column."""
    rotated = []
    for j in range(len(matrix[0])):
        column = [row[j] for row in matrix]
        rotated.append(column[::-1])
    return rotated


def diagonal_difference(matrix: list[list[int]]) -> int:
    """Give the distance between the sums of the two diagonals of a square matrix, never negative."""
    size = len(matrix)
    difference = 0
    for i in range(size):
        difference += matrix[i][i] - matrix[i][size - 1 - i]
    return abs(difference)


def row_maxima(matrix: list[list[int]]) -> list[int]:
    """List the largest value of every row. Rows have at least one value."""
    maxima = []
    for row in matrix:
        largest = row[0]
        for value in row[1:]:
            if value > largest:
                largest = value
        maxima.append(largest)
    return maxima


def set_border(matrix: list[list[int]], value: int) -> list[list[list[int]]]:
    """Give a matrix as it was, and a copy of it with a value in every cell of the border."""
    framed = [row.copy() for row in matrix]
    for i, row in enumerate(framed):
        for j in range(len(row)):
            if i == 0 or i == len(framed) - 1 or j == 0 or j == len(row) - 1:
                row[j] = value
    return [matrix, framed]


def count_neighbours(grid: list[list[int]], row: int, column: int) -> int:
    """Count the cells with a 1 among the up to eight that surround a cell of a grid."""
    count = 0
    for i in range(max(0, row - 1), min(len(grid), row + 2)):
        for j in range(max(0, column - 1), min(len(grid[0]), column + 2)):
            if (i, j) != (row, column) and grid[i][j] == 1:
                count += 1
    return count


def spiral(matrix: list[list[int]]) -> list[int]:
    """List the values of a matrix along its border clockwise from the top left, then further and further in."""
    rest = [list(row) for row in matrix]
    values: list[int] = []
    while rest:
        values.extend(rest.pop(0))
        rest = [list(column) for column in zip(*rest, strict=True)][::-1]
    return values


def _square(rng: random.Random) -> list[list[int]]:
    size = rng.randint(1, 4)
    return draw.grid(rng, size, size)


def _factors(rng: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    rows, inner, columns = (rng.randint(1, 3) for _ in range(3))
    return draw.grid(rng, rows, inner, high=4), draw.grid(rng, inner, columns, high=4)


INPUTS: dict[str, Inputs] = {
    "transpose": lambda rng: (draw.grid(rng, rng.randint(0, 3), rng.randint(1, 3)),),
    "multiply": _factors,
    "rotate_right": lambda rng: (draw.grid(rng, rng.randint(1, 3), rng.randint(1, 3)),),
    "diagonal_difference": lambda rng: (_square(rng),),
    "row_maxima": lambda rng: (draw.grid(rng, rng.randint(0, 3), rng.randint(1, 4)),),
    "set_border": lambda rng: (draw.grid(rng, rng.randint(1, 4), rng.randint(1, 4)), rng.randint(0, 9)),
    "count_neighbours": lambda rng: (draw.grid(rng, 3, 4, low=0, high=1), rng.randint(0, 2), rng.randint(0, 3)),
    "spiral": lambda rng: (draw.grid(rng, rng.randint(1, 3), rng.randint(1, 4), low=0),),
}
