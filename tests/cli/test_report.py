"""`agentrl report`: what it writes and prints, with and without torch, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.evals.report.world import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run below the present folder's runs, where torch cannot be imported."""
    monkeypatch.delitem(sys.modules, "agentrl.loops.report", raising=False)
    monkeypatch.setitem(sys.modules, "agentrl.train.checkpoint", None)
    return str(run(tmp_path / "runs").path)


def test_a_report_without_torch_has_all_but_the_models_own_part(agentrl: Command, folder: str) -> None:
    done = agentrl("report", folder)
    assert done.returncode == 0, done.stderr
    assert "mean score: base 0.438 [" in done.stdout
    assert "paired difference +0.375 [" in done.stdout
    assert "forgetting: not measured: torch cannot be imported" in done.stdout
    assert "--tasks.reward random" in done.stdout
    report = Path(folder) / "report"
    assert {path.name for path in report.iterdir()} == {
        "report.html",
        "report.md",
        "report.json",
        "learning_curve.png",
        "pass_at_k.png",
        "solved.png",
        "weights.png",
    }
    assert (report / "report.md").read_text().startswith("# What RL changed: hand-made, seed 0")


def test_the_findings_as_json_and_elsewhere(agentrl: Command, folder: str, tmp_path: Path) -> None:
    control = run(tmp_path / "others", trained=(0, 1, 2, 0, 1, 1, 0, 2)).path
    done = agentrl("report", "latest", "--runs", str(Path(folder).parent), "--control", str(control), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["control"]["excess"]["mean"] == pytest.approx(0.375)
    assert found["weights"][0]["changed"] == 1
    assert "torch" in found["drift"]["missing"]
    other = agentrl("report", folder, "--out", str(tmp_path / "here"))
    assert (tmp_path / "here" / "report.html").is_file()
    assert f"report: {tmp_path / 'here' / 'report.html'}" in other.stdout
    again = agentrl("report", folder, "--json")
    assert json.loads(again.stdout)["pass_at_k"] == found["pass_at_k"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("latest", "--seed", "-1"), "--seed -1: write 0 or more"),
        (("latest", "--control", "latest"), "--control latest is the run itself"),
        (("latest", "--control", "nowhere"), "nowhere does not exist"),
        (("latest", "--out", "file"), "no report can be written to file"),
    ],
)
def test_bad_input_is_one_line(
    agentrl: Command, folder: str, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "file").write_text("")
    done = agentrl("report", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_that_has_not_begun_rl_is_refused(agentrl: Command, folder: str) -> None:
    for path in (Path(folder) / "checkpoints").glob("rl-*"):
        path.rename(path.with_name(f".{path.name}"))
    done = agentrl("report", folder)
    assert done.returncode == 2
    assert "keeps no checkpoint of RL; go on with it: agentrl train --resume" in done.stderr


def test_help_needs_none_of_the_heavy_libraries(agentrl_process: Command) -> None:
    done = agentrl_process("report", "--help", without=("torch",))
    assert done.returncode == 0
    assert "agentrl report latest" in done.stdout
