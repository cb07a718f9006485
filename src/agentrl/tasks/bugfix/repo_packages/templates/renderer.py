"""Fills templates in."""

from __future__ import annotations

from .filters import apply_all
from .scanner import scan


def render(template: str, values: dict[str, str]) -> str:
    """The template with its fields replaced. An unknown field becomes a question mark, whatever its filters."""
    pieces = []
    for kind, text, *filters in scan(template):
        if kind == "text":
            pieces.append(text)
        elif text in values:
            pieces.append(apply_all(filters, values[text]))
        else:
            pieces.append("?")
    return "".join(pieces)


def field_names(template: str) -> list[str]:
    """The fields of a template, each once, in the order in which they first appear."""
    names: list[str] = []
    for part in scan(template):
        if part[0] == "field" and part[1] not in names:
            names.append(part[1])
    return names
