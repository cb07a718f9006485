"""The one place where an answer is read out of a reply, in training and in evaluation alike. No answer is None."""

from __future__ import annotations

import re
from typing import Literal, get_args

Rule = Literal["any", "box", "tag", "hash"]
RULES: tuple[Rule, ...] = get_args(Rule)

_BOX = re.compile(r"\\boxed\s*\{")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_HASH = re.compile(r"^####[ \t]*(\S.*)$", re.MULTILINE)


def extract(reply: str, rule: Rule = "any") -> str | None:
    r"""The last answer that a reply marks, wherever in it that stands; None where it marks none.

    A reply that names several answers is judged by its last, so that naming all of them gains nothing.

    Args:
        reply: the visible text; reasoning that is kept apart is not searched.
        rule: ``box`` is ``\boxed{...}``, ``tag`` is ``<answer>...</answer>``, ``hash`` is a line ``#### ...``, and
            ``any`` is the first of them that the reply has, in that order.

    >>> extract(r"first \boxed{1} ... no, \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    >>> extract(r"an unfinished \boxed{2") is None
    True
    """
    if rule == "box":
        return _boxed(reply)
    if rule == "tag":
        return _filled(_TAG.findall(reply))
    if rule == "hash":
        return _filled(_HASH.findall(reply))
    return next((found for one in ("box", "tag", "hash") if (found := extract(reply, one)) is not None), None)


def _filled(found: list[str]) -> str | None:
    return (found[-1].strip() or None) if found else None


def _boxed(text: str) -> str | None:
    """What stands in the last box; None when it is empty or never closed."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start, depth = boxes[-1].end(), 1
    for place in range(start, len(text)):
        if text[place - 1] == "\\" and text[place] in "{}":  # a brace that is written, not one that groups
            continue
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place].strip() or None
    return None
