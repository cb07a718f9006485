"""The quick forward pass of training gives the numbers and gradients of the model's own layers, or they are taken."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from agentrl.policy import hf, lora, plain_training
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.policy.ops import kernels
from agentrl.train.losses import supervised
from agentrl.train.packing import count, pack
from agentrl.train.scoring import score_tokens
from agentrl.train.trainer import Trainer
from tests.policy.small_models import SETTINGS, attempts, by_group, grads, long_attempts, sample
from tests.policy.test_plain import CONFIGS, make

pytestmark = pytest.mark.skipif(kernels(torch.float32) is None, reason="no C compiler on this machine")


def batch(samples=None):
    samples = long_attempts() if samples is None else samples
    return pack(list(by_group(samples)), count(samples))


def is_quick(policy):
    return policy._plain_training() is not None


def without(policy):
    """The same by its own layers."""
    policy._training_decided, policy._training = True, None
    return policy


def gradients(policy, given):
    policy.zero_grad()
    found = score_tokens(policy, given)
    (found.logprobs_K * torch.linspace(-1, 2, len(found.logprobs_K))).sum().backward()
    return found.logprobs_K.detach(), {name: grad for name, grad in grads(policy).items() if grad is not None}


def assert_same(policy, given):
    (ours, mine), (theirs, other) = gradients(policy, given), gradients(without(policy), given)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-5)
    assert mine.keys() == other.keys()
    largest = max(float(grad.abs().max()) for grad in other.values())
    for name, grad in other.items():
        assert float((mine[name] - grad).abs().max()) <= 1e-5 * largest, name


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("samples", [attempts, long_attempts], ids=["short", "long"])
def test_numbers_and_gradients_are_those_of_the_models_own_layers(name, samples):
    policy = make(CONFIGS[name])
    assert is_quick(policy)
    assert_same(policy, batch(samples()))


@pytest.mark.parametrize("name", ["qwen3", "qwen2 with windows"])
def test_few_predictors_are_asked_for_alone(name, monkeypatch):
    """Long sequences of which little is trained, as those of tools are."""
    sparse = [
        sample(ids, trained_from, group=group, gap=range(trained_from + 2, len(ids) - 2))
        for ids, trained_from, group in (
            ([5, 6, 7, *range(8, 30)], 3, "g"),
            ([5, 6, 7, *range(30, 41)], 5, "g"),
            ([5, 6, 7, *range(11, 25)], 3, "g"),
            ([20, *range(1, 12)], 1, "h"),
        )
    ]
    calls, whole = [], hf.chosen_attention
    monkeypatch.setattr(hf, "chosen_attention", lambda *given: calls.append(given[0].shape) or whole(*given))
    assert_same(make(CONFIGS[name]), batch(sparse))
    # 4 trained tokens of each sequence, once in the last layer; windows of 6 tokens have masks, and all queries.
    assert calls == ([(4, 16, 16)] if name == "qwen3" else [])


def test_frozen_layers_and_a_value_head():
    policy = HuggingFacePolicy(make(CONFIGS["qwen3"]).model, value_head=True)
    nn.init.normal_(policy.value.weight)
    for layer in policy.model.model.layers[:2]:
        layer.requires_grad_(False)
    policy.model.model.layers[2].mlp.gate_proj.weight.requires_grad_(False)
    assert is_quick(policy)
    given = batch()
    ours, theirs = (policy(given).values_K, without(policy)(given).values_K)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-5)
    policy = HuggingFacePolicy(policy.model)
    assert is_quick(policy)
    assert_same(policy, given)


def test_a_model_without_trained_weights():
    policy = make(CONFIGS["qwen3"]).frozen_copy()
    assert is_quick(policy)
    given = batch()
    ours = score_tokens(policy, given).logprobs_K
    assert not ours.requires_grad
    torch.testing.assert_close(ours, score_tokens(without(policy), given).logprobs_K, rtol=0.0, atol=1e-5)


def change(name):
    """What is done to a model, or around it, that its own layers are needed for."""

    def hooked(model):
        model.model.layers[1].mlp.up_proj.register_forward_hook(lambda *given: 1.5 * given[-1])

    def patched(model):
        norm = model.model.layers[1].post_attention_layernorm
        norm.forward = lambda x: 1.5 * type(norm).forward(norm, x)

    def adapted(model):
        lora.add_adapter(model, rank=2, alpha=6.0, targets=["q_proj"], seed=0)

    def again(model):
        model.activation_checkpointing_enable()
        model.train()

    def doubled(model):
        model.double()

    def weighed(model):
        nn.utils.parametrizations.weight_norm(model.model.layers[0].self_attn.q_proj)

    return {
        "a hook": hooked,
        "another forward": patched,
        "adapters": adapted,
        "layers computed again": again,
        "double precision": doubled,
        "weights made of others": weighed,
    }[name]


@pytest.mark.parametrize(
    "name",
    ["a hook", "another forward", "adapters", "layers computed again", "double precision", "weights made of others"],
)
def test_a_model_that_is_changed_later_has_its_own_layers(name):
    policy = make(CONFIGS["qwen3"])
    assert is_quick(policy)
    change(name)(policy.model)
    assert not is_quick(policy)
    score_tokens(policy, batch()).logprobs_K.sum().backward()


def test_half_precision_around_it_has_its_own_layers():
    policy = make(CONFIGS["qwen3"])
    for around, quick in ((nullcontext(), True), (torch.autocast("cpu", dtype=torch.bfloat16), False)):
        with around:
            assert is_quick(policy) == quick


def test_a_model_that_computes_something_else_is_not_taken():
    """What no look at its modules shows: the numbers do."""
    for scale in (1.0, 1.5):
        policy = make(CONFIGS["qwen3"])
        policy.model.model.rotary_emb.attention_scaling = scale
        policy.model.model.layers[1].mlp.act_fn = nn.SiLU() if scale == 1.0 else nn.GELU()
        policy._training_decided = False
        assert is_quick(policy) == (scale == 1.0)


def test_gradients_are_compared_too(monkeypatch):
    """A backward pass that halves what goes to the norm of the second half."""

    def halved(*given):
        norm = given[3]
        return whole(*given[:3], norm._replace(weight=0.5 * norm.weight + 0.5 * norm.weight.detach()), *given[4:])

    whole = plain_training.finish
    assert is_quick(make(CONFIGS["qwen3"]))
    monkeypatch.setattr(plain_training, "finish", halved)
    assert not is_quick(make(CONFIGS["qwen3"]))


def test_without_a_compiler_its_own_layers_are_taken(monkeypatch):
    monkeypatch.setattr(plain_training, "kernels", lambda dtype: None)
    policy = make(CONFIGS["llama"])
    assert not is_quick(policy)
    assert score_tokens(policy, batch()).logprobs_K.isfinite().all()


def test_a_copy_trains_its_own_weights():
    policy = make(CONFIGS["qwen3"])
    assert is_quick(policy)
    copy = policy.frozen_copy()
    before = score_tokens(copy, batch()).logprobs_K
    Trainer(policy, SETTINGS).step(long_attempts(), supervised)
    torch.testing.assert_close(score_tokens(copy, batch()).logprobs_K, before, rtol=0.0, atol=0.0)
    assert (score_tokens(policy, batch()).logprobs_K - before).abs().max() > 1e-3
