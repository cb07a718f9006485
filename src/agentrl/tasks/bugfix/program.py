"""Edits of a Python module by the source spans of its syntax tree: what is not changed keeps its exact text."""

from __future__ import annotations

import ast
import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

Scope = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While
N = TypeVar("N", bound=ast.AST)

_NO_PLACE = ("ctx", "op", "ops", "id", "attr")
_INNER = {
    kind: () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _NO_PLACE)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""The fields of each kind of node that can hold nodes with a place in the text."""

_LOOSE = (
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.UnaryOp,
    ast.IfExp,
    ast.Lambda,
    ast.NamedExpr,
    ast.Await,
    ast.Tuple,
)


class Change(NamedTuple):
    """Characters ``start`` to ``end`` of a module become ``text``."""

    start: int
    end: int
    text: str


class Edit(NamedTuple):
    """One bug: its changes in ascending order, and the span that shows it to a reader."""

    changes: tuple[Change, ...]
    shown: tuple[int, int]


@dataclass(frozen=True)
class Program:
    """A module's text with its syntax tree, its parents and its spans.

    Raises:
        SyntaxError: the text is no Python module.
    """

    text: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", ast.parse(self.text))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of every node that a bug may touch, outer before inner. Docstrings, annotations and the inside of
        f-strings (which has no exact positions before Python 3.12) are left out; operators are no nodes here."""
        found: dict[ast.AST, ast.AST] = {}
        _note_parents(self.tree, found)
        return found

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes that a bug may touch, outer before inner."""
        return (self.tree, *self.parents)

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return found

    def find(self, kind: type[N]) -> list[N]:
        """The nodes of exactly one kind, outer before inner."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """All functions, outer before inner."""
        return tuple(node for node in self.nodes if isinstance(node, Scope))

    @cached_property
    def whole_lines(self) -> dict[int, str]:
        """The numbers of lines that begin with a statement and hold all of it, or all of its head; with each what its
        text lacks to be compiled alone: a body for a head, else nothing.

        Empty where a name is ``global`` or ``nonlocal``, since other lines then decide whether a line compiles.
        """
        if {ast.Global, ast.Nonlocal} & self._by_kind.keys():
            return {}
        found: dict[int, str] = {}
        for node in self.parents:
            if isinstance(node, ast.stmt) and self._begins_line(node):
                inner = getattr(node, "body", None)
                if inner is None and node.end_lineno == node.lineno:
                    found[node.lineno] = ""
                elif inner is not None and inner[0].lineno > node.lineno:
                    found[node.lineno] = "\n   pass"
        return found

    def _begins_line(self, node: ast.stmt) -> bool:
        return not self.text[self._line_starts[node.lineno - 1] : self.span(node)[0]].strip()

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope | None:
        """The function that ``node`` is in."""
        return self._scope_of[node]

    @cached_property
    def _scope_of(self) -> dict[ast.AST, Scope | None]:
        found: dict[ast.AST, Scope | None] = {self.tree: None}
        for node, parent in self.parents.items():
            found[node] = parent if isinstance(parent, Scope) else found[parent]
        return found

    @cached_property
    def _wide_lines(self) -> list[bytes]:
        """The lines of a text whose columns in the syntax tree, which count bytes, are not its characters."""
        return [] if self.text.isascii() else self.text.encode().splitlines(keepends=True)

    @cached_property
    def _line_starts(self) -> tuple[int, ...]:
        lines = self._wide_lines or self.text.encode().splitlines(keepends=True)
        return tuple(itertools.accumulate((len(line.decode()) for line in lines), initial=0))

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        """First character of a node, and the one after its last."""
        span = self._spans.get(node)
        if span is None:
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start, end = self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)
            span = self._spans[node] = (start, end)
        return span

    @cached_property
    def _spans(self) -> dict[ast.AST, tuple[int, int]]:
        return {}

    def _offset(self, line: int, column: int) -> int:
        if self._wide_lines:
            column = len(self._wide_lines[line - 1][:column].decode())
        return self._line_starts[line - 1] + column

    def lines_span(self, first: ast.stmt, last: ast.stmt) -> tuple[int, int]:
        """The whole lines of two statements and all between them, with the final newline."""
        assert last.end_lineno is not None
        return self._line_starts[first.lineno - 1], self._line_starts[last.end_lineno]

    def place(self, offset: int) -> tuple[int, int]:
        """1-based line and 0-based column of a character."""
        line = min(bisect_right(self._line_starts, offset), len(self._line_starts) - 1)
        return line, offset - self._line_starts[line - 1]

    def line_span(self, number: int) -> tuple[int, int]:
        """The span of a line (from 1), with its newline."""
        return self._line_starts[number - 1], self._line_starts[number]

    def slice(self, start: int, end: int) -> str:
        """The text of a span."""
        return self.text[start:end]

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self.slice(*self.span(node))

    def operand_span(self, node: ast.expr) -> tuple[int, int]:
        """The span of an operand of an operator, with the parentheses around it where it has some."""
        start, end = self.span(node)
        wrapped = self.text[start - 1 : start] == "(" and self.text[end : end + 1] == ")"
        return (start - 1, end + 1) if wrapped else (start, end)

    def operand(self, node: ast.expr) -> str:
        """The text of an operand, in parentheses where it has or needs them."""
        start, end = self.operand_span(node)
        return self.atom(node) if (start, end) == self.span(node) else self.slice(start, end)

    def atom(self, node: ast.expr) -> str:
        """The text of an expression, in parentheses where another operator could bind tighter."""
        return f"({self.source(node)})" if isinstance(node, _LOOSE) else self.source(node)

    def replace(self, node: ast.expr | ast.stmt, text: str, *, shown: ast.expr | ast.stmt | None = None) -> Edit:
        """The edit that puts ``text`` in place of a node."""
        start, end = self.span(node)
        return Edit(changes=(Change(start=start, end=end, text=text),), shown=self.span(shown or node))

    def remove_lines(self, first: ast.stmt, last: ast.stmt) -> Edit:
        """The edit that deletes whole statements with their lines."""
        start, end = self.lines_span(first, last)
        return Edit(changes=(Change(start=start, end=end, text=""),), shown=(start, end))

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str, *, shown: ast.expr | ast.stmt) -> Edit:
        """The edit of the operator ``old`` that stands between two operands."""
        gap = self.span(left)[1]
        start = self.text.index(old, gap, self.span(right)[0])
        change = Change(start=start, end=start + len(old), text=new)
        return Edit(changes=(change,), shown=self.span(shown))

    def apply(self, edit: Edit, start: int = 0, end: int | None = None) -> str:
        """The text from ``start`` to ``end`` after an edit; changes outside of it are left out."""
        end = len(self.text) if end is None else end
        parts: list[str] = []
        position = start
        for change in edit.changes:
            if start <= change.start and change.end <= end:
                parts += (self.text[position : change.start], change.text)
                position = change.end
        return "".join((*parts, self.text[position:end]))


def body(scope: Scope) -> list[ast.stmt]:
    """The statements of a function without its docstring."""
    return scope.body[1:] if ast.get_docstring(scope, clean=False) is not None else scope.body


def inner(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, as `ast.walk` finds them, but for operators and the like."""
    found = [node]
    for outer in found:  # grows
        for name in _INNER[type(outer)]:
            value = getattr(outer, name, None)
            found += [child for child in (value if isinstance(value, list) else (value,)) if isinstance(child, ast.AST)]
    return found


def _note_parents(node: ast.AST, found: dict[ast.AST, ast.AST]) -> None:
    if isinstance(node, ast.JoinedStr):
        return
    skipped = _unseen(node)
    for name in _INNER[type(node)]:
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST) and child not in skipped:
                found[child] = node
                _note_parents(child, found)


def _unseen(node: ast.AST) -> tuple[ast.AST, ...]:
    if isinstance(node, Scope):
        docstring = node.body[: len(node.body) - len(body(node))]
        return tuple(part for part in (node.returns, *node.decorator_list, *docstring) if part is not None)
    if isinstance(node, ast.arg | ast.AnnAssign):
        return (node.annotation,) if node.annotation is not None else ()
    return ()
