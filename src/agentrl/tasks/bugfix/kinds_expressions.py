"""Kinds of bug that change an expression. Each function yields the single edits of its kind in one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agentrl.tasks.bugfix.program import Change, Edit, Program, inner
from agentrl.tasks.bugfix.scopes import initial_values, integer_names, same_role

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">", ">=")),
    ast.LtE: ("<=", ("<", ">=", ">")),
    ast.Gt: (">", (">=", "<", "<=")),
    ast.GtE: (">=", (">", "<=", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
_OPERATORS: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-", "*")),
    ast.Sub: ("-", ("+", "*")),
    ast.Mult: ("*", ("+", "-")),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("%",)),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}
_DIVISIONS = {ast.Div: ("/", "//"), ast.FloorDiv: ("//", "/")}
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_NORMAL_METHODS = frozenset(
    ["strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "casefold", "removeprefix", "removesuffix"]
)
_NORMAL_FUNCTIONS = frozenset(["abs", "sorted", "reversed", "int", "str", "float", "round", "set"])
_AROUND = (ast.BinOp, ast.Compare, ast.Call, ast.Subscript)
_COPIES = frozenset(["list", "dict", "copy", "deepcopy"])


def comparison(program: Program) -> Iterator[Edit]:
    """``a < b`` becomes ``a <= b``, ``a > b`` or ``a >= b``, ``==`` becomes ``!=``, ``in`` becomes ``not in``."""
    for node in program.find(ast.Compare):
        operands = [node.left, *node.comparators]
        for left, right, op in zip(operands[:-1], operands[1:], node.ops, strict=True):
            old, others = _COMPARISONS[type(op)]
            for new in others:
                yield program.between(left, right, old, new, shown=node)


def arithmetic(program: Program) -> Iterator[Edit]:
    """``+``, ``-`` and ``*`` become one another; also in ``a += b``. Text and lists are left alone."""
    for node in _operations(program):
        left, right = _operands(node)
        if type(node.op) in _OPERATORS and not (_is_sequence(left) or _is_sequence(right)):
            old, others = _OPERATORS[type(node.op)]
            for new in others:
                yield program.between(left, right, old, new, shown=node)


def division(program: Program) -> Iterator[Edit]:
    """``a // b`` becomes ``a / b`` and the reverse."""
    for node in _operations(program):
        if type(node.op) in _DIVISIONS:
            old, new = _DIVISIONS[type(node.op)]
            yield program.between(*_operands(node), old, new, shown=node)


def swapped_arguments(program: Program) -> Iterator[Edit]:
    """``f(a, b)`` becomes ``f(b, a)``, and ``a - b`` becomes ``b - a``."""
    for node in program.find(ast.BinOp):
        if isinstance(node.op, _ORDERED):
            yield from _swap(program, node.left, node.right, node, tight=True)
    for call in program.find(ast.Call):
        if _called(call) != "isinstance":
            for first, second in zip(call.args[:-1], call.args[1:], strict=True):
                if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                    yield from _swap(program, first, second, call, tight=False)


def _swap(program: Program, first: ast.expr, second: ast.expr, shown: ast.expr, *, tight: bool) -> Iterator[Edit]:
    texts = [program.operand(node) if tight else program.source(node) for node in (second, first)]
    spans = [program.operand_span(node) if tight else program.span(node) for node in (first, second)]
    if texts[0] != texts[1]:
        changes = [Change(start=start, end=end, text=text) for (start, end), text in zip(spans, texts, strict=True)]
        yield Edit(changes=tuple(changes), shown=program.span(shown))


def bound(program: Program) -> Iterator[Edit]:
    """``range(n)`` becomes ``range(n - 1)`` or ``range(n + 1)``; likewise the start of ``range(a, b)``."""
    for node in program.find(ast.Call):
        if _called(node) == "range":
            for argument in node.args[:2]:
                for delta in (-1, 1):
                    yield program.replace(argument, shifted(program, argument, delta), shown=node)


def constant(program: Program) -> Iterator[Edit]:
    """An int becomes one or two more or less. Bounds, indices and initial values are kinds of their own."""
    elsewhere = _constants_of_other_kinds(program)
    for node in program.find(ast.Constant):
        if _is_int(node) and node not in elsewhere:
            sign = program.parents[node]
            whole = sign if isinstance(sign, ast.UnaryOp) and isinstance(sign.op, ast.USub) else node
            assert isinstance(whole, ast.expr)
            for text in (shifted(program, whole, delta) for delta in (-2, -1, 1, 2)):
                if not (text.startswith("-") and isinstance(program.parents[whole], ast.BinOp)):
                    yield program.replace(whole, text, shown=_shown_around(program.parents[whole], whole))


def index(program: Program) -> Iterator[Edit]:
    """``x[i]`` becomes ``x[i - 1]`` or ``x[i + 1]`` where ``i`` is known to be an int."""
    for node in program.find(ast.Subscript):
        if _is_integer(program, node.slice):
            for delta in (-1, 1):
                yield program.replace(node.slice, shifted(program, node.slice, delta), shown=node)


def slice_bound(program: Program) -> Iterator[Edit]:
    """``x[a:b]`` loses a bound or has one moved by one; ``x[::-1]`` loses its step."""
    for node in program.find(ast.Slice):
        around = program.parents[node]
        assert isinstance(around, ast.Subscript)
        for part in (node.lower, node.upper):
            if part is not None:
                for text in (shifted(program, part, -1), shifted(program, part, 1), ""):
                    yield program.replace(part, text, shown=around)
        if node.step is not None:
            yield program.replace(node.step, "", shown=around)


def connective(program: Program) -> Iterator[Edit]:
    """``and`` becomes ``or`` and the reverse."""
    for node in program.find(ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values[:-1], node.values[1:], strict=True):
            yield program.between(left, right, old, new, shown=node)


