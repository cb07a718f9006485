"""Trees to numbers."""

from __future__ import annotations

from typing import Any

from .parser import parse


def calculate(text: str, variables: dict[str, int]) -> int | None:
    """The value of an expression. Division rounds down; it is None on a mistake in the text, an unknown name or
    a division by zero."""
    try:
        return evaluate(parse(text), variables)
    except (ValueError, KeyError, ZeroDivisionError):
        return None


def names_in(text: str) -> list[str]:
    """The names that an expression uses, each once, in alphabetical order."""
    return sorted(set(collect_names(parse(text))))


def evaluate(tree: Any, variables: dict[str, int]) -> int:
    """The value of a tree."""
    kind = tree[0]
    if kind == "num":
        return int(tree[1])
    if kind == "name":
        return variables[tree[1]]
    if kind == "neg":
        return -evaluate(tree[1], variables)
    left = evaluate(tree[1], variables)
    right = evaluate(tree[2], variables)
    if kind == "+":
        return left + right
    if kind == "-":
        return left - right
    if kind == "*":
        return left * right
    return left // right if kind == "/" else left % right


def collect_names(tree: Any) -> list[str]:
    """The names of a tree from left to right."""
    if tree[0] == "name":
        return [tree[1]]
    return [name for part in tree[1:] if isinstance(part, tuple) for name in collect_names(part)]
