"""`agentrl eval` on a small run and on scripts: what is kept, what is played again, what is refused."""

import json
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.cli.eval_show import missing_share
from agentrl.config import ModelConfig, SandboxConfig, TasksConfig, TrainConfig, WarmStartConfig
from agentrl.evals.folder import EvaluationFolder
from agentrl.loops.context import RunContext
from agentrl.store import RunFolder
from agentrl.train.trainer import OptimizerSettings
from agentrl.ui.live import PlainReporter
from tests.cli.conftest import Command, Done

CONFIG = TrainConfig(
    recipe="untaught",
    tasks=TasksConfig(train_tasks=24, max_turns=2, max_reply=16),
    model=ModelConfig(layers=1, width=32, heads=2, mlp_width=64, context=320),
    warm_start=WarmStartConfig(steps=1, batch_size=6, demonstrations=1),
    sandbox=SandboxConfig(workers=1),
)
SMALL = ("--tasks", "4", "--attempts", "2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights, as at the end of its warm start and after 3 and 5 steps of RL."""
    folder = RunFolder.create(tmp_path_factory.mktemp("eval") / "runs", CONFIG)
    with (folder.path / "notes").open("w") as notes:
        context = RunContext(CONFIG, folder, PlainReporter(notes))
    try:
        context.start_phase(
            "warm_start", OptimizerSettings(learning_rate=1e-3, matrix_learning_rate=1e-3, total_steps=1)
        )
        for name in ("warm_start-000001-end", "rl-000003", "rl-000005-end"):
            context.save(name)
    finally:
        context.close()
    return folder.path


@pytest.fixture
def agentrl(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run the command line beside the run, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str) -> Done:
        with pytest.raises(SystemExit) as left:
            main(words)
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Done(left.value.code, out, err)

    return call


def test_a_checkpoint_is_evaluated_and_gone_on_with(agentrl: Command, trained: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "e"))
    done = agentrl("eval", "bugfix-v1/tiny", "--policy", f"{trained}@3", *SMALL, *out, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["tasks"], found["attempts"], found["complete"], found["played"]) == (4, 8, True, 8)
    assert (found["spec"]["version"], found["spec"]["temperature"]) == (3, CONFIG.rl.temperature)
    assert set(found["scores"]) == {"mean", "pass@2", "pass^2"}
    assert found["sandbox"] is not None
    assert "8/8 attempts" in done.stderr
    again = json.loads(agentrl("eval", "bugfix-v1/tiny", "--policy", f"{trained}@3", *SMALL, *out, "--json").stdout)
    assert (again["played"], again["scores"]) == (8, found["scores"])  # none more
    more = agentrl("eval", "bugfix-v1/tiny", "--policy", f"{trained}@3", "--tasks", "4", "--attempts", "3", *out)
    assert "8/12 attempts" in more.stdout
    folder = EvaluationFolder.open(tmp_path / "e")
    assert {(trace.task_id, trace.attempt) for trace in folder.traces()} == {
        (f"bugfix-v1/tiny/test/{n}", k) for n in range(4) for k in range(3)
    }
    assert all("cluster" in trace.metadata for trace in folder.traces())
    planned = json.loads(agentrl("plan", "--delta", "0.5", "--from", str(tmp_path / "e"), "--json").stdout)
    assert planned["options"][0]["seconds"] > 0
    assert planned["options"][0]["tokens"] > 0
    shown = agentrl("show", str(tmp_path / "e"), "--trace", "eval-0-2", "--tokens")
    assert shown.stdout.startswith("eval-0-2  task bugfix-v1/tiny/test/0")
    whole = agentrl("show", str(tmp_path / "e"))
    assert "on bugfix-v1/tiny/test, 12 attempts" in whole.stdout
    assert "pass@3" in whole.stdout
    assert json.loads(agentrl("show", str(tmp_path / "e"), "--json").stdout)["result"]["attempts"] == 12
    script = agentrl("eval", "bugfix-v1/tiny", "--policy", "submit", *SMALL, "--out", str(tmp_path / "s"))
    assert script.returncode == 0
    assert "submit on bugfix-v1/tiny/test" in agentrl("show", str(tmp_path / "s")).stdout
    assert agentrl("show", str(tmp_path / "s"), "--trace", "eval-0-0").returncode == 0


def test_two_checkpoints_never_share_what_is_kept(agentrl: Command, trained: Path, tmp_path: Path) -> None:
    # case E08: another checkpoint, or another temperature, with the same folder
    words = ("eval", "bugfix-v1/tiny", *SMALL, "--out", str(tmp_path / "e"), "--policy")
    assert agentrl(*words, f"{trained}@3").returncode == 0
    for policy, message in (
        ([f"{trained}@5"], "weights: 'rl-000003 "),
        ([f"{trained}@3", "--temperature", "0.5"], "temperature: 1.0 there, 0.5 here"),
        ([f"{trained}@3", "--seed", "1"], "seed: 0 there, 1 here"),
    ):
        refused = agentrl(*words, *policy)
        assert refused.returncode == 2
        assert message in refused.stderr
    unnamed = ("eval", "bugfix-v1/tiny", *SMALL, "--json", "--policy")
    folders = {json.loads(agentrl(*unnamed, word).stdout)["folder"] for word in (f"{trained}@3", f"{trained}@5")}
    assert len(folders) == 2
    assert {Path(folder).parent for folder in folders} == {trained / "evals"}
    compared = agentrl("compare", *sorted(folders))
    assert compared.returncode == 0, compared.stderr
    assert "4 tasks" in compared.stdout
    assert "RUN@5 solves" in agentrl("compare", f"{trained}@3", f"{trained}@5").stdout.replace(trained.name, "RUN")


