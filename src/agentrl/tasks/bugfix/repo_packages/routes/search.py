"""Shortest ways through a map."""

from __future__ import annotations

import heapq

from .roads import Map


def distances(neighbours: Map, start: str) -> dict[str, int]:
    """The length of the shortest way from a start to every place that can be reached, the start included."""
    found: dict[str, int] = {}
    waiting = [(0, start)]
    while waiting:
        length, place = heapq.heappop(waiting)
        if place in found:
            continue
        found[place] = length
        for other, step in neighbours.get(place, {}).items():
            if other not in found:
                heapq.heappush(waiting, (length + step, other))
    return found


def trace_back(neighbours: Map, lengths: dict[str, int], end: str) -> list[str]:
    """The places of a shortest way to an end, given all lengths from its start. Of equal ways the one through
    the places that come first in the alphabet, seen from the end."""
    way = [end]
    while lengths[way[-1]] > 0:
        place = way[-1]
        before = [p for p in neighbours[place] if lengths[p] + neighbours[place][p] == lengths[place]]
        way.append(min(before))
    return way[::-1]
