"""Questions of a traveller."""

from __future__ import annotations

from typing import Any

from .roads import build_map, dead_ends
from .search import distances, trace_back


def shortest_way(roads: list[list[Any]], start: str, end: str) -> list[str]:
    """The places of the shortest way from a start to an end, empty when there is no way."""
    neighbours = build_map(roads)
    lengths = distances(neighbours, start)
    if end not in lengths:
        return []
    return trace_back(neighbours, lengths, end)


def within(roads: list[list[Any]], start: str, limit: int) -> list[str]:
    """The other places at most a limit away from a start, in alphabetical order."""
    lengths = distances(build_map(roads), start)
    return sorted(place for place, length in lengths.items() if place != start and length <= limit)


def farthest_dead_end(roads: list[list[Any]], start: str) -> str | None:
    """The dead end that is farthest from a start, None without one. Of equal ones the first in the alphabet."""
    neighbours = build_map(roads)
    lengths = distances(neighbours, start)
    reached = [place for place in dead_ends(neighbours) if place in lengths]
    if not reached:
        return None
    return max(reached, key=lambda place: lengths[place])
