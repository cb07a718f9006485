"""`agentrl plan`: tasks, attempts and their cost, from nothing or from what a run has measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config import TrainConfig
from agentrl.store import RunFolder
from tests.cli.conftest import Command, attempt


@pytest.fixture
def table(tmp_path: Path) -> None:
    """40 tasks with four attempts each, of which task n passes n mod 5."""
    rows = [f"t{n},{k},{int(k < n % 5)},12" for n in range(40) for k in range(4)]
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["task,attempt,score,tokens", *rows]) + "\n")


def test_without_a_run_the_worked_numbers_are_shown(agentrl: Command) -> None:
    done = agentrl("plan", "--delta", "0.03")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["1", "3,876", "7,752", "?", "?"] in rows
    assert ["4", "1,696", "13,568", "?", "?"] in rows


def test_from_an_evaluation_costs_come_from_its_own_rates(agentrl: Command, table: None) -> None:
    found = json.loads(agentrl("plan", "--delta", "0.2", "--from", "a.csv", "--json").stdout)
    first = found["options"][0]
    assert first["tokens"] == 2 * first["tasks"] * 12
    assert first["seconds"] is None
    assert (found["tasks"], found["assumed"]["tasks"]) == (40, 40)
    assert found["attempts_with_tasks"] >= 1
    out = agentrl("plan", "--delta", "0.01", "--from", "a.csv", "--from", "b.csv", "--tasks", "10").stdout
    assert "measured on 40 tasks of a.csv and b.csv" in out


def test_the_time_of_a_run_is_that_of_its_evaluations(agentrl: Command, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", TrainConfig(recipe="book-example"))
    folder.append_metrics("eval", 0, {"episodes_scored": 30, "episodes_unscored": 10})
    folder.write_summary({"recipe": "book-example", "seconds": {"evaluation": 80.0}})
    traces = [
        replace(attempt(f"after-{n}-{k}", float(k < n), 0.0), task_id=f"t{n}", attempt=k)
        for n in range(4)
        for k in range(3)
    ]
    folder.write_traces("eval", 3, traces)
    found = json.loads(agentrl("plan", "--delta", "0.3", "--from", "latest", "--json").stdout)
    first = found["options"][0]
    assert first["seconds"] == pytest.approx(2 * first["tasks"] * 80.0 / 40)  # 80 s for 40 attempts
    assert first["tokens"] == pytest.approx(2 * first["tasks"] * 2)  # two sampled tokens an attempt


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delta", "0"], "delta 0 is not in (0, 1]"),
        (["--delta", "0.1", "--tasks", "1"], "tasks 1: a comparison needs two tasks or more"),
        (["--delta", "0.1", "--power", "1.5"], "1.5"),
        (["--delta", "0.1", "--from", "a.csv", "--correlation", "2"], "correlation 2.0 is not in [0, 1)"),
        (["--delta", "0.1", "--from", "a.csv", "--from", "b.csv", "--from", "a.csv"], "--from is given 3 times"),
        (["--delta", "0.1", "--from", "none.csv"], "none.csv does not exist"),
    ],
)
def test_bad_input_is_one_line_on_stderr(agentrl: Command, table: None, words: list[str], message: str) -> None:
    done = agentrl("plan", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
