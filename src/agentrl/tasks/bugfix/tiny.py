"""The `tiny` level: one function of 3 to 8 lines whose comments say in words what each line is to do.

Programs are drawn from five templates; one edit of the syntax tree breaks them. In a part of the tasks the comment is
silent (`some`) about the very thing that is broken, so that reading cannot tell the repair and only the tests can:
this is what makes several turns matter.

Which split a program belongs to does not depend on the pieces about which a comment can be silent (its open slots).
Otherwise a held-out task with a silent comment would look just like a training task with another repair.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
RING_KINDS = ("arithmetic", "comparison", "constant", "initial_value", "bound")
SILENT_SHARE = 0.5
NUM_VISIBLE = 8
NUM_HIDDEN = 12

OPERATORS = {"+": "plus", "-": "minus", "*": "times"}
COMPARISONS = {">": "above", "<": "below", ">=": "at least"}
NUMBERS = ("1", "2", "3")
BOUNDS = ("n", "n + 1")
RINGS = (tuple(OPERATORS), tuple(COMPARISONS), NUMBERS, BOUNDS)
"""What can stand at the same place: where a comment is silent, it is one of these."""

WORDS = {**OPERATORS, **COMPARISONS}
COMMENT = "  # "
FIRST_LINE = 2
"""Number of a program's first line after the signature."""

_PIECE = re.compile(r"(\bn \+ 1\b|\bn\b|[<>]=?|[-+*]|\d+)")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A piece of code that a comment repeats in words; about an ``open`` one it can be silent."""

    code: str
    open: bool = False

    @property
    def words(self) -> str:
        """What the comment says."""
        return WORDS.get(self.code, self.code)


Piece = str | Slot


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a program: its code at a depth, and what its comment says (nothing for no comment)."""

    depth: int
    code: tuple[Piece, ...]
    comment: tuple[Piece, ...] = ()

    def text(self, hidden: Slot | None = None) -> str:
        """The line, its comment silent about ``hidden``."""
        code = "    " * self.depth + "".join(map(_text, self.code))
        words = (
            "some" if piece is hidden else piece if isinstance(piece, str) else piece.words for piece in self.comment
        )
        return code + COMMENT + " ".join(words) if self.comment else code

    def slot_at(self, column: int) -> Slot | None:
        """The slot that begins at a 0-based column of the code."""
        start = 4 * self.depth
        for piece in self.code:
            if isinstance(piece, Slot) and start == column:
                return piece
            start += len(_text(piece))
        return None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A right program whose comments are not written yet."""

    family: str
    arguments: str
    lines: tuple[Line, ...]

    def source(self, hidden: Slot | None = None) -> str:
        """The program, its comments silent about ``hidden``."""
        return "\n".join([f"def f({self.arguments}):", *(line.text(hidden) for line in self.lines)]) + "\n"

    @property
    def kin(self) -> str:
        """What all programs share that differ from this one in open slots only.

        The number at its end was chosen among 400 so that each template has its share of programs in each split.
        """
        pieces = (piece for line in self.lines for piece in line.code)
        return self.family + "".join("?" if isinstance(p, Slot) and p.open else _text(p) for p in pieces) + "/161"


def _text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.code


class _Draw:
    """Random pieces of a program."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.constants: list[int] = []

    def number(self, *, open: bool = False) -> Slot:
        return Slot(code=self.rng.choice(NUMBERS), open=open)

    def operator(self, *, open: bool = False) -> Slot:
        return Slot(code=self.rng.choice(tuple(OPERATORS)), open=open)

    def condition(self, depth: int, *, open: bool = False) -> Line:
        comparison, threshold = Slot(code=self.rng.choice(tuple(COMPARISONS)), open=open), self.number()
        self.constants.append(int(threshold.code))
        return Line(depth=depth, code=("if x ", comparison, " ", threshold, ":"), comment=("x", comparison, threshold))

    def start(self) -> Line:
        value = self.number(open=True)
        return Line(depth=1, code=("t = ", value), comment=("t is", value))


def _step(depth: int, before: str, name: str, operator: Slot, number: Slot, after: str = "") -> Line:
    """A line that works something out: ``before``, then the name with an operation on it."""
    return Line(depth=depth, code=(before, name, " ", operator, " ", number, after), comment=(name, operator, number))


def _choice(draw: _Draw) -> Draft:
    other = draw.number(open=True)
    lines = (
        draw.condition(1),
        _step(2, "return ", "x", draw.operator(open=True), draw.number()),
        Line(depth=1, code=("return ", other), comment=("give", other)),
    )
    return Draft(family="choice", arguments="x", lines=lines)


def _filtered_sum(draw: _Draw) -> Draft:
    lines = (
        draw.start(),
        Line(depth=1, code=("for x in xs:",)),
        draw.condition(2, open=True),
        _step(3, "t = t + ", "x", draw.operator(), draw.number()),
        Line(depth=1, code=("return t",)),
    )
    return Draft(family="filtered_sum", arguments="xs", lines=lines)


def _range_sum(draw: _Draw) -> Draft:
    low, high = draw.number(), Slot(code=draw.rng.choice(BOUNDS))
    lines = (
        draw.start(),
        Line(depth=1, code=("for i in range(", low, ", ", high, "):"), comment=("i from", low, "to", high)),
        _step(2, "t = t + ", "i", draw.operator(open=True), draw.number()),
        Line(depth=1, code=("return t",)),
    )
    return Draft(family="range_sum", arguments="n", lines=lines)


