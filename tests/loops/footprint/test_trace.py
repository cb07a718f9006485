"""What is traced on shapes is what the same passes take with numbers."""

import sys
from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.config import HuggingFaceConfig
from agentrl.loops.footprint.live import LiveBytes
from agentrl.loops.footprint.outline import outline_model
from agentrl.loops.footprint.trace import Conversations, trace_sampling, trace_training
from agentrl.policy import ops
from agentrl.policy.cache import KeyValueCache, Piece
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.packing import micro_batches
from agentrl.train.scoring import score_tokens

SHAPE = TransformerShape(vocab_size=50, layers=2, width=16, heads=2, mlp_width=32, context=64)
WORK = Conversations(groups=2, members=3, prompt=10, length=40, observation=5)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def outline(shape: TransformerShape = SHAPE) -> TinyTransformer:
    with torch.device("meta"):
        return TinyTransformer(shape, seed=0)


def with_numbers(shape: TransformerShape) -> int:
    """Peak bytes of a step with one micro-batch."""
    policy = TinyTransformer(shape, seed=0)
    (batch,) = micro_batches(WORK.samples(), max_tokens=8192)
    with LiveBytes((*policy.parameters(), *policy.buffers())) as live:
        score_tokens(policy, batch, 1.0).logprobs_K.sum().backward()
    return live.peak


def test_a_micro_batch_on_shapes_takes_what_it_takes_with_numbers() -> None:
    found = trace_training(outline(), WORK.samples(), max_tokens=8192)
    assert found.held.peak == pytest.approx(with_numbers(SHAPE), rel=0.02)
    assert found.tokens == 2 * (10 + 3 * 30)  # the prompt of a group lies there once
    assert found.micro_batches == 1


def test_the_stand_in_of_the_tiled_head_takes_what_the_head_takes() -> None:
    wide = TransformerShape(vocab_size=150_000, layers=1, width=16, heads=2, mlp_width=32, context=64)
    found = trace_training(outline(wide), WORK.samples(), max_tokens=8192)  # 90 tokens x 150,000 words: in tiles
    assert found.held.peak == pytest.approx(with_numbers(wide), rel=0.02)


def test_smaller_micro_batches_take_less_until_a_group_stands_alone() -> None:
    whole, halves, least = (trace_training(outline(), WORK.samples(), max_tokens=n) for n in (200, 100, 1))
    assert (whole.micro_batches, halves.micro_batches, least.micro_batches) == (1, 2, 2)
    assert whole.held.peak > halves.held.peak == least.held.peak
    assert whole.kept > 1.5 * (halves.kept - 4 * outline().num_parameters)  # without the gradients that lie there
    assert whole.work.flops == pytest.approx(halves.work.flops)


def test_a_step_has_six_operations_for_each_weight_and_token() -> None:
    found = trace_training(outline(), WORK.samples(), max_tokens=8192)
    matrices = sum(weight.numel() for weight in outline().matrices())
    head = 50 * 16 * 90  # of the trained tokens alone
    products = 6 * (matrices * found.tokens + head)
    assert products < found.work.flops < 1.6 * products  # and attention, which is short here


def test_the_cache_on_shapes_holds_what_it_holds_with_numbers() -> None:
    found = trace_sampling(outline(), WORK)
    # 2 layers x keys and values x 16 numbers x 4 bytes; slots of 64 tokens: 4 for 2 prompts, 8 for 6 tails
    assert found.cache == 2 * 2 * 16 * 4 * 64 * (4 + 8)
    policy = TinyTransformer(SHAPE, seed=0)
    cache = KeyValueCache(policy, sys.maxsize)
    with LiveBytes((*policy.parameters(), *policy.buffers())) as live:
        prompts = [cache.prompts.take(10) for _ in range(2)]
        cache.advance([Piece(slot=slot, prompt=None, token_ids=[1] * 10, previous_id=0, ends=True) for slot in prompts])
        tails = [(cache.tails.take(1), prompt) for prompt in prompts for _ in range(3)]
        for ids in [*([step] for step in range(25)), [1] * 5]:
            cache.advance(
                [Piece(slot=tail, prompt=prompt, token_ids=ids, previous_id=1, ends=True) for tail, prompt in tails]
            )
    # attention of single tokens may be compiled, which on shapes it is not, and needs less for a moment then
    assert live.peak <= found.held.peak * 1.02
    assert found.held.peak <= live.peak * 1.06


@pytest.mark.skipif(ops.kernels(torch.float32) is None, reason="no C compiler on this machine")
def test_layers_that_are_computed_in_c_take_on_shapes_what_they_take_with_numbers() -> None:
    shape = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    policy = HuggingFacePolicy(AutoModelForCausalLM.from_config(shape))
    policy(next(iter(micro_batches(WORK.samples(), max_tokens=8192))))  # how it is trained is decided
    (batch,) = micro_batches(WORK.samples(), max_tokens=8192)
    with LiveBytes((*policy.parameters(), *policy.buffers())) as live:
        score_tokens(policy, batch, 1.0).logprobs_K.sum().backward()
    here, there = (
        trace_training(
            outline_model(shape, HuggingFaceConfig(device=device), value_head=False), WORK.samples(), max_tokens=8192
        ).held.peak
        for device in ("cpu", "cuda")
    )
    assert here == pytest.approx(live.peak, rel=0.03)
    assert there > 1.2 * here  # the model's own layers, which keep more
