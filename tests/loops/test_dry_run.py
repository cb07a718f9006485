"""`agentrl train RECIPE --dry-run`: every step of a recipe, in miniature."""

import json
from pathlib import Path

import pytest

from agentrl.config import load_recipe
from agentrl.loops.dry_run import dry_config, dry_run
from agentrl.store import RunFolder
from agentrl.ui.live import PlainReporter
from tests.tokens.real import FOLDER, needs_assets


def run_dry(recipe: str, root: Path, monkeypatch: pytest.MonkeyPatch):
    (root / "assets").symlink_to(FOLDER.parent)
    monkeypatch.chdir(root)
    config = dry_config(load_recipe(recipe), root)
    folder = RunFolder.create(root, config)
    with (root / "said").open("w") as said:
        return config, folder, dry_run(config, folder, PlainReporter(said))


def steps(folder: RunFolder, phase: str):
    return [row for row in map(json.loads, (folder.path / "metrics.jsonl").open()) if row["phase"] == phase]


@needs_assets[1]
@needs_assets[0]
def test_the_recipe_of_a_real_model_runs_whole_on_a_small_one(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    config, folder, found = run_dry("qwen3-0.6b-bugfix", tmp_path, monkeypatch)
    assert config.hf == load_recipe("qwen3-0.6b-bugfix").hf
    # two steps of each kind, all with a gradient; the sampler agreed with the trainer each time
    assert [row["step"] for row in steps(folder, "warm_start")] == [1, 2]
    learned = steps(folder, "rl")
    assert [row["step"] for row in learned] == [1, 2]
    assert all(row["tokens_trained"] > 0 and row["grad_norm"] > 0 and row["logprob_gap"] < 1e-4 for row in learned)
    assert set(found.summary["eval"]) == {"before", "after", "difference"}
    assert 10e6 < found.summary["parameters"] < 20e6
    # exported, loaded by transformers alone, and still the same model
    assert found.difference is not None
    assert found.difference < 1e-5
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {path.name for path in found.exported.iterdir()}


def test_the_recipe_of_tiny_agent_runs_dry_too(tmp_path, monkeypatch):
    config, folder, found = run_dry("bugfix-tiny", tmp_path, monkeypatch)
    assert config.model == load_recipe("bugfix-tiny").model
    assert [row["step"] for row in steps(folder, "rl")] == [1, 2]
    assert found.exported is None
