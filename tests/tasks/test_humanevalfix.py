"""HumanEvalFix: all right solutions pass, all buggy ones fail, and what is hidden stays hidden."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import TaskError
from agentrl.protocols import TaskSet
from agentrl.rewards.grading import PoolGrader
from agentrl.rewards.judge import Verdict
from agentrl.sandbox.jobs import Job, Limits, Suite
from agentrl.sandbox.pool import Pool
from agentrl.tasks.humanevalfix import LIMITS, SOURCE_PATH, TEST_PATH, HumanEvalFix, visible_tests
from tests.pools import open_pool

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "humanevalfix" / "humanevalpack-python.jsonl"
needs_data = pytest.mark.skipif(not DATA.is_file(), reason=f"no copy of the benchmark at {DATA}")

ROW = {
    "task_id": "Python/7",
    "prompt": 'def add(a, b):\n    """Add."""\n',
    "canonical_solution": "    return a + b\n",
    "buggy_solution": "    return a - b\n",
    "bug_type": "operator misuse",
    "entry_point": "add",
    "example_test": "def check(add):\n    # both\n    assert add(1, 2) == 3\n    assert add(0, 0) == 0\ncheck(add)\n",
    "test": "def check(add):\n    assert add(5, 7) == 12\n\ncheck(add)",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool(limits=Limits(wall_s=1.0)) as pool:
        yield pool


def written(folder: Path, *rows: dict[str, str]) -> HumanEvalFix:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HumanEvalFix(path)


def verdicts(pool: Pool, tasks: HumanEvalFix, programs: list[dict[str, str]]) -> list[Verdict]:
    grader = PoolGrader(pool, limits=LIMITS)

    async def all_of_them() -> list[Verdict]:
        pairs = zip(tasks, programs, strict=True)
        encoded = ((task, {path: text.encode() for path, text in files.items()}) for task, files in pairs)
        return await asyncio.gather(*(grader.grade(files, tasks.hidden(task.id)) for task, files in encoded))

    return asyncio.run(all_of_them())


@needs_data
def test_all_right_solutions_pass_and_all_buggy_ones_fail(pool: Pool) -> None:
    tasks = HumanEvalFix(DATA, pool=pool)
    assert len(tasks) == 164
    right = verdicts(pool, tasks, [dict(tasks.solution(task.id)) for task in tasks])
    wrong = verdicts(pool, tasks, [{SOURCE_PATH: task.files[SOURCE_PATH]} for task in tasks])
    assert [v.verdict for v in right] == ["pass"] * 164
    assert [v.verdict for v in wrong] == ["fail"] * 164


@needs_data
def test_all_visible_tests_pass_on_the_right_solutions(pool: Pool) -> None:
    tasks = HumanEvalFix(DATA, pool=pool)
    run = Suite(paths=(TEST_PATH,))
    results = pool.run_sync([Job(files={**t.files, **tasks.solution(t.id)}, run=run) for t in tasks])
    assert all(result.all_passed for result in results)


def test_a_row_becomes_a_task_that_hides_its_tests(tmp_path: Path) -> None:
    tasks = written(tmp_path, ROW)
    assert isinstance(tasks, TaskSet)
    assert (tasks.id, tasks[0].id, tasks[0].split) == ("humanevalfix-v1", "humanevalfix-v1/7", "test")
    assert tasks[0].files[SOURCE_PATH] == 'def add(a, b):\n    """Add."""\n    return a - b\n'
    assert "a + b" not in repr(tasks[0])
    assert "add(5, 7)" not in repr(tasks[0])


def test_the_example_asserts_become_tests_of_their_own() -> None:
    assert visible_tests("add", ROW["example_test"]) == (
        "from program import add\n"
        "\n\ndef test_1():\n    assert add(1, 2) == 3\n"
        "\n\ndef test_2():\n    assert add(0, 0) == 0\n"
    )


@pytest.mark.parametrize("example_test", ["", "    def check(s):\n  return s\n"])
def test_without_usable_examples_the_visible_test_asks_for_the_function(example_test: str) -> None:
    assert visible_tests("add", example_test).endswith("def test_1():\n    assert callable(add)\n")


def test_leaving_the_process_is_no_pass(tmp_path: Path, pool: Pool) -> None:
    tasks = written(tmp_path, ROW)
    for exit_call in ("sys.exit(0)", "os._exit(0)"):
        program = f"import os, sys\ndef add(a, b):\n    {exit_call}\n"
        assert verdicts(pool, tasks, [{SOURCE_PATH: program}])[0].verdict == "fail"


def test_the_environment_runs_the_examples(tmp_path: Path) -> None:
    tasks = written(tmp_path, ROW)
    assert "add(1, 2)" in asyncio.run(tasks.environment(tasks[0]).test()).content
    tasks.close()


def test_bad_sources_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no file '.*nothing.jsonl'"):
        HumanEvalFix(tmp_path / "nothing.jsonl")
    with pytest.raises(TaskError, match="row 1 has no field 'test'"):
        written(tmp_path, {key: value for key, value in ROW.items() if key != "test"})
    (tmp_path / "rows.jsonl").write_text("{")
    with pytest.raises(TaskError, match="not JSON, one row a line"):
        HumanEvalFix(tmp_path / "rows.jsonl")
    with pytest.raises(TaskError, match="task 'x' is not of this set"):
        written(tmp_path, ROW).solution("x")


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="the package `datasets` is installed")
def test_the_hub_needs_the_datasets_package() -> None:
    with pytest.raises(TaskError, match="needs the package `datasets`"):
        HumanEvalFix()
