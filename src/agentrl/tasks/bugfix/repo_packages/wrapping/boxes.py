"""Lines to boxes of text."""

from __future__ import annotations


def pad(line: str, width: int, side: str) -> str:
    """The line filled up with blanks to a width: on the left, on the right or, for "both", half on each side with
    the odd one on the right."""
    missing = max(0, width - len(line))
    if side == "left":
        return " " * missing + line
    if side == "right":
        return line + " " * missing
    left = missing // 2
    return " " * left + line + " " * (missing - left)


def frame(lines: list[str]) -> list[str]:
    """The lines in a frame as wide as the longest of them."""
    width = max((len(line) for line in lines), default=0)
    edge = "+" + "-" * (width + 2) + "+"
    inner = [f"| {pad(line, width, 'right')} |" for line in lines]
    return [edge, *inner, edge]
