"""What a command printed, as a person would see it on a terminal, cut to a size that the policy can read."""

from __future__ import annotations

import codecs
import re
import signal

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_ESCAPE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-Z\\`-~])"
_PIECE = re.compile(rf"(?P<escape>{_ESCAPE})|(?P<back>[\r\b])|(?P<text>[^\r\b\x1b]+|\x1b)")
_PICTURES: dict[int, int | None] = {
    **{number: 0x2400 + number for number in range(32) if number not in (0x09, 0x0A)},
    0x07: None,  # a bell is heard
    0x7F: 0x2421,
}
_NO_TERMINAL = re.compile(r"bash: \[\d+: \d+ \(\d+\)\] tcsetattr: [ \w]+\n?")
"""What bash says of its terminal, which it does not have, when a signal ended a program."""


def shown(head: bytes, tail: bytes, cut: int, most: int) -> str:
    """The text of an output.

    Args:
        head: its beginning.
        tail: what follows, after ``cut`` bytes that are not there.
        cut: how many those are.
        most: characters to show; the middle of what is longer is left out, with a note how much that was.
    """
    if not cut:
        text = as_seen(_decoded(head + tail))
        start = text if len(text) <= most else text[: most - most // 2]
        end = "" if len(text) <= most else text[len(text) - most // 2 :]
        return _joined(start, end, len(text) - len(start) - len(end))
    first, last = as_seen(_decoded(head, final=False)), as_seen(_decoded(tail.lstrip(_MIDDLES)))
    start, end = first[: most - most // 2], last[max(0, len(last) - most // 2) :]
    return _joined(start, end, cut + len(first) + len(last) - len(start) - len(end))


_MIDDLES = bytes(range(0x80, 0xC0))
"""Bytes that continue a character of UTF-8."""


def _decoded(data: bytes, *, final: bool = True) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def _joined(start: str, end: str, left_out: int) -> str:
    if not left_out:
        return start
    total = len(start) + len(end) + left_out
    return f"{start}\n[... {left_out:,} of {total:,} characters left out here ...]\n{end}"


def as_seen(text: str) -> str:
    """The text with carriage returns, backspaces and escape codes carried out, and other control characters visible."""
    text = _NO_TERMINAL.sub("", text)
    if not _CONTROL.search(text):
        return text
    return "\n".join(_line(line) for line in text.split("\n")).translate(_PICTURES)


def _line(line: str) -> str:
    """One line as it stands on the screen at its end."""
    if not _CONTROL.search(line):
        return line
    cells: list[str] = []
    at = 0
    for piece in _PIECE.finditer(line.removesuffix("\r")):
        if piece["back"]:
            at = 0 if piece["back"] == "\r" else max(0, at - 1)
        elif piece["escape"] in ("\x1b[K", "\x1b[0K"):
            del cells[at:]
        elif piece["escape"] == "\x1b[2K":
            cells[:] = [" "] * at
        elif text := piece["text"]:
            cells[at : at + len(text)] = text
            at += len(text)
    return "".join(cells)


def status_note(status: int) -> str:
    """What to say of an exit status that is not 0."""
    name = signal_name(status - 128)
    return f"[exit status {status}{f', which is that of a program ended by {name}' if name else ''}]"


def signal_name(number: int) -> str:
    """Such as SIGKILL for 9; empty for what is no signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
