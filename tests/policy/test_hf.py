"""Hugging Face models in our trainer: their numbers, their gradients, and what is refused."""

import runpy
import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from agentrl.algorithms.presets import preset
from agentrl.errors import ConfigError, TrainerError
from agentrl.policy import comparison, hf, masked
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.train import head
from agentrl.train.losses import PolicyGradient, supervised
from agentrl.train.packing import count, micro_batches, pack
from agentrl.train.scoring import score_tokens
from agentrl.train.trainer import Trainer
from tests.policy.small_models import (
    COHERE,
    GEMMA3,
    GRANITE,
    LLAMA,
    MISTRAL,
    NEOX,
    QWEN2,
    QWEN3,
    SETTINGS,
    SIZES,
    SMOL,
    alone,
    attempts,
    build,
    by_group,
    grads,
    long_attempts,
    sample,
    scored,
)

CONFIGS = pytest.mark.parametrize("config", [QWEN3, LLAMA, GRANITE, COHERE, NEOX], ids=lambda c: c.model_type)
WINDOWS = pytest.mark.parametrize("config", [GEMMA3, MISTRAL], ids=lambda c: c.model_type)


@CONFIGS
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_and_gradients_are_those_of_each_sequence_alone(config, dtype, near, temperature):
    samples = attempts()
    plain = build(config, dtype)
    policy = HuggingFacePolicy(build(config, dtype))
    theirs = alone(plain, samples, temperature)
    ours = torch.cat([s.logprobs_K for s in (scored(policy, g, temperature) for g in by_group(samples))])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=near)
    factors = torch.linspace(-1, 2, len(ours), dtype=dtype)
    (theirs * factors).sum().backward()
    (ours * factors).sum().backward()
    mine, other = grads(policy.model), grads(plain)
    near = near if config is NEOX else max(near, 1e-6)
    for name, gradient in other.items():
        assert (mine[name] - gradient).norm() <= near * (1 + gradient.norm()), name


@WINDOWS
@pytest.mark.parametrize("attention", ["auto", "masked"])
def test_layers_with_a_window_see_what_the_models_own_see(config, attention):
    """Sequences of 12 to 23 tokens, and windows of 6 and 4 that end in prefixes and in continuations."""
    samples, plain = long_attempts(), build(config, torch.float64)
    policy = HuggingFacePolicy(build(config, torch.float64), attention=attention)
    batch = pack(list(by_group(samples)), count(samples))
    ours, theirs = score_tokens(policy, batch).logprobs_K, alone(plain, samples)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    factors = torch.linspace(-1, 2, len(ours), dtype=torch.float64)
    (theirs * factors).sum().backward()
    (ours * factors).sum().backward()
    mine = grads(policy.model)
    for name, gradient in grads(plain).items():
        assert (mine[name] - gradient).norm() <= 1e-6 * (1 + gradient.norm()), name


@WINDOWS
def test_a_window_off_by_one_is_noticed_before_the_model_is_taken(config, monkeypatch):
    config, attend = deepcopy(config), hf.masked_attention
    config.sliding_window = 12  # the shorter sequences that are compared have 7 and 8 tokens

    def wider(*parts, window, **rest):
        return attend(*parts, window=window and window + 1, **rest)

    HuggingFacePolicy(build(config))
    monkeypatch.setattr(hf, "masked_attention", wider)
    model = build(config)
    with pytest.raises(ConfigError, match="sequences longer than 12 tokens differ by"):
        HuggingFacePolicy(model)
    assert model.config._attn_implementation != hf.ATTENTION


@pytest.mark.parametrize("config", [QWEN3, QWEN2, SMOL, GEMMA3], ids=lambda c: c.model_type)
@pytest.mark.parametrize("attention", ["fused", "masked"])
def test_half_precision_stays_near_single(config, attention):
    """bfloat16 has three digits, and these logits go up to about 10."""
    exact = HuggingFacePolicy(build(config))
    policy = HuggingFacePolicy(build(config, torch.bfloat16), attention=attention, value_head=True)
    found = scored(policy, attempts()[:3])
    assert found.logprobs_K.dtype == found.values_K.dtype == torch.float32
    torch.testing.assert_close(found.logprobs_K, scored(exact, attempts()[:3]).logprobs_K, rtol=0, atol=0.25)
    found.logprobs_K.sum().backward()
    assert all(
        gradient.dtype == torch.bfloat16 and gradient.isfinite().all() for gradient in grads(policy.model).values()
    )


def test_several_groups_in_one_batch_say_what_each_says_alone():
    samples, policy = attempts(), HuggingFacePolicy(build(QWEN3))
    groups = list(by_group(samples))
    together = score_tokens(policy, pack(groups, count(samples)))
    apart = torch.cat([scored(policy, group).logprobs_K for group in groups])
    torch.testing.assert_close(together.logprobs_K, apart)


