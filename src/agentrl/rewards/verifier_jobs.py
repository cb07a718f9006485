"""What a verifying process can do: make a task of reasoning-gym, score an answer to it, compare two answers in
mathematics. Their packages are optional, and imported when a job needs them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from importlib import metadata
from typing import Any

from agentrl.rewards.readable import FIXES, NONSENSE, Fix


class MissingPackage(Exception):
    """An optional package is not installed."""


def make(*, name: str, seed: int) -> dict[str, Any]:
    """A task of a data set of reasoning-gym.

    ``question``, ``answer`` (None where it keeps none) and ``category``, and the scores ``known`` and ``nonsense`` that
    its verifier gives to its own answer and to one that is none.
    """
    data_set, entry = _entry(name, seed)
    answer = entry["answer"]
    return {
        "question": str(entry["question"]),
        "answer": None if answer is None else str(answer),
        "category": str(data_set.category),
        "known": None if answer is None else _score(name, data_set, entry, str(answer))["value"],
        "nonsense": _score(name, data_set, entry, NONSENSE)["value"],
    }


def about(*, package: str) -> dict[str, Any]:
    """``version`` of an optional package, and ``names``, the data sets of reasoning-gym."""
    module = _package(package)
    names = sorted(module.factory.DATASETS) if package == "reasoning_gym" else []
    return {"version": metadata.version(package.replace("_", "-")), "names": names}


def reasoning_gym(*, name: str, seed: int, answer: str) -> dict[str, Any]:
    """``value``, the reward that the data set's verifier gives an answer, and ``note``, why it was not asked."""
    return _score(name, *_entry(name, seed), answer)


def math(*, gold: str, answer: str) -> dict[str, Any]:
    """``value`` 1.0 where an answer equals the right one ``gold``, which is not symmetric: an inequality may be
    answered by an interval, and not the other way round. Raises ValueError when ``gold`` cannot be read."""
    right = _parsed(gold)
    if not right:
        raise ValueError(f"the right answer {gold!r} cannot be read as mathematics")
    if gold.strip() == answer.strip() or _same_float(gold, answer):
        return {"value": 1.0, "note": ""}
    found = _parsed(answer)
    if not found:
        return {"value": 0.0, "note": f"{answer[:80]!r} cannot be read as mathematics"}
    verify = _package("math_verify").verify
    return {"value": float(verify(list(right), list(found), timeout_seconds=None, raise_on_error=True)), "note": ""}


def readable(*, text: str) -> dict[str, Any]:
    """``readable``: whether a right answer can be read as mathematics."""
    return {"readable": bool(_parsed(text))}


def same(*, answers: list[str]) -> dict[str, Any]:
    """``classes``: a number for each of several answers, equal where they are equal in mathematics, for a vote."""
    classes: list[int] = []
    for place, answer in enumerate(answers):
        earlier = (n for n in range(place) if classes[n] == n and _equal(answers[n], answer))
        classes.append(next(earlier, place))
    return {"classes": classes}


JOBS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "about": about,
    "make": make,
    "reasoning_gym": reasoning_gym,
    "math": math,
    "readable": readable,
    "same": same,
}


def _equal(first: str, second: str) -> bool:
    if first == second:
        return True
    try:
        return bool(math(gold=first, answer=second)["value"])
    except ValueError:
        return False


@functools.lru_cache(maxsize=512)
def _entry(name: str, seed: int) -> tuple[Any, Any]:
    """A data set of one task, whose content depends on the name and the seed alone."""
    data_set = _package("reasoning_gym").create_dataset(name, seed=seed, size=1)
    return data_set, data_set[0]


def _score(name: str, data_set: Any, entry: Any, answer: str) -> dict[str, Any]:
    fix = FIXES.get(name, Fix())
    note = fix.refuses(answer)
    if note:
        return {"value": 0.0, "note": note}
    try:
        value = float(data_set.score_answer(answer, entry))
    except fix.unreadable as error:
        return {"value": 0.0, "note": f"not in the form that is asked for ({type(error).__name__})"}
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"the verifier of {name} gave {value!r}, which is not in [0, 1]")
    if value == 1.0 and not fix.confirms(str(entry["answer"]), answer):
        return {"value": 0.0, "note": "not the right value"}
    return {"value": value, "note": ""}


def _same_float(gold: str, answer: str) -> bool:
    """Whether a right answer that is kept as a float, such as 1.3e18, is the float nearest to the answer."""
    if not ("e" in gold.lower() and gold.strip()[-1:].isdecimal()):
        return False
    try:
        return float(gold) == float(Fraction(answer.strip().replace(",", "")))
    except (ValueError, OverflowError, ZeroDivisionError):
        return False


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> tuple[Any, ...]:
    """The expressions that a text can be read as; empty for none."""
    package = _package("math_verify")
    rules = [package.LatexExtractionConfig(boxed_match_priority=0), package.ExprExtractionConfig()]
    boxed = f"\\boxed{{{text}}}"
    found = package.parse(boxed, rules, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    return tuple(found)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)  # optional: only these tasks need it
    except ImportError as error:
        extra = "reasoning-gym" if name == "reasoning_gym" else "tasks"
        raise MissingPackage(f"these tasks need the package {name}: pip install 'agentrl[{extra}]'") from error
