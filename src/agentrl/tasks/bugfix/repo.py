"""The `repo` level: a package of a few modules with the bug in one of them and the failing test in another's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from importlib import resources

from agentrl.tasks.bugfix.candidate import Arguments, Candidate, draw_inputs
from agentrl.tasks.bugfix.mutations import Mutation, mutations
from agentrl.tasks.bugfix.repo_packages.inputs import PACKAGES, Package

NUM_VISIBLE = 6
NUM_HIDDEN = 14
NUM_REGRESSION = 6


@cache
def package_files(name: str) -> dict[str, str]:
    """The files of a reference package, path from the workspace's root to text."""
    folder = resources.files("agentrl.tasks.bugfix.repo_packages") / name
    paths = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".py"))
    return {f"{name}/{path}": (folder / path).read_text(encoding="utf-8") for path in paths}


def candidates(rng: random.Random) -> Iterator[Candidate]:
    """An endless stream: a package, one of its tested functions, a kind of bug and one such bug elsewhere."""
    while True:
        name = rng.choice(list(PACKAGES))
        by_kind = _mutations_by_kind(name)
        path, mutation = rng.choice(by_kind[rng.choice(sorted(by_kind))])
        yield _candidate(rng, name, path, mutation)


def _candidate(rng: random.Random, name: str, path: str, mutation: Mutation) -> Candidate:
    package = PACKAGES[name]
    function = rng.choice(list(package.functions))
    inputs = package.functions[function]
    visible, hidden = draw_inputs(rng, inputs, num_visible=NUM_VISIBLE, num_hidden=NUM_HIDDEN)
    return Candidate(
        family=name,
        kind=mutation.kind,
        files=package_files(name) | {path: mutation.source},
        reference=package_files(name),
        module=package.module,
        function=function,
        visible=visible,
        hidden=hidden,
        instruction=_instruction(name),
        main_path=_main_path(package),
        line=mutation.line,
        regression=_regression(rng, package, function),
    )


def _instruction(name: str) -> str:
    paths = ", ".join(f"`{path}`" for path in package_files(name) if not path.endswith("__init__.py"))
    return f"The package `{name}` {PACKAGES[name].purpose}. One of its modules ({paths}) has a bug."


def _regression(rng: random.Random, package: Package, function: str) -> tuple[tuple[str, Arguments], ...]:
    """Inputs of the functions that the visible tests do not call."""
    others = [name for name in package.functions if name != function]
    return tuple((name, package.functions[name](rng)) for name in others for _ in range(NUM_REGRESSION))


def _main_path(package: Package) -> str:
    return package.module.replace(".", "/") + ".py"


@cache
def _mutations_by_kind(name: str) -> dict[str, list[tuple[str, Mutation]]]:
    """All bugs in the modules of a package other than the one that is tested."""
    by_kind: dict[str, list[tuple[str, Mutation]]] = {}
    for path, text in package_files(name).items():
        if path != _main_path(PACKAGES[name]):
            for mutation in mutations(text):
                by_kind.setdefault(mutation.kind, []).append((path, mutation))
    return by_kind