def test_the_packed_batch_is_shorter_than_its_sequences():
    batch = pack(list(by_group(attempts())), count(attempts()))
    # 7 + 9 + 7 with 4 shared, 7, 4 + 3 with 2 shared: 23 - 8 + 7 + 7 - 2 = 27, of 37.
    assert len(batch.token_ids_M) == 27


def test_a_neighbours_tokens_change_nothing_to_the_bit():
    policy = HuggingFacePolicy(build(QWEN3))
    first, second, *_ = attempts()
    before = scored(policy, [first, second]).logprobs_K
    other = replace(second, token_ids=(*second.token_ids[:5], 1, 2, 3, 4))
    after = scored(policy, [first, other]).logprobs_K
    own = sum(weight != 0 for weight in first.weights["pg"])
    assert torch.equal(after[:own], before[:own])
    assert not torch.equal(after[own:], before[own:])


def test_what_stands_at_an_untrained_token_changes_nothing_to_the_bit():
    def gradient(samples):
        policy = HuggingFacePolicy(build(QWEN3))
        for batch in micro_batches(samples, max_tokens=10_000):
            PolicyGradient(preset("grpo"))(score_tokens(policy, batch), batch).loss.backward()
        return torch.cat([g.flatten() for g in grads(policy).values()])

    def poison(one, value):
        keep = [weight != 0 for weight in one.weights["pg"]]
        logprobs = tuple(old if k else value for old, k in zip(one.logprobs, keep, strict=True))
        return replace(
            one,
            logprobs=logprobs,
            advantages=tuple(old if k else value for old, k in zip(one.advantages, keep, strict=True)),
        )

    clean = gradient(attempts())
    assert clean.norm() > 0
    for value in (float("nan"), 1e9):
        assert torch.equal(gradient([poison(one, value) for one in attempts()]), clean)
    moved = [replace(one, advantages=(3.0,) * len(one.token_ids)) for one in attempts()]
    assert not torch.equal(gradient(moved), clean)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_micro_batches_do_not_change_the_gradient(checkpointing):
    def gradient(max_tokens):
        policy = HuggingFacePolicy(build(QWEN3))
        if checkpointing:
            policy.model.activation_checkpointing_enable()
        policy.train()
        for batch in micro_batches(attempts(), max_tokens=max_tokens):
            PolicyGradient(preset("dr_grpo"))(score_tokens(policy, batch), batch).loss.backward()
        return torch.cat([g.flatten() for g in grads(policy).values()])

    whole = gradient(10_000)
    for max_tokens in (1, 15):
        assert (gradient(max_tokens) - whole).norm() <= 2e-6 * whole.norm()


@CONFIGS
def test_a_step_of_the_trainer_moves_the_weights_and_learns(config):
    trainer = Trainer(HuggingFacePolicy(build(config)), SETTINGS)
    assert [type(optimizer) for optimizer in trainer.optimizers] == [torch.optim.AdamW]
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    reported = trainer.step(attempts(), PolicyGradient(preset("grpo")))
    assert reported["grad_norm"] > 0
    assert all(not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))
    losses = [trainer.step(attempts(), supervised)["loss"] for _ in range(12)]
    assert losses[-1] < losses[0] - 0.5


def test_a_value_head_starts_at_zero_and_learns():
    samples = [
        replace(one, returns=(2.0,) * len(one.token_ids), weights={**one.weights, "value": one.weights["pg"]})
        for one in attempts()
    ]
    trainer = Trainer(HuggingFacePolicy(build(LLAMA), value_head=True), SETTINGS)
    flat = [value for row in trainer.values(samples) for value in row if value == value]
    assert flat == [0.0] * len(flat) != []
    losses = [trainer.step(samples, PolicyGradient(preset("ppo")))["value_loss"] for _ in range(12)]
    assert losses[-1] < losses[0] / 2
    with pytest.raises(TrainerError, match="no value head"):
        Trainer(HuggingFacePolicy(build(LLAMA)), SETTINGS).values(samples)


def test_a_large_vocabulary_goes_through_tiles_with_the_same_result(monkeypatch):
    def run():
        policy = HuggingFacePolicy(build(QWEN3))
        found = scored(policy, attempts()[:3])
        found.logprobs_K.sum().backward()
        return found.logprobs_K, torch.cat([g.flatten() for g in grads(policy).values()])

    at_once = run()
    monkeypatch.setattr(head.token_scores, "__kwdefaults__", {**head.token_scores.__kwdefaults__, "small_logits": 0})
    torch.testing.assert_close(run(), at_once)


