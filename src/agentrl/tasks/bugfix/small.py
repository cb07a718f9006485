"""The `small` level: one module with one documented function of 5 to 20 lines, broken in one place."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from agentrl.tasks.bugfix.candidate import Candidate, Inputs, draw_inputs
from agentrl.tasks.bugfix.mutations import Mutation, mutations
from agentrl.tasks.bugfix.small_programs import (
    dates,
    dicts,
    intervals,
    lists,
    matrices,
    numbers,
    parsing,
    recursion,
    strings,
)

TOPICS = (dates, dicts, intervals, lists, matrices, numbers, parsing, recursion, strings)
NUM_VISIBLE = 5
NUM_HIDDEN = 12


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A right program: its topic, the name of its function, its text and how to draw inputs."""

    topic: str
    function: str
    text: str
    inputs: Inputs

    @property
    def path(self) -> str:
        """The file that it lies in."""
        return f"{self.function}.py"


@cache
def references() -> tuple[Reference, ...]:
    """All reference programs, by topic and then in the order of their files."""
    return tuple(reference for topic in TOPICS for reference in _of_topic(topic))


def candidates(rng: random.Random) -> Iterator[Candidate]:
    """An endless stream: a function, a kind of bug that it can have, and one such bug, each drawn evenly."""
    while True:
        reference = rng.choice(references())
        by_kind = _mutations_by_kind(reference.text)
        mutation = rng.choice(by_kind[rng.choice(sorted(by_kind))])
        visible, hidden = draw_inputs(rng, reference.inputs, num_visible=NUM_VISIBLE, num_hidden=NUM_HIDDEN)
        yield Candidate(
            family=reference.topic,
            kind=mutation.kind,
            files={reference.path: mutation.source},
            reference={reference.path: reference.text},
            module=reference.function,
            function=reference.function,
            visible=visible,
            hidden=hidden,
            instruction=f"The function `{reference.function}` in `{reference.path}` has a bug.",
            main_path=reference.path,
            line=mutation.line,
        )


@cache
def _mutations_by_kind(text: str) -> dict[str, list[Mutation]]:
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in mutations(text):
        by_kind.setdefault(mutation.kind, []).append(mutation)
    return by_kind


def _of_topic(topic: ModuleType) -> Iterator[Reference]:
    source = inspect.getsource(topic)
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in topic.INPUTS:
            text = ast.get_source_segment(source, node)
            lines = [*_imports(tree, node), "", ""] if _imports(tree, node) else []
            yield Reference(
                topic=topic.__name__.rpartition(".")[2],
                function=node.name,
                text="\n".join([*lines, f"{text}\n"]),
                inputs=topic.INPUTS[node.name],
            )


def _imports(tree: ast.Module, function: ast.FunctionDef) -> list[str]:
    """The imports of a file that one of its functions uses, and of each only the names that it uses."""
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    lines = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if alias.name in used]
            lines += [f"from {node.module} import {', '.join(names)}"] if names else []
        elif isinstance(node, ast.Import):
            lines += [f"import {alias.name}" for alias in node.names if alias.name in used]
    return lines
