"""``agentrl export``: run folders of Hugging Face models as other programs want them."""

import json

import pytest
import torch

pytest.importorskip("peft", reason="peft is in the extra `hf`: pip install -e '.[hf]'")

from transformers import AutoModelForCausalLM, LlamaConfig

from agentrl.cli import main
from agentrl.config import HuggingFaceConfig, TrainConfig
from agentrl.policy.load import load_policy
from agentrl.store import RunFolder
from agentrl.train.checkpoint import Checkpoint, write_checkpoint
from tests.policy.small_models import SIZES, attempts, build, scored, write_tokenizer
from tests.tokens.templates import CHATML, small_tokenizer


@pytest.fixture
def export(tmp_path, monkeypatch, capsys):
    """Run the command; gives its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        with pytest.raises(SystemExit) as left:
            main(("export", *words))
        found = capsys.readouterr()
        return left.value.code, found.out, found.err

    return call


def base(folder):
    ids = {name: small_tokenizer(CHATML).token_to_id("<|im_end|>") for name in ("eos_token_id", "pad_token_id")}
    rows = small_tokenizer(CHATML).get_vocab_size()
    build(LlamaConfig(**{**SIZES, **ids, "bos_token_id": None, "vocab_size": rows})).save_pretrained(folder)
    return str(folder)


def run(tmp_path, **hf):
    """The run folder of a model that has been moved by hand, at two checkpoints. Gives the policy of the second."""
    config = TrainConfig.model_validate(
        {"recipe": "by-hand", "model": {"name": base(tmp_path / "base"), "value_head": True}, "hf": hf}
    )
    folder = RunFolder.create(tmp_path / "runs", config)
    write_tokenizer(folder.path / "tokenizer")
    policy = load_policy(config.model.name, config.hf, value_head=True, seed=config.seed)
    for number in (1, 2):
        with torch.no_grad():
            for weight in policy.tensors().values():
                weight += 0.05 * number
        tensors = {**policy.tensors(), "sampler:model.other": torch.ones(1)}
        checkpoint = Checkpoint(weights=tensors, optimizer={}, state={"progress": {}, "optimizer_steps": number})
        write_checkpoint(folder.checkpoints, f"rl-00000{number}", checkpoint)
    return folder, policy


@torch.no_grad()
def gap(policy, folder):
    other = load_policy(str(folder), policy_settings(), value_head=False, seed=0)
    return float((says(policy) - says(other)).abs().max())


def policy_settings(**hf):
    return HuggingFaceConfig.model_validate(hf)


@torch.no_grad()
def says(policy):
    return scored(policy, attempts()[:3]).logprobs_K


def test_the_last_checkpoint_of_a_run_becomes_a_folder(tmp_path, export):
    folder, policy = run(tmp_path)
    status, out, _ = export("latest", "out")
    assert status == 0
    assert "out: the model of rl-000002 (chat_template.jinja, config.json, " in out
    assert "note: the value head is left out" in out
    assert gap(policy, tmp_path / "out") == 0.0
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_bytes() == (
        folder.path / "tokenizer" / "chat_template.jinja"
    ).read_bytes()


def test_an_earlier_checkpoint_and_its_adapter_may_be_asked_for(tmp_path, export):
    folder, policy = run(tmp_path, lora_rank=2, lora_alpha=4.0)
    status, out, _ = export(f"{folder.path}@1", "first", "--json")
    assert status == 0
    record = json.loads(out)
    assert (record["kind"], record["checkpoint"], record["folder"]) == ("model", "rl-000001", "first")
    assert gap(policy, tmp_path / "first") > 0.01
    status, out, _ = export("latest", "second", "--adapter")
    assert (status, out.splitlines()[0].split(" (")[0]) == (0, "second: the adapter of rl-000002")
    again = load_policy("second", policy_settings(lora_rank=2, lora_alpha=4.0), value_head=False, seed=0)
    assert torch.equal(says(again), says(policy))


def test_what_cannot_be_exported_is_bad_input_with_the_reason(tmp_path, export):
    tiny = RunFolder.create(tmp_path / "runs", TrainConfig(recipe="bugfix-tiny"))
    status, _, err = export(str(tiny.path), "out")
    assert status == 2
    assert "trained a TinyAgent, whose network and vocabulary are our own" in err
    folder, _ = run(tmp_path)
    cases = {
        (str(folder.path), "out", "--adapter"): "has no adapter; leave --adapter out",
        (str(folder.path), "base"): "base holds files, which are never overwritten",
        (f"{folder.path}@7", "out"): "has no checkpoint '7'; it keeps 1, 2",
        ("nowhere", "out"): "nowhere does not exist",
    }
    for words, message in cases.items():
        status, _, err = export(*words)
        assert (status, message in err) == (2, True), err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_other_settings_is_a_failure_that_says_so(tmp_path, export):
    folder, _ = run(tmp_path, lora_rank=2, lora_alpha=4.0)
    file = folder.path / "config.toml"
    file.write_text(file.read_text().replace("lora_rank = 2", "lora_rank = 4"))
    status, _, err = export("latest", "out")
    assert status == 1
    assert "these weights are of another model" in err
    assert not (tmp_path / "out").exists()
