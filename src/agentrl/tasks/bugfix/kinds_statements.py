"""Kinds of bug that change, move or remove a statement. Each function yields the single edits of its kind."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from agentrl.tasks.bugfix.program import Change, Edit, Loop, Program, body
from agentrl.tasks.bugfix.scopes import initial_values


def initial_value(program: Program) -> Iterator[Edit]:
    """A name that a loop changes starts from another value: 1 for 0, ``[0]`` for ``[]``, 0 for ``values[0]``."""
    for scope in program.scopes:
        for node in initial_values(scope):
            for text in _other_starts(node.value):
                yield program.replace(node.value, text, shown=node)


def _other_starts(value: ast.expr) -> tuple[str, ...]:
    if isinstance(value, ast.Constant):
        if isinstance(value.value, bool):
            return (str(not value.value),)
        if isinstance(value.value, int):
            return (str(value.value + 1), str(value.value - 1))
        return ('" "',) if value.value == "" else ()
    if isinstance(value, ast.List):
        return ("[]",) if value.elts else ("[0]",)
    return ("0",) if isinstance(value, ast.Name | ast.Subscript | ast.UnaryOp) else ()


def overwritten_accumulator(program: Program) -> Iterator[Edit]:
    """``total += x`` becomes ``total = x``."""
    for node in program.find(ast.AugAssign):
        start, end = program.span(node.target)[1], program.span(node.value)[0]
        text = program.slice(start, end)
        sign = start + text.index("=")
        operator = start + len(text) - len(text.lstrip())
        yield Edit(changes=(Change(start=operator, end=sign, text=""),), shown=program.span(node))


def missing_base_case(program: Program) -> Iterator[Edit]:
    """An ``if`` at the head of a function that returns or raises is gone."""
    for scope in program.scopes:
        statements = body(scope)
        for statement, following in itertools.pairwise(statements):
            if not _is_guard(statement):
                break
            assert isinstance(following, ast.stmt)
            yield program.remove_lines(statement, statement)


def _is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Raise)


def missing_guard(program: Program) -> Iterator[Edit]:
    """An ``if ...: continue`` or ``if ...: break`` of a loop is gone."""
    loops: tuple[Loop, ...] = (*program.find(ast.For), *program.find(ast.While))
    for node in loops:
        if len(node.body) > 1:
            for statement in node.body:
                if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body[-1]):
                    yield program.remove_lines(statement, statement)


def loop_exit(program: Program) -> Iterator[Edit]:
    """``break`` becomes ``continue`` and the reverse."""
    for old, new in ((ast.Break, "continue"), (ast.Continue, "break")):
        for node in program.find(old):
            yield program.replace(node, new)


def _leaves(node: ast.stmt) -> bool:
    return isinstance(node, ast.Continue | ast.Break)


def early_return(program: Program) -> Iterator[Edit]:
    """The ``return`` after a loop moves into the loop, so that it runs in the first round."""
    for scope in program.scopes:
        for loop, after in zip(scope.body[:-1], scope.body[1:], strict=True):
            if isinstance(loop, Loop) and isinstance(after, ast.Return) and not loop.orelse:
                depth = loop.body[0].col_offset - after.col_offset
                start, end = program.lines_span(after, after)
                moved = "".join(" " * depth + line for line in program.slice(start, end).splitlines(keepends=True))
                yield Edit(changes=(Change(start=start, end=end, text=moved),), shown=(start, end))


def missing_return(program: Program) -> Iterator[Edit]:
    """``return f(x)`` becomes ``f(x)``; the plain ``return x`` at the end is gone."""
    for scope in program.scopes:
        last = scope.body[-1]
        for node in ast.walk(scope):
            if not isinstance(node, ast.Return) or node.value is None or program.scope(node) is not scope:
                continue
            if not isinstance(node.value, ast.Name | ast.Constant):
                yield program.replace(node, program.source(node.value))
            elif node is last and len(body(scope)) > 1:
                yield program.remove_lines(node, node)


def mutable_default(program: Program) -> Iterator[Edit]:
    """``x=None`` with ``if x is None: x = []`` at the head becomes ``x=[]``: one list for all calls."""
    for scope in program.scopes:
        arguments = scope.args.args[len(scope.args.args) - len(scope.args.defaults) :]
        for argument, default in zip(arguments, scope.args.defaults, strict=True):
            for statement in body(scope)[:-1]:
                fresh = _fresh_value(statement, argument.arg)
                if fresh is not None and isinstance(default, ast.Constant) and default.value is None:
                    yield _moved_default(program, default, statement, fresh)


def _fresh_value(statement: ast.stmt, name: str) -> ast.expr | None:
    """The container that ``if name is None: name = ...`` makes."""
    if not isinstance(statement, ast.If) or statement.orelse or len(statement.body) != 1:
        return None
    inner = statement.body[0]
    is_test = ast.unparse(statement.test) == f"{name} is None"
    if is_test and isinstance(inner, ast.Assign) and isinstance(inner.value, ast.List | ast.Dict | ast.Set):
        return inner.value if ast.unparse(inner.targets[0]) == name else None
    return None


def _moved_default(program: Program, default: ast.expr, guard: ast.stmt, fresh: ast.expr) -> Edit:
    start, end = program.span(default)
    lines_start, lines_end = program.lines_span(guard, guard)
    moved = Change(start=start, end=end, text=program.source(fresh))
    removed = Change(start=lines_start, end=lines_end, text="")
    return Edit(changes=(moved, removed), shown=(start, end))


def sorted_in_place(program: Program) -> Iterator[Edit]:
    """``return sorted(x)`` and ``y = sorted(x)`` become ``x.sort()``, which gives None."""
    for node in program.find(ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "sorted":
            whole = isinstance(program.parents[node], ast.Return | ast.Assign)
            if whole and isinstance(node.args[0], ast.Name):
                rest = ", ".join(program.slice(*_keyword_span(program, keyword)) for keyword in node.keywords)
                yield program.replace(node, f"{node.args[0].id}.sort({rest})", shown=node)


def _keyword_span(program: Program, keyword: ast.keyword) -> tuple[int, int]:
    start, end = program.span(keyword.value)
    return start - len(f"{keyword.arg}="), end
