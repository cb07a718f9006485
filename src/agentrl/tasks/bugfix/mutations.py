"""Bugs by editing the syntax tree: every single-site edit of a module, of every kind, in a fixed order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    found = [(_mutation(program, name, edit), edit) for name in names for edit in KINDS[name](program)]
    found.sort(key=lambda pair: _order(pair[0]))
    unique = {mutation.source: mutation for mutation, _ in reversed(found) if mutation.source != source}
    return tuple(m for m, edit in found if unique.get(m.source) is m and _compiles(program, edit, m))


def _mutation(program: Program, kind: str, edit: Edit) -> Mutation:
    line, column = program.place(edit.changes[0].start)
    start, end = edit.shown
    source = program.apply(edit)
    if start <= edit.changes[0].start and edit.changes[-1].end <= end:
        after = source[start : end + len(source) - len(program.text)]
    else:
        after = program.apply(edit, start, end)
    before, after = program.slice(start, end).strip("\n"), after.strip("\n")
    return Mutation(kind=kind, source=source, line=line, column=column, before=before, after=after)


def _order(mutation: Mutation) -> tuple[int, int, str, str, str]:
    return mutation.line, mutation.column, mutation.kind, mutation.after, mutation.source


def _compiles(program: Program, edit: Edit, mutation: Mutation) -> bool:
    """Whether the mutated module compiles. An edit inside of one line needs no more than that line to be right."""
    rest = program.whole_lines.get(mutation.line)
    if rest is not None:
        start, end = program.line_span(mutation.line)
        if edit.changes[-1].end < end:  # the first begins on the line, and they ascend
            line = mutation.source[start : end + len(mutation.source) - len(program.text)]
            if _line_compiles(line.strip(), rest):
                return True
    return _module_compiles(mutation.source)


@lru_cache(maxsize=4096)
def _line_compiles(line: str, rest: str) -> bool:
    """Whether a line compiles where all is allowed that its surroundings may allow."""
    return "\n" not in line and _module_compiles(f"async def f():\n while 1:\n  {line}{rest}\n")


def _module_compiles(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "<mutation>", "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return True
