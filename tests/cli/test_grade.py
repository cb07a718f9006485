"""`agentrl grade` on directories as people leave them, against the real gym, the real judge and real walls."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import pool
from agentrl.sandbox.choose import survey
from agentrl.tasks import humanevalfix
from tests.cli.conftest import Command

TASK = "bugfix-v1/tiny/train/0"
WALLS = max(
    (support.level.name.lower() for support in survey() if support.works),
    key=["none", "limits", "landlock", "namespaces"].index,
)
pytestmark = pytest.mark.skipif(WALLS not in ("landlock", "namespaces"), reason=f"the walls here are only {WALLS}")


def grade(agentrl: Command, folder: object, *more: str) -> dict:
    done = agentrl("grade", "--task", TASK, "--workspace", str(folder), "--level", WALLS, "--json", *more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def exported(agentrl: Command, tmp_path: Path) -> dict[str, Path]:
    for name, extra in (("broken", []), ("solved", ["--solution"])):
        assert agentrl("tasks", "export", TASK, name, *extra).returncode == 0
    return {name: tmp_path / name for name in ("broken", "solved")}


def test_the_solution_passes_and_the_broken_program_does_not(agentrl: Command, exported: dict[str, Path]) -> None:
    found = grade(agentrl, exported["solved"])
    total = found["tests"]["total"]
    assert found.pop("wall_ms") > 0
    assert found == {
        "task": TASK,
        "verdict": "pass",
        "reward": 1.0,
        "tier": 1,
        "tests": {"passed": total, "total": total},
    }
    found = grade(agentrl, exported["broken"])
    assert (found["verdict"], found["reward"]) == ("fail", 0.0)
    assert found["tests"]["passed"] < found["tests"]["total"] == total


def test_for_people_it_is_one_line(agentrl: Command, exported: dict[str, Path]) -> None:
    done = agentrl("grade", "--task", TASK, "--workspace", "solved", "--level", WALLS)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{TASK}: pass (")
    assert done.stdout.count("\n") == 1


def test_files_that_steer_change_nothing(agentrl: Command, exported: dict[str, Path]) -> None:
    for name in ("conftest.py", "sitecustomize.py", "unittest.py", "random.py", "test_main.py"):
        (exported["broken"] / name).write_text("import os\nos._exit(0)\n")
        (exported["solved"] / name).write_text("1 / 0\n")
    assert grade(agentrl, exported["broken"])["verdict"] == "fail"
    assert grade(agentrl, exported["solved"])["verdict"] == "pass"


def test_a_source_that_is_a_link_counts_as_missing(agentrl: Command, exported: dict[str, Path]) -> None:
    (source,) = (path for path in exported["solved"].glob("*.py") if not path.name.startswith("test_"))
    shutil.move(source, exported["solved"].parent / "elsewhere.py")
    os.symlink("../elsewhere.py", source)
    done = agentrl("grade", "--task", TASK, "--workspace", "solved", "--level", WALLS, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["tests"]["passed"]) == (0, "fail", 0)
    assert done.stderr == f"note: {source.name} is no regular file in solved; it counts as missing\n"


def test_no_verdict_is_a_failure_with_the_reason(
    agentrl: Command, exported: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_):
        raise SandboxError("no box today")

    monkeypatch.setattr(pool, "open_lane", nothing)
    done = agentrl("grade", "--task", TASK, "--workspace", "solved", "--level", WALLS, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["reward"]) == (1, "error", None)
    assert "no box today" in found["why"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--task", "17", "--workspace", "solved"],
            "'17' is no task; write bugfix-v1/LEVEL/SPLIT/INDEX or humanevalfix-v1/INDEX",
        ),
        (
            ["--task", "bugfix-v1/huge/train/1", "--workspace", "solved"],
            "bugfix-v1/huge/train/1: unknown level 'huge'",
        ),
        (
            ["--task", "bugfix-v1/tiny/train/007", "--workspace", "solved"],
            "task 'bugfix-v1/tiny/train/007' is not of this set",
        ),
        (["--task", TASK, "--workspace", "gone"], f"{TASK}: no workspace 'gone'"),
        (
            ["--task", TASK, "--workspace", "solved", "--level", "steel"],
            "--level 'steel': write one of landlock, namespaces",
        ),
        (
            ["--task", "humanevalfix-v1/3", "--workspace", "solved", "--data", "gone.jsonl"],
            "humanevalfix-v1/3: no file 'gone.jsonl'",
        ),
    ],
)
def test_bad_input_says_what_to_write(agentrl: Command, words: list[str], message: str) -> None:
    done = agentrl("grade", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize("level", ["small", "repo"])
def test_what_was_exported_can_be_graded_at_each_level(agentrl: Command, level: str) -> None:
    task = f"bugfix-v1/{level}/train/0"
    for name, extra, verdict in (("broken", [], "fail"), ("solved", ["--solution"], "pass")):
        assert agentrl("tasks", "export", task, name, *extra).returncode == 0
        done = agentrl("grade", "--task", task, "--workspace", name, "--level", WALLS, "--json")
        assert (done.returncode, done.stderr, json.loads(done.stdout)["verdict"]) == (0, "", verdict)


PROMPT = "def twice(x):\n"
ROW = {
    "task_id": "Python/0",
    "prompt": PROMPT,
    "canonical_solution": "    return 2 * x\n",
    "buggy_solution": "    return 3 * x\n",
    "bug_type": "value misuse",
    "entry_point": "twice",
    "example_test": "def check(f):\n    assert f(1) == 2\n",
    "test": "def check(f):\n    assert f(4) == 8\ncheck(twice)\n",
}
CHECKED = "humanevalfix-v1/0"


def grade_row(agentrl: Command, folder: Path, *, program: str, row: dict | None = None) -> tuple[int, dict, str]:
    """Exit status, JSON and errors of grading a program by a data set of one task."""
    (folder / "data.jsonl").write_text(json.dumps({**ROW, **(row or {})}) + "\n")
    (folder / "work").mkdir()
    (folder / "work" / "program.py").write_text(program)
    words = ["--task", CHECKED, "--data", "data.jsonl", "--workspace", "work", "--level", WALLS, "--json"]
    done = agentrl("grade", *words)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.parametrize(("body", "verdict"), [("canonical_solution", "pass"), ("buggy_solution", "fail")])
def test_humanevalfix_is_graded_from_a_file(agentrl: Command, tmp_path: Path, body: str, verdict: str) -> None:
    status, found, errors = grade_row(agentrl, tmp_path, program=PROMPT + ROW[body])
    assert (status, found["task"], found["verdict"], errors) == (0, CHECKED, verdict, "")


CRASHES = {
    "a name that is not there": (
        "def check(f):\n    assert f(4) == eight\ncheck(twice)\n",
        "name 'eight' is not defined",
    ),
    "before it asks": ("1 / 0\ndef check(f):\n    assert f(4) == 8\ncheck(twice)\n", "division by zero"),
    "after it asked": ("def check(f):\n    assert f(4) == 8\n    [][0]\ncheck(twice)\n", "list index out of range"),
    "wrong about the right program": ("def check(f):\n    assert f(4) == 9\ncheck(twice)\n", "AssertionError"),
    "with the judge": ("def check(f):\n    __import__('os')._exit(0)\ncheck(twice)\n", "the judge's process has died"),
}


@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.parametrize("body", ["canonical_solution", "buggy_solution"])
def test_a_hidden_test_that_crashes_is_no_verdict(agentrl: Command, tmp_path: Path, name: str, body: str) -> None:
    test, why = CRASHES[name]
    status, found, errors = grade_row(agentrl, tmp_path, program=PROMPT + ROW[body], row={"test": test})
    assert (status, found["task"], found["verdict"], found["reward"], errors) == (1, CHECKED, "error", None, "")
    assert why in found["why"]


def test_for_people_no_verdict_names_the_task_too(agentrl: Command, tmp_path: Path) -> None:
    grade_row(agentrl, tmp_path, program="x = 1", row={"test": "def check(f):\n    eight\ncheck(twice)\n"})
    words = ["--task", CHECKED, "--data", "data.jsonl", "--workspace", "work", "--level", WALLS]
    done = agentrl("grade", *words)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{CHECKED}: error (0 of 1 hidden tests")
    assert done.stderr.startswith(f"{CHECKED}: no verdict: the hidden tests do not pass the task's own solution")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"test": "def check(f:\n"}, "does not parse (line 1"),
        ({"test": "x = 1\n"}, "does not end in check(FUNCTION)"),
        ({"canonical_solution": "    return (\n"}, "does not parse"),
    ],
)
def test_a_task_that_is_malformed_is_bad_input(agentrl: Command, tmp_path: Path, row: dict, problem: str) -> None:
    status, found, errors = grade_row(agentrl, tmp_path, program=PROMPT, row=row)
    assert (status, found) == (2, {})
    assert errors.startswith(f"error: {CHECKED}: ")
    assert problem in errors


@pytest.mark.parametrize("path", ["../program.py", "/etc/program.py", "a/../../program.py"])
def test_a_task_with_a_path_outside_of_the_workspace_is_bad_input(
    agentrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(humanevalfix, "SOURCE_PATH", path)
    status, found, errors = grade_row(agentrl, tmp_path, program=PROMPT + ROW["canonical_solution"])
    assert (status, found) == (2, {})
    assert errors == f"error: {CHECKED}: its file {path!r} lies outside of the workspace; mend the task\n"


def test_an_interpreter_that_is_missing_is_no_verdict(
    agentrl: Command, exported: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    done = agentrl("grade", "--task", TASK, "--workspace", "solved", "--level", WALLS, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["task"], found["verdict"], found["reward"]) == (1, TASK, "error", None)
    assert "No such file or directory" in found["why"]


def test_a_link_to_the_workspace_will_do(agentrl: Command, exported: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("solved")
    assert grade(agentrl, "link")["verdict"] == "pass"


def test_a_source_that_is_missing_is_told(agentrl: Command, exported: dict[str, Path]) -> None:
    (source,) = (path for path in exported["solved"].glob("*.py") if not path.name.startswith("test_"))
    source.unlink()
    done = agentrl("grade", "--task", TASK, "--workspace", "solved", "--level", WALLS, "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "fail")
    assert done.stderr == f"note: {source.name} is no regular file in solved; it counts as missing\n"
