"""`agentrl compare` on files and runs: the table, the words, the gate, the refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config import TrainConfig
from agentrl.store import RunFolder
from agentrl.types import Fault, Score, Stop
from tests.cli.conftest import Command, attempt


@pytest.fixture
def tables(tmp_path: Path) -> None:
    """base.csv solves 10 of 40 tasks, new.csv 30 of them, same.csv as many as base.csv."""
    for name, solved in (("base", 10), ("new", 30), ("same", 10)):
        rows = [f"t{n},{int(n < solved)}" for n in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["task,score", *rows]) + "\n")


@pytest.fixture
def evaluated(tmp_path: Path) -> RunFolder:
    """A run that solves 0 of 6 tasks before and 5 after; one attempt could not be scored."""
    folder = RunFolder.create(tmp_path / "runs", TrainConfig(recipe="book-example"))
    for phase, step, name, solved in (("eval_before", 0, "before", 0), ("eval", 3, "after", 5)):
        traces = [
            replace(
                attempt(f"{name}-{n}-{k}", 1.0, 0.0),
                task_id=f"bugfix-v1/tiny/test/{n}",
                attempt=k,
                scores=(Score(name="hidden_tests", value=float(n < solved)),),
            )
            for n in range(6)
            for k in range(2)
        ]
        fault = Fault(boundary="sandbox", message="gone")
        traces[-1] = replace(traces[-1], error=fault, stop=Stop.ERROR)
        folder.write_traces(phase, step, traces)
    return folder


def test_two_tables_are_compared_in_words_and_numbers(agentrl: Command, tables: None) -> None:
    done = agentrl("compare", "base.csv", "new.csv")
    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        "base.csv    0.250",
        "+0.500",
        "40 tasks; intervals: wilson; of differences: paired t over tasks",
        "new.csv solves 50.0 points more than base.csv, 95 % interval 33.8 to 66.2, 40 tasks, 1 attempt; not explained",
        "better on 20 tasks, worse on 0, equal on 20; McNemar exact: p <0.0001; probability of being better 1.000",
        "solved now: 20 task(s), the first 5\n  t10  0.00 -> 1.00",
    ):
        assert text in done.stdout
    assert "warning" not in done.stdout


def test_a_difference_that_could_not_be_seen_is_warned_of(agentrl: Command, tables: None, tmp_path: Path) -> None:
    rows = (tmp_path / "base.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([*rows[:11], "t10,1", *rows[12:]]) + "\n")
    out = agentrl("compare", "base.csv", "new.csv").stdout
    assert "chance may explain it" in out
    assert "warning: this evaluation sees a difference of " in out
    assert "`agentrl plan` says what it takes" in out


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["base.csv", "new.csv", "--require", "better"], 0),
        (["base.csv", "new.csv", "--require", "better", "--margin", "0.2"], 0),
        (["base.csv", "new.csv", "--require", "better", "--margin", "0.5"], 3),
        (["new.csv", "base.csv", "--require", "better"], 1),
        (["new.csv", "base.csv", "--require", "not-worse", "--margin", "0.02"], 1),
        (["base.csv", "same.csv", "--require", "not-worse", "--margin", "0.2"], 0),
        (["base.csv", "same.csv", "--require", "not-worse", "--margin", "0.01"], 3),
        (["base.csv", "new.csv", "same.csv", "--require", "better"], 3),
        (["new.csv", "base.csv", "same.csv", "--require", "better"], 1),
    ],
)
def test_the_exit_status_is_a_gate(agentrl: Command, tables: None, words: list[str], status: int) -> None:
    assert agentrl("compare", *words).returncode == status
    found = agentrl("compare", *words, "--json")
    assert (found.returncode, json.loads(found.stdout)["exit_status"]) == (status, status)


def test_json_has_everything(agentrl: Command, tables: None) -> None:
    found = json.loads(agentrl("compare", "base.csv", "new.csv", "same.csv", "--json").stdout)
    assert (found["metric"], found["num_tasks"]) == ("mean", 40)
    assert [row["name"] for row in found["rows"]] == ["base.csv", "new.csv", "same.csv"]
    assert found["rows"][1]["counts"] == {"scored": 40, "errored": 0, "timed_out": 0, "unscored": 0, "absent": 0}
    first, second = found["differences"]
    assert (first["comparison"]["difference"]["mean"], first["different"]) == (0.5, True)
    assert first["p_value"] == pytest.approx(2 * first["comparison"]["p_value"])  # Holm over two
    assert (second["different"], second["gained"]) == (False, [])


def test_the_evaluations_of_a_run_are_compared_and_its_traces_can_be_shown(
    agentrl: Command, evaluated: RunFolder
) -> None:
    done = agentrl("compare", "latest@before", "latest@after", "--max-missing", "0.1")
    assert done.returncode == 0, done.stderr
    assert "latest@after solves 83.3 points more than latest@before" in done.stdout  # 5 of 6 tasks
    assert "latest@after: of 12 attempts 1 could not be scored; mean 0.833 to 0.917 if all that is" in done.stdout
    command = next(line for line in done.stdout.splitlines() if "--trace after-" in line).split()
    assert agentrl(*command[1:]).stdout.startswith("after-0-0  task bugfix-v1/tiny/test/0")
    by_step = agentrl("compare", "latest@0", "latest@3", "--max-missing", "0.1").stdout
    assert "latest@3 solves 83.3 points more than latest@0" in by_step
    file = next(str(path) for phase, _, path in evaluated.trace_files() if phase == "eval")
    assert "solves 83.3 points more" in agentrl("compare", "latest@before", file, "--max-missing", "0.1").stdout


def test_too_many_missing_attempts_are_a_failure(agentrl: Command, evaluated: RunFolder) -> None:
    done = agentrl("compare", "latest@before", "latest@after")
    assert done.returncode == 1
    assert "latest@after: more than 5% of its attempts are missing" in done.stdout


def test_errored_attempts_are_zeros_unless_they_are_to_be_missing(agentrl: Command, tmp_path: Path) -> None:
    rows = ["a,1,scored", "b,1,scored", "c,0,scored", "d,,errored"]
    for name in ("x", "y"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["task,score,status", *rows]) + "\n")
    done = agentrl("compare", "x.csv", "y.csv")
    assert "x.csv: of 4 attempts 1 errored" in done.stdout
    assert "x.csv       0.500" in done.stdout
    assert "x.csv       0.667" in agentrl("compare", "x.csv", "y.csv", "--errors", "missing").stdout


def test_partial_scores_need_a_threshold(agentrl: Command, tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / f"{name}.csv").write_text("task,score\na,0.5\nb,2.0\n")
    done = agentrl("compare", "x.csv", "y.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "x.csv: score 2 of task 'b', attempt 0, is not in [0, 1] (2 such scores); say with --threshold" in done.stderr
    )
    assert agentrl("compare", "x.csv", "y.csv", "--threshold", "1").returncode == 0


def test_the_figures_are_drawn(agentrl: Command, tables: None, tmp_path: Path) -> None:
    assert agentrl("compare", "base.csv", "new.csv", "--figures", "a/b").returncode == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"forest.png", "pass_curves.png"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["base.csv"], "base.csv is one checkpoint; a comparison needs two or more"),
        (["base.csv", "base.csv"], "base.csv is given twice"),
        (["base.csv", "nothing.csv"], "nothing.csv does not exist; there are no runs nearby"),
        (["base.csv", "new.csv", "--metric", "pass@9"], "error: "),
        (["base.csv", "new.csv", "--metric", "pas@1"], "metric 'pas@1' is unknown; write mean, pass@K"),
        (["base.csv", "new.csv", "--require", "best"], "--require 'best': write better or not-worse"),
        (["base.csv", "new.csv", "--margin", "0.1"], "--margin is of --require"),
        (["base.csv", "new.csv", "--require", "better", "--margin", "-1"], "--margin -1 is negative"),
        (["base.csv", "new.csv", "--errors", "none"], "--errors 'none': write zero, or missing"),
        (["base.csv", "new.csv", "--max-missing", "5"], "--max-missing 5 is no share"),
        (["base.csv", "new.csv", "--figures", "base.csv"], "--figures base.csv: no folder can be made there"),
    ],
)
def test_bad_input_is_one_line_on_stderr(agentrl: Command, tables: None, words: list[str], message: str) -> None:
    done = agentrl("compare", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_evaluation_that_a_run_lacks_is_named(agentrl: Command, run_folder: RunFolder) -> None:
    assert "the run has not been evaluated at its end; use agentrl eval" in agentrl("compare", "latest", "x").stderr
    assert "latest@7: no evaluation of step 7; make one: agentrl eval" in agentrl("compare", "latest@7", "x").stderr
    assert "'x' is no step; write before, after or a number" in agentrl("compare", "latest@x", "y").stderr
    assert "the run was not evaluated before RL" in agentrl("compare", "latest@before", "y").stderr
