"""Exported folders, read by other programs: they say what the policy says."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("peft", reason="peft is in the extra `hf`: pip install -e '.[hf]'")

import peft
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen3Config

from agentrl.errors import ConfigError
from agentrl.policy import export
from agentrl.policy.export import export_adapter, export_model
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.policy.load import load_policy
from agentrl.settings import HuggingFaceConfig
from agentrl.train.losses import supervised
from agentrl.train.trainer import Trainer
from tests.policy.small_models import (
    COHERE,
    GEMMA3,
    GPT2,
    GRANITE,
    LLAMA,
    MISTRAL,
    MOE,
    NEOX,
    QWEN2,
    QWEN3,
    SETTINGS,
    SIZES,
    SMOL,
    alone,
    build,
    fitting,
    long_attempts,
    scored,
    write_tokenizer,
)
from tests.tokens import real
from tests.tokens.templates import CHATML, SMOLLM, small_tokenizer

CONFIGS = {
    "qwen3": QWEN3,
    "qwen2": QWEN2,
    "llama": LLAMA,
    "smollm": SMOL,
    "gemma3": GEMMA3,
    "mistral": MISTRAL,
    "granite": GRANITE,
    "cohere": COHERE,
    "neox": NEOX,
    "gpt2": GPT2,
    "qwen3 with experts": MOE,
}
MODELS = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
SOME = pytest.mark.parametrize("config", [QWEN3, LLAMA, GEMMA3, GPT2, MOE], ids=lambda config: config.model_type)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")
ENDS = [small_tokenizer(CHATML).token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>")]
LORA = HuggingFaceConfig(lora_rank=4, lora_alpha=8.0)


def trained(folder, config, settings=HuggingFaceConfig(), *, value_head=False):  # noqa: B008
    fitting(config).save_pretrained(folder / "base")
    policy = load_policy(str(folder / "base"), settings, value_head=value_head, seed=1)
    trainer = Trainer(policy, SETTINGS)
    for _ in range(3):
        trainer.step(long_attempts(), supervised)
    return policy


@torch.no_grad()
def gap(policy, model):
    samples = long_attempts()[:3]
    return float((scored(policy, samples).logprobs_K - alone(model, samples)).abs().max())


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer")


@MODELS
def test_transformers_reads_the_weights_of_the_policy_bit_for_bit(config, tmp_path, tokenizer):
    policy = trained(tmp_path, config)
    assert export_model(policy, tmp_path / "out", tokenizer=tokenizer) == ()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    weights = model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in policy.model.state_dict().items())
    assert gap(policy, model) < 1e-5
    assert gap(policy, AutoModelForCausalLM.from_pretrained(tmp_path / "base")) > 0.1


@SOME
def test_a_merged_adapter_says_the_same(config, tmp_path, tokenizer):
    policy = trained(tmp_path, config, LORA)
    export_model(policy, tmp_path / "out", tokenizer=tokenizer)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert gap(policy, model) < 1e-5
    assert gap(policy, AutoModelForCausalLM.from_pretrained(tmp_path / "base")) > 0.1
    assert not any("lora" in name or "base_layer" in name for name in load_file(tmp_path / "out" / "model.safetensors"))
    assert {".lora_" in name for name in policy.tensors()} == {True}  # it is left as it was


@SOME
def test_peft_reads_the_adapter_on_top_of_its_base(config, tmp_path, tokenizer):
    """Case R05: with the scale that it was trained with, 8 / 4."""
    policy = trained(tmp_path, config, LORA)
    base = str(tmp_path / "base")
    assert export_adapter(policy, tmp_path / "out", tokenizer=tokenizer, base=base) == ()
    model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out")
    assert gap(policy, model) < 1e-5
    assert gap(policy, AutoModelForCausalLM.from_pretrained(base)) > 0.1
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    expected = {"r": 4, "lora_alpha": 8, "base_model_name_or_path": base, "task_type": "CAUSAL_LM", "peft_type": "LORA"}
    assert expected.items() <= settings.items()
    assert load_file(tmp_path / "out" / "adapter_model.safetensors").keys() == expected_names(policy)


def expected_names(policy):
    return {name.replace("model.", "base_model.model.", 1).replace(".default.", ".") for name in policy.tensors()}


def test_half_precision_is_exported_as_it_was_trained(tmp_path, tokenizer):
    policy = trained(tmp_path, QWEN3, LORA.model_copy(update={"dtype": "bfloat16"}))
    export_model(policy, tmp_path / "out", tokenizer=tokenizer)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert gap(policy, model) < 0.5  # the sum was rounded to three digits


def test_the_value_head_stays_behind_and_that_is_said(tmp_path, tokenizer):
    policy = trained(tmp_path, LLAMA, value_head=True)
    (note,) = export_model(policy, tmp_path / "out", tokenizer=tokenizer)
    assert "the value head is left out" in note
    assert not any("value" in name for name in load_file(tmp_path / "out" / "model.safetensors"))


def test_an_adapter_that_changes_nothing_is_flagged(tmp_path, tokenizer):
    fitting(QWEN3).save_pretrained(tmp_path / "base")
    policy = load_policy(str(tmp_path / "base"), LORA, value_head=False, seed=1)
    for number, write in enumerate((export_model, export_adapter)):
        extra = {} if write is export_model else {"base": str(tmp_path / "base")}
        (note,) = write(policy, tmp_path / f"out-{number}", tokenizer=tokenizer, **extra)
        assert "the adapter changes nothing" in note


def test_tokenizer_template_and_generation_settings_lie_beside_the_weights(tmp_path, tokenizer):
    policy = trained(tmp_path, QWEN3)
    policy.model.generation_config = GenerationConfig(eos_token_id=ENDS, max_new_tokens=77)
    export_model(policy, tmp_path / "out", tokenizer=tokenizer)
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = AutoTokenizer.from_pretrained(tokenizer)
    talk = [{"role": "user", "content": "Which fruit is blue?"}]
    ids = found.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert ids == ours.apply_chat_template(talk, chat_template=SMOLLM, add_generation_prompt=True)["input_ids"]
    assert found.decode(ids).endswith("<|im_start|>assistant\n")
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert (kept.eos_token_id, kept.max_new_tokens) == (ENDS, 77)


@pytest.mark.assets
@pytest.mark.skipif(not real.FOLDER.is_dir(), reason="no real tokenizer here: make test-assets fetches it")
def test_the_template_of_qwen3_is_exported(tmp_path):
    """Case T38: the folder renders a prompt as in training, 12 ids without thinking's empty block."""
    vocabulary = real.vocabulary()
    config = Qwen3Config(**{**SIZES, "bos_token_id": None, "pad_token_id": vocabulary.pad_id})
    config.vocab_size, config.eos_token_id = vocabulary.num_ids, vocabulary.end_id
    build(config).save_pretrained(tmp_path / "base")
    policy = load_policy(str(tmp_path / "base"), HuggingFaceConfig(), value_head=False, seed=1, vocabulary=vocabulary)
    export_model(policy, tmp_path / "out", tokenizer=real.FOLDER)
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    talk = [{"role": "user", "content": "Name a prime."}]
    assert len(found.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]) == 12


