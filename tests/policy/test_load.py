"""Models by name or folder: how they are loaded, and what is said of those that cannot be."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("peft", reason="peft is in the extra `hf`: pip install -e '.[hf]'")

from transformers import AutoModelForSeq2SeqLM, BloomConfig, LlamaConfig, T5Config

from agentrl.errors import ConfigError
from agentrl.policy.load import load_policy
from agentrl.settings import HuggingFaceConfig
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.train.losses import supervised
from agentrl.train.trainer import Trainer
from tests.policy.small_models import (
    GEMMA3,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    SETTINGS,
    SIZES,
    SMOL,
    alone,
    attempts,
    build,
    scored,
    write_tokenizer,
)

PLAIN = HuggingFaceConfig()


def load(folder, settings=PLAIN, **extra):
    return load_policy(str(folder), settings, value_head=False, seed=1, **extra)


@pytest.fixture
def folder(tmp_path):
    build(QWEN3).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("config", [QWEN3, QWEN2, LLAMA, SMOL, GEMMA3, MISTRAL])
def test_a_folder_gives_the_model_that_was_saved_there(config, tmp_path):
    model = build(config)
    model.save_pretrained(tmp_path / "model")
    policy = load(tmp_path / "model")
    with torch.no_grad():
        found, expected = scored(policy, attempts()[:3]).logprobs_K, alone(model, attempts()[:3])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert not policy.training
    assert policy.value is None
    assert policy.device.type == "cpu"


def test_the_settings_are_those_of_the_policy(folder):
    with pytest.warns(UserWarning, match=r"hf\.dtype is bfloat16 and all weights are trained"):
        policy = load_policy(
            str(folder), HuggingFaceConfig(dtype="bfloat16", attention="masked"), value_head=True, seed=1
        )
    assert policy.model.dtype == torch.bfloat16
    assert policy.attention == "masked"
    assert policy.value.weight.dtype == torch.float32


@pytest.mark.parametrize("rank", [0, 2])
def test_checkpointed_layers_give_the_same_weights(folder, rank):
    def trained(checkpointing):
        policy = load(folder, HuggingFaceConfig(lora_rank=rank, gradient_checkpointing=checkpointing))
        seen = []
        policy.model.model.layers[0].self_attn.register_forward_hook(lambda *parts: seen.append(1))
        trainer = Trainer(policy, SETTINGS)
        for _ in range(2):
            trainer.step(attempts(), supervised)
        return policy.tensors(), len(seen)

    (kept, once), (computed_again, twice) = trained(False), trained(True)
    assert all(torch.equal(tensor, computed_again[name]) for name, tensor in kept.items())
    assert (once, twice) == (2, 4)


def test_weights_that_a_tied_model_holds_twice_stay_apart(folder):
    """Case R04: neither of the two is lost, and what is saved later says that they are two."""
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.randn(40, 16, generator=torch.Generator().manual_seed(3))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    policy = load(folder)
    assert torch.equal(policy.model.lm_head.weight, weights["lm_head.weight"])
    assert torch.equal(policy.model.model.embed_tokens.weight, weights["model.embed_tokens.weight"])
    assert {"model.lm_head.weight", "model.model.embed_tokens.weight"} <= set(policy.tensors())
    assert policy.model.config.tie_word_embeddings is False


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def change(folder, make):
    weights = load_file(folder / "model.safetensors")
    save_file(make(weights), folder / "model.safetensors", metadata={"format": "pt"})


def without(*names):
    return lambda folder: change(folder, lambda w: {name: tensor for name, tensor in w.items() if name not in names})


def smaller(weights):
    name = "model.layers.0.mlp.up_proj.weight"
    return {**weights, name: weights[name][:5].contiguous()}


def sharded(folder):
    """As large models are saved, and one part was not fetched."""
    build(QWEN3).save_pretrained(folder, max_shard_size="5KB")
    next(iter(sorted(folder.glob("model-0000*.safetensors")))).unlink()


def t5(folder):
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    AutoModelForSeq2SeqLM.from_config(T5Config(vocab_size=40, **sizes)).save_pretrained(folder)


BROKEN = {
    "cut short": (cut, r"model/model\.safetensors is cut short or damaged .*; fetch or save the model again"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), r"model\.safetensors is cut short or damaged"),
    "lacks a weight": (
        without("model.layers.1.mlp.up_proj.weight"),
        r"the weights of .*model lack model\.layers\.1\.mlp\.up_proj\.weight, which would be random",
    ),
    "lacks the embedding": (without("model.embed_tokens.weight"), r"lack .*(embed_tokens|lm_head)\.weight"),
    "another shape": (lambda f: change(f, smaller), r"the model in .* cannot be loaded: .*mismatch"),
    "a part is missing": (sharded, r"model-00001-of-0000\d\.safetensors is missing, and model\.safetensors\.index"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"no file named model\.safetensors"),
    "no configuration": (
        lambda f: (f / "config.json").unlink(),
        r"the model in .* cannot be loaded: Unrecognized model",
    ),
    "damaged configuration": (lambda f: (f / "config.json").write_text("{"), "is not a valid JSON file"),
    "unknown kind": (
        lambda f: (f / "config.json").write_text(json.dumps({"model_type": "nonsense"})),
        "model type `nonsense` but Transformers does not recognize",
    ),
    "no causal model": (t5, "Unrecognized configuration class .*T5Config"),
    "attention that cannot be replaced": (
        lambda f: build(BloomConfig(**SIZES, n_head=4)).save_pretrained(f),
        "BloomForCausalLM cannot take a packed batch",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_models_that_cannot_be_trained_are_refused_with_the_file_and_the_reason(folder, case):
    break_it, message = BROKEN[case]
    load(folder)
    break_it(folder)
    with pytest.raises(ConfigError, match=message):
        load(folder)


@pytest.mark.parametrize("name", ["/no/such/folder", "two words", "a/b/c"])
def test_a_name_that_means_nothing_is_refused_with_what_to_write(name):
    with pytest.raises(ConfigError, match=r"no model '.*': it is no folder, .*a name such as Qwen/Qwen3-0\.6B"):
        load(name)


def test_a_device_that_is_not_there_is_refused(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"hf\.device is cuda, and torch finds none here; set it to cpu or auto"):
        load(folder, HuggingFaceConfig(device="cuda"))


def test_layers_with_dropout_are_not_computed_again(tmp_path):
    build(LlamaConfig(**SIZES, attention_dropout=0.1)).save_pretrained(tmp_path)
    assert load(tmp_path).dropouts == ("attention_dropout (0.1)",)
    with pytest.raises(ConfigError, match=r"hf\.gradient_checkpointing with attention_dropout \(0\.1\)"):
        load(tmp_path, HuggingFaceConfig(gradient_checkpointing=True))


# A model and a tokenizer.


def model_for(vocabulary, folder, **changes):
    ids = {"bos_token_id": None, "eos_token_id": vocabulary.end_id, "pad_token_id": vocabulary.pad_id}
    sizes = {**SIZES, "vocab_size": vocabulary.num_ids, **ids, **changes}
    build(LlamaConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def vocabulary(tmp_path):
    return Vocabulary.load(write_tokenizer(tmp_path / "tokenizer"))


def test_a_model_with_rows_for_all_ids_takes_the_vocabulary(vocabulary, tmp_path):
    for rows in (0, 7):  # models often have some more
        folder = model_for(vocabulary, tmp_path / f"model-{rows}", vocab_size=vocabulary.num_ids + rows)
        assert len(load(folder, vocabulary=vocabulary).model.lm_head.weight) == vocabulary.num_ids + rows


def test_a_model_with_fewer_rows_than_the_vocabulary_has_ids_is_refused(vocabulary, tmp_path):
    folder = model_for(vocabulary, tmp_path / "model", vocab_size=vocabulary.num_ids - 1, eos_token_id=3)
    with pytest.raises(ConfigError, match=r"tokenizer is not that of the model: .*and the model only \d+ rows"):
        load(folder, vocabulary=vocabulary)


def test_a_model_whose_stop_token_is_a_word_of_the_vocabulary_is_refused(vocabulary, tmp_path):
    folder = model_for(vocabulary, tmp_path / "model", eos_token_id=7)
    with pytest.raises(ConfigError, match=r"tokenizer is not that of the model: the model's .*eos_token_id is 7"):
        load(folder, vocabulary=vocabulary)
