"""Bugs by editing the syntax tree: every single-site edit of a module, of every kind, in a fixed order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentrl.errors import TaskError
from agentrl.tasks.bugfix import kinds_expressions as expressions
from agentrl.tasks.bugfix import kinds_statements as statements
from agentrl.tasks.bugfix.program import Edit, Program

Kind = Callable[[Program], Iterator[Edit]]


def _alias(program: Program) -> Iterator[Edit]:
    """A copy is left out, so that two names or two rows or two calls share one object."""
    yield from expressions.dropped_copy(program)
    yield from expressions.shared_rows(program)
    yield from statements.mutable_default(program)
    yield from statements.sorted_in_place(program)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "comparison": expressions.comparison,
        "bound": expressions.bound,
        "arithmetic": expressions.arithmetic,
        "swapped_arguments": expressions.swapped_arguments,
        "wrong_variable": expressions.wrong_variable,
        "lost_negation": expressions.lost_negation,
        "constant": expressions.constant,
        "initial_value": statements.initial_value,
        "connective": expressions.connective,
        "index": expressions.index,
        "slice": expressions.slice_bound,
        "missing_base_case": statements.missing_base_case,
        "missing_guard": statements.missing_guard,
        "loop_exit": statements.loop_exit,
        "early_return": statements.early_return,
        "missing_return": statements.missing_return,
        "overwritten_accumulator": statements.overwritten_accumulator,
        "division": expressions.division,
        "alias": _alias,
        "dropped_call": expressions.dropped_call,
    }
)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One bug in one module.

    Attributes:
        kind: a name of ``KINDS``.
        source: the whole mutated module; every byte outside of the edit is as it was.
        line: 1-based line of the edit in the original.
        column: 0-based column of the edit in the original, in characters.
        before: source of the edited expression or statement, or its whole lines where a statement moved or went.
        after: the same place in ``source``; empty when a statement was removed.
    """

    kind: str
    source: str
    line: int
    column: int
    before: str
    after: str


def mutations(source: str, kinds: Iterable[str] | None = None) -> tuple[Mutation, ...]:
    """All single bugs of a module, by place, then kind, then text. Each compiles, and no two are the same text.

    Args:
        source: text of a Python module.
        kinds: names of ``KINDS`` to use; all when None.

    Raises:
        TaskError: a kind that does not exist, or a source that does not parse.

    Example:
        >>> [m.after for m in mutations("def f(a, b):\\n    return a + b\\n", ["arithmetic"])]
        ['a * b', 'a - b']
    """
    names = tuple(KINDS if kinds is None else kinds)
    for name in names:
        if name not in KINDS:
            raise TaskError(f"unknown kind of bug {name!r}; the kinds are {', '.join(KINDS)}")
    try:
        program = Program(source)
    except SyntaxError as error:
        raise TaskError(f"cannot mutate a source that does not parse: {error}") from error
    found = [_mutation(program, name, edit) for name in names for edit in KINDS[name](program)]
    found.sort(key=lambda m: (m.line, m.column, m.kind, m.after, m.source))
    unique = {m.source: m for m in reversed(found) if m.source != source}
    return tuple(m for m in found if unique.get(m.source) is m and _compiles(m.source))


def _mutation(program: Program, kind: str, edit: Edit) -> Mutation:
    line, column = program.place(edit.changes[0].start)
    start, end = edit.shown
    before, after = program.slice(start, end).strip("\n"), program.apply(edit, start, end).strip("\n")
    return Mutation(kind=kind, source=program.apply(edit), line=line, column=column, before=before, after=after)


def _compiles(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "<mutation>", "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return True
