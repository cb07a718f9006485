"""The `tiny` level: one function of 3 to 8 lines whose docstring says what each line is to do.

Programs are drawn from five templates; one edit of the syntax tree breaks them. In a part of the tasks the docstring
is silent (`some`) about the very thing that is broken, so that reading cannot tell the repair and only the tests can:
this is what makes several turns matter.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from agentrl.tasks.bugfix.candidate import Arguments, Candidate, draw_inputs
from agentrl.tasks.bugfix.mutations import Mutation, mutations
from agentrl.types import Message

MAIN_PATH = "prog.py"
KIND_WEIGHTS = {
    "arithmetic": 3,
    "comparison": 3,
    "constant": 3,
    "initial_value": 4,
    "bound": 4,
    "wrong_variable": 1,
    "swapped_arguments": 1,
    "lost_negation": 1,
}
KINDS = tuple(KIND_WEIGHTS)
SILENT_KINDS = frozenset(("arithmetic", "comparison", "constant", "initial_value", "bound"))
SILENT_SHARE = 0.33
NUM_VISIBLE = 6
NUM_HIDDEN = 12

_FEW_INPUTS = {"n": 12, "x": 17}
"""How many different inputs there are, by arguments, where that is fewer than are asked for."""

OPERATORS = ("+", "-", "*")
COMPARISONS = (">", "<", ">=", "<=")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A piece of code that the docstring repeats, unless it is silent about it."""

    code: str


Piece = str | Slot


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A program before it has a docstring text: lines as (depth, pieces), and the docstring's pieces."""

    family: str
    arguments: str
    lines: tuple[tuple[int, tuple[Piece, ...]], ...]
    doc: tuple[Piece, ...]

    def source(self, hidden: Slot | None = None) -> str:
        """The program, its docstring silent about ``hidden``."""
        words = " ".join("some" if piece is hidden else _code(piece) for piece in self.doc)
        body = ["    " * depth + "".join(map(_code, pieces)) for depth, pieces in self.lines]
        return "\n".join([f"def f({self.arguments}):", f'    """{words}"""', *body]) + "\n"

    def slot_at(self, line: int, column: int) -> Slot | None:
        """The slot at a place of the source (1-based line, 0-based column, its end included)."""
        if line < 3:
            return None
        depth, pieces = self.lines[line - 3]
        start = 4 * depth
        for piece in pieces:
            end = start + len(_code(piece))
            if isinstance(piece, Slot) and start <= column <= end:
                return piece
            start = end
        return None


def _code(piece: Piece) -> str:
    return piece.code if isinstance(piece, Slot) else piece


