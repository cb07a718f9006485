"""Names of a function: where each gets its value, in which role, and which are known to be ints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from agentrl.tasks.bugfix.program import Loop, Program, Scope, inner

Role = Literal["parameter", "loop", "local"]
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = 16
"""How many functions are remembered: those of one module or so. More would keep dead syntax trees from being freed."""
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """A name has a value from after line ``start`` up to line ``end``."""

    name: str
    role: Role
    start: int
    end: int


@lru_cache(maxsize=_SCOPES)
def bindings(scope: Scope) -> tuple[Binding, ...]:
    """Every binding of a function, by place; those of comprehensions are left out."""
    end = scope.end_lineno or scope.lineno
    names = [argument.arg for argument in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]
    found = [Binding(name=name, role="parameter", start=0, end=end) for name in names if name not in ("self", "cls")]
    for node in _own(scope):
        if isinstance(node, ast.For):
            last = node.body[-1].end_lineno or end
            found += [Binding(name=name, role="loop", start=node.lineno, end=last) for name in _targets(node.target)]
        elif isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in _targets(target)]
            found += [Binding(name=name, role="local", start=node.end_lineno or end, end=end) for name in names]
    return tuple(sorted(found, key=lambda binding: binding.start))


def same_role(program: Program, scope: Scope, node: ast.Name) -> list[str]:
    """Other names that may stand where ``node`` stands: same role, and bound before it in the same function.

    A name of a role of its own gets the parameters, or the locals where it is the only parameter.
    """
    if any(map(program.find, _COMPREHENSIONS)) and any(type(a) in _COMPREHENSIONS for a in program.ancestors(node)):
        return []
    bound = [b for b in bindings(scope) if b.start < node.lineno <= b.end]
    roles = {b.role for b in bound if b.name == node.id}
    if not roles:
        return []
    others = [b for b in bound if b.name != node.id]
    same = [b.name for b in others if b.role in roles]
    near = [b.name for b in others if b.role == ("local" if "parameter" in roles else "parameter")]
    return list(dict.fromkeys(same or near))


@lru_cache(maxsize=_SCOPES)
def integer_names(scope: Scope) -> frozenset[str]:
    """Names that count: targets of ``range`` and ``enumerate``, and those that get ints by their form."""
    return frozenset(name for node in inner(scope) for name in _integers(node))


@lru_cache(maxsize=_SCOPES)
def initial_values(scope: Scope) -> tuple[ast.Assign, ...]:
    """Assignments of one name that a later loop of the same function changes."""
    plain = [node for node in _own(scope) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    loops = [node for node in _own(scope) if isinstance(node, Loop)]
    return tuple(node for node in plain if any(_changes(loop, node) for loop in loops))


def _changes(loop: Loop, assignment: ast.Assign) -> bool:
    name = assignment.targets[0]
    assert isinstance(name, ast.Name)
    if loop.lineno <= assignment.lineno:
        return False
    for node in inner(loop):
        if isinstance(node, ast.AugAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            if any(name.id in _targets(target) for target in targets):
                return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name.id:
            return True
    return False


def _integers(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Call):
        function = node.iter.func.id if isinstance(node.iter.func, ast.Name) else ""
        targets = _targets(node.target)
        if function in ("range", "enumerate") and targets:
            yield targets[0]
    elif isinstance(node, ast.Assign) and _is_integer_form(node.value):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and len(target.elts) == len(node.value.elts):
                pairs = zip(target.elts, node.value.elts, strict=True)
                yield from (t.id for t, v in pairs if isinstance(t, ast.Name) and _is_integer_form(v))


def _is_integer_form(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.FloorDiv) or _is_integer_form(node.right)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len"
    return isinstance(node, ast.Constant) and type(node.value) is int


def _targets(target: ast.expr) -> list[str]:
    return [node.id for node in inner(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


@lru_cache(maxsize=_SCOPES)
def _own(scope: Scope) -> tuple[ast.stmt, ...]:
    """The statements of a function without those of functions inside it."""
    found: list[ast.AST] = list(scope.body)
    for node in found:  # grows
        if not isinstance(node, Scope | ast.ClassDef):
            for name in _BLOCKS:
                found += getattr(node, name, ())
    return tuple(node for node in found if isinstance(node, ast.stmt))
