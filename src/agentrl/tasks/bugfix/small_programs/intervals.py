"""Intervals of whole numbers: a pair [start, end] holds its start and not its end."""

from __future__ import annotations

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def overlap_length(first: list[int], second: list[int]) -> int:
    """Measure how much two intervals have in common, zero when they only touch or lie apart."""
    start = max(first[0], second[0])
    end = min(first[1], second[1])
    return max(0, end - start)


def merge_intervals(intervals: list[list[int]]) -> list[list[int]]:
    """Join intervals that overlap or touch. The result is in ascending order."""
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def total_length(intervals: list[list[int]]) -> int:
    """Measure the numbers that at least one interval covers, each counted once."""
    total = 0
    reached = None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


def find_gaps(intervals: list[list[int]], start: int, end: int) -> list[list[int]]:
    """List the parts of the span from start to end that no interval covers."""
    gaps = []
    position = start
    for low, high in sorted(intervals):
        if low >= end:
            break
        if low > position:
            gaps.append([position, low])
        position = max(position, high)
    if position < end:
        gaps.append([position, end])
    return gaps


def find_slot(intervals: list[list[int]], point: int) -> int:
    """Find the index of the first interval that holds a point, -1 when none does. An interval does not hold its
    end."""
    for i in range(len(intervals)):
        start, end = intervals[i]
        if start <= point and point < end:
            return i
    return -1


def most_at_once(intervals: list[list[int]]) -> int:
    """Count how many intervals overlap at the busiest point. Ones that only touch do not overlap."""
    events = []
    for start, end in intervals:
        events.append((start, 1))
        events.append((end, -1))
    active = 0
    busiest = 0
    for _, change in sorted(events):
        active += change
        busiest = max(busiest, active)
    return busiest


def subtract_interval(interval: list[int], removed: list[int]) -> list[list[int]]:
    """List what is left of an interval without the part that another covers: none, one or two pieces."""
    pieces = []
    if removed[1] <= interval[0] or interval[1] <= removed[0]:
        return [interval]
    if interval[0] < removed[0]:
        pieces.append([interval[0], removed[0]])
    if removed[1] < interval[1]:
        pieces.append([removed[1], interval[1]])
    return pieces


def choose_meetings(meetings: list[list[int]]) -> list[list[int]]:
    """Choose as many meetings as possible that do not overlap: always the next one that ends first."""
    chosen: list[list[int]] = []
    for meeting in sorted(meetings, key=lambda interval: (interval[1], interval[0])):
        if not chosen or meeting[0] >= chosen[-1][1]:
            chosen.append(meeting)
    return chosen


INPUTS: dict[str, Inputs] = {
    "overlap_length": lambda rng: tuple(draw.spans(rng, least=2, most=2)),
    "merge_intervals": lambda rng: (draw.spans(rng),),
    "total_length": lambda rng: (draw.spans(rng),),
    "find_gaps": lambda rng: (draw.spans(rng, most=4), rng.randint(0, 5), rng.randint(8, 20)),
    "find_slot": lambda rng: (draw.spans(rng, most=3), rng.randint(0, 15)),
    "most_at_once": lambda rng: (draw.spans(rng, most=6),),
    "subtract_interval": lambda rng: tuple(draw.spans(rng, least=2, most=2)),
    "choose_meetings": lambda rng: (draw.spans(rng, most=6),),
}
