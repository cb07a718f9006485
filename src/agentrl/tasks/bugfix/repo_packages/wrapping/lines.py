"""Words to lines of a width."""

from __future__ import annotations


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most a width. A longer word gets a line of its own."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        if current and len(current) + 1 + len(word) > width:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}".strip()
    if current:
        lines.append(current)
    return lines


def justify(line: str, width: int) -> str:
    """The line with more blanks between its words, the first gaps the wider ones, so that it fills the width."""
    words = line.split()
    if len(words) < 2:
        return line
    missing = width - sum(len(word) for word in words)
    share, rest = divmod(missing, len(words) - 1)
    text = words[0]
    for i in range(1, len(words)):
        blanks = share + 1 if i <= rest else share
        text += " " * max(1, blanks) + words[i]
    return text
