"""The parts of an evaluation as the words of ``agentrl eval`` ask for them."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agentrl.cli import BadInput, bad_input_for
from agentrl.cli.attempts import bad_values
from agentrl.config import HarnessConfig, HuggingFaceConfig, ModelConfig, SandboxConfig, TasksConfig, TrainConfig
from agentrl.engine.openai import Endpoint
from agentrl.errors import ConfigError, SamplerError
from agentrl.evals.folder import Spec
from agentrl.evals.names import HUMANEVALFIX, REASONING_GYM, Policy, Tasks
from agentrl.evals.stopping import Question
from agentrl.harness.loop import Limits
from agentrl.protocols import Environment
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tasks.humanevalfix import HumanEvalFix
from agentrl.tasks.math import MathTasks
from agentrl.tasks.reasoning_gym import ReasoningGym
from agentrl.types import Task
from agentrl.ui.live import PlainReporter

LONGEST_CONTEXT = 32768
"""Tokens of a conversation with a Hugging Face model that allows more."""

Maker = Callable[[str], Any]
"""Gives the parts for a scripted policy by its name, or with no name for the policy that was asked for."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command's words, checked."""

    tasks: Tasks
    policy: Policy
    word: str
    split: str
    num_tasks: int
    attempts: int
    temperature: float | None
    seed: int
    out: Path | None
    runs: Path
    question: Question | None
    threshold: float | None = None
    endpoint: Endpoint | None = None
    max_tokens: int = 8192
    thinking: bool | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    renderer: str | None = None
    today: str | None = None


def library() -> Any:
    """The parts that need torch, loaded when an evaluation starts.

    Raises:
        BadInput: torch is missing.
    """
    try:
        return importlib.import_module("agentrl.loops.evaluation")
    except (ImportError, OSError) as error:
        raise BadInput(f"torch cannot be imported ({error}); install it: pip install 'torch>=2.9'") from error


def maker(asked: Asked, parts_of: Any, reporter: PlainReporter, stack: ExitStack) -> Maker:
    """What makes the parts.

    Args:
        asked: the command's words.
        parts_of: the module `library` gives.
        reporter: is told what takes long.
        stack: closes what was opened.

    Raises:
        BadInput: the policy cannot do these tasks.
    """
    if asked.policy.run is None and not asked.policy.hugging_face:
        if asked.temperature is not None and asked.endpoint is None:
            raise BadInput(
                f"--temperature {asked.temperature:g}: the script {asked.word} samples nothing; leave it out"
            )
        task_set, settings, turns = _task_set(asked, stack)
        _warn(task_set, reporter)
        if asked.endpoint is not None:
            parts = _behind_endpoint(parts_of, asked, asked.endpoint, task_set, settings, turns)
            return lambda name: _scripted(parts_of, asked, name, task_set, settings, turns) if name else parts
        return lambda name: _scripted(parts_of, asked, name or asked.policy.scripted, task_set, settings, turns)
    config, checkpoint = _configuration(asked, parts_of)
    if config.model.is_tiny and (asked.tasks.kind or asked.tasks.level != "tiny"):
        raise BadInput(
            f"{asked.word} is a TinyAgent, whose vocabulary is that of bugfix-v1/tiny alone; evaluate it on that, or "
            "give a script as --policy"
        )
    context = stack.enter_context(parts_of.open_context(config, reporter))
    if asked.tasks.kind:
        task_set, settings = _of_others(asked, stack)
        _warn(task_set, reporter)
    else:
        task_set, settings = context.tasks(asked.split, asked.num_tasks), parts_of.settings_of(context.config)
    with bad_input_for(SamplerError):
        parts = parts_of.run_parts(
            context,
            checkpoint,
            task_set=task_set,
            settings=settings,
            word=asked.word,
            split=asked.split,
            temperature=config.rl.temperature if asked.temperature is None else asked.temperature,
            seed=asked.seed,
        )
    turns = config.tasks.max_turns
    return lambda name: _scripted(parts_of, asked, name, task_set, settings, turns) if name else parts


def _configuration(asked: Asked, parts_of: Any) -> tuple[TrainConfig, Path | None]:
    """The configuration of the agent that plays, and the checkpoint of its weights."""
    tasks = asked.tasks
    if asked.policy.run is None:
        return _of_model(asked, parts_of), None
    config = asked.policy.run.config
    if tasks.recipe is not None:
        config = config.model_copy(update={"tasks": tasks.recipe.tasks})
    elif tasks.level and tasks.level != config.tasks.level:
        config = config.model_copy(update={"tasks": config.tasks.model_copy(update={"level": tasks.level})})
    return config, parts_of.find_checkpoint(asked.policy.run, asked.policy.step)


