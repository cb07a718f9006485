"""The same tasks for models that know a shell."""

import asyncio

import pytest

from agentrl.errors import TaskError
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.types import ToolCall
from tests.pools import open_pool


@pytest.fixture(scope="module")
def pool():
    with open_pool(1) as opened:
        yield opened


@pytest.fixture(scope="module", params=["small", "repo"])
def tasks(request, pool):
    return BugFix(request.param, "train", 1, pool=pool, tools="shell")


async def play(tasks, *commands):
    """Answers to commands, and the scores of what they left."""
    environment = tasks.environment(tasks[0])
    try:
        answers = [
            (await environment.call(ToolCall(name="shell", arguments={"command": command}))).content
            for command in commands
        ]
        return answers, {score.name: score.value for score in await environment.score(None)}
    finally:
        await environment.close()


def test_a_task_tells_of_the_tools_that_there_are(tasks):
    task = tasks[0]
    assert {tool.name for tool in task.tools} == {"shell", "edit", "submit"}
    assert "`shell`" in task.prompt[0].content
    assert "`test`" not in task.prompt[0].content
    assert task.metadata["failing_test"] in task.prompt[1].content
    assert task.files == BugFix(task.id.split("/")[1], "train", 1)[0].files


def test_the_bug_is_seen_and_the_right_program_passes(tasks):
    task = tasks[0]
    writes = [f"cat > {path} <<'END'\n{text}END" for path, text in tasks.solution(task.id).items()]
    before, *_, after = asyncio.run(play(tasks, "python -m pytest -q", *writes, "python -m pytest -q"))[0]
    assert "1 failed" in before or "failed" in before
    assert "failed" not in after
    assert asyncio.run(play(tasks, *writes))[1] == {"hidden_tests": 1.0, "tests_changed": 0.0}


def test_the_broken_program_fails_and_so_does_a_changed_test(tasks):
    assert asyncio.run(play(tasks))[1] == {"hidden_tests": 0.0, "tests_changed": 0.0}
    path = tasks[0].metadata["failing_test"].partition("::")[0]
    _, scores = asyncio.run(play(tasks, f"echo 'def test_1(): pass' > {path}; python -m pytest -q"))
    assert scores == {"hidden_tests": 0.0, "tests_changed": 1.0}


def test_a_vocabulary_without_words_for_a_shell_is_refused(pool):
    with pytest.raises(TaskError, match="tiny has no words for a shell; take the level small or repo"):
        BugFix("tiny", "train", 1, pool=pool, tools="shell")


def test_programs_that_share_a_process_have_no_shell(tasks):
    with pytest.raises(TaskError, match="give a Pool and not a Together"):
        tasks.together().environment(tasks[0])


def test_the_prompt_says_that_tests_cannot_be_changed_only_where_that_is_so(pool):
    fixed, writable = (BugFix("small", "train", 1, pool=pool, tests_writable=flag)[0] for flag in (False, True))
    assert "The tests cannot be changed." in fixed.prompt[0].content
    assert "cannot be changed" not in writable.prompt[0].content