def _listing(draw: _Draw) -> Draft:
    lines = (
        Line(depth=1, code=("r = []",)),
        Line(depth=1, code=("for x in xs:",)),
        draw.condition(2),
        _step(3, "r.append(", "x", draw.operator(), draw.number(open=True), ")"),
        Line(depth=1, code=("return r",)),
    )
    return Draft(family="listing", arguments="xs", lines=lines)


def _steps(draw: _Draw) -> Draft:
    operator, result = draw.operator(), Slot(code=draw.rng.choice(("c", "-c")))
    lines = (
        _step(1, "c = ", "a", draw.operator(), draw.number(open=True)),
        Line(depth=1, code=("c = c ", operator, " b"), comment=("c", operator, "b")),
        Line(depth=1, code=("return ", result), comment=("give", result)),
    )
    return Draft(family="steps", arguments="a, b", lines=lines)


TEMPLATES: tuple[Callable[[_Draw], Draft], ...] = (_choice, _filtered_sum, _range_sum, _listing, _steps)


def candidates(rng: random.Random) -> Iterator[Candidate]:
    """An endless stream of tiny programs, each with one bug."""
    while True:
        draw = _Draw(rng)
        draft = rng.choice(TEMPLATES)(draw)
        found = [mutation for mutation in mutations(draft.source(), kinds=KINDS) if _is_small(draft, mutation)]
        open_ones = [mutation for mutation in found if _open_slot(draft, mutation)]
        silent = bool(open_ones) and rng.random() < SILENT_SHARE
        if found:
            yield _candidate(rng, draft, _drawn(rng, open_ones if silent else found), silent, tuple(draw.constants))


def _drawn(rng: random.Random, found: Sequence[Mutation]) -> Mutation:
    """One of the mutations: first its kind, by weight, then any of that kind."""
    kinds = sorted({mutation.kind for mutation in found})
    kind = rng.choices(kinds, [KIND_WEIGHTS[kind] for kind in kinds])[0]
    return rng.choice([mutation for mutation in found if mutation.kind == kind])


def _candidate(
    rng: random.Random, draft: Draft, mutation: Mutation, silent: bool, constants: tuple[int, ...]
) -> Candidate:
    reference = draft.source(_open_slot(draft, mutation) if silent else None)
    broken = _with_code(reference, mutation.line, code_of(mutation.source, mutation.line))
    visible, hidden = draw_inputs(
        rng, _inputs(draft.arguments, constants), num_visible=NUM_VISIBLE, num_hidden=NUM_HIDDEN
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
        kin=draft.kin,
    )


def _is_small(draft: Draft, mutation: Mutation) -> bool:
    """Whether a piece took the place of another of its ring, for the kinds about which a comment can be silent.

    The others have one way back. A list that grows while it is walked through never ends, so it is left out.
    """
    if mutation.kind in RING_KINDS:
        return _swap(draft, mutation) is not None
    return "xs.append" not in mutation.after


def _open_slot(draft: Draft, mutation: Mutation) -> Slot | None:
    """The open slot that the mutation broke, if it is one."""
    change = _swap(draft, mutation)
    slot = change and draft.lines[mutation.line - FIRST_LINE].slot_at(change.column)
    return slot if slot and slot.open else None


def _swap(draft: Draft, mutation: Mutation) -> Swap | None:
    return swap(code_of(draft.source(), mutation.line), code_of(mutation.source, mutation.line))


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One piece of a line in the place of another of its ring.

    Attributes:
        column: where it begins, 0-based.
        ring: what can stand there.
        before: what stood there.
        after: what stands there now.
    """

    column: int
    ring: tuple[str, ...]
    before: str
    after: str


def swap(before: str, after: str) -> Swap | None:
    """The one piece in which two lines of code differ; None if they differ otherwise."""
    left, right = _PIECE.split(before), _PIECE.split(after)
    differing = [at for at, (x, y) in enumerate(zip(left, right, strict=False)) if x != y]
    if len(left) != len(right) or len(differing) != 1:
        return None
    (at,) = differing
    ring = next((ring for ring in RINGS if left[at] in ring and right[at] in ring), None)
    if ring is None:
        return None
    return Swap(column=len("".join(left[:at])), ring=ring, before=left[at], after=right[at])


def code_of(source: str, line: int) -> str:
    """The code of a 1-based line, with its indentation and without its comment."""
    return source.split("\n")[line - 1].partition(COMMENT)[0]


def _with_code(source: str, line: int, code: str) -> str:
    """The program with other code at a line, its comment as it was."""
    lines = source.split("\n")
    _, mark, words = lines[line - 1].partition(COMMENT)
    lines[line - 1] = code + mark + words
    return "\n".join(lines)


def _inputs(arguments: str, constants: tuple[int, ...]) -> Callable[[random.Random], Arguments]:
    """Small ints, half of them next to a constant that the program compares with, so that tests meet the edges.

    There are more different inputs than a task has tests, so that the visible ones leave the hidden ones their own.
    """

    def near(rng: random.Random, low: int = 0, high: int = 9) -> int:
        if constants and rng.random() < 0.5:
            return rng.choice(constants) + rng.randrange(-1, 2)
        return rng.randrange(low, high + 1)

    def draw(rng: random.Random) -> Arguments:
        if arguments == "xs":
            return ([near(rng) for _ in range(rng.randint(3, 5))],)
        if arguments == "n":
            return (rng.randint(1, 24),)
        return (near(rng, -9, 15),) if arguments == "x" else (near(rng), near(rng))

    return draw


def prompt(source: str, failing_test: str) -> tuple[Message, ...]:
    """What TinyAgent is told: the failing test's name and the program's listing."""
    listing = "\n".join(f"{number}|{line}" for number, line in enumerate(source.rstrip("\n").split("\n"), start=1))
    return (Message(role="user", content=f"fix {failing_test}\n{listing}"),)
