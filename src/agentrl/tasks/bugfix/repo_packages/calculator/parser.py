"""Tokens to a tree of nested tuples: ("num", 3), ("name", "x"), ("neg", tree) or (operator, left, right)."""

from __future__ import annotations

from typing import Any

from .tokens import is_name, is_number, split_tokens

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


def parse(text: str) -> Any:
    """The tree of an expression. Raises ValueError when something is left over or missing."""
    tokens = split_tokens(text)
    tree, rest = parse_operators(tokens, 1)
    if rest:
        raise ValueError(f"unexpected {rest[0]!r}")
    return tree


def parse_operators(tokens: list[str], lowest: int) -> tuple[Any, list[str]]:
    """The longest tree whose operators bind at least as tight as the lowest, and the tokens after it."""
    tree, rest = parse_operand(tokens)
    while rest and PRECEDENCE.get(rest[0], 0) >= lowest:
        operator = rest[0]
        right, rest = parse_operators(rest[1:], PRECEDENCE[operator] + 1)
        tree = (operator, tree, right)
    return tree, rest


def parse_operand(tokens: list[str]) -> tuple[Any, list[str]]:
    """A number, a name, a negated operand or an expression in parentheses, and the tokens after it."""
    if not tokens:
        raise ValueError("the expression ends too early")
    first, rest = tokens[0], tokens[1:]
    if first == "-":
        operand, rest = parse_operand(rest)
        return ("neg", operand), rest
    if first == "(":
        tree, rest = parse_operators(rest, 1)
        if not rest or rest[0] != ")":
            raise ValueError("a parenthesis is not closed")
        return tree, rest[1:]
    if is_number(first):
        return ("num", int(first)), rest
    if is_name(first):
        return ("name", first), rest
    raise ValueError(f"unexpected {first!r}")
