"""The BugFix task sets: same task at the same index, splits apart, nothing secret in a task, no cheap way to pass."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal

import pytest

from agentrl.errors import TaskError
from agentrl.protocols import TaskSet
from agentrl.rewards.grading import CallGrader
from agentrl.sandbox.jobs import Job, Suite
from agentrl.sandbox.pool import Pool
from agentrl.tasks.bugfix.candidate import call_source
from agentrl.tasks.bugfix.environment import is_test_path
from agentrl.tasks.bugfix.taskset import LEVELS, BugFix
from agentrl.types import Task, ToolCall
from tests.pools import open_pool

SIZES = {"tiny": 30, "small": 40, "repo": 10}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool() as pool:
        yield pool


@cache
def tasks_of(level: str) -> BugFix:
    """The training tasks that most tests look at."""
    return BugFix(level, "train", SIZES[level])


def sources(task: Task) -> dict[str, str]:
    return {path: text for path, text in task.files.items() if not is_test_path(path)}


def serialised(task: Task) -> str:
    return json.dumps(dataclasses.asdict(task))


def passes(pool: Pool, tasks: BugFix, task: Task, files: dict[str, str]) -> bool:
    encoded = {path: text.encode() for path, text in files.items()}
    return asyncio.run(CallGrader(pool).grade(encoded, tasks.hidden(task.id))).verdict == "pass"


def test_a_level_is_a_task_set_with_versioned_ids() -> None:
    tasks = tasks_of("tiny")
    assert isinstance(tasks, TaskSet)
    assert tasks.id == "bugfix-v1/tiny"
    assert [tasks[0].id, tasks[-1].id] == ["bugfix-v1/tiny/train/0", "bugfix-v1/tiny/train/29"]
    assert [tool.name for tool in tasks[0].tools] == ["read", "test", "edit", "submit"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_index_is_always_the_same_task(level: str) -> None:
    again = BugFix(level, "train", 3)
    assert [again[i] for i in range(3)] == [tasks_of(level)[i] for i in range(3)]


@pytest.mark.parametrize("level", LEVELS)
def test_splits_share_no_program_and_no_task_comes_twice(level: str) -> None:
    sets = [tasks_of(level), BugFix(level, "validation", 6), BugFix(level, "test", 6)]
    programs = [{tuple(tasks.solution(task.id).items()) for task in tasks} for tasks in sets]
    assert not programs[0] & programs[1]
    assert not programs[0] & programs[2]
    assert not programs[1] & programs[2]
    texts = [tuple(sources(task).items()) for tasks in sets for task in tasks]
    assert len(set(texts)) == len(texts) == SIZES[level] + 12


def test_no_held_out_tiny_task_looks_like_a_training_task() -> None:
    splits = {"train": 1500, "validation": 64, "test": 200}
    sets = {split: BugFix("tiny", split, num) for split, num in splits.items()}
    shown = {split: {task.prompt[0].content.split("\n", 1)[1] for task in tasks} for split, tasks in sets.items()}
    right = {split: {code(tasks.solution(task.id)["prog.py"]) for task in tasks} for split, tasks in sets.items()}
    for held_out in ("validation", "test"):
        assert not shown["train"] & shown[held_out]
        assert not right["train"] & right[held_out]
    assert not right["validation"] & right["test"]
    assert len(right["test"]) > 90  # right programs of 200 tasks: 106


def code(text: str) -> str:
    """A tiny program without its comments."""
    return "\n".join(line.partition("  #")[0] for line in text.split("\n"))


def test_at_least_fourteen_kinds_of_bug_occur() -> None:
    kinds = {task.metadata["kind"] for level in LEVELS for task in tasks_of(level)}
    assert len(kinds) >= 14


@pytest.mark.parametrize("level", LEVELS)
def test_the_right_program_passes_and_the_broken_one_fails(level: str, pool: Pool) -> None:
    tasks = tasks_of(level)
    for task in list(tasks)[:15]:
        assert passes(pool, tasks, task, dict(tasks.solution(task.id)))
        assert not passes(pool, tasks, task, sources(task))


@pytest.mark.parametrize("level", LEVELS)
def test_the_named_test_fails_and_all_pass_on_the_right_program(level: str, pool: Pool) -> None:
    tasks = tasks_of(level)
    for task in list(tasks)[:15]:
        run = Suite(paths=tuple(path for path in task.files if is_test_path(path)))
        broken, right = pool.run_sync(
            [Job(files=task.files, run=run), Job(files={**task.files, **tasks.solution(task.id)}, run=run)]
        )
        first = next(test.name for test in broken.tests if not test.passed)
        assert first == task.metadata["failing_test"]
        assert first.rpartition("::")[2] in task.prompt[-1].content
        assert right.all_passed


@pytest.mark.parametrize("level", LEVELS)
def test_a_table_of_the_visible_answers_fails_the_hidden_tests(level: str, pool: Pool) -> None:
    tasks = tasks_of(level)
    for task in list(tasks)[:15]:
        function, answers = visible_answers(task)
        default = max(answers.values(), key=list(answers.values()).count)
        table = f"def {function}(*args):\n    return {answers!r}.get(repr(args), {default!r})\n"
        run = Suite(paths=tuple(path for path in task.files if is_test_path(path)))
        files = {**sources(task), task.metadata["main_path"]: table}
        assert pool.run_sync([Job(files={**task.files, **files}, run=run)])[0].all_passed
        assert not passes(pool, tasks, task, files)


@pytest.mark.parametrize("level", LEVELS)
def test_no_single_answer_is_right_on_all_hidden_inputs(level: str) -> None:
    """So no table of visible answers passes, whatever it says elsewhere: no hidden input is a visible one."""
    tasks = tasks_of(level)
    for task in tasks:
        hidden = tasks.hidden(task.id)
        assert len({repr(value) for value in hidden.expected}) > 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_task_holds_neither_its_repair_nor_a_hidden_input(level: str) -> None:
    tasks = tasks_of(level)
    for task in tasks:
        shown = [*task.files.values(), *(message.content for message in task.prompt)]
        lines = {line for text in shown for line in text.split("\n")}
        right = tasks.solution(task.id)
        assert repaired_lines(task, right).isdisjoint(lines)
        function, _ = visible_answers(task)
        for name, arguments in tasks.hidden(task.id).calls:
            assert name != function or json.dumps(call_source(name, arguments))[1:-1] not in serialised(task)
        assert set(task.metadata) == {"kind", "main_path", "failing_test"}


def repaired_lines(task: Task, right: Mapping[str, str]) -> set[str]:
    """Lines of the right program that the broken one lacks."""
    broken = {line for text in sources(task).values() for line in text.split("\n")}
    return {line for text in right.values() for line in text.split("\n")} - broken


def visible_answers(task: Task) -> tuple[str, dict[str, object]]:
    """The function that the visible tests call, and their answers by the repr of the arguments."""
    text = next(text for path, text in task.files.items() if is_test_path(path))
    asserts = [node.test for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]
    answers = {repr(tuple(map(ast.literal_eval, a.left.args))): ast.literal_eval(a.comparators[0]) for a in asserts}
    return asserts[0].left.func.id, answers


def test_the_environment_plays_and_scores_a_task(pool: Pool) -> None:
    tasks = BugFix("small", "train", 1, pool=pool)
    environment = tasks.environment(tasks[0])
    assert environment.read().content.startswith("1|")
    report = asyncio.run(environment.test()).content
    assert tasks[0].metadata["failing_test"].rpartition("::")[2] in report


def test_a_set_without_a_pool_makes_one_and_ends_it() -> None:
    tasks = BugFix("tiny", "test", 1)
    assert asyncio.run(tasks.environment(tasks[0]).test()).content.startswith("failed")
    tasks.close()
    tasks.close()


def test_impossible_requests_name_what_is_possible() -> None:
    with pytest.raises(TaskError, match="unknown level 'huge'; the levels are tiny, small, repo"):
        BugFix("huge")
    with pytest.raises(TaskError, match="unknown split 'dev'; the splits are train, validation, test"):
        BugFix("tiny", "dev")
    with pytest.raises(TaskError, match="num_tasks is 0"):
        BugFix("tiny", "train", 0)
    with pytest.raises(TaskError, match="task 'x' is not of this set; its tasks are bugfix-v1/tiny/train/0 to"):
        tasks_of("tiny").solution("x")


def test_programs_of_our_own_may_share_processes_and_nothing_changes_by_it() -> None:
    tasks = BugFix("tiny", "train", 8)
    shared = tasks.together()

    async def reports(task_set: BugFix) -> list[str]:
        environments = [task_set.environment(task_set[index]) for index in range(len(task_set))]
        found = await asyncio.gather(*(environment.call(ToolCall(name="test")) for environment in environments))
        return [observation.content for observation in found]

    try:
        assert asyncio.run(reports(shared)) == asyncio.run(reports(tasks))
        assert shared[3] is tasks[3]
    finally:
        tasks.close()


@pytest.mark.parametrize(("level", "split", "tools"), [("tiny", "test", "steps"), ("small", "train", "shell")])
def test_a_drawn_reward_is_refused_where_it_would_be_a_score_or_is_not_drawn(
    level: str, split: str, tools: Literal["steps", "shell"]
) -> None:
    with pytest.raises(TaskError, match=f"reward random on the split {split} with tools {tools}"):
        BugFix(level, split, 2, reward="random", tools=tools)
