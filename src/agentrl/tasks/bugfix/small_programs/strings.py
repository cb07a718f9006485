"""Text: words, cases, runs of characters, simple codes."""

from __future__ import annotations

import random

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def is_palindrome(text: str) -> bool:
    """Tell whether the letters and digits of a text read the same backwards, whatever their case."""
    kept = [character.lower() for character in text if character.isalnum()]
    return kept == kept[::-1]


def count_vowels(text: str) -> int:
    """Count the vowels a, e, i, o and u of a text in either case."""
    count = 0
    for character in text.lower():
        if character in "aeiou":
            count += 1
    return count


def caesar_shift(text: str, offset: int) -> str:
    """Move each lower-case letter a number of places along the alphabet, round its end. The rest stays."""
    shifted = []
    for character in text:
        if "a" <= character <= "z":
            position = (ord(character) - ord("a") + offset) % 26
            shifted.append(chr(ord("a") + position))
        else:
            shifted.append(character)
    return "".join(shifted)


def run_length_encode(text: str) -> str:
    """Write each run of equal characters as its length and the character: "aab" becomes "2a1b"."""
    if not text:
        return ""
    parts = []
    count = 1
    for i in range(1, len(text)):
        if text[i] == text[i - 1]:
            count += 1
        else:
            parts.append(f"{count}{text[i - 1]}")
            count = 1
    parts.append(f"{count}{text[-1]}")
    return "".join(parts)


def longest_word(text: str) -> str:
    """Find the longest word of a text, punctuation at its ends left out. Of equal ones the first counts."""
    best = ""
    for part in text.split():
        word = part.strip(",.;:!?")
        if len(word) > len(best):
            best = word
    return best


def snake_case(name: str) -> str:
    """Turn a camelCase name into snake_case. A capital at the very start gets no underscore."""
    pieces = []
    for i, character in enumerate(name):
        if character.isupper() and i > 0:
            pieces.append("_")
        pieces.append(character.lower())
    return "".join(pieces)


def truncate(text: str, width: int) -> str:
    """Shorten a text to at most a width, ending in "..." where something was cut and the width has room for it."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    return text[: width - 3].rstrip() + "..."


def common_prefix(words: list[str]) -> str:
    """Find the longest text that all words start with. No words have the empty one."""
    if not words:
        return ""
    prefix = words[0]
    for word in words[1:]:
        while not word.startswith(prefix):
            prefix = prefix[:-1]
    return prefix


def are_anagrams(first: str, second: str) -> bool:
    """Tell whether two texts have the same letters in another order. Case and blanks do not matter, and a text
    is no anagram of itself."""
    left = first.replace(" ", "").lower()
    right = second.replace(" ", "").lower()
    return left != right and sorted(left) == sorted(right)


def _mixed(rng: random.Random) -> str:
    half = draw.text(rng, "abcAB", least=1, most=4)
    return rng.choice((half + half[::-1], half + "-" + half[::-1].upper(), half + "cab", half + half[-2::-1]))


INPUTS: dict[str, Inputs] = {
    "is_palindrome": lambda rng: (_mixed(rng),),
    "count_vowels": lambda rng: (draw.sentence(rng),),
    "caesar_shift": lambda rng: (draw.text(rng, "abmxyz -", most=8), rng.randint(-30, 30)),
    "run_length_encode": lambda rng: (draw.text(rng, "aab", most=9),),
    "longest_word": lambda rng: (draw.sentence(rng),),
    "snake_case": lambda rng: (draw.text(rng, "abcDEf", most=8),),
    "truncate": lambda rng: (" ".join(draw.words(rng, least=1, most=3)), rng.randint(0, 14)),
    "common_prefix": lambda rng: (
        ["ab" * rng.randint(0, 2) + draw.text(rng, "ab", most=4) for _ in range(rng.randint(0, 4))],
    ),
    "are_anagrams": lambda rng: (
        word := draw.text(rng, "abC ", least=1, most=4),
        rng.choice((word, word.upper(), word[::-1].lower(), word[1:] + word[0], draw.text(rng, "abc", most=4))),
    ),
}
