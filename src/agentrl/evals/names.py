"""Words of the command line that name tasks to evaluate on and policies to evaluate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import TrainConfig, load_recipe, recipe_names
from agentrl.errors import ConfigError, StoreError
from agentrl.evals.baselines import CEILING, FLOORS
from agentrl.evals.load import find_run, split_step
from agentrl.fields import nearest
from agentrl.store import RunFolder
from agentrl.tasks import humanevalfix
from agentrl.tasks.bugfix.taskset import LEVELS, VERSION

SCRIPTED = (*FLOORS, CEILING)
HUMANEVALFIX, REASONING_GYM, MATH = "humanevalfix", "reasoning-gym", "math"
ENDPOINT = "openai"


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """What to evaluate on: a level of BugFix, as a recipe has it or plain; or another ``kind`` (``humanevalfix``,
    ``reasoning-gym``, ``math``) with its ``source``: a file, the hub, or the name of a data set."""

    level: str = ""
    recipe: TrainConfig | None = None
    kind: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What to evaluate: a run with a step, a scripted policy, a model behind an endpoint by its name, or a Hugging Face
    model by its name or folder."""

    run: RunFolder | None = None
    step: str = ""
    scripted: str = ""
    model: str = ""
    hugging_face: str = ""


def parse_tasks(word: str) -> Tasks:
    """A task set or a recipe.

    Raises:
        ConfigError: it is neither; with those that there are.
    """
    version, _, level = word.partition("/")
    if version == VERSION:
        if level not in LEVELS:
            raise ConfigError(f"{word!r}: write {' or '.join(f'{VERSION}/{name}' for name in LEVELS)}; see --split")
        return Tasks(level=level)
    name, _, source = word.partition(":")
    if name == HUMANEVALFIX:
        return Tasks(kind=name, source=source or humanevalfix.HUB_NAME)
    if name in (REASONING_GYM, MATH):
        if not source:
            missing = (
                "the name of a data set, such as countdown" if name == REASONING_GYM else "a .jsonl or .parquet file"
            )
            raise ConfigError(f"{word!r} names no tasks; write {name}: and {missing}")
        return Tasks(kind=name, source=source)
    if word in recipe_names() or word.endswith(".toml"):
        recipe = load_recipe(word)
        return Tasks(level=recipe.tasks.level, recipe=recipe)
    others = (f"{HUMANEVALFIX}:FILE.jsonl", f"{REASONING_GYM}:NAME", f"{MATH}:FILE.jsonl")
    known = [*recipe_names(), *(f"{VERSION}/{name}" for name in LEVELS), *others]
    raise ConfigError(
        f"there are no tasks {word!r}; {nearest(word, known)}write a recipe or a task set: {', '.join(known)}"
    )


def parse_policy(word: str, runs: Path) -> Policy:
    """A policy.

    Raises:
        StoreError: no such run, or a kind that cannot be evaluated.
    """
    if word in SCRIPTED:
        return Policy(scripted=word)
    kind, _, model = word.partition(":")
    if kind == ENDPOINT:
        if not model:
            raise StoreError(f"--policy {word}: no model is named; write {ENDPOINT}:NAME")
        return Policy(model=model)
    if _is_model(Path(word)) or (_HUB_NAME.fullmatch(word) and not Path(word).parent.is_dir()):
        return Policy(hugging_face=word)
    name, step = split_step(word)
    try:
        return Policy(run=find_run(name, runs), step=step)
    except StoreError as error:
        raise StoreError(f"--policy {word}: {error}. {_choices()}") from error


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def _is_model(folder: Path) -> bool:
    """Whether `transformers` wrote this folder: a model, or an adapter of one."""
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def _choices() -> str:
    return (
        f"Write RUN, RUN@STEP, RUN@before, the folder of a Hugging Face model or its name (such as Qwen/Qwen3-0.6B), "
        f"{ENDPOINT}:NAME, or a script: {', '.join(SCRIPTED)}"
    )
