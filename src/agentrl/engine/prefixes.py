"""A radix tree over token ids: what was computed before and begins like this.

Each edge carries a run of ids and each node where sequences part. A lookup walks the ids once, however many sequences
there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(eq=False)
class _Node(Generic[V]):
    """What is below an edge. ``values`` has all that is stored at or below the node, in the order of insertion."""

    edge: tuple[int, ...]
    values: dict[int, V] = field(default_factory=dict)
    children: dict[int, _Node[V]] = field(default_factory=dict)


class PrefixTree(Generic[V]):
    """Values under sequences of token ids, each sequence once."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node(())
        self._stored: dict[tuple[int, ...], V] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[V]:
        return iter(self._stored.values())

    def get(self, ids: Sequence[int]) -> V | None:
        """The value of exactly these ids."""
        return self._stored.get(tuple(ids))

    def add(self, ids: Sequence[int], value: V) -> None:
        """Store a value.

        Raises:
            ValueError: no ids, or ids that have a value.
        """
        key = tuple(ids)
        if not key or key in self._stored:
            raise ValueError(f"{'ids that have a value' if key else 'no ids'}: {key[:8]}")
        self._stored[key] = value
        node, at = self._root, 0
        node.values[id(value)] = value
        while at < len(key):
            child = node.children.get(key[at])
            if child is None:
                node.children[key[at]] = _Node(key[at:], {id(value): value})
                return
            shared = _common(child.edge, key, at)
            if shared < len(child.edge):
                child = node.children[key[at]] = _split(child, shared)
            child.values[id(value)] = value
            node, at = child, at + shared

    def remove(self, ids: Sequence[int]) -> None:
        """Forget a value; runs of ids that nothing parts any more are joined.

        Raises:
            KeyError: nothing is stored under these ids.
        """
        key = tuple(ids)
        value = self._stored.pop(key)
        node, at = self._root, 0
        del node.values[id(value)]
        while at < len(key):
            child = node.children[key[at]]
            del child.values[id(value)]
            if not child.values:
                del node.children[key[at]]
                _join(node, self._root)
                return
            node, at = child, at + len(child.edge)
        _join(node, self._root)

    def longest(self, ids: Sequence[int]) -> tuple[int, V | None]:
        """How many of the ids some stored sequence begins with, and the value of the first one stored that does."""
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                break
            shared = _common(child.edge, ids, at)
            at += shared
            node = child
            if shared < len(child.edge):
                break
        return at, next(iter(node.values.values())) if at else None


def _common(edge: Sequence[int], ids: Sequence[int], at: int) -> int:
    """How many ids of an edge are those behind a place."""
    most = min(len(edge), len(ids) - at)
    return next((n for n in range(most) if edge[n] != ids[at + n]), most)


def _split(node: _Node[V], at: int) -> _Node[V]:
    """A node in the middle of an edge, above the node that the edge led to."""
    upper = _Node(node.edge[:at], dict(node.values), {node.edge[at]: node})
    node.edge = node.edge[at:]
    return upper


def _join(node: _Node[V], root: _Node[V]) -> None:
    """Take a node out of the middle of an edge, where nothing ends or parts any more."""
    if node is root or len(node.children) != 1:
        return
    (child,) = node.children.values()
    if len(child.values) == len(node.values):
        node.edge, node.values, node.children = node.edge + child.edge, child.values, child.children
