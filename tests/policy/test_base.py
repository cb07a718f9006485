"""What a policy saves, takes back and shares: TinyAgent's, Hugging Face models, and those with adapters."""

import pytest
import torch
from safetensors.torch import load, save

pytest.importorskip("peft", reason="peft is in the extra `hf`: pip install -e '.[hf]'")

from agentrl.errors import StoreError
from agentrl.policy import lora
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.losses import supervised
from agentrl.train.trainer import Trainer
from tests.policy.small_models import GEMMA3, LLAMA, QWEN3, SETTINGS, SMOL, attempts, build, scored


def tiny(seed):
    shape = TransformerShape(vocab_size=40, layers=2, width=16, heads=2, mlp_width=24, context=16, value_head=True)
    return TinyTransformer(shape, seed=seed)


def with_adapter(seed, config=QWEN3):
    """The same base for each seed; adapters as they are after a warm start, when they are no longer zero."""
    model = build(config)
    lora.add_adapter(model, rank=2, alpha=4.0, targets=["all-linear"], seed=seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0, 0.1, generator=draw)
    return HuggingFacePolicy(model, value_head=True)


POLICIES = {
    "tiny": tiny,
    "qwen3, tied": lambda seed: HuggingFacePolicy(build(QWEN3, seed=seed), value_head=True),
    "llama, not tied": lambda seed: HuggingFacePolicy(build(LLAMA, seed=seed), value_head=True),
    "smollm": lambda seed: HuggingFacePolicy(build(SMOL, seed=seed)),
    "gemma3": lambda seed: HuggingFacePolicy(build(GEMMA3, seed=seed)),
    "qwen3 with an adapter": with_adapter,
    "gemma3 with an adapter": lambda seed: with_adapter(seed, GEMMA3),
}
ALL = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


@torch.no_grad()
def says(policy):
    return scored(policy, attempts()[:3]).logprobs_K


def train(policy, steps=3):
    trainer = Trainer(policy, SETTINGS)
    for _ in range(steps):
        trainer.step(attempts(), supervised)
    return trainer


@ALL
def test_saved_weights_make_another_policy_say_the_same(make):
    policy, other = make(1), make(2)
    assert not torch.equal(says(other), says(policy))
    other.load_tensors(load(save(policy.tensors())))  # safetensors refuses weights that share memory
    assert torch.equal(says(other), says(policy))


@ALL
def test_a_frozen_copy_is_the_policy_of_its_moment_and_stays_it(make):
    """Case P06: bit for bit, whatever is trained."""
    policy = make(1)
    before = says(policy)
    frozen = policy.frozen_copy()
    assert torch.equal(says(frozen), before)
    assert not any(weight.requires_grad for weight in frozen.parameters())
    train(policy)
    assert torch.equal(says(frozen), before)
    assert not torch.equal(says(policy), before)


def test_each_weight_is_saved_once_and_tied_ones_stay_tied():
    """Case R04."""
    policy, other = (HuggingFacePolicy(build(QWEN3, seed=seed)) for seed in (1, 2))
    tensors = policy.tensors()
    assert "model.model.embed_tokens.weight" in tensors
    assert "model.lm_head.weight" not in tensors
    other.load_tensors(tensors)
    assert other.model.lm_head.weight.data_ptr() == other.model.model.embed_tokens.weight.data_ptr()
    assert torch.equal(other.model.lm_head.weight, tensors["model.model.embed_tokens.weight"])
    assert "model.lm_head.weight" in HuggingFacePolicy(build(LLAMA)).tensors()


def test_with_adapters_only_they_and_the_value_head_are_saved_and_the_base_is_shared():
    policy = with_adapter(1)
    # Two layers of seven matrices, with two factors each; weight and bias of the value head.
    assert len(policy.tensors()) == 2 * 7 * 2 + 2
    assert all(".lora_" in name or name.startswith("value.") for name in policy.tensors())
    frozen = policy.frozen_copy()
    assert frozen.model.model.embed_tokens.weight is policy.model.model.embed_tokens.weight
    own = {id(weight) for weight in policy.parameters()}
    unshared = sum(weight.numel() for weight in frozen.parameters() if id(weight) not in own)
    assert unshared == sum(tensor.numel() for tensor in policy.tensors().values())


def test_the_reference_of_a_warm_started_adapter_is_not_the_base():
    """Case P05."""
    policy = with_adapter(1)
    frozen, base = policy.frozen_copy(), HuggingFacePolicy(build(QWEN3))
    assert torch.equal(says(frozen), says(policy))  # a KL of zero at the first step
    assert (says(frozen) - says(base)).abs().max() > 1e-2


WRONG = {
    "missing": (lambda t: {n: t[n] for n in list(t)[1:]}, "they lack model.model.embed_tokens.weight"),
    "surplus": (lambda t: {**t, "a": torch.ones(1), "b": torch.ones(1)}, "they have also a, b"),
    "shape": (lambda t: {**t, "value.weight": torch.ones(1, 8)}, r"value.weight is \(1, 8\) of float32.* \(1, 16\)"),
    "type": (lambda t: {**t, "value.bias": torch.ones(1).double()}, r"\(1,\) of float64, .* \(1,\) of float32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_that_do_not_fit_are_refused_and_none_is_taken(case):
    change, message = WRONG[case]
    policy, other = (HuggingFacePolicy(build(QWEN3, seed=seed), value_head=True) for seed in (1, 2))
    before = says(policy)
    with pytest.raises(StoreError, match=message):
        policy.load_tensors(change(other.tensors()))
    assert torch.equal(says(policy), before)


def test_a_wider_type_takes_what_a_narrower_one_held():
    policy, half = HuggingFacePolicy(build(QWEN3, seed=1)), HuggingFacePolicy(build(QWEN3, torch.bfloat16, seed=2))
    policy.load_tensors(half.tensors())
    assert all(torch.equal(tensor.bfloat16(), half.tensors()[name]) for name, tensor in policy.tensors().items())
    with pytest.raises(StoreError, match=r"is .* of float32, and the model's is .* of bfloat16"):
        half.load_tensors(policy.tensors())


def test_the_weights_of_a_model_are_not_those_of_its_adapter():
    with pytest.raises(StoreError, match=r"they lack model\.model\.layers.*lora_A.* and 27 more"):  # of 30
        with_adapter(1).load_tensors(HuggingFacePolicy(build(QWEN3)).tensors())