def _of_model(asked: Asked, parts_of: Any) -> TrainConfig:
    """A Hugging Face model in the loop of a recipe where the tasks are one's, with room for replies of its own."""
    name, recipe = asked.policy.hugging_face, asked.tasks.recipe
    with bad_input_for(ConfigError):
        context = min(parts_of.model_context(name), LONGEST_CONTEXT)
        tasks = TasksConfig(level="small", report="full", max_turns=Limits().turns) if recipe is None else recipe.tasks
        if asked.tasks.level:
            tasks = tasks.model_copy(update={"level": asked.tasks.level})
        trained = HuggingFaceConfig() if recipe is None else recipe.hf
        thinking = trained.thinking if asked.thinking is None else asked.thinking
        return TrainConfig(
            recipe="model",
            tasks=tasks.model_copy(update={"max_reply": min(asked.max_tokens, context // 2)}),
            model=ModelConfig(name=name, context=context),
            hf=HuggingFaceConfig(
                thinking=thinking,
                dtype=asked.dtype,
                renderer=asked.renderer or trained.renderer,
                today=asked.today or trained.today,
            ),
            harness=HarnessConfig() if recipe is None else recipe.harness,
            sandbox=SandboxConfig() if recipe is None else recipe.sandbox,
        )


def _warn(task_set: Any, reporter: PlainReporter) -> None:
    """Say before anything is spent which attempts can never be scored."""
    if isinstance(task_set, MathTasks) and (unreadable := task_set.unreadable()):
        reporter.note(
            f"{len(unreadable)} of {len(task_set)} right answers cannot be read as mathematics, such as that of "
            f"{unreadable[0]}; attempts at these tasks stay unscored"
        )


def _behind_endpoint(
    parts_of: Any,
    asked: Asked,
    endpoint: Endpoint,
    task_set: Any,
    settings: Mapping[str, Any],
    turns: int | None,
) -> Any:
    recipe = asked.tasks.recipe
    agent = HarnessConfig() if recipe is None else recipe.harness
    context = None if recipe is None or agent.compaction == "none" else recipe.model.context  # as in training
    with bad_input_for(ConfigError):
        return parts_of.endpoint_parts(
            endpoint,
            task_set,
            split=asked.split,
            settings=settings,
            turns=turns,
            max_tokens=asked.max_tokens,
            seed=asked.seed,
            agent=agent,
            context=context,
        )


def _scripted(
    parts_of: Any, asked: Asked, name: str, task_set: Any, settings: Mapping[str, Any], turns: int | None
) -> Any:
    with bad_values():
        return parts_of.scripted_parts(
            name, task_set, split=asked.split, settings=settings, turns=turns, seed=asked.seed
        )


def _task_set(asked: Asked, stack: ExitStack) -> tuple[Any, Mapping[str, Any], int | None]:
    """The tasks without a run, their settings, and the turns that a recipe gives."""
    if asked.tasks.kind:
        return (*_of_others(asked, stack), None)
    recipe = asked.tasks.recipe
    if recipe is None:
        gym = BugFix(asked.tasks.level, asked.split, asked.num_tasks)
        stack.callback(gym.close)
        return gym, {}, None
    settings = recipe.tasks.for_evaluation()
    gym = BugFix(
        settings.level,
        asked.split,
        asked.num_tasks,
        report=settings.report,
        tests_writable=settings.tests_writable,
        reward=settings.reward,
        show_results=settings.show_results,
        on_hack=settings.on_hack,
        longest_program=settings.longest_program,
    )
    stack.callback(gym.close)
    return gym, {"tasks": settings.model_dump(exclude={"train_tasks"})}, settings.max_turns


def _of_others(asked: Asked, stack: ExitStack) -> tuple[Any, Mapping[str, Any]]:
    """Tasks that others made, and their settings."""
    kind, source = asked.tasks.kind, asked.tasks.source
    if kind == REASONING_GYM:
        threshold = 1.0 if asked.threshold is None else asked.threshold
        made = ReasoningGym(source, asked.split, asked.num_tasks, threshold=threshold)
        stack.callback(made.close)
        return made, {"threshold": threshold}
    found: HumanEvalFix | MathTasks = HumanEvalFix(source) if kind == HUMANEVALFIX else MathTasks(source)
    stack.callback(found.close)
    if asked.num_tasks > len(found):
        raise BadInput(f"--tasks {asked.num_tasks}: {found.id} has {len(found)}")
    if isinstance(found, HumanEvalFix):
        return _First(found, asked.num_tasks), {}
    first = MathTasks(source, asked.num_tasks)
    stack.callback(first.close)
    return first, {}


class _First:
    """The first tasks of a set."""

    def __init__(self, task_set: HumanEvalFix, number: int) -> None:
        self.id = task_set.id
        self._task_set = task_set
        self._tasks = [task_set[index] for index in range(number)]

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def environment(self, task: Task) -> Environment:
        """A fresh environment for one attempt at a task."""
        return self._task_set.environment(task)

    def solution(self, task_id: str) -> Mapping[str, str]:
        """The right files of a task."""
        return self._task_set.solution(task_id)


def folder_of(asked_out: Path | None, run: Path | None, runs: Path, spec: Spec) -> Path:
    """Where an evaluation is kept: below the run, under a name that differs where what is evaluated differs.

    Scripted policies beside ``--out DIR`` are kept in ``DIR-NAME``.
    """
    if asked_out is not None:
        return asked_out
    identity = {name: value for name, value in asdict(spec).items() if name != "policy"}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:6]
    place = spec.task_set.replace("/", "-")
    return (run or runs) / "evals" / f"{spec.weights.split()[0]}-{place}-{digest}"
