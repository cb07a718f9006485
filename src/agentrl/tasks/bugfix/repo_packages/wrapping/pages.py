"""Boxes to what is printed."""

from __future__ import annotations

from .boxes import frame, pad
from .lines import justify, wrap


def notice(text: str, width: int) -> list[str]:
    """The text wrapped to a width, in a frame."""
    return frame(wrap(text, width))


def block(text: str, width: int) -> list[str]:
    """The text wrapped to a width, every line but the last spread over the whole width."""
    lines = wrap(text, width)
    return [justify(line, width) for line in lines[:-1]] + lines[-1:]


def centred(text: str, width: int) -> list[str]:
    """The text wrapped to a width with every line in the middle."""
    return [pad(line, width, "both") for line in wrap(text, width)]
