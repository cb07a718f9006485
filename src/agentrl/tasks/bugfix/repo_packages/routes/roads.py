"""The map: roads are [place, place, length] and can be taken both ways."""

from __future__ import annotations

from typing import Any

Map = dict[str, dict[str, int]]


def build_map(roads: list[list[Any]]) -> Map:
    """The neighbours of every place with the length of the shortest road to each. A road from a place to itself
    is ignored."""
    neighbours: Map = {}
    for first, second, length in roads:
        if first == second:
            continue
        for start, end in ((first, second), (second, first)):
            known = neighbours.setdefault(start, {})
            known[end] = min(length, known.get(end, length))
    return neighbours


def dead_ends(neighbours: Map) -> list[str]:
    """The places with only one neighbour, in alphabetical order."""
    return sorted(place for place in neighbours if len(neighbours[place]) == 1)
