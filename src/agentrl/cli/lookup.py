"""One task by its id, for the commands that take one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import typer

from agentrl.cli import BadInput
from agentrl.rewards.grading import AnyHidden
from agentrl.tasks import humanevalfix
from agentrl.tasks.bugfix import taskset
from agentrl.types import Task

DATA = typer.Option(humanevalfix.HUB_NAME, "--data", metavar="FILE", help="The tasks of HumanEvalFix, as JSONL.")


class Found(NamedTuple):
    """A task, its hidden tests, and the sources of the right program, path to text."""

    task: Task
    hidden: AnyHidden
    solution: Mapping[str, str]


def find_task(task_id: str, data: str = humanevalfix.HUB_NAME) -> Found:
    """The task of an id.

    Args:
        task_id: ``bugfix-v1/LEVEL/SPLIT/INDEX`` or ``humanevalfix-v1/INDEX``.
        data: where the tasks of HumanEvalFix are.

    Raises:
        BadInput: text that is no id of a task.
        TaskError: the task's set cannot be had, or has no such task.
    """
    version, _, rest = task_id.partition("/")
    if version == humanevalfix.VERSION and _is_index(rest):
        return _found(humanevalfix.HumanEvalFix(data), task_id, int(rest))
    level, _, rest = rest.partition("/")
    split, _, index = rest.partition("/")
    if version != taskset.VERSION or not _is_index(index):
        known = f"{taskset.VERSION}/LEVEL/SPLIT/INDEX or {humanevalfix.VERSION}/INDEX"
        raise BadInput(f"{task_id!r} is no task; write {known}, such as {taskset.VERSION}/tiny/train/0")
    return _found(taskset.BugFix(level, split, int(index) + 1), task_id, int(index))


def _found(tasks: taskset.BugFix | humanevalfix.HumanEvalFix, task_id: str, index: int) -> Found:
    hidden = tasks.hidden(task_id)  # says which tasks there are when this is none of them
    return Found(tasks[index], hidden, tasks.solution(task_id))


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal()
