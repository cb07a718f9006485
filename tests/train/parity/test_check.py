"""The whole check on Qwen3's architecture: with the real vocabulary, at two precisions, with faults that are named."""

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

import transformers
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.engine.local import LocalEngine
from agentrl.policy import lora
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import WORDS, TinyRenderer
from agentrl.train.parity.check import parity
from agentrl.train.parity.conversations import Conversation, converse
from agentrl.train.parity.figures import TOLERANCES, compare
from agentrl.types import Message, Sampling, ToolSpec
from tests.tokens.real import needs_assets, vocabulary
from tests.train.parity.lab import CONVERSATIONS, Faulty, with_logprobs


@pytest.fixture(autouse=True, scope="module")
def quiet():
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(verbosity)


def drawn(vocab_size, dtype=torch.float32, *, width=64, tied=True, seed=0):
    """Random weights with opinions: with the usual range of 0.02 all words are as likely."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


# The real vocabulary.

TOOL = ToolSpec(
    name="read",
    description="Show a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def said(role, content):
    return Message(role=role, content=content)


REAL = (
    Conversation(
        name="repair",
        prompt=(said("system", "You repair Python."), said("user", "The test of `split` fails; naïve café ☕.")),
        tools=(TOOL,),
        answers=((said("tool", "1|def split(text):\n2|    return text.split(',')"),), (said("user", "Go on."),)),
    ),
    Conversation(
        name="short",
        prompt=(said("user", "2 + 2?"),),
        answers=((said("tool", "4 <|im_end|> passed"), said("tool", "")),),
    ),
)


@pytest.fixture(scope="module")
def real():
    """10 million parameters, 151,936 words."""
    return HuggingFacePolicy(drawn(151_936))


def check_real(policy, sampler, **settings):
    renderer = ChatMLRenderer(vocabulary(), thinking=False)
    words = vocabulary()
    given = {"attempts": 2, "max_tokens": 12, "reencode": lambda ids: words.encode(words.decode(ids))} | settings
    return parity(policy, sampler, renderer, REAL, **given)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 2000}], ids=str)
@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_assets)], ids=[""])
def test_with_the_real_vocabulary_single_precision_differs_by_less_than_1e_4(real, sampling, mark):
    """Measured: 7.6e-6 at most, 1.6e-6 in the mean, k3 2.1e-12; 7.2e-6, 2.2e-6 and 3.7e-12 with truncation."""
    chosen = Sampling(**sampling)
    found = check_real(real, LocalEngine(real, sampling=chosen), sampling=chosen)
    assert found.within
    assert found.figures.largest < 1e-4
    assert (found.num_conversations, found.num_replies) == (4, 8)
    assert found.figures.num_tokens > 60
    assert found.worst[0].text == vocabulary().decode((found.worst[0].token_id,))


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_assets)], ids=[""])
def test_with_the_real_vocabulary_half_precision_stays_within_its_tolerance(mark):
    """Measured: 0.12 at most, 0.028 in the mean, k3 6.7e-4."""
    policy = HuggingFacePolicy(drawn(151_936, torch.bfloat16))
    found = check_real(policy, LocalEngine(policy), max_tokens=28)
    assert found.dtype == "bfloat16"
    assert found.within
    assert 1e-3 < found.figures.mean < TOLERANCES[torch.bfloat16].mean


FAULTS = {
    "temperature": (
        lambda engine: LocalEngine(engine.model, sampling=Sampling(temperature=0.8)),
        "temperature 0.8 and",
    ),
    "shift": (
        lambda engine: Faulty(engine, told=lambda reply, turn: with_logprobs(reply, np.roll(reply.logprobs, 1))),
        "one 1 token before it",
    ),
    "truncation": (
        lambda engine: Faulty(
            LocalEngine(engine.model, sampling=Sampling(top_k=300)),
            told=lambda reply, turn: replace(reply, support=()),
        ),
        "top_k 300 cuts",
    ),
    # opened without the empty thoughts that the template writes where thinking is off
    "tokens": (
        lambda engine: Faulty(engine, given=lambda ids, turn: ids[:-4]),
        "without the last 4 of the 7 ids that open a reply",
    ),
}


@pytest.mark.parametrize("fault", [pytest.param(name, marks=needs_assets) for name in FAULTS])
def test_faults_are_named_with_the_real_vocabulary(real, fault):
    make, words = FAULTS[fault]
    found = check_real(real, make(LocalEngine(real)), attempts=1)
    assert found.diagnosis.fault == fault
    assert words in found.diagnosis.evidence


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_assets)], ids=[""])
def test_stale_weights_are_named_with_the_real_vocabulary(real, mark):
    stale = moved(real, lambda name: "norm" in name)
    found = check_real(real, LocalEngine(stale), attempts=1, earlier=[("version 6", stale.tensors())])
    assert found.diagnosis.fault == "stale weights"
    assert "version 6" in found.diagnosis.evidence


# A small vocabulary.


def moved(policy, which=lambda name: True, size=0.02):
    """The policy with some weights moved a little."""
    other = policy.frozen_copy()
    noise = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + torch.randn(tensor.shape, generator=noise) * size if which(name) else tensor.clone()
        for name, tensor in policy.tensors().items()
    }
    other.load_tensors(tensors)
    return other


def check(policy, sampler, **settings):
    return parity(policy, sampler, TinyRenderer(), CONVERSATIONS, attempts=3, max_tokens=16, **settings)


def test_a_sampler_in_half_precision_is_named():
    plain = drawn(len(WORDS))
    half = HuggingFacePolicy(copy.deepcopy(plain).to(torch.bfloat16))
    found = check(HuggingFacePolicy(plain), LocalEngine(half))
    assert found.diagnosis.fault == "precision"
    assert "bfloat16" in found.diagnosis.evidence


def test_the_size_of_rounding_is_what_the_tolerance_says():
    """The sampled tokens of a model in bfloat16, scored by itself and in single precision with the same weights."""
    half = HuggingFacePolicy(drawn(len(WORDS), torch.bfloat16))
    held = converse(LocalEngine(half), TinyRenderer(), CONVERSATIONS, attempts=4, max_tokens=24, context=512, seed=0)
    made = [sample for trace in asyncio.run(held) for sample in samples(trace, 0.0)]
    tolerance = TOLERANCES[torch.bfloat16]
    own = compare(half, made, temperature=1.0).figures(tolerance)
    assert own.within(tolerance)
    assert own.mean > 50 * TOLERANCES[torch.float32].mean
    found = check(half, LocalEngine(half, sampling=Sampling(temperature=0.7)))
    assert found.diagnosis.fault == "temperature"


def test_an_adapter_that_never_reached_the_sampler_is_named():
    """verl#7495: the sampler stays at the first policy, and it looks like staleness for months."""
    plain = drawn(len(WORDS))
    lora.add_adapter(plain, rank=4, alpha=8.0, targets=("all-linear",), seed=0)
    policy = HuggingFacePolicy(plain)
    first = {name: tensor.clone() for name, tensor in policy.tensors().items()}
    sampler = LocalEngine(policy.frozen_copy())
    assert check(policy, sampler).within
    noise = torch.Generator().manual_seed(2)
    policy.load_tensors({n: t + torch.randn(t.shape, generator=noise) * 0.05 for n, t in first.items()})
    found = check(policy, sampler, earlier=[("version 0", first)])
    assert found.diagnosis.fault == "stale weights"
    assert "version 0" in found.diagnosis.evidence


def test_a_head_that_no_publication_holds_is_named():
    """prime-rl#3358: adapters are published, and the head, which is trained whole, is not."""
    policy = HuggingFacePolicy(drawn(len(WORDS), tied=False))
    before = moved(policy)
    stale = policy.frozen_copy()
    head = next(name for name in policy.tensors() if "lm_head" in name)
    stale.load_tensors(policy.tensors() | {head: before.tensors()[head]})
    found = check(policy, LocalEngine(stale), earlier=[("version 1", before.tensors())])
    assert found.diagnosis.fault == "half-published weights"
    assert f"when {head} is still of version 1" in found.diagnosis.evidence
