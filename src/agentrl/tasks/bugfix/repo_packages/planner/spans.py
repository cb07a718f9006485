"""Spans of minutes [start, end): the end is free again."""

from __future__ import annotations


def merge(spans: list[list[int]]) -> list[list[int]]:
    """The same minutes as few spans as possible, in order. Spans that touch become one."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def gaps(spans: list[list[int]], start: int, end: int) -> list[list[int]]:
    """What is free between a start and an end."""
    free = []
    position = start
    for low, high in merge(spans):
        if low > position:
            free.append([position, min(low, end)])
        position = max(position, high)
        if position >= end:
            return free
    free.append([position, end])
    return free
