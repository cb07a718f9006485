"""Random plain values for the inputs of the reference functions."""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS = (
    *("apple", "bear", "cloud", "delta", "ember", "fig", "grape", "hill", "iris", "jade", "kite", "lemon"),
    *("moss", "night", "ocean", "pear", "quill", "river", "stone", "tree"),
)
LETTERS = "abcde"


def ints(rng: random.Random, low: int, high: int, *, least: int = 0, most: int = 7) -> list[int]:
    """Between ``least`` and ``most`` ints from ``low`` to ``high``."""
    return [rng.randint(low, high) for _ in range(rng.randint(least, most))]


def words(rng: random.Random, *, least: int = 0, most: int = 6) -> list[str]:
    """Between ``least`` and ``most`` ordinary words; repeats are likely."""
    pool = rng.sample(WORDS, 5)
    return [rng.choice(pool) for _ in range(rng.randint(least, most))]


def text(rng: random.Random, alphabet: str = LETTERS, *, least: int = 0, most: int = 10) -> str:
    """Between ``least`` and ``most`` characters of ``alphabet``."""
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(least, most)))


def sentence(rng: random.Random) -> str:
    """Words in mixed case with uneven blanks between and around them."""
    mixed = [rng.choice((word, word.title(), word.upper())) for word in words(rng)]
    return rng.choice(("", " ")) + "".join(word + rng.choice((" ", " ", "  ", ", ")) for word in mixed)


def counts(rng: random.Random, *, low: int = 0, high: int = 9, most: int = 5) -> dict[str, int]:
    """A few words, each with a number."""
    return {word: rng.randint(low, high) for word in rng.sample(WORDS[:8], rng.randint(0, most))}


def day(rng: random.Random) -> str:
    """A date as ``YYYY-MM-DD``; ends of months and of leap years are likely."""
    edge = rng.choice(("01-01", "01-31", "02-28", "03-01", "12-31", f"{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"))
    return f"{rng.choice((1999, 2000, 2020, 2023, 2024, 2100))}-{edge}"


def clock(rng: random.Random) -> str:
    """A time of day as ``HH:MM``."""
    return f"{rng.randint(0, 23):02}:{rng.choice((0, 5, 30, 59, rng.randint(0, 59))):02}"


def spans(rng: random.Random, *, least: int = 0, most: int = 5) -> list[list[int]]:
    """Intervals ``[start, end]`` with ``start < end``, in any order, often touching."""
    starts = ints(rng, 0, 15, least=least, most=most)
    return [[start, start + rng.randint(1, 5)] for start in starts]


def grid(rng: random.Random, rows: int, columns: int, *, low: int = -5, high: int = 9) -> list[list[int]]:
    """``rows`` rows of ``columns`` ints."""
    return [[rng.randint(low, high) for _ in range(columns)] for _ in range(rows)]


def nested(rng: random.Random, depth: int = 3) -> list[object]:
    """A list of ints and of lists of the same kind."""
    size = rng.randint(0, 4)
    return [nested(rng, depth - 1) if depth > 1 and rng.random() < 0.4 else rng.randint(-9, 9) for _ in range(size)]


def pick(rng: random.Random, values: Sequence[int], low: int, high: int) -> int:
    """One of ``values`` most of the time, else any int from ``low`` to ``high``."""
    return rng.choice(values) if values and rng.random() < 0.7 else rng.randint(low, high)
