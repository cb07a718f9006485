"""Cuts a template into parts: ["text", text] and ["field", name, filter, filter, ...]."""

from __future__ import annotations


def scan(template: str) -> list[list[str]]:
    """The parts of a template in order. An opening without a closing is plain text."""
    parts = []
    position = 0
    while position < len(template):
        start = template.find("{{", position)
        end = template.find("}}", start + 2)
        if start == -1 or end == -1:
            break
        if start > position:
            parts.append(["text", template[position:start]])
        parts.append(["field", *split_field(template[start + 2 : end])])
        position = end + 2
    if position < len(template):
        parts.append(["text", template[position:]])
    return parts


def split_field(inside: str) -> list[str]:
    """The name of a field and its filters, which stand after bars."""
    return [piece.strip().lower() for piece in inside.split("|")]
