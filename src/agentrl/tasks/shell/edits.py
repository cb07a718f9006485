"""Exact replacement in the content of a file: one occurrence, every other byte as it was, and errors that help."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Sequence

_MOST_LINES = 5_000
_MOST_SHOWN = 8
_BINARY_LOOK = 8_192
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class NotEdited(Exception):
    """An edit cannot be made; says why and what to write instead."""


def replaced(content: bytes, old: str, new: str) -> bytes:
    """The content with the one occurrence of ``old`` replaced by ``new``.

    In a file whose lines all end in CR LF, the line ends of ``old`` and ``new`` mean those.

    Raises:
        NotEdited: no occurrence, several, no change, or a file that is not text.
    """
    encoding = encoding_of(content)
    text = content.decode(encoding)
    if ends_in_crlf(text):
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    if old == new:
        raise NotEdited("old and new are the same, so nothing would change")
    places = occurrences(text, old)
    if not places:
        raise NotEdited(why_not_found(text, old))
    if len(places) > 1:
        lines = [str(text.count("\n", 0, place) + 1) for place in places]
        shown = ", ".join(lines[:20]) + (", ..." if len(lines) > 20 else "")
        raise NotEdited(f"old occurs {len(places)} times, at lines {shown}; give more lines around the one you mean")
    result = text[: places[0]] + new + text[places[0] + len(old) :]
    return encoded(result, encoding)


def encoded(text: str, encoding: str = "utf-8") -> bytes:
    """The text as bytes. Raises NotEdited naming the character that the encoding does not have."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        character = ascii(error.object[error.start])
        raise NotEdited(f"the file is in {encoding}, which cannot hold the character {character} of new") from error


def encoding_of(content: bytes) -> str:
    """UTF-8, UTF-16 by its mark, or else Latin-1, which every other text can be taken for.

    Raises:
        NotEdited: it is not text.
    """
    encoding = _UTF16.get(content[:2]) or ("utf-8" if _decodes(content, "utf-8") else "latin-1")
    if not _decodes(content, encoding) or (b"\0" in content[:_BINARY_LOOK] and content[:2] not in _UTF16):
        raise NotEdited("the file is binary; change it with a program in the shell")
    return encoding


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def ends_in_crlf(text: str) -> bool:
    """Whether there are line ends and all are CR LF."""
    return 0 < text.count("\n") == text.count("\r\n")


def occurrences(text: str, old: str) -> list[int]:
    """Where ``old`` begins, also where one overlaps the one before."""
    places = []
    place = text.find(old)
    while place >= 0:
        places.append(place)
        place = text.find(old, place + 1)
    return places


def why_not_found(text: str, old: str) -> str:
    """What of ``old`` differs from the file, as far as that can be seen, and the lines that are nearest."""
    lines, wanted = text.split("\n"), old.strip("\n").split("\n")
    if (at := _find([line.strip() for line in lines], [line.strip() for line in wanted])) is not None:
        number = next((n for n, line in enumerate(wanted) if lines[at + n] != line), None)
        if number is None:
            return f"old is not in the file; at line {at + 1} it is but for the empty lines at its ends"
        theirs, ours = lines[at + number], wanted[number]
        differs = _difference(theirs, ours)
        return f"old is not in the file; line {at + number + 1} differs in {differs}: it is {theirs!r}, not {ours!r}"
    at = _nearest(lines, wanted)
    if at is None:
        return f"old is not in the file, which has {len(lines)} lines, and no line is like its first; look at the file"
    near = lines[at : at + min(len(wanted), _MOST_SHOWN)]
    numbered = "\n".join(f"{at + n}|{line.rstrip(chr(13))}" for n, line in enumerate(near, start=1))
    return f"old is not in the file; the nearest lines are\n{numbered}"


def _find(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    if not any(wanted):
        return None
    for at in range(len(lines) - len(wanted) + 1):
        if lines[at] == wanted[0] and list(lines[at : at + len(wanted)]) == list(wanted):
            return at
    return None


def _difference(theirs: str, ours: str) -> str:
    """A name for how two lines differ that are equal but for blanks at their ends."""
    if theirs.rstrip("\r") == ours.rstrip("\r"):
        return "its line end"
    if theirs.rstrip() == ours.rstrip():
        return "blanks at its end"
    leads = [line[: len(line) - len(line.lstrip())] for line in (theirs, ours)]
    return "its indent (a tab is not spaces)" if ("\t" in leads[0]) != ("\t" in leads[1]) else "its indent"


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """The line from which the file is most like what is wanted."""
    first = next((n for n, line in enumerate(wanted) if line.strip()), None)
    if first is None:
        return None
    stripped = [line.strip() for line in lines[:_MOST_LINES]]
    close = difflib.get_close_matches(wanted[first].strip()[:200], {line[:200] for line in stripped if line}, n=1)
    found = next((n for n, line in enumerate(stripped) if close and line[:200] == close[0]), None)
    return None if found is None else max(0, found - first)
