"""Which answers a verifier of reasoning-gym may be given, and what its failures mean.

Some verifiers run the answer as Python (`eval`, or sympy's parser, which is built on it), so that an answer could be a
program that makes itself pass. Their answers are let through only in the form that the task asks for. A few others
credit what is wrong, or raise at what they cannot read. Everything here was found by trying each data set of version
0.1.25 with malformed answers, and with the right answers to other tasks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

NONSENSE = "no answer at all"
"""A reply that answers no question."""

_TRIGONOMETRIC = frozenset(f"{arc}{name}{h}" for arc in ("", "a") for name in ("sin", "cos", "tan") for h in ("", "h"))
_NAMES = _TRIGONOMETRIC | {"exp", "log", "ln", "sqrt", "sec", "csc", "cot", "abs", "Abs", "pi", "E", "C", "I"}
_UNSAFE = re.compile(r"[^0-9A-Za-z+\-*/^(). \n]|[A-Za-z)]\s*\.|\.\s*[A-Za-z(]")
_ARITHMETIC = re.compile(r"[0-9+\-*/(). \n]*")
_NUMBERLESS = re.compile(r"nan|inf", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Fix:
    """How answers to one data set are kept from breaking its verifier.

    Attributes:
        refuses: says why an answer is not passed on, which scores it 0; empty text where it is.
        unreadable: what the verifier raises at an answer that it cannot read, which scores it 0. Whatever else it
            raises is a failure of ours.
        confirms: whether an answer that got the full score is right, given the known one; otherwise it scores 0.
    """

    refuses: Callable[[str], str] = lambda answer: ""  # noqa: ARG005
    unreadable: tuple[type[Exception], ...] = ()
    confirms: Callable[[str, str], bool] = lambda known, answer: True  # noqa: ARG005


def arithmetic(answer: str) -> str:
    """Refuses all but numbers, brackets and the four operations."""
    if not _ARITHMETIC.fullmatch(answer) or "**" in answer:
        return "not an expression of numbers with + - * / and brackets"
    return ""


def formula(answer: str) -> str:
    """Refuses all but a formula of numbers, one-letter variables and functions that are known."""
    unknown = [name for name in re.findall(r"[A-Za-z]+", answer) if name not in _NAMES and not _is_variable(name)]
    if _UNSAFE.search(answer) or unknown:
        return "not a formula of numbers, variables and known functions"
    return ""


def literal(answer: str) -> str:
    """Refuses what Python could run and is more than a literal."""
    try:
        found = ast.parse(answer.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError):
        return ""  # Python cannot run it either
    except (MemoryError, RecursionError):
        return "nested too deep"
    if isinstance(found, ast.Name):
        return ""  # a word
    try:
        ast.literal_eval(answer)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return "a program, not an answer"
    return ""


def truth(answer: str) -> str:
    """Refuses all but True and False; the verifier credits every text, True and False alike."""
    return "" if answer.strip().lower() in ("true", "false") else "neither True nor False"


def finite(answer: str) -> str:
    """Refuses nan and inf, with which distances become numbers that pass."""
    return "not a finite number" if _NUMBERLESS.search(answer) else ""


def same_word(known: str, answer: str) -> bool:
    """Whether two words are the same but for case."""
    return known.strip().lower() == answer.strip().lower()


def same_numbers(known: str, answer: str) -> bool:
    """Whether two expressions are of the same numbers; the verifier takes any four that come to 24."""
    first, second = (sorted(map(int, re.findall(r"\d+", text))) for text in (known, answer))
    return first == second


def close(known: str, answer: str) -> bool:
    """Whether two numbers are within 1e-4; the verifier also credits every beginning of the right one, such as 0."""
    first, second = (float(Fraction(text.replace(",", ""))) for text in (known, answer))
    return abs(first - second) <= 1e-4


def _is_variable(name: str) -> bool:
    return name == "X" or (len(name) == 1 and name.islower())


FIXES: Mapping[str, Fix] = {
    "binary_matrix": Fix(refuses=literal),
    "boxnet": Fix(unreadable=(AttributeError, TypeError)),
    "coin_flip": Fix(refuses=finite, unreadable=(OverflowError,), confirms=close),
    "complex_arithmetic": Fix(refuses=finite),
    "countdown": Fix(refuses=arithmetic),
    "game_of_life": Fix(unreadable=(KeyError,)),
    "game_of_life_halting": Fix(refuses=truth, confirms=same_word),
    "intermediate_integration": Fix(refuses=formula),
    "n_queens": Fix(refuses=literal),
    "polynomial_multiplication": Fix(refuses=formula),
    "prime_factorization": Fix(unreadable=(ValueError,)),
    "puzzle24": Fix(refuses=arithmetic, confirms=same_numbers),
    "simple_integration": Fix(refuses=formula),
    "spiral_matrix": Fix(refuses=literal),
    "string_insertion": Fix(refuses=literal),
}
