"""Adapters: what they compute, that they alone are trained, and which ones are refused."""

import json
from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("peft", reason="peft is in the extra `hf`: pip install -e '.[hf]'")

from agentrl.errors import ConfigError, StoreError
from agentrl.policy import lora
from agentrl.policy.export import export_adapter
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.policy.load import load_policy
from agentrl.settings import HuggingFaceConfig
from agentrl.train.checkpoint import optimizer_tensors, restore_optimizers
from agentrl.train.losses import supervised
from agentrl.train.trainer import Trainer
from tests.policy.small_models import (
    GEMMA3,
    LLAMA,
    QWEN2,
    QWEN3,
    SETTINGS,
    SMOL,
    alone,
    attempts,
    build,
    fitting,
    long_attempts,
    scored,
    write_tokenizer,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")
MODELS = pytest.mark.parametrize(
    "config", [QWEN3, QWEN2, LLAMA, SMOL, GEMMA3], ids=["qwen3", "qwen2", "llama", "smollm", "gemma3"]
)
SETTINGS_OF_LORA = HuggingFaceConfig(lora_rank=2, lora_alpha=6.0)


def adapted(config=QWEN3, *, dtype=torch.float32, targets=("all-linear",), seed=1, checkpointing=False):
    model = build(config, dtype)
    lora.add_adapter(model, rank=2, alpha=6.0, targets=targets, seed=seed)
    policy = HuggingFacePolicy(model)
    if checkpointing:
        model.activation_checkpointing_enable()
        policy.train()
    return policy


@torch.no_grad()
def says(policy, samples):
    return scored(policy, samples).logprobs_K


def train(policy, steps):
    trainer = Trainer(policy, SETTINGS)
    for _ in range(steps):
        trainer.step(attempts(), supervised)
    return trainer


def by_hand(config, tensors):
    """The base with 6 / 2 B A added to each matrix that has factors."""
    model = build(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            factor = f"model.{name.removesuffix('.weight')}.lora_%s.default.weight"
            if factor % "A" in tensors:
                weight += 3.0 * tensors[factor % "B"] @ tensors[factor % "A"]
    return model


@MODELS
def test_an_adapter_adds_the_scaled_product_of_its_factors(config):
    policy, samples = adapted(config), long_attempts()[:3]
    torch.testing.assert_close(
        says(policy, samples), says(HuggingFacePolicy(build(config)), samples), rtol=0, atol=1e-5
    )
    train(policy, 3)
    ours, theirs = says(policy, samples), alone(by_hand(config, policy.tensors()), samples).detach()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (ours - alone(build(config), samples).detach()).abs().max() > 1e-2


def test_the_adapter_alone_is_trained():
    policy = adapted()
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    trainer = train(policy, 2)
    moved = {name for name, weight in policy.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if ".lora_" in name} != set()
    # Rank 2: q and o join 16 and 32 numbers, k and v 16 and 16, three of the feed-forward 16 and 24; two layers.
    assert policy.num_parameters == 2 * 2 * (2 * (16 + 32) + 2 * (16 + 16) + 3 * (16 + 24))
    assert sum(len(group["params"]) for o in trainer.optimizers for group in o.param_groups) == 2 * 7 * 2


@MODELS
def test_layers_that_are_computed_again_give_the_same_gradient(config):
    def gradient(checkpointing):
        policy = adapted(config, checkpointing=checkpointing)
        train(policy, 1)  # both factors have a gradient from now on
        policy.zero_grad()
        scored(policy, long_attempts()[:3]).logprobs_K.sum().backward()
        assert all(weight.grad is None for name, weight in policy.named_parameters() if ".lora_" not in name)
        return torch.cat([weight.grad.flatten() for weight in policy.parameters() if weight.grad is not None])

    kept = gradient(checkpointing=False)
    assert torch.equal(gradient(checkpointing=True), kept)
    assert kept.norm() > 0


def test_layers_are_in_fact_computed_again():
    calls = {}
    for checkpointing in (False, True):
        policy = adapted(checkpointing=checkpointing)
        seen = []
        policy.model.model.layers[0].self_attn.register_forward_hook(lambda *parts, seen=seen: seen.append(1))
        scored(policy, attempts()[:3]).logprobs_K.sum().backward()
        calls[checkpointing] = len(seen)
    assert calls == {False: 1, True: 2}


def test_the_frozen_copy_of_a_policy_that_computes_layers_again_keeps_what_it_computes():
    policy = adapted(checkpointing=True)
    train(policy, 1)
    frozen = policy.frozen_copy()
    assert not frozen.training
    assert torch.equal(says(frozen, attempts()[:3]), says(policy, attempts()[:3]))


def test_a_resumed_adapter_goes_on_bit_for_bit():
    whole = adapted()
    train(whole, 4)
    half = adapted()
    trainer = train(half, 2)
    weights = {name: tensor.clone() for name, tensor in half.tensors().items()}
    state = {name: tensor.clone() for name, tensor in optimizer_tensors(trainer.optimizers).items()}
    again = adapted(seed=9)
    again.load_tensors(weights)
    resumed = Trainer(again, SETTINGS)
    restore_optimizers(resumed.optimizers, state)
    resumed.steps = 2
    for _ in range(2):
        resumed.step(attempts(), supervised)
    assert all(torch.equal(tensor, whole.tensors()[name]) for name, tensor in again.tensors().items())


def test_the_optimizer_of_other_weights_is_not_taken():
    state = optimizer_tensors(train(adapted(), 1).optimizers)
    for other in (HuggingFacePolicy(build(QWEN3)), adapted(targets=["q_proj"])):
        with pytest.raises(StoreError, match=r"the optimizer's state is of another model: 0\.\d+\.exp_avg"):
            restore_optimizers(Trainer(other, SETTINGS).optimizers, state)


def test_adapters_are_drawn_from_their_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (adapted_model(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def adapted_model(seed):
    model = deepcopy(BASE)
    lora.add_adapter(model, rank=2, alpha=6.0, targets=["q_proj"], seed=seed)
    return lora.adapter_weights(model)


BASE = build(QWEN3)


@pytest.mark.parametrize("attention", ["fused", "masked"])
def test_adapters_of_a_bfloat16_model_are_float32_and_learn(attention):
    policy = adapted(dtype=torch.bfloat16)
    policy.attention = attention
    assert {tensor.dtype for tensor in policy.tensors().values()} == {torch.float32}
    assert policy.model.lm_head.weight.dtype == torch.bfloat16
    trainer = Trainer(policy, SETTINGS)
    losses = [trainer.step(attempts(), supervised)["loss"] for _ in range(12)]
    assert losses[-1] < losses[0] - 0.5


BAD_TARGETS = {
    "nothing": (
        ["c_attn"],
        "'c_attn', which is no linear layer of Qwen3ForCausalLM; take some of down_proj, gate_proj",
    ),
    "one of two": (["q_proj", "query"], "'query', which is no linear layer"),
    "a part of a name": (["proj"], "'proj', which is no linear layer"),
    "the embedding": (["embed_tokens"], "'embed_tokens', which is no linear layer"),
    "the output": (["q_proj", "lm_head"], "'lm_head', the output projection, for which no adapter is made"),
    "all and one": (["all-linear", "q_proj"], "all-linear means all of them; write it alone"),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_targets_that_no_adapter_can_be_made_for_are_refused_by_name(case):
    targets, message = BAD_TARGETS[case]
    with pytest.raises(ConfigError, match=message):
        lora.add_adapter(build(QWEN3), rank=2, alpha=4.0, targets=targets, seed=1)


def test_some_layers_may_be_chosen_also_by_their_whole_name():
    policy = adapted(targets=["v_proj", "model.layers.1.mlp.up_proj"])
    layers = {name.split(".lora_")[0].removeprefix("model.model.layers.") for name in policy.tensors()}
    assert layers == {"0.self_attn.v_proj", "1.self_attn.v_proj", "1.mlp.up_proj"}


# Adapters that were saved.


@pytest.fixture
def saved(tmp_path):
    """A base and an adapter that was trained on it, as `agentrl export --adapter` writes it."""
    fitting(QWEN3).save_pretrained(tmp_path / "base")
    write_tokenizer(tmp_path / "tokenizer")
    policy = load_policy(str(tmp_path / "base"), SETTINGS_OF_LORA, value_head=False, seed=1)
    train(policy, 3)
    export_adapter(policy, tmp_path / "adapter", tokenizer=tmp_path / "tokenizer", base=str(tmp_path / "base"))
    return policy, tmp_path


def change_config(folder, **values):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def change_weights(folder, change):
    file = folder / "adapter_model.safetensors"
    save_file(change(load_file(file)), file)


def test_a_saved_adapter_is_trained_on(saved):
    policy, folder = saved
    again = load_policy(str(folder / "adapter"), SETTINGS_OF_LORA, value_head=False, seed=2)
    assert torch.equal(scored(again, attempts()[:3]).logprobs_K, scored(policy, attempts()[:3]).logprobs_K)
    assert again.num_parameters == policy.num_parameters


def test_a_saved_adapter_is_added_to_the_weights_where_all_are_trained(saved):
    policy, folder = saved
    whole = load_policy(str(folder / "adapter"), HuggingFaceConfig(), value_head=False, seed=2)
    found, expected = (scored(one, attempts()[:3]).logprobs_K for one in (whole, policy))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert whole.num_parameters == sum(weight.numel() for weight in fitting(QWEN3).parameters())
    assert not any(".lora_" in name or "base_layer" in name for name in whole.tensors())


# Cases L28 (dropout) and R09 (modules that are trained whole) are among them.
BAD_ADAPTERS = {
    "another base": (
        lambda folder: fitting(LLAMA).save_pretrained(folder.parent / "base"),
        r"of another model than .*base: .*lora_B.weight is \(32, 2\) and here \(16, 2\)",
    ),
    "fewer layers": (
        lambda folder: change_weights(folder, lambda t: {n: w for n, w in t.items() if "layers.1" not in n}),
        r"of another model than .*base: it lacks base_model.model.model.layers.1",
    ),
    "more layers": (
        lambda folder: change_weights(folder, lambda t: {**t, "base_model.model.more.lora_A.weight": torch.ones(2, 2)}),
        "it has also base_model.model.more.lora_A.weight",
    ),
    "cut short": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(
            (folder / "adapter_model.safetensors").read_bytes()[:-100]
        ),
        r"adapter_model.safetensors is (missing or damaged|cut short)",
    ),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "is missing or damaged"),
    "no base": (lambda folder: change_config(folder, base_model_name_or_path=None), "names no base model"),
    "a base that is gone": (
        lambda folder: change_config(folder, base_model_name_or_path="/nowhere/base"),
        "no model '/nowhere/base': it is no folder",
    ),
    "dropout": (lambda folder: change_config(folder, lora_dropout=0.1), "has lora_dropout 0.1; it must be 0.0"),
    "whole modules": (lambda folder: change_config(folder, modules_to_save=["lm_head"]), "has modules_to_save"),
    "another kind": (lambda folder: change_config(folder, peft_type="IA3"), "only LoRA is trained here"),
    "no JSON": (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json cannot be read"),
    "another rank": (
        lambda folder: change_config(folder, r=4),
        "hf.lora_rank is 2 with hf.lora_alpha 6, and the adapter .* has rank 4 with alpha 6; set them to those",
    ),
}


@pytest.mark.parametrize("case", BAD_ADAPTERS)
def test_adapters_that_do_not_fit_are_refused_before_training(saved, case):
    break_it, message = BAD_ADAPTERS[case]
    break_it(saved[1] / "adapter")
    with pytest.raises(ConfigError, match=message):
        load_policy(str(saved[1] / "adapter"), SETTINGS_OF_LORA, value_head=False, seed=2)


def test_targets_beside_an_adapter_that_has_its_own_are_refused(saved):
    """Its own may be said, in any order; others would be passed over."""
    folder = saved[1] / "adapter"
    own = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
    given = SETTINGS_OF_LORA.model_copy(update={"lora_targets": tuple(reversed(own))})
    assert load_policy(str(folder), given, value_head=False, seed=2).adapted
    other = SETTINGS_OF_LORA.model_copy(update={"lora_targets": ("q_proj",)})
    said = rf"hf\.lora_targets q_proj: model\.name is the adapter .*, which is for {', '.join(sorted(own))}; leave"
    with pytest.raises(ConfigError, match=said):
        load_policy(str(folder), other, value_head=False, seed=2)
