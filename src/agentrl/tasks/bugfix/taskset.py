"""The BugFix gym as a task set: every task is generated from its name and proved by running it."""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from agentrl.errors import TaskError
from agentrl.rewards.grading import CallGrader
from agentrl.rewards.hacking import OnHack
from agentrl.rewards.programs import HiddenCalls
from agentrl.sandbox.choose import choose
from agentrl.sandbox.jobs import Limits
from agentrl.sandbox.pool import Lease, Pool
from agentrl.sandbox.pooled import PooledBackend
from agentrl.sandbox.together import Runner, Together
from agentrl.tasks.bugfix import repo, small, tiny
from agentrl.tasks.bugfix.candidate import Candidate, Generator, test_file, test_path
from agentrl.tasks.bugfix.environment import BugFixEnvironment, Reward
from agentrl.tasks.bugfix.report import Style
from agentrl.tasks.bugfix.validate import (
    SPLITS,
    Expressible,
    Split,
    Validated,
    ValidationReport,
    Validator,
    hidden_calls,
)
from agentrl.tasks.environment import ToolEnvironment
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.folder import SYSTEM_PROMPT as SHELL_PROMPT
from agentrl.types import Message, Task

LevelName = Literal["tiny", "small", "repo"]
Tools = Literal["steps", "shell"]
Prompt = Callable[[Validated], tuple[Message, ...]]

VERSION = "bugfix-v1"
PATIENCE = 2000
"""Programs after which it is clear that none is short enough."""
SYSTEM_PROMPT = (
    "You repair Python programs. You have four tools: `read` shows a file with line numbers, `test` runs the visible "
    "tests, `edit` replaces one line, and `submit` hands the work in and ends the attempt. Find the bug, change as "
    "little as you can, run the tests, and submit when they pass. Hidden tests with other inputs decide, so repair "
    "the program itself and do not write code for the visible examples. The tests cannot be changed."
)
_READ_ONLY = " The tests cannot be changed."


@dataclass(frozen=True, kw_only=True)
class Level:
    """What makes a level: its stream of candidates, what the agent is told, which tasks it can take, and whether its
    programs import nothing, so that they may be validated together in one process. ``cpu_s`` is the processor time
    after which a program counts as endless; it is many times what the slowest needs."""

    candidates: Generator
    prompt: Prompt
    expressible: Expressible | None = None
    together: bool = False
    cpu_s: float = 0.1


def chat_prompt(validated: Validated) -> tuple[Message, ...]:
    """What a language model is told: its tools, and which test fails."""
    candidate = validated.candidate
    name = f"{test_path(candidate)}::test_{validated.failing}"
    user = f"{candidate.instruction} The test `{name}` fails. Repair the program so that it does what it documents."
    return Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=user)


def _tiny_prompt(validated: Validated) -> tuple[Message, ...]:
    candidate = validated.candidate
    return tiny.prompt(candidate.files[candidate.main_path], f"test_{validated.failing}")


LEVELS: Mapping[str, Level] = MappingProxyType(
    {
        "tiny": Level(candidates=tiny.candidates, prompt=_tiny_prompt, together=True, cpu_s=0.025),
        "small": Level(candidates=small.candidates, prompt=chat_prompt),
        "repo": Level(candidates=repo.candidates, prompt=chat_prompt),
    }
)


@lru_cache(maxsize=16)
def generate(
    level: str, split: str, num_tasks: int, longest: int | None = None
) -> tuple[tuple[Validated, ...], ValidationReport]:
    """The first tasks of a level's split, of programs of at most ``longest`` lines. The same task always stands at the
    same index.

    Raises:
        TaskError: an unknown level or split, or more tasks than there are different ones.
        SandboxError: the machinery that runs programs failed.
    """
    chosen, known_split = _level(level), _split(split)
    rng = random.Random(f"{VERSION}/{level}/{split}")
    backend = choose(allow_unsafe=True).backend  # the programs are of our own making
    with Pool(backend, limits=Limits(wall_s=5.0, cpu_s=chosen.cpu_s)) as pool:
        validator = Validator(pool, split=known_split, expressible=chosen.expressible, together=chosen.together)
        found = tuple(itertools.islice(validator.tasks(_short(chosen.candidates(rng), longest)), num_tasks))
    return found, validator.report


def _short(candidates: Iterator[Candidate], longest: int | None) -> Iterator[Candidate]:
    """Those of programs with at most so many lines."""
    shortest, passed = sys.maxsize, 0
    for candidate in candidates:
        lines = len(candidate.files[candidate.main_path].splitlines())
        if longest is None or lines <= longest:
            yield candidate
            continue
        shortest, passed = min(shortest, lines), passed + 1
        if passed == PATIENCE and shortest > longest:
            raise TaskError(f"longest_program is {longest}; the shortest program of this level has {shortest} lines")


