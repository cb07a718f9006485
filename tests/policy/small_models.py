"""Tiny models of many architectures with random weights, and attempts for them to score."""

import json
from copy import deepcopy

import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from agentrl.tokens.vocabulary import Vocabulary
from agentrl.train.packing import count, pack
from agentrl.train.scoring import score_tokens
from agentrl.train.trainer import OptimizerSettings
from agentrl.types import Sample
from tests.tokens.templates import CHATML, SMOLLM, small_tokenizer

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # opinions: with the usual 0.02 all words are as likely
}
SETTINGS = OptimizerSettings(learning_rate=1e-2, matrix_learning_rate=1e-2, total_steps=100, warmup_steps=1)
QWEN3 = Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True)
LLAMA = LlamaConfig(**SIZES, tie_word_embeddings=False)
GRANITE = GraniteConfig(**SIZES, logits_scaling=4.0, attention_multiplier=0.2, residual_multiplier=0.5)
COHERE = CohereConfig(**SIZES, logit_scale=0.25)
NEOX = GPTNeoXConfig(**SIZES)
"""The only one of these that normalises in the type of its weights; the others do in float32, whatever that is."""
QWEN2 = Qwen2Config(**SIZES, tie_word_embeddings=True)
SMOL = LlamaConfig(**SIZES, tie_word_embeddings=True)
"""SmolLM is a Llama whose output is tied to its embedding."""
GEMMA3 = Gemma3TextConfig(
    **SIZES,
    head_dim=8,
    query_pre_attn_scalar=8,
    sliding_window=6,
    layer_types=["sliding_attention", "full_attention"],
)
"""Its first layer sees 6 tokens back, and turns positions by another base than the second."""
GPT2 = GPT2Config(
    vocab_size=40, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
)
"""It stores its matrices the other way round."""
MOE = Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
MISTRAL = MistralConfig(**SIZES, sliding_window=4)


def build(config, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(deepcopy(config)).to(dtype)


def fitting(config):
    """A model for the tokenizer of these tests."""
    config, vocabulary = deepcopy(config), Vocabulary(small_tokenizer(CHATML), {"eos_token": CHATML[2]})
    config.vocab_size, config.pad_token_id, config.bos_token_id = vocabulary.num_ids, None, None
    config.eos_token_id = vocabulary.end_id
    return build(config)


def sample(ids, trained_from, *, group="g", advantage=1.0, gap=()):
    """Trained from one place on, but for the places in ``gap``."""
    trained = [float(place >= trained_from and place not in gap) for place in range(len(ids))]
    return Sample(
        token_ids=tuple(ids),
        weights={"pg": tuple(trained), "ce": tuple(trained)},
        logprobs=tuple(-3.0 if flag else None for flag in trained),
        advantages=tuple(advantage if flag else 0.0 for flag in trained),
        trace_id=f"{group}/{ids}",
        group_id=group,
    )


def attempts():
    """Groups with shared prefixes of 4, 6 and 2 tokens; continuations of unlike length, with context between."""
    return [
        sample([5, 6, 7, 8, 9, 10, 11], 4, advantage=0.5),
        sample([5, 6, 7, 8, 12, 13, 14, 15, 16], 4, advantage=-0.5, gap=(6,)),
        sample([5, 6, 7, 8, 17, 18, 19], 4, advantage=-1.0),
        sample([20, 21, 22, 23, 24, 25, 26], 6, group="h", advantage=2.0),
        sample([30, 31, 32, 33], 2, group="i", advantage=1.0),
        sample([30, 31, 35], 2, group="i", advantage=-1.0),
    ]


def long_attempts():
    """A prefix of 9 tokens, longer than the windows above; continuations of 14, 14 and 5, and a sequence alone."""

    def ids(length, start):
        return [(start * 7 + place * 5) % 37 + 2 for place in range(length)]

    prefix = ids(9, 1)
    return [
        sample([*prefix, *ids(14, 2)], 9, advantage=0.5),
        sample([*prefix, *ids(14, 3)], 11, advantage=-0.5),
        sample([*prefix, *ids(5, 4)], 9, advantage=1.0, gap=(11,)),
        sample(ids(12, 5), 1, group="h", advantage=-1.0),
    ]


def by_group(samples):
    groups = {}
    for one in samples:
        groups.setdefault(one.group_id, []).append(one)
    return groups.values()


def scored(policy, samples, temperature=1.0):
    return score_tokens(policy, pack([samples], count(samples)), temperature)


def alone(model, samples, temperature=1.0):
    """Log-probabilities of the trained tokens by the model's own forward pass, one sequence after the other."""
    found = []
    for one in samples:
        ids = torch.tensor([one.token_ids])
        logprobs = (model(input_ids=ids, use_cache=False).logits[0] / temperature).log_softmax(-1)
        trained = [place for place, weight in enumerate(one.weights["pg"]) if weight]
        found.append(logprobs[[place - 1 for place in trained], ids[0, trained]])
    return torch.cat(found)


def grads(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def write_tokenizer(folder, template=SMOLLM):
    """The files of a small tokenizer, as ``save_pretrained`` writes them."""
    folder.mkdir()
    small_tokenizer(CHATML).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
