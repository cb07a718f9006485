"""`agentrl tasks` against the real gym and its real sandbox."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_tasks_are_listed_the_same_each_time(agentrl: Command) -> None:
    rows = json.loads(agentrl("tasks", "list", "--n", "4", "--json").stdout)
    assert [row["id"] for row in rows] == [f"bugfix-v1/tiny/train/{index}" for index in range(4)]
    assert {"kind", "family", "failing_test"} <= set(rows[0])
    assert json.loads(agentrl("tasks", "list", "--n", "4", "--json").stdout) == rows
    shown = agentrl("tasks", "list", "--n", "4").stdout
    assert all(row["id"] in shown and row["kind"] in shown for row in rows)


def test_a_narrow_page_folds_no_name(agentrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = json.loads(agentrl("tasks", "list", "--level", "small", "--n", "3", "--json").stdout)
    lines = agentrl("tasks", "list", "--level", "small", "--n", "3").stdout.splitlines()
    assert lines[0].split() == ["id", "family", "kind", "of", "bug", "failing", "test"]
    assert [line.split() for line in lines[1:]] == [
        [*f"{row['id']} {row['family']} {row['kind']} {row['failing_test']}".split()] for row in rows
    ]
    assert len({line.index(row["family"]) for line, row in zip(lines[1:], rows, strict=True)}) == 1


def test_a_task_is_shown_as_the_agent_gets_it(agentrl: Command) -> None:
    task = json.loads(agentrl("tasks", "show", "bugfix-v1/tiny/test/1", "--json").stdout)
    shown = agentrl("tasks", "show", "bugfix-v1/tiny/test/1").stdout
    assert all(text.rstrip() in shown for text in task["files"].values())
    assert "tools: read, test, edit, submit" in shown
    assert task["split"] == "test"


def test_validation_counts_everything_that_was_generated(agentrl: Command) -> None:
    found = json.loads(agentrl("tasks", "validate", "--level", "tiny", "--n", "12", "--json").stdout)["tiny"]
    assert found["kept"] == sum(found["kinds"].values()) == 12
    assert found["generated"] == found["kept"] + sum(found["dropped"].values())
    text = agentrl("tasks", "validate", "--level", "tiny", "--n", "12").stdout
    assert f"tiny/train: {found['generated']} generated, 12 kept; dropped: " in text


def pytest_passes(folder: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def test_an_exported_task_fails_its_tests_and_its_solution_passes_them(agentrl: Command, tmp_path: Path) -> None:
    (tmp_path / "solved").mkdir()  # an empty folder will do
    for folder, extra in (("broken", []), ("solved", ["--solution"])):
        done = agentrl("tasks", "export", "bugfix-v1/small/train/0", folder, *extra)
        assert done.returncode == 0, done.stderr
        assert f"its tests need pytest (pip install pytest): cd {folder} && python -m pytest\n" in done.stdout
    assert not pytest_passes(tmp_path / "broken")
    assert pytest_passes(tmp_path / "solved")


def test_export_overwrites_nothing(agentrl: Command, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.py").write_text("mine")
    done = agentrl("tasks", "export", "bugfix-v1/tiny/train/0", "full")
    assert (done.returncode, done.stdout) == (2, "")
    assert "full is not an empty folder; nothing in it is overwritten" in done.stderr
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.py"]


def test_export_says_when_a_folder_cannot_be_written(agentrl: Command, tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("")
    done = agentrl("tasks", "export", "bugfix-v1/tiny/train/0", "afile/x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: afile/x cannot be written (Not a directory); choose another folder\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "17"], "'17' is no task; write bugfix-v1/LEVEL/SPLIT/INDEX"),
        (["show", "bugfix-v1/tiny/train/-1"], "is no task"),
        (["show", "bugfix-v0/tiny/train/1"], "is no task"),
        (["show", "bugfix-v1/huge/train/1"], "unknown level 'huge'; the levels are tiny, small, repo"),
        (["list", "--split", "dev"], "unknown split 'dev'; the splits are train, validation, test"),
        (["lst"], "Did you mean 'list'?"),
        (["list", "--n", "0"], "num_tasks is 0; a task set has at least one task"),
    ],
)
def test_bad_input_says_what_to_write(agentrl: Command, words: list[str], message: str) -> None:
    done = agentrl("tasks", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


ROW = {
    "task_id": "Python/0",
    "prompt": "def twice(x):\n",
    "canonical_solution": "    return 2 * x\n",
    "buggy_solution": "    return 3 * x\n",
    "bug_type": "value misuse",
    "entry_point": "twice",
    "example_test": "def check(f):\n    assert f(1) == 2\ncheck(twice)\n",
    "test": "def check(f):\n    assert f(5) == 10\ncheck(twice)\n",
}


def test_a_task_of_humanevalfix_is_exported_and_graded(agentrl: Command, tmp_path: Path) -> None:
    data, task = tmp_path / "rows.jsonl", "humanevalfix-v1/0"
    data.write_text(json.dumps(ROW) + "\n")
    for name, option, verdict in (("broken", [], "fail"), ("right", ["--solution"], "pass")):
        folder = tmp_path / name
        exported = agentrl("tasks", "export", task, str(folder), "--data", str(data), *option)
        assert exported.returncode == 0, exported.stderr
        graded = agentrl(
            "grade", "--task", task, "--workspace", str(folder), "--data", str(data), "--json", "--allow-unsafe"
        )
        assert json.loads(graded.stdout)["verdict"] == verdict
    shown = agentrl("tasks", "show", task, "--data", str(data))
    assert "assert f(5)" not in shown.stdout
    assert "def twice(x)" in shown.stdout
