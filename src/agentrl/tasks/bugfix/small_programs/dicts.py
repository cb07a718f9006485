"""Dictionaries: counting, grouping, merging, inverting."""

from __future__ import annotations

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def count_words(text: str) -> dict[str, int]:
    """Count how often each word occurs, in lower case and without punctuation at its ends."""
    counts: dict[str, int] = {}
    for part in text.split():
        word = part.strip(",.!?").lower()
        if word:
            counts[word] = counts.get(word, 0) + 1
    return counts


def group_by_length(words: list[str]) -> dict[int, list[str]]:
    """Collect words under their length. Within a group they keep their order."""
    groups: dict[int, list[str]] = {}
    for word in words:
        groups.setdefault(len(word), []).append(word)
    return groups


def merge_counts(first: dict[str, int], second: dict[str, int]) -> list[dict[str, int]]:
    """Add the numbers of two dictionaries key by key. Gives the first one unchanged, then the sums."""
    merged = dict(first)
    for key, count in second.items():
        merged[key] = merged.get(key, 0) + count
    return [first, merged]


def invert(mapping: dict[str, int]) -> dict[int, list[str]]:
    """List the keys of every value, each list in alphabetical order."""
    inverted: dict[int, list[str]] = {}
    for key in sorted(mapping):
        value = mapping[key]
        if value not in inverted:
            inverted[value] = []
        inverted[value].append(key)
    return inverted


def most_common(values: list[str], limit: int) -> list[str]:
    """List the most frequent values, at most a limit of them. Equal counts come in alphabetical order."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    return ranked[:limit]


def apply_changes(stock: dict[str, int], changes: dict[str, int]) -> dict[str, int]:
    """Add changes to a stock. What falls to zero or below is removed."""
    result = stock.copy()
    for item, change in changes.items():
        amount = result.get(item, 0) + change
        if amount > 0:
            result[item] = amount
        else:
            result.pop(item, None)
    return result


def missing_items(needed: dict[str, int], stock: dict[str, int]) -> dict[str, int]:
    """Give the items that a stock lacks, with how many of each are still needed."""
    missing = {}
    for item in sorted(needed):
        lack = needed[item] - stock.get(item, 0)
        if lack > 0:
            missing[item] = lack
    return missing


def best_score(scores: dict[str, int]) -> str | None:
    """Name the player with the highest score, None without players. Of equal scores the first name wins."""
    best = None
    for name in sorted(scores):
        if best is None or scores[name] > scores[best]:
            best = name
    return best


INPUTS: dict[str, Inputs] = {
    "count_words": lambda rng: (draw.sentence(rng),),
    "group_by_length": lambda rng: (draw.words(rng),),
    "merge_counts": lambda rng: (draw.counts(rng), draw.counts(rng)),
    "invert": lambda rng: (draw.counts(rng, high=3),),
    "most_common": lambda rng: (draw.words(rng, most=8), rng.randint(0, 3)),
    "apply_changes": lambda rng: (draw.counts(rng, low=1, high=5), draw.counts(rng, low=-5, high=4)),
    "missing_items": lambda rng: (draw.counts(rng, high=5), draw.counts(rng, high=5)),
    "best_score": lambda rng: (draw.counts(rng, low=-3, high=4),),
}