class _Draw:
    """Random pieces of a program."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.constants: list[int] = []

    def number(self, low: int = 1, high: int = 3) -> Slot:
        return Slot(code=str(self.rng.randint(low, high)))

    def threshold(self) -> Slot:
        slot = self.number()
        self.constants.append(int(slot.code))
        return slot

    def operator(self) -> Slot:
        return Slot(code=self.rng.choice(OPERATORS))

    def comparison(self) -> Slot:
        return Slot(code=self.rng.choice(COMPARISONS))


def _choice(draw: _Draw) -> Draft:
    cmp, k, op1, c1, op2, c2 = (
        *(draw.comparison(), draw.threshold()),
        *(draw.operator(), draw.number(), draw.operator(), draw.number()),
    )
    return Draft(
        family="choice",
        arguments="x",
        lines=(
            (1, ("if x ", cmp, " ", k, ":")),
            (2, ("return x ", op1, " ", c1)),
            (1, ("return x ", op2, " ", c2)),
        ),
        doc=("if x", cmp, k, "give x", op1, c1, "otherwise x", op2, c2),
    )


def _filtered_sum(draw: _Draw) -> Draft:
    start, op, c, cmp, k = draw.number(0, 3), draw.operator(), draw.number(), draw.comparison(), draw.threshold()
    return Draft(
        family="filtered_sum",
        arguments="xs",
        lines=(
            (1, ("t = ", start)),
            (1, ("for x in xs:",)),
            (2, ("if x ", cmp, " ", k, ":")),
            (3, ("t = t + x ", op, " ", c)),
            (1, ("return t",)),
        ),
        doc=("t =", start, "if x", cmp, k, "add x", op, c),
    )


def _range_sum(draw: _Draw) -> Draft:
    start, op, c, low = draw.number(0, 3), draw.operator(), draw.number(), draw.number(0, 3)
    upto = Slot(code="n + 1") if draw.rng.random() < 0.5 else Slot(code="n")
    return Draft(
        family="range_sum",
        arguments="n",
        lines=(
            (1, ("t = ", start)),
            (1, ("for i in range(", low, ", ", upto, "):")),
            (2, ("t = t + i ", op, " ", c)),
            (1, ("return t",)),
        ),
        doc=("t =", start, "i in range", low, "to", upto, "add i", op, c),
    )


def _listing(draw: _Draw) -> Draft:
    op, c, cmp, k = draw.operator(), draw.number(), draw.comparison(), draw.threshold()
    return Draft(
        family="listing",
        arguments="xs",
        lines=(
            (1, ("r = []",)),
            (1, ("for x in xs:",)),
            (2, ("if x ", cmp, " ", k, ":")),
            (3, ("r.append(x ", op, " ", c, ")")),
            (1, ("return r",)),
        ),
        doc=("if x", cmp, k, "list x", op, c),
    )


def _steps(draw: _Draw) -> Draft:
    op1, op2, op3, c1, c2 = draw.operator(), draw.operator(), draw.operator(), draw.number(), draw.number()
    sign = Slot(code="-c") if draw.rng.random() < 0.5 else Slot(code="c")
    return Draft(
        family="steps",
        arguments="a, b",
        lines=(
            (1, ("c = a ", op1, " ", c1)),
            (1, ("b = b ", op2, " ", c2)),
            (1, ("return b ", op3, " ", sign)),
        ),
        doc=("c = a", op1, c1, "b = b", op2, c2, "give b", op3, sign),
    )


TEMPLATES: tuple[Callable[[_Draw], Draft], ...] = (_choice, _filtered_sum, _range_sum, _listing, _steps)


def candidates(rng: random.Random) -> Iterator[Candidate]:
    """An endless stream of tiny programs, each with one bug."""
    while True:
        draw = _Draw(rng)
        draft = rng.choice(TEMPLATES)(draw)
        found = [mutation for mutation in mutations(draft.source(), kinds=KINDS) if _is_small(mutation)]
        if not found:
            continue
        kinds = sorted({mutation.kind for mutation in found})
        kind = rng.choices(kinds, [KIND_WEIGHTS[kind] for kind in kinds])[0]
        mutation = rng.choice([mutation for mutation in found if mutation.kind == kind])
        yield _candidate(rng, draft, mutation, tuple(draw.constants))


def _candidate(rng: random.Random, draft: Draft, mutation: Mutation, constants: tuple[int, ...]) -> Candidate:
    full = draft.source()
    slot = draft.slot_at(*_difference(full, mutation.source))
    silent = slot in draft.doc and mutation.kind in SILENT_KINDS and rng.random() < SILENT_SHARE
    reference = draft.source(slot if silent else None)
    broken = "\n".join([*reference.split("\n")[:2], *mutation.source.split("\n")[2:]])
    visible, hidden = draw_inputs(
        rng,
        _inputs(draft.arguments, constants),
        num_visible=NUM_VISIBLE,
        num_hidden=NUM_HIDDEN,
        possible=_FEW_INPUTS.get(draft.arguments),
    )
    return Candidate(
        family=draft.family,
        kind=mutation.kind,
        files={MAIN_PATH: broken},
        reference={MAIN_PATH: reference},
        module="prog",
        function="f",
        visible=visible,
        hidden=hidden,
        instruction="silent" if silent else "told",
        main_path=MAIN_PATH,
        line=mutation.line,
    )


def _is_small(mutation: Mutation) -> bool:
    """Whether a wrong number is next to the right one, so that a few tries find it where the docstring is silent."""
    before, after = _numbers(mutation.before), _numbers(mutation.after)
    return len(before) != len(after) or all(abs(x - y) <= 1 for x, y in zip(before, after, strict=True))


@lru_cache(maxsize=4096)
def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _difference(before: str, after: str) -> tuple[int, int]:
    """1-based line and 0-based column of the first character in which two programs differ."""
    for number, (left, right) in enumerate(zip(before.split("\n"), after.split("\n"), strict=False), start=1):
        if left != right:
            same = next((at for at, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), None)
            return number, min(len(left), len(right)) if same is None else same
    return 0, 0


def _inputs(arguments: str, constants: tuple[int, ...]) -> Callable[[random.Random], Arguments]:
    """Small ints, half of them next to a constant that the program compares with, so that tests meet the edges."""

    def near(rng: random.Random) -> int:
        if constants and rng.random() < 0.5:
            return rng.choice(constants) + rng.randrange(-1, 2)
        return rng.randrange(10)

    def draw(rng: random.Random) -> Arguments:
        if arguments == "xs":
            return ([near(rng) for _ in range(rng.randint(3, 5))],)
        if arguments == "n":
            return (rng.randint(1, 12),)
        return (rng.randint(-4, 12),) if arguments == "x" else (near(rng), near(rng))

    return draw


def prompt(source: str, failing_test: str) -> tuple[Message, ...]:
    """What TinyAgent is told: the failing test's name and the program's listing."""
    listing = "\n".join(f"{number}|{line}" for number, line in enumerate(source.rstrip("\n").split("\n"), start=1))
    return (Message(role="user", content=f"fix {failing_test}\n{listing}"),)
