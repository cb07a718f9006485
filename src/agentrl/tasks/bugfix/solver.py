"""A scripted solver of tiny tasks that knows the repair and makes mistakes all the same: the source of
demonstrations. What it gets wrong is what reinforcement learning is left to mend."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass

from agentrl.engine.scripted import Script
from agentrl.tasks.bugfix.mutations import mutations
from agentrl.tasks.bugfix.tiny import KINDS
from agentrl.types import ToolCall


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """Probabilities of the solver's mistakes.

    Attributes:
        wrong_line: an edit goes to a line that was right.
        wrong_edit: an edit of the broken line is another one than the repair.
        untested: an edit is not followed by a test run.
        gives_up: a failing test run is followed by submitting.
    """

    wrong_line: float = 0.15
    wrong_edit: float = 0.4
    untested: float = 0.35
    gives_up: float = 0.2


def solve(broken: str, reference: str, *, rng: random.Random, mistakes: Mistakes, max_edits: int = 3) -> Script:
    """Edit, test, edit again, submit. A docstring that is silent about the bug makes the first edits guesses."""
    line, repair, alternatives = _repairs(broken, reference)
    guesses = _guesses(rng, repair, alternatives, silent="some" in reference.split("\n")[1], mistakes=mistakes)
    for number in range(max_edits):
        if rng.random() < mistakes.wrong_line:
            yield from _spoil(rng, broken, line)
        yield ToolCall(name="edit", arguments={"line": line, "text": guesses[min(number, len(guesses) - 1)]})
        if rng.random() < mistakes.untested:
            break
        observed = yield ToolCall(name="test")
        if "passed" in observed or rng.random() < mistakes.gives_up:
            break
    yield ToolCall(name="submit")


def _spoil(rng: random.Random, broken: str, line: int) -> Generator[ToolCall, str, None]:
    """An edit of a line that was right, taken back when a test run follows."""
    others = [m for m in mutations(broken, kinds=KINDS) if m.line not in (line, 2)]
    if not others:
        return
    mutation = rng.choice(others)
    before = _line(broken, mutation.line)
    yield ToolCall(name="edit", arguments={"line": mutation.line, "text": _line(mutation.source, mutation.line)})
    yield ToolCall(name="test")
    yield ToolCall(name="edit", arguments={"line": mutation.line, "text": before})


def _guesses(
    rng: random.Random, repair: str, alternatives: list[str], *, silent: bool, mistakes: Mistakes
) -> list[str]:
    """The texts of successive edits, the repair among them at the place where luck puts it."""
    wrong = rng.sample(alternatives, len(alternatives))
    if silent:
        order = rng.sample([repair, *wrong[:3]], min(4, 1 + len(wrong)))
        return order[: order.index(repair) + 1]
    tries = 0
    while rng.random() < mistakes.wrong_edit and tries < min(2, len(wrong)):
        tries += 1
    return [*wrong[:tries], repair]


def _repairs(broken: str, reference: str) -> tuple[int, str, list[str]]:
    """The broken line's number, its right text, and wrong texts that are one edit away from right."""
    pairs = list(zip(broken.split("\n"), reference.split("\n"), strict=True))
    line = next(number for number, (left, right) in enumerate(pairs, start=1) if left != right)
    wrong = {_line(m.source, line) for m in mutations(reference, kinds=KINDS) if m.line == line}
    wrong -= {_line(broken, line), _line(reference, line)}
    return line, _line(reference, line), sorted(wrong)


def _line(source: str, number: int) -> str:
    return source.split("\n")[number - 1].strip()
