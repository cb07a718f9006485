"""The in-process engine over Hugging Face models: its log-probabilities are those of the model's own forward pass."""

import asyncio
from copy import deepcopy

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

import transformers
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from agentrl.engine.local import LocalEngine
from agentrl.policy import step
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.types import Sampling

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
GEMMA3 = Gemma3TextConfig(
    **SIZES,
    head_dim=8,
    sliding_window=5,
    query_pre_attn_scalar=8,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)
CONFIGS = (
    Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
    Qwen2Config(**SIZES),
    LlamaConfig(**SIZES),
    GraniteConfig(**SIZES, logits_scaling=4.0, attention_multiplier=0.2, residual_multiplier=0.5),
    CohereConfig(**SIZES, logit_scale=0.25),
    GPTNeoXConfig(**SIZES),
    MistralConfig(**SIZES, sliding_window=5),
    GEMMA3,
)
FEW_SCORES = pytest.mark.parametrize("few_scores", [False, True], ids=["", "in pieces"])
STOP = frozenset((0,))
PLANS = {
    11: [(1, 2, 3), (4,), tuple(range(5, 29))],
    12: [(1, 2, 3), (7, 8)],
    13: [(1, 2, 3)],
    14: [(9, 10, 11, 12, 13, 14, 15, 16), (4, 4, 4, 4), (), (6,)],
    15: [(9, 10), (5,)],
}


@pytest.fixture(autouse=True, scope="module")
def quiet():
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(verbosity)


def drawn(config, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype).eval()


def play(engine, plans):
    async def converse(session, contexts):
        replies = [await session.sample(ids, max_tokens=5, stop_ids=STOP) for ids in contexts]
        await session.close()
        return replies

    async def all_of_them():
        sessions = {seed: engine.session(seed) for seed in plans}
        talks = [converse(sessions[seed], contexts) for seed, contexts in plans.items()]
        return dict(zip(plans, await asyncio.gather(*talks), strict=True))

    return asyncio.run(asyncio.wait_for(all_of_them(), 60.0))


@torch.no_grad()
def own_logprobs(model, ids, temperature):
    """Of each id but the first, by the model's own forward pass over the whole sequence."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1).tolist()


def largest_gap(model, plans, played, temperature):
    gaps = []
    for seed, contexts in plans.items():
        ids, sampled = [], []
        for context, reply in zip(contexts, played[seed], strict=True):
            ids += context
            for token, logprob in zip(reply.token_ids, reply.logprobs, strict=True):
                sampled.append((len(ids), logprob))
                ids.append(token)
        expected = own_logprobs(model, ids, temperature)
        gaps += [abs(expected[place - 1] - logprob) for place, logprob in sampled]
    return max(gaps)


@FEW_SCORES
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_sampled_logprobs_are_those_of_the_models_own_forward_pass(config, few_scores, monkeypatch):
    if few_scores:  # prompts through fused attention; long contexts in pieces of 16 tokens
        monkeypatch.setattr(step, "MAX_SCORES", 1)
    plain = drawn(config)
    policy = HuggingFacePolicy(deepcopy(plain))
    played = play(LocalEngine(policy, sampling=Sampling(temperature=0.8)), PLANS)
    assert largest_gap(plain, PLANS, played, 0.8) < 1e-9
    # Negative controls: other weights and another temperature are noticed.
    assert largest_gap(plain, PLANS, played, 0.9) > 1e-3
    assert largest_gap(drawn(config, seed=1), PLANS, played, 0.8) > 1e-3


def test_a_window_that_was_forgotten_would_be_noticed():
    plain = drawn(GEMMA3)
    played = play(LocalEngine(HuggingFacePolicy(deepcopy(plain))), PLANS)
    wide = Gemma3TextConfig(**{**GEMMA3.to_dict(), "sliding_window": 500})
    other = drawn(wide)
    other.load_state_dict(plain.state_dict())
    assert largest_gap(other, PLANS, played, 1.0) > 1e-3


def test_half_precision_is_sampled_with_logits_in_single_precision():
    """bfloat16 has three digits: logits around 4 would be multiples of 1/64."""
    policy = HuggingFacePolicy(drawn(CONFIGS[0], dtype=torch.bfloat16))
    played = play(LocalEngine(policy), {seed: [(1, 2, 3)] for seed in range(20)})
    logprobs = [logprob for replies in played.values() for logprob in replies[0].logprobs]
    assert all(-40.0 < logprob <= 0.0 for logprob in logprobs)
    assert sum(logprob == float(torch.tensor(logprob).bfloat16()) for logprob in logprobs) < len(logprobs) / 4


def test_training_moves_what_is_sampled_at_once():
    """One set of weights: nothing is copied, so nothing can be forgotten."""
    policy = HuggingFacePolicy(drawn(CONFIGS[0]))
    engine = LocalEngine(policy)
    before = play(engine, PLANS)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(1.5)
    engine.publish(1)
    after = play(engine, PLANS)
    plain = drawn(CONFIGS[0])
    with torch.no_grad():
        plain.model.norm.weight.mul_(1.5)
    assert largest_gap(plain, PLANS, after, 1.0) < 1e-9 < 1e-3 < largest_gap(plain, PLANS, before, 1.0)
    assert after[11][0].versions[0] == 1