def test_a_tokenizer_without_a_template_is_exported_with_a_word_about_it(tmp_path):
    policy = trained(tmp_path, QWEN3)
    bare = write_tokenizer(tmp_path / "bare", template=None)
    (note,) = export_model(policy, tmp_path / "out", tokenizer=bare)
    assert "no chat template" in note


# What is refused.


@pytest.fixture
def policy(tmp_path):
    fitting(QWEN3).save_pretrained(tmp_path / "base")
    return load_policy(str(tmp_path / "base"), HuggingFaceConfig(), value_head=False, seed=1)


def test_a_folder_that_holds_something_is_left_as_it_is(policy, tmp_path, tokenizer):
    with pytest.raises(ConfigError, match="base holds files, which are never overwritten"):
        export_model(policy, tmp_path / "base", tokenizer=tokenizer)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="file is a file, which"):
        export_model(policy, tmp_path / "file", tokenizer=tokenizer)
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    export_model(policy, tmp_path / "empty", tokenizer=tokenizer)
    export_model(policy, tmp_path / "new" / "below", tokenizer=tokenizer)
    assert (tmp_path / "empty" / "config.json").is_file()
    assert (tmp_path / "new" / "below" / "config.json").is_file()


def test_a_policy_without_an_adapter_has_none_to_write(policy, tmp_path, tokenizer):
    with pytest.raises(ConfigError, match="there is no adapter; export the whole model"):
        export_adapter(policy, tmp_path / "out", tokenizer=tokenizer, base="base")


def test_without_a_tokenizer_nothing_is_written(policy, tmp_path):
    with pytest.raises(ConfigError, match=r"a model cannot be served: .*nowhere has no tokenizer\.json"):
        export_model(policy, tmp_path / "out", tokenizer=tmp_path / "nowhere")
    assert sorted(os.listdir(tmp_path)) == ["base"]


def test_the_tokenizer_of_another_model_is_not_put_beside_it(tmp_path, tokenizer):
    policy = HuggingFacePolicy(build(QWEN3))  # of 40 rows
    with pytest.raises(ConfigError, match=r"the tokenizer is not that of the model: .* the model only 40 rows"):
        export_model(policy, tmp_path / "out", tokenizer=tokenizer)


def test_a_failure_on_the_way_leaves_nothing(policy, tmp_path, tokenizer, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        export_model(policy, tmp_path / "out", tokenizer=tokenizer)
    assert sorted(os.listdir(tmp_path)) == ["base", "tokenizer"]