@pytest.mark.parametrize("config", [QWEN3, GEMMA3], ids=lambda c: c.model_type)
def test_nothing_of_the_forward_and_backward_pass_is_left_on_the_cpu(config, monkeypatch):
    """A stand-in for another device: tensors on ``meta`` have no numbers, and refuse to meet those on the CPU."""
    samples, policy = long_attempts(), HuggingFacePolicy(build(config), value_head=True).to("meta")
    batch = pack(list(by_group(samples)), count(samples))
    spans = hf.group_spans(batch)  # reads numbers
    monkeypatch.setattr(hf, "group_spans", lambda batch: spans)
    found = score_tokens(policy, batch.to(policy.device))
    (found.logprobs_K.sum() + found.values_K.sum()).backward()
    assert {gradient.device.type for gradient in grads(policy).values()} == {"meta"}
    monkeypatch.setattr(hf, "Masks", lambda device: masked.Masks(torch.device("cpu")))
    with pytest.raises(RuntimeError, match="meta"):
        score_tokens(policy, batch.to(policy.device))


# What is refused, and that the check can tell.


def test_the_fused_attention_is_refused_off_the_cpu():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LLAMA)
    with pytest.raises(ConfigError, match="the model is on meta; set hf"):
        HuggingFacePolicy(model, attention="fused")


def test_a_window_that_was_not_compared_refuses_longer_sequences(monkeypatch):
    monkeypatch.setattr(comparison, "LONGEST_ON_CPU", 7)
    policy = HuggingFacePolicy(build(MistralConfig(**SIZES, sliding_window=8)))
    short, long = sample(list(range(3, 11)), 4), sample(list(range(3, 12)), 4)  # 8 and 9 tokens
    assert len(scored(policy, [short]).logprobs_K) == 4
    with pytest.raises(TrainerError, match="sees 8 tokens back, and a sequence of 9 tokens is longer"):
        scored(policy, [long])


def test_dropout_is_refused_in_training_mode_alone():
    policy = HuggingFacePolicy(build(LlamaConfig(**SIZES, attention_dropout=0.1)))
    assert len(scored(policy.eval(), attempts()[:1]).logprobs_K) == 3
    with pytest.raises(TrainerError, match=r"attention_dropout \(0.1\) would make"):
        scored(policy.train(), attempts()[:1])


REFUSED = {
    "sinks": (transformers.GptOssConfig, {"num_local_experts": 2, "num_experts_per_tok": 1}, "attention sinks"),
    "capped logits": (transformers.Gemma2Config, {}, "final_logit_softcapping 30.0"),
    "capped scores": (transformers.Gemma2Config, {"final_logit_softcapping": None}, "caps its attention scores"),
    "no interface": (transformers.BloomConfig, {"n_head": 4}, "does not go through the interface"),
    "no attention": (transformers.MambaConfig, {}, "layers of linear_attention"),
    "dynamic positions": (
        transformers.LlamaConfig,
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "rope_type dynamic",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exact_is_refused_with_the_reason(case):
    config, extra, reason = REFUSED[case]
    model = build(config(**{**SIZES, **extra}))
    before = model.config._attn_implementation
    with pytest.raises(ConfigError, match=reason):
        HuggingFacePolicy(model)
    assert model.config._attn_implementation == before


def test_an_unknown_extra_is_noticed_by_the_comparison():
    model = build(LLAMA)
    model.lm_head.register_forward_hook(lambda module, args, logits: 3 * logits)
    with pytest.raises(ConfigError, match=r"logits differ by 6\.7e-01"):  # |x - 3 x| / |3 x|
        HuggingFacePolicy(model)


def test_the_model_of_a_policy_says_that_it_cannot_be_used_alone():
    model = build(LLAMA)
    HuggingFacePolicy(model)
    with pytest.raises(TrainerError, match="attention is ours"):
        model(input_ids=torch.tensor([[1, 2, 3]]))


def test_a_second_model_of_the_same_configuration_is_taken_too():
    model = build(LLAMA)
    first = HuggingFacePolicy(model)
    second = HuggingFacePolicy(AutoModelForCausalLM.from_config(model.config))
    assert torch.equal(scored(first, attempts()[:2]).logprobs_K, scored(first, attempts()[:2]).logprobs_K)
    assert not torch.equal(scored(first, attempts()[:2]).logprobs_K, scored(second, attempts()[:2]).logprobs_K)


def test_without_transformers_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'agentrl\[hf\]'"):
        runpy.run_path(hf.__file__)


def test_weights_are_saved_under_the_names_that_the_model_has():
    model = build(LLAMA)
    assert set(HuggingFacePolicy(model).state_dict()) == {f"model.{name}" for name in model.state_dict()}
