"""What can be done with a value before it is written."""

from __future__ import annotations


def apply_filter(name: str, value: str) -> str:
    """The value after a filter: upper, title, trim, short (at most five characters) or money (cents to units).
    An unknown filter changes nothing."""
    if name == "upper":
        return value.upper()
    if name == "title":
        return " ".join(word[:1].upper() + word[1:] for word in value.split(" "))
    if name == "trim":
        return value.strip()
    if name == "short":
        return value if len(value) <= 5 else value[:4] + "~"
    if name == "money" and value.isdigit():
        cents = int(value)
        return f"{cents // 100}.{cents % 100:02}"
    return value


def apply_all(names: list[str], value: str) -> str:
    """The value after all filters, from left to right."""
    for name in names:
        value = apply_filter(name, value)
    return value
