"""`agentrl check parity` on a run and on a model with the real vocabulary."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.cli import parity as cli_parity
from agentrl.config import HuggingFaceConfig, ModelConfig, TrainConfig
from agentrl.engine.local import LocalEngine
from agentrl.loops import parity
from agentrl.loops.agent import make_agent
from agentrl.loops.earlier import weights_of
from agentrl.store import RunFolder
from agentrl.train.checkpoint import Checkpoint, write_checkpoint
from tests.cli.conftest import Command
from tests.tokens.real import needs_assets
from tests.tokens.templates import ALTERNATING, QWEN25

SMALL = TrainConfig(recipe="small", model=ModelConfig(layers=1, width=32, heads=2, mlp_width=64, context=256))
LIVELY = {"hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.3}
"""Sizes of a model with opinions."""
FEW = ("--tasks", "2", "--attempts", "2", "--tokens", "8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Two checkpoints, whose weights differ."""
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), SMALL)
    for seed, name in enumerate(("warm_start-000200-end", "rl-000002-end")):
        weights = make_agent(SMALL.model_copy(update={"seed": seed})).model.tensors()
        write_checkpoint(folder.checkpoints, name, Checkpoint(weights=weights, optimizer={}, state={}))
    return folder


def test_a_run_agrees_with_itself(check: Command, run: RunFolder) -> None:
    done = check("--model", f"{run.path}@2", *FEW)
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "weights in float32: 4 conversations" in said
    assert "they agree" in said
    assert "of one token" in said
    assert all(len(line) <= 100 for line in done.stdout.splitlines() if "weights in" not in line)


def test_json_is_plain_and_has_all_of_it(check: Command, run: RunFolder) -> None:
    done = check("--model", str(run.path), "--top-p", "0.9", "--temperature", "0.8", "--worst", "2", *FEW, "--json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert done.returncode == 0
    assert found["within"] is True
    assert found["figures"]["largest"] < 1e-4
    assert found["figures"]["num_tokens"] > 10
    assert [set(one) for one in found["worst"]] == 2 * [
        {"trace_id", "place", "reply", "token_id", "text", "trainer", "sampler"}
    ]
    assert found["diagnosis"] is None


def test_a_sampler_with_the_weights_of_another_checkpoint_is_named(
    check: Command, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stale(asked, agent):
        before = agent.model.frozen_copy()
        before.load_tensors(weights_of(run.checkpoints / "warm_start-000200-end"))
        yield LocalEngine(before, sampling=asked.sampling)

    monkeypatch.setitem(parity.ENGINES, "stale", stale)
    done = check("--model", str(run.path), "--engine", "stale", *FEW)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "they do not agree; likely fault: stale weights" in said
    assert "agrees with the weights of checkpoint warm_start-000200-end" in said
    assert "to do: look why the last publication" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "openai"), "--engine openai: write local or vllm; a sampler can be checked where it takes ids"),
        (("--tokens", "0"), "--tokens 0: write 1 or more"),
        (("--temperature", "0"), "temperature is 0.0; it must be above 0"),
        (("--top-p", "1.5"), "top_p is 1.5"),
        (("--dtype", "int8"), "--dtype int8: write float32 or bfloat16"),
        (("--dtype", "bfloat16"), "is a TinyAgent, in float32"),
        (("--renderer", "chatml"), "words of its own; leave out --dtype, --thinking, --renderer, --today"),
        (("--renderer", "chat-ml"), "--renderer chat-ml: write auto, chatml, template (the model's own), or library:"),
        (("--today", "2026-1-1"), "--today 2026-1-1: write a date such as 2026-01-31"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_bad_input(check: Command, run: RunFolder, words: tuple[str, ...], said: str) -> None:
    done = check("--model", str(run.path), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nothing-here", "--model nothing-here: nothing-here does not exist"),
        ("random", "it has no weights here; name a run, or a Hugging Face model"),
        ("openai:gpt", "it has no weights here"),
        ("RUN@7", "has no checkpoint '7'; it keeps 2, before"),
    ],
)
def test_a_model_that_is_not_there_is_bad_input(check: Command, run: RunFolder, model: str, said: str) -> None:
    done = check("--model", model.replace("RUN", str(run.path)))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_assets)], ids=[""])
def test_a_model_with_the_real_vocabulary_agrees(check: Command, tmp_path: Path, mark: None) -> None:
    models = pytest.importorskip("tests.tokens.real_models")
    models.save(tmp_path / "model", **LIVELY)
    done = check("--model", "./model", "--tasks", "1", "--attempts", "2", "--tokens", "6", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["within"], found["dtype"]) == (0, True, "float32")
    assert found["worst"][0]["trace_id"].startswith("bugfix-v1/small/train/0-")
    assert found["num_replies"] == 5  # three turns, and two


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_assets)], ids=[""])
def test_a_base_model_is_checked_with_a_renderer_that_is_named(check: Command, tmp_path: Path, mark: None) -> None:
    models = pytest.importorskip("tests.tokens.real_models")
    models.save_base(tmp_path / "base", **LIVELY)
    words = ("--model", "./base", "--tasks", "1", "--attempts", "1", "--turns", "1", "--tokens", "4", "--json")
    refused = check(*words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "has no chat template" in refused.stderr
    assert "--renderer chatml of eval and check parity" in refused.stderr
    done = check(*words, "--renderer", "chatml")
    assert (done.returncode, json.loads(done.stdout)["within"]) == (0, True), done.stderr


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_assets)], ids=[""])
def test_a_template_that_prints_the_day_is_given_one(check: Command, tmp_path: Path, mark: None) -> None:
    models = pytest.importorskip("tests.tokens.real_models")
    dated = QWEN25.replace("You help.", "You help. Today is {{ strftime_now('%Y-%m-%d') }}.")
    (models.save_base(tmp_path / "dated") / "chat_template.jinja").write_text(dated)
    words = ("--model", "./dated", "--tasks", "1", "--attempts", "1", "--turns", "1", "--tokens", "4")
    refused = check(*words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the chat template prints the day" in refused.stderr
    assert "--today of eval and check parity" in refused.stderr
    assert check(*words, "--today", "2026-01-31").returncode == 0
    assert "is no date" in check(*words, "--today", "2026-02-31").stderr


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_assets)], ids=[""])
def test_prompts_that_a_template_cannot_write_are_bad_input(check: Command, tmp_path: Path, mark: None) -> None:
    models = pytest.importorskip("tests.tokens.real_models")
    (models.save_base(tmp_path / "strict") / "chat_template.jinja").write_text(ALTERNATING)
    done = check("--model", "./strict", "--tasks", "1", "--attempts", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "./strict cannot be given tasks of small: the chat template refuses" in done.stderr


def test_a_renderer_that_is_named_goes_before_that_of_the_run(tmp_path: Path) -> None:
    config = TrainConfig(recipe="chat", model=ModelConfig(name="m"), hf=HuggingFaceConfig(renderer="template"))
    folder = RunFolder.create(tmp_path, config)
    write_checkpoint(folder.checkpoints, "rl-000002-end", Checkpoint(weights={}, optimizer={}, state={}))
    for given, used in ({}, "template"), ({"renderer": "chatml"}, "chatml"):
        asked = cli_parity._asked(parity, str(folder.path), "", False, given, tmp_path)
        assert asked.config.hf.renderer == used


def test_help_has_an_example_and_needs_no_torch(agentrl: Command) -> None:
    done = agentrl("check", "parity", "--help")
    assert done.returncode == 0, done.stderr
    assert "agentrl check parity --model" in done.stdout
    assert "Exit status: 0 within the tolerance" in done.stdout