def lost_negation(program: Program) -> Iterator[Edit]:
    """``not x`` becomes ``x``, and ``-x`` becomes ``x``."""
    for node in program.find(ast.UnaryOp):
        if isinstance(node.op, ast.Not | ast.USub):
            yield program.replace(node, program.slice(*program.operand_span(node.operand)))


def wrong_variable(program: Program) -> Iterator[Edit]:
    """A name becomes another one of the same function that has the same role and a value at that place."""
    for node in program.find(ast.Name):
        if isinstance(node.ctx, ast.Load):
            scope = program.scope(node)
            parent = program.parents[node]
            if scope is not None and not (isinstance(parent, ast.Call) and parent.func is node):
                for other in same_role(program, scope, node):
                    yield program.replace(node, other, shown=_shown_around(parent, node))


def dropped_call(program: Program) -> Iterator[Edit]:
    """``x.strip()`` and ``abs(x)`` become ``x``; ``max(0, x)`` becomes ``x``."""
    for node in program.find(ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _NORMAL_METHODS:
            yield program.replace(node, program.source(node.func.value))
        elif isinstance(node.func, ast.Name) and node.func.id in _NORMAL_FUNCTIONS and node.args:
            yield program.replace(node, program.atom(node.args[0]))
        elif isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and len(node.args) == 2:
            for kept, lost in (node.args, reversed(node.args)):
                if isinstance(lost, ast.Constant):
                    yield program.replace(node, program.atom(kept))


def dropped_copy(program: Program) -> Iterator[Edit]:
    """``x.copy()``, ``list(x)`` and ``x[:]`` become ``x``: two names for one object."""
    copies: tuple[ast.Call | ast.Subscript, ...] = (*program.find(ast.Call), *program.find(ast.Subscript))
    for node in copies:
        copied = _copied(node)
        if copied is not None:
            yield program.replace(node, program.source(copied))


def shared_rows(program: Program) -> Iterator[Edit]:
    """``[[0] * n for _ in range(m)]`` becomes ``[[0] * n] * (m)``: one row, many times."""
    for node in program.find(ast.ListComp):
        if len(node.generators) != 1 or node.generators[0].ifs:
            continue
        source = node.generators[0].iter
        if isinstance(source, ast.Call) and _called(source) == "range" and len(source.args) == 1:
            row = program.source(node.elt)
            if isinstance(node.elt, ast.List | ast.BinOp | ast.Call | ast.ListComp):
                yield program.replace(node, f"[{row}] * {program.atom(source.args[0])}")


def shifted(program: Program, node: ast.expr, delta: int) -> str:
    """The source of ``node + delta``, written as a programmer would: ``n - 1``, or ``n`` for ``n - 1 + 1``."""
    value = _int_value(node)
    if value is not None:
        return str(value + delta)
    base = node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        right = _int_value(node.right)
        if right is not None:
            base, delta = node.left, delta + (right if isinstance(node.op, ast.Add) else -right)
    if delta == 0:
        return program.source(base)
    tight = isinstance(base, ast.BinOp | ast.Call | ast.Name | ast.UnaryOp | ast.Subscript | ast.Attribute)
    return f"{program.source(base) if tight else program.atom(base)} {'+' if delta > 0 else '-'} {abs(delta)}"


def _operations(program: Program) -> tuple[ast.BinOp | ast.AugAssign, ...]:
    return (*program.find(ast.BinOp), *program.find(ast.AugAssign))


def _operands(node: ast.BinOp | ast.AugAssign) -> tuple[ast.expr, ast.expr]:
    return (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_int(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _int_value(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _int_value(node.operand)
        return None if inner is None else -inner
    return int(node.value) if isinstance(node, ast.Constant) and type(node.value) is int else None


def _is_sequence(node: ast.expr) -> bool:
    """Whether an expression is text, a list or a tuple by its form."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    if isinstance(node, ast.BinOp):
        return _is_sequence(node.left) or _is_sequence(node.right)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _NORMAL_METHODS or node.func.attr in ("join", "replace")
    if isinstance(node, ast.Call):
        return _called(node) in ("str", "list", "sorted", "tuple", "chr")
    return isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple)


def _is_integer(program: Program, node: ast.expr) -> bool:
    if _int_value(node) is not None:
        return True
    if isinstance(node, ast.Name):
        scope = program.scope(node)
        return scope is not None and node.id in integer_names(scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _is_integer(program, node.left) and _is_integer(program, node.right)
    return False


def _constants_of_other_kinds(program: Program) -> set[ast.AST]:
    """Int constants in the bounds of ``range``, in indices and slices, and in initial values."""
    roots: list[ast.AST] = [node.value for scope in program.scopes for node in initial_values(scope)]
    roots += [argument for node in program.find(ast.Call) if _called(node) == "range" for argument in node.args[:2]]
    roots += [node.slice for node in program.find(ast.Subscript)]
    return {node for root in roots for node in inner(root) if _is_int(node)}


def _shown_around(parent: ast.AST, node: ast.expr) -> ast.expr:
    return parent if isinstance(parent, _AROUND) else node


def _copied(node: ast.Call | ast.Subscript) -> ast.expr | None:
    """What a copying expression copies."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        whole = (node.slice.lower, node.slice.upper, node.slice.step) == (None, None, None)
        return node.value if whole and isinstance(node.ctx, ast.Load) else None
    if not isinstance(node, ast.Call) or len(node.args) > 1 or node.keywords:
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else _called(node)
    if name not in _COPIES:
        return None
    if node.args:
        return node.args[0] if isinstance(node.args[0], ast.Name | ast.Attribute | ast.Subscript) else None
    return node.func.value if isinstance(node.func, ast.Attribute) else None
