"""Adds amounts up."""

from collections.abc import Iterable

from amounts.reading import parse


def total(lines: Iterable[str]) -> int:
    """The sum of the amounts of all lines; empty lines count nothing."""
    return sum(parse(line) for line in lines if line.strip())