class BugFix:
    """Repair tasks of one level and split: the sources and visible tests of a broken program.

    The right programs and the hidden tests are kept here and are in no task.

    Args:
        level: ``tiny``, ``small`` or ``repo``.
        split: ``train``, ``validation`` or ``test``; no two share a program.
        num_tasks: how many tasks, at least one. More tasks leave the earlier ones as they are.
        pool: where the programs of attempts run. None makes one on first use, which `close` ends.
        report: what the tool ``test`` answers; None means short for ``tiny`` and full for the others.
        tests_writable: whether ``edit`` may change the visible tests.
        reward: ``hidden``, or ``visible`` for experiments with a reward that can be exploited, or ``random`` for
            controls, on the split ``train`` alone.
        show_results: False hides what the visible tests say, for experiments.
        on_hack: what becomes of the reward of an attempt with signs of hacking; see `rewards.hacking`.
        tools: ``steps`` are ``read``, ``test``, ``edit`` and ``submit``; ``shell`` are ``shell``, an ``edit`` of exact
            text, and ``submit``, for models that know a shell. In a shell every file can be written, and the hidden
            tests decide, whatever the three settings of tests and results say.
        longest_program: lines of the longest program that is taken; a set of its own, with other tasks than the set
            without it.

    Raises:
        TaskError: an unknown level or split, no tasks, more than there are, a shell for ``tiny``, whose vocabulary
            has no words for it, or a random reward for a shell or on a split that measures.
        SandboxError: the machinery that runs programs failed.
    """

    def __init__(
        self,
        level: str,
        split: str = "train",
        num_tasks: int = 100,
        *,
        pool: Runner | None = None,
        report: Style | None = None,
        tests_writable: bool = False,
        reward: Reward = "hidden",
        show_results: bool = True,
        on_hack: OnHack = "nothing",
        tools: Tools = "steps",
        longest_program: int | None = None,
    ) -> None:
        if tools == "shell" and level == "tiny":
            raise TaskError("level tiny has no words for a shell; take the level small or repo")
        if reward == "random" and (split != "train" or tools == "shell"):
            raise TaskError(
                f"reward random on the split {split} with tools {tools}: a drawn reward measures nothing, and a shell "
                "has none; take the split train with the tools steps, or the reward hidden"
            )
        if num_tasks < 1:
            raise TaskError(f"num_tasks is {num_tasks}; a task set has at least one task")
        self.id = f"{VERSION}/{level}" + ("" if longest_program is None else f"-{longest_program}")
        self.validation: ValidationReport
        found, self.validation = generate(level, split, num_tasks, longest_program)
        self._lease = Lease(pool)
        self._report: Style = report or ("short" if level == "tiny" else "full")
        self._tests_writable = tests_writable
        self._reward: Reward = reward
        self._show_results = show_results
        self._on_hack: OnHack = on_hack
        self._tools: Tools = tools
        self._tasks = tuple(self._task(level, split, index, validated) for index, validated in enumerate(found))
        self._private = {task.id: validated for task, validated in zip(self._tasks, found, strict=True)}

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def environment(self, task: Task) -> ToolEnvironment:
        """A fresh workspace for one attempt at ``task``, which must be a task of this set.

        Raises:
            TaskError: a task that is not of this set.
        """
        candidate, pool = self._validated(task.id).candidate, self._lease.get()
        if self._tools == "shell":
            if not isinstance(pool, Pool):
                raise TaskError(
                    f"{task.id}: a shell needs boxes of its own; give a Pool and not a {type(pool).__name__}"
                )
            hidden, boxes = self.hidden(task.id), PooledBackend(pool)
            return ShellEnvironment(task, boxes, grader=CallGrader(pool), hidden=hidden, on_hack=self._on_hack)
        return BugFixEnvironment(
            task,
            runner=pool,
            grader=CallGrader(pool),
            hidden=self.hidden(task.id),
            main=candidate.main_path,
            report=self._report,
            tests_writable=self._tests_writable,
            reward=self._reward,
            show_results=self._show_results,
            on_hack=self._on_hack,
        )

    def together(self, num_shares: int = 2) -> BugFix:
        """The same tasks for attempts whose programs are our own, such as demonstrations: they share processes."""
        shared = copy.copy(self)
        shared._lease = Lease(Together(self._lease.get(), num_shares))
        return shared

    def hidden(self, task_id: str) -> HiddenCalls:
        """The hidden tests of a task, for scorers only. Raises TaskError for a task that is not of this set."""
        validated = self._validated(task_id)
        calls = hidden_calls(validated.candidate)
        return HiddenCalls(module=validated.candidate.module, calls=calls, expected=validated.hidden)

    def solution(self, task_id: str) -> Mapping[str, str]:
        """The right source files, path to text. Raises TaskError for a task that is not of this set."""
        return dict(self._validated(task_id).candidate.reference)

    def close(self) -> None:
        """End the pool that this set made for itself, if it did. Safe to call twice."""
        self._lease.close()

    def _task(self, level: str, split: str, index: int, validated: Validated) -> Task:
        candidate = validated.candidate
        path, text = test_file(candidate, validated.visible)
        return Task(
            id=f"{self.id}/{split}/{index}",
            prompt=self._prompt(level, validated),
            tools=(ShellEnvironment if self._tools == "shell" else BugFixEnvironment).tool_specs(),
            files={**candidate.files, path: text},
            metadata={
                "kind": candidate.kind,
                "main_path": candidate.main_path,
                "failing_test": f"{path}::test_{validated.failing}",
            },
            family=f"{level}/{candidate.family}",
            split=split,
        )

    def _prompt(self, level: str, validated: Validated) -> tuple[Message, ...]:
        """What the level says, in words for the tools that there are."""
        first, *others = LEVELS[level].prompt(validated)
        if level == "tiny":
            return (first, *others)
        steps = SYSTEM_PROMPT.removesuffix(_READ_ONLY) if self._tests_writable else SYSTEM_PROMPT
        return (replace(first, content=SHELL_PROMPT if self._tools == "shell" else steps), *others)

    def _validated(self, task_id: str) -> Validated:
        if task_id not in self._private:
            first, last = self._tasks[0].id, self._tasks[-1].id
            raise TaskError(f"task {task_id!r} is not of this set; its tasks are {first} to {last}")
        return self._private[task_id]


def _level(name: str) -> Level:
    if name not in LEVELS:
        raise TaskError(f"unknown level {name!r}; the levels are {', '.join(LEVELS)}")
    return LEVELS[name]


def _split(name: str) -> Split:
    for split in SPLITS:
        if split == name:
            return split
    raise TaskError(f"unknown split {name!r}; the splits are {', '.join(SPLITS)}")
