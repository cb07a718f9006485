"""Whether what a program printed is what it should have printed. Bytes in, bytes compared; nothing is evaluated."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Literal

Compare = Literal["exact", "lines", "numbers"]
COMPARES: tuple[Compare, ...] = ("exact", "lines", "numbers")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]{1,4})?")
_LONGEST_NUMBER = 1_000


def same_output(actual: bytes, expected: bytes, *, compare: Compare, tolerance: float = 0.0) -> bool:
    """Whether an output counts as the expected one.

    Args:
        actual: what a program wrote, which need be no text.
        expected: what it should have written.
        compare: ``exact``: byte for byte. ``lines``: the same lines, but for blanks and returns at their ends and empty
            lines at the end of all. ``numbers``: the same words in the same lines, where a whole number must be that
            number and any other number be close to it.
        tolerance: for ``numbers``, the largest difference relative to the larger of 1 and the expected number.
    """
    if compare == "exact":
        return actual == expected
    if compare == "lines":
        return lines_of(actual) == lines_of(expected)
    rows, wanted = ([line.split() for line in lines_of(data)] for data in (actual, expected))
    return list(map(len, rows)) == list(map(len, wanted)) and all(
        same_word(word, other, tolerance)
        for row, other_row in zip(rows, wanted, strict=True)
        for word, other in zip(row, other_row, strict=True)
    )


def lines_of(data: bytes) -> list[bytes]:
    """The lines without the blanks at their ends and without the empty ones at the end of all."""
    lines = [line.rstrip() for line in data.rstrip().split(b"\n")]
    return lines if lines != [b""] else []


def same_word(actual: bytes, expected: bytes, tolerance: float) -> bool:
    """Whether two words are equal, or are numbers that count as equal.

    Nothing is close to a whole number but that number, however it is written: else a float in its place would buy
    slack that grows with it. Words that are too long to be of use as a number are compared as text.
    """
    if actual == expected:
        return True
    kinds = [_NUMBER.fullmatch(word) if len(word) <= _LONGEST_NUMBER else None for word in (actual, expected)]
    if kinds[0] is None or kinds[1] is None:
        return False
    if not any(kinds[1].groups()):
        return Decimal(actual.decode()) == Decimal(expected.decode())
    value, wanted = float(actual), float(expected)
    return math.isfinite(wanted) and abs(value - wanted) <= tolerance * max(1.0, abs(wanted))
