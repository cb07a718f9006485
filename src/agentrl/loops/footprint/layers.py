"""The passes of a deep model from those of two shallow ones: each further layer adds the same.

A trace of 28 layers takes a minute, since every operation of them is looked at; those of 2 and 4 say as much.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")
_LEAST = 2


def shallow(layers: int, kinds: list[str] | None) -> tuple[int, int] | None:
    """Two depths to trace in place of a model's own, whole rounds of its kinds of layers; None where the model is not
    deep enough for that to pay.

    Args:
        layers: of the model.
        kinds: of each layer, such as ``sliding_attention``; None where all are alike.
    """
    few = max(_LEAST, _period(kinds or []))
    return (few, 2 * few) if 4 * few <= layers else None


def extended(few: T, more: T, times: float) -> T:
    """``few + times * (more - few)``, for every number of two traces of one form."""
    first: Any = few
    second: Any = more
    if dataclasses.is_dataclass(few):
        names = [field.name for field in dataclasses.fields(first)]
        parts = {name: extended(getattr(first, name), getattr(second, name), times) for name in names}
        return dataclasses.replace(first, **parts)  # type: ignore[no-any-return]
    if isinstance(first, dict):
        keys = {**first, **second}
        grown: Any = {key: extended(first.get(key, 0.0), second.get(key, 0.0), times) for key in keys}
        return grown  # type: ignore[no-any-return]
    number: Any = first + times * (second - first)
    return round(number) if isinstance(first, int) else number  # type: ignore[no-any-return]


def _period(kinds: list[str]) -> int:
    """After how many layers their kinds begin again; 1 where all are alike."""
    return next(
        (size for size in range(1, len(kinds)) if all(kind == kinds[at % size] for at, kind in enumerate(kinds))),
        max(1, len(kinds)),
    )
