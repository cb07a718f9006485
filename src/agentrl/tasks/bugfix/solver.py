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
        wrong_edit: an edit of the broken line is another one than the repair.
        meddles: after an edit of the broken line, a line that was right is edited too, and all is handed in untested.
        untested: an edit is not followed by a test run.
        gives_up: a failing test run is followed by submitting.
    """

    wrong_edit: float = 0.1
    meddles: float = 0.35
    untested: float = 0.3
    gives_up: float = 0.3


def solve(broken: str, reference: str, *, rng: random.Random, mistakes: Mistakes, max_edits: int = 3) -> Script:
    """Edit, test, edit again, submit. A docstring that is silent about the bug makes the first edits guesses."""
    line, repair, alternatives = _repairs(broken, reference)
    guesses = _guesses(rng, repair, alternatives, silent="some" in reference.split("\n")[1], mistakes=mistakes)
    for number in range(max_edits):
        yield ToolCall(name="edit", arguments={"line": line, "text": guesses[min(number, len(guesses) - 1)]})
        if rng.random() < mistakes.meddles:
            yield from _meddle(rng, broken, line)
            break
        if rng.random() < mistakes.untested:
            break
        observed = yield ToolCall(name="test")
        if "passed" in observed or rng.random() < mistakes.gives_up:
            break
    yield ToolCall(name="submit")


def _meddle(rng: random.Random, broken: str, line: int) -> Generator[ToolCall, str, None]:
    """A wrong edit of a line that was right."""
    others = [mutation for mutation in mutations(broken, kinds=KINDS) if mutation.line not in (line, 2)]
    if others:
        chosen = rng.choice(others)
        yield ToolCall(name="edit", arguments={"line": chosen.line, "text": _line(chosen.source, chosen.line)})


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
