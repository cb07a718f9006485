"""Edits of a Python module by the source spans of its syntax tree: what is not changed keeps its exact text."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

Scope = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While

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


@dataclass(frozen=True, kw_only=True)
class Change:
    """Bytes ``start`` to ``end`` of a module become ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One bug: its changes in ascending order, and the span (in bytes) that shows it to a reader."""

    changes: tuple[Change, ...]
    shown: tuple[int, int]


@dataclass(frozen=True)
class Program:
    """A module's text with its syntax tree, its parents and its spans.

    Raises:
        SyntaxError: the text is no Python module.
    """

    text: str
    data: bytes = field(init=False)
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.text.encode())
        object.__setattr__(self, "tree", ast.parse(self.text))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes that a bug may touch, outer before inner. Docstrings, annotations and the inside of
        f-strings (which has no exact positions before Python 3.12) are left out."""
        return tuple(_walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of every node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """All functions, outer before inner."""
        return tuple(node for node in self.nodes if isinstance(node, Scope))

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope | None:
        """The function that ``node`` is in."""
        return next((around for around in self.ancestors(node) if isinstance(around, Scope)), None)

    @cached_property
    def _line_starts(self) -> tuple[int, ...]:
        lengths = (len(line) for line in self.data.splitlines(keepends=True))
        return tuple(itertools.accumulate(lengths, initial=0))

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        """First byte of a node, and the one after its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def lines_span(self, first: ast.stmt, last: ast.stmt) -> tuple[int, int]:
        """The whole lines of two statements and all between them, with the final newline."""
        assert last.end_lineno is not None
        return self._line_starts[first.lineno - 1], self._line_starts[last.end_lineno]

    def place(self, offset: int) -> tuple[int, int]:
        """1-based line and 0-based column in characters of a byte."""
        line = sum(1 for start in self._line_starts[1:-1] if start <= offset)
        return line + 1, len(self.data[self._line_starts[line] : offset].decode())

    def slice(self, start: int, end: int) -> str:
        """The text of a span."""
        return self.data[start:end].decode()

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self.slice(*self.span(node))

    def operand_span(self, node: ast.expr) -> tuple[int, int]:
        """The span of an operand of an operator, with the parentheses around it where it has some."""
        start, end = self.span(node)
        wrapped = self.data[start - 1 : start] == b"(" and self.data[end : end + 1] == b")"
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
        start = self.data.index(old.encode(), gap, self.span(right)[0])
        change = Change(start=start, end=start + len(old.encode()), text=new)
        return Edit(changes=(change,), shown=self.span(shown))

    def apply(self, edit: Edit, start: int = 0, end: int | None = None) -> str:
        """The text from ``start`` to ``end`` after an edit; changes outside of it are left out."""
        end = len(self.data) if end is None else end
        parts: list[bytes] = []
        position = start
        for change in edit.changes:
            if start <= change.start and change.end <= end:
                parts += [self.data[position : change.start], change.text.encode()]
                position = change.end
        return b"".join([*parts, self.data[position:end]]).decode()


def body(scope: Scope) -> list[ast.stmt]:
    """The statements of a function without its docstring."""
    return scope.body[1:] if ast.get_docstring(scope, clean=False) is not None else scope.body


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.JoinedStr):
        return
    skipped = _unseen(node)
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from _walk(child)


def _unseen(node: ast.AST) -> tuple[ast.AST, ...]:
    if isinstance(node, Scope):
        docstring = node.body[: len(node.body) - len(body(node))]
        return tuple(part for part in (node.returns, *node.decorator_list, *docstring) if part is not None)
    if isinstance(node, ast.arg | ast.AnnAssign):
        return (node.annotation,) if node.annotation is not None else ()
    return ()
