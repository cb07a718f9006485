"""Finding time. Busy spans are pairs of times of day, the working day is from 09:00 to 17:00."""

from __future__ import annotations

from .spans import gaps, merge
from .times import round_up, to_clock, to_minutes

DAY_START = 9 * 60
DAY_END = 17 * 60


def find_slot(busy: list[list[str]], minutes: int) -> str | None:
    """The earliest quarter of an hour at which a meeting of some minutes fits, None when there is none."""
    spans = [[to_minutes(start), to_minutes(end)] for start, end in busy]
    for start, end in gaps(spans, DAY_START, DAY_END):
        begin = round_up(start, 15)
        if begin + minutes <= end:
            return to_clock(begin)
    return None


def busy_times(busy: list[list[str]]) -> list[str]:
    """The busy times as lines "HH:MM-HH:MM", those that overlap or touch joined."""
    spans = merge([[to_minutes(start), to_minutes(end)] for start, end in busy])
    return [f"{to_clock(start)}-{to_clock(end)}" for start, end in spans]


def busy_minutes(busy: list[list[str]]) -> int:
    """How many minutes of the working day are taken."""
    spans = [[to_minutes(start), to_minutes(end)] for start, end in busy]
    free = sum(end - start for start, end in gaps(spans, DAY_START, DAY_END))
    return DAY_END - DAY_START - free
