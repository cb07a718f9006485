"""A bug before it is proved to be one: what a generator of a level hands on to validation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import TaskError

Arguments = tuple[Any, ...]
Inputs = Callable[[random.Random], Arguments]

_PATIENCE = 20
"""Old inputs in a row, per value that is known. With n values as likely as each other, one that is left is missed with
probability (1 - 1/n)^(20 n) < 1e-8."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A right program, a broken copy of it, and the inputs on which to compare the two.

    Attributes:
        family: what the program is about, for grouping results (``strings``, ``calculator``).
        kind: kind of the bug, a name of ``mutations.KINDS``.
        files: the broken source files, path to text, without tests.
        reference: the right versions of the same paths.
        module: dotted name of the module that is tested (``pkg/mod.py`` is ``pkg.mod``).
        function: the function of ``module`` that is tested.
        visible: argument tuples of the tests that the agent sees; plain data.
        hidden: argument tuples that decide; none equals a visible one.
        instruction: what the agent is told about the program, in words.
        main_path: the file that is shown first; in a package not always the broken one.
        line: 1-based line of the bug in its file.
        kin: text that decides on the split; programs with the same one are always in the same split. The code of the
            reference when empty.
        regression: more hidden calls, (function of ``module``, arguments), that a repair must not break.
    """

    family: str
    kind: str
    files: Mapping[str, str]
    reference: Mapping[str, str]
    module: str
    function: str
    visible: tuple[Arguments, ...]
    hidden: tuple[Arguments, ...]
    instruction: str
    main_path: str
    line: int
    kin: str = ""
    regression: tuple[tuple[str, Arguments], ...] = ()


class Generator(Protocol):
    """An endless stream of candidates that depends on the random numbers and on nothing else."""

    def __call__(self, rng: random.Random) -> Iterator[Candidate]: ...


def draw_inputs(
    rng: random.Random, inputs: Inputs, *, num_visible: int, num_hidden: int
) -> tuple[tuple[Arguments, ...], tuple[Arguments, ...]]:
    """Visible and hidden inputs from two generators with seeds of their own.

    All inputs are distinct, across the two sets as well, so that a table of the visible answers is worth
    nothing on the hidden ones. A function with few possible inputs gets fewer, but at least one of each.

    Raises:
        TaskError: ``inputs`` has no two different values.
    """
    seen: set[str] = set()
    visible_seed, hidden_seed = rng.getrandbits(64), rng.getrandbits(64)
    visible = _distinct(random.Random(visible_seed), inputs, num_visible, seen)
    hidden = _distinct(random.Random(hidden_seed), inputs, num_hidden, seen)
    if not visible or not hidden:
        raise TaskError(f"{inputs!r} gave fewer than two different inputs; widen what it draws from")
    return visible, hidden


def _distinct(rng: random.Random, inputs: Inputs, count: int, seen: set[str]) -> tuple[Arguments, ...]:
    """New inputs, until there are enough or so many in a row are old that all there are must have been seen."""
    found: list[Arguments] = []
    redraws = 0
    while len(found) < count and redraws < _PATIENCE * (len(seen) + 1):
        arguments = inputs(rng)
        text = repr(arguments)
        if text in seen:
            redraws += 1
            continue
        seen.add(text)
        found.append(arguments)
        redraws = 0
    return tuple(found)


def call_source(function: str, arguments: Arguments) -> str:
    """The call as Python source: ``f(3, [1, 2])``."""
    return f"{function}({', '.join(map(repr, arguments))})"


def test_path(candidate: Candidate) -> str:
    """Where the visible tests lie: ``test_<last part of the module's name>.py``."""
    return f"test_{candidate.module.rpartition('.')[2]}.py"


def test_file(candidate: Candidate, expected: Sequence[Any]) -> tuple[str, str]:
    """Path and text of the visible tests, one function ``test_<n>`` (from 1) with one assert an input.

    Args:
        candidate: whose visible inputs are written.
        expected: the reference's value at each visible input, in order; plain data with an exact ``repr``.

    Raises:
        TaskError: not one expected value per visible input.
    """
    if len(expected) != len(candidate.visible):
        raise TaskError(
            f"{len(expected)} expected values for {len(candidate.visible)} visible inputs; give one of each"
        )
    lines = [f"from {candidate.module} import {candidate.function}"]
    for number, (arguments, value) in enumerate(zip(candidate.visible, expected, strict=True), start=1):
        call = call_source(candidate.function, arguments)
        lines += ["", "", f"def test_{number}():", f"    assert {call} == {value!r}"]
    return test_path(candidate), "\n".join(lines) + "\n"


test_path.__test__ = False  # type: ignore[attr-defined]
test_file.__test__ = False  # type: ignore[attr-defined]