def test_greedy_attempts_are_alike(agentrl: Command, trained: Path, tmp_path: Path) -> None:
    words = ("eval", "bugfix-v1/tiny", "--policy", str(trained), *SMALL, "--out", str(tmp_path / "e"))
    assert agentrl(*words, "--temperature", "0").returncode == 0
    replies = {
        (trace.task_id, tuple(node.sampled_ids for node in trace.nodes))
        for trace in EvaluationFolder.open(tmp_path / "e").traces()
    }
    assert len(replies) == 4  # one for each task, twice


def test_baselines_give_a_scale(agentrl: Command, tmp_path: Path) -> None:
    words = ("eval", "bugfix-tiny", "--policy", "reference", *SMALL, "--baselines")
    found = json.loads(agentrl(*words, "--json").stdout)
    assert found["scores"]["mean"]["mean"] == 1.0
    assert set(found["baselines"]) == {"submit", "random"}
    assert found["baselines"]["submit"]["scores"]["mean"]["mean"] == 0.0
    assert (tmp_path / "runs" / "evals").is_dir()
    shown = agentrl(*words).stdout
    assert "reference: 100% of the way from the floor (0.000) to the ceiling (1.000)" in shown


def test_a_run_is_evaluated_with_baselines_under_its_own_settings(agentrl: Command, trained: Path) -> None:
    found = json.loads(
        agentrl("eval", "bugfix-v1/tiny", "--policy", str(trained), *SMALL, "--baselines", "--json").stdout
    )
    assert (found["spec"]["version"], set(found["baselines"])) == (5, {"submit", "random", "reference"})
    for one in found["baselines"].values():
        assert one["spec"]["settings"] == found["spec"]["settings"]
        assert "Limits(turns=2," in one["spec"]["harness"]


def test_it_ends_early_when_it_is_decided(agentrl: Command) -> None:
    words = ("eval", "bugfix-v1/tiny", "--policy", "submit", "--tasks", "66", "--target", "0.9", "--stop-when-decided")
    found = json.loads(agentrl(*words, "--json").stdout)
    assert (found["decision"]["verdict"], found["complete"]) == ("below", False)
    assert found["attempts"] < 66
    assert "submit: below, after " in agentrl(*words).stdout


def test_the_other_policy_must_have_the_same_tasks(agentrl: Command, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("task,score\nx,1\n")
    words = ("eval", "bugfix-v1/tiny", "--policy", "submit", "--tasks", "4", "--against", "other.csv")
    refused = agentrl(*words, "--stop-when-decided")
    assert refused.returncode == 2
    assert "has no score of 4 of 4 tasks, such as bugfix-v1/tiny/test/0" in refused.stderr


def test_the_share_that_could_not_be_scored() -> None:
    assert missing_share({"counts": {"unscored": 3}, "attempts": 60}) == 0.05
    assert missing_share({}) == 0.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing", "--policy", "submit"], "there are no tasks 'nothing'; "),
        (["bugfix-v1/huge", "--policy", "submit"], "write bugfix-v1/tiny or bugfix-v1/small or bugfix-v1/repo"),
        (["bugfix-tiny", "--policy", "openai:"], "no model is named; write openai:NAME"),
        (["bugfix-tiny", "--policy", "no-such-run"], "the folder of a Hugging Face model or its name"),
        (["bugfix-tiny", "--policy", "RUN@7"], "has no checkpoint '7'; it keeps 3, 5, before"),
        (["bugfix-tiny", "--policy", "RUN@x"], "has no checkpoint 'x'"),
        (["bugfix-v1/small", "--policy", "RUN"], "is a TinyAgent, whose vocabulary is that of bugfix-v1/tiny alone"),
        (["humanevalfix:none.jsonl", "--policy", "submit"], "no file 'none.jsonl'"),
        (["bugfix-tiny", "--policy", "submit", "--tasks", "1"], "--tasks 1: write 2 or more"),
        (["bugfix-tiny", "--policy", "submit", "--attempts", "0"], "--attempts 0: write 1 or more"),
        (["bugfix-tiny", "--policy", "submit", "--temperature", "1"], "the script submit samples nothing"),
        (
            ["bugfix-tiny", "--policy", "RUN", "--tasks", "4", "--temperature", "-1"],
            "temperature is -1.0; it must be above",
        ),
        (["bugfix-tiny", "--policy", "submit", "--split", "tset", "--tasks", "4"], "unknown split 'tset'"),
        (["bugfix-tiny", "--policy", "submit", "--stop-when-decided"], "need a question: add --against"),
        (["bugfix-tiny", "--policy", "submit", "--target", "0.5"], "are what --stop-when-decided decides"),
        (["bugfix-tiny", "--policy", "submit", "--target", "5", "--stop-when-decided"], "--target 5 is not in [0, 1]"),
        (["bugfix-tiny", "--policy", "submit", "--max-missing", "2"], "--max-missing 2 is no share"),
    ],
)
def test_bad_input_is_refused_and_says_what_to_write(
    agentrl: Command, trained: Path, words: list[str], message: str
) -> None:
    done = agentrl("eval", *(word.replace("RUN", str(trained)) for word in words))
    assert done.returncode == 2
    assert message in done.stderr
