"""The quicker forward pass of sampling gives the numbers of the model's own layers, and is taken only where it does."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from agentrl.policy import plain
from agentrl.policy.cache import next_logits
from agentrl.policy.hf import HuggingFacePolicy

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama with scaled positions": LlamaConfig(
        **SIZES,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    ),
    "qwen2 with windows": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3 tied": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
}
IDS = [[5, 9, 3, 3, 7, 1, 2, 2, 8, 30, 41, 5], [4], [17, 2, 9]]


def make(config, *, dtype=torch.float32):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(0.3 * torch.randn_like(weight))
    return HuggingFacePolicy(model)


@pytest.fixture(autouse=True, params=["passes", "compiled", "torch"])
def way(request, monkeypatch):
    """Who computes what lies between the products: whole passes, one operation at a time in C, or torch; on a machine
    without a compiler all are torch."""
    if request.param == "torch":
        monkeypatch.setattr(plain, "kernels", lambda _: None)
    if request.param == "compiled":
        monkeypatch.setattr(plain, "segments", lambda *_: None)
    return plain._Compiled if plain.kernels(16) else plain._Plain


def is_quick(policy):
    return isinstance(policy._sampling, (plain._Compiled, plain._Plain))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_numbers_of_the_models_own_layers(name, monkeypatch, way):
    policy = make(CONFIGS[name])
    quick = next_logits(policy, IDS)
    assert type(policy._sampling) is way
    monkeypatch.setattr(plain, "PLAIN_TYPES", frozenset())
    policy = make(CONFIGS[name])
    own = next_logits(policy, IDS)
    assert not is_quick(policy)
    torch.testing.assert_close(quick, own, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.self_attn, "scaling", 0.3),
        lambda layer: setattr(layer.input_layernorm, "variance_epsilon", 0.5),
        lambda layer: setattr(layer.self_attn, "sliding_window", 4),
    ],
)
def test_what_a_layer_is_told_is_read_from_it(change):
    """Both read the layer, so that they agree; with the ordinary value they would not."""
    policy = make(CONFIGS["qwen3"])
    before = next_logits(policy, IDS)
    change(policy.model.model.layers[1])
    policy._sampling = None
    after = next_logits(policy, IDS)
    assert is_quick(policy)
    assert (after - before).abs().max() > 1e-3


def test_another_computation_keeps_its_own_layers():
    policy = make(CONFIGS["qwen3"])
    norm = policy.model.model.layers[1].post_attention_layernorm
    norm.forward = lambda x: 1.5 * type(norm).forward(norm, x)
    next_logits(policy, IDS)
    assert not is_quick(policy)


def test_other_types_of_models_and_weights_keep_theirs():
    mistral = MistralConfig(**SIZES, sliding_window=4)
    for policy in (make(mistral), make(CONFIGS["qwen3"], dtype=torch.bfloat16)):
        next_logits(policy, IDS)
        assert not is_quick(policy)


def test_many_tokens_are_left_to_threads(way, monkeypatch):
    policy = make(CONFIGS["qwen3"])
    few = next_logits(policy, IDS)
    monkeypatch.setattr(plain, "MANY_TOKENS", 10)
    monkeypatch.setattr(plain.torch, "get_num_threads", lambda: 4)
    sizes, by_torch = [], plain._Plain.__call__

    def counted(quick, ids_M, *others):
        sizes.append(len(ids_M))
        return by_torch(quick, ids_M, *others)

    monkeypatch.setattr(plain._Plain, "__call__", counted)
    torch.testing.assert_close(next_logits(policy, IDS), few, rtol=0.0, atol=1e-5)
    assert sizes == ([16] if way is plain._Compiled else [1, 16])  # one token asks for the shapes of the layers


def test_a_model_that_is_moved_is_computed_where_it_is():
    policy = make(CONFIGS["qwen3"])
    few = next_logits(policy, IDS)
    policy.double()
    torch.testing.assert_close(next_logits(policy, IDS), few.double(), rtol=0.0, atol=1e-5)
    if plain.kernels(16) is not None:  # what is compiled would take halves for whole numbers
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(next_logits(policy.float(), IDS).float(), few, rtol=0.0, atol=0.1)


def test_a_copy_computes_with_its_own_weights():
    policy = make(CONFIGS["qwen3"])
    before = next_logits(policy, IDS)
    copy = policy.frozen_copy()
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.1)
    torch.testing.assert_close(next_logits(copy, IDS), before, rtol=0.0, atol=0.0)
    assert (next_logits(policy, IDS) - before).abs().max() > 1e-3


def doubled(_, __, out):
    """A hook that changes what a module gives, whatever shape that has."""
    if isinstance(out, torch.Tensor):
        return 2.0 * out
    if isinstance(out, tuple):
        return (2.0 * out[0], *out[1:])
    out.last_hidden_state = 2.0 * out.last_hidden_state
    return out


HOOKED = [
    "",
    "embed_tokens",
    "layers.1",
    "layers.1.self_attn",
    "layers.1.self_attn.o_proj",
    "layers.1.self_attn.q_norm",
    "layers.0.mlp",
    "layers.0.mlp.act_fn",
    "layers.0.mlp.up_proj",
    "layers.2.post_attention_layernorm",
    "norm",
]


@pytest.mark.parametrize("name", HOOKED)
def test_a_module_that_is_hooked_is_called_until_the_hook_is_taken_away(name, monkeypatch):
    policy = make(CONFIGS["qwen3"])
    before = next_logits(policy, IDS)
    hook = policy.model.model.get_submodule(name).register_forward_hook(doubled)
    hooked = next_logits(policy, IDS)
    hook.remove()
    assert is_quick(policy)
    assert torch.equal(next_logits(policy, IDS), before)

    monkeypatch.setattr(plain, "PLAIN_TYPES", frozenset())
    policy = make(CONFIGS["qwen3"])
    policy.model.model.get_submodule(name).register_forward_hook(doubled)
    torch.testing.assert_close(hooked, next_logits(policy, IDS), rtol=0.0, atol=1e-5)
    assert (hooked - before).abs().max() > 1e-3  # a hook that nobody hears would not be seen otherwise


def test_a_forward_pass_that_was_set_on_a_module_is_taken(monkeypatch):
    policy = make(CONFIGS["qwen3"])
    before = next_logits(policy, IDS)
    norm = policy.model.model.layers[1].input_layernorm
    own = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: 2.0 * own(x), raising=False)
    assert (next_logits(policy, IDS) - before).abs().max() > 1e-3
