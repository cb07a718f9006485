"""Words like ``--rl.steps 10`` or ``--rl.steps=10`` as overrides of configuration fields."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import ConfigError


def split_overrides(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split words into plain ones and overrides, in any order.

    A word that starts with ``--`` is a key; its value stands after ``=`` or is the next word, whatever that begins
    with a single dash (``--seed -1`` is read, and refused later as out of range).

    Returns:
        The plain words, and dotted key to text.

    Raises:
        ConfigError: a key without a value, without a name, or given twice.
    """
    plain: list[str] = []
    overrides: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            plain.append(word)
            continue
        key, given, value = word[2:].partition("=")
        if not given:
            value = _next_value(word, rest)
        if not key:
            raise ConfigError(f"{word!r} has no name; write --KEY VALUE or --KEY=VALUE")
        if key in overrides:
            raise ConfigError(f"{word!r}: {key} is given twice; leave one of them out")
        overrides[key] = value
    return plain, overrides


def _next_value(word: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise ConfigError(f"{word} has no value; write {word} VALUE or {word}=VALUE")
    return rest.pop(0)
