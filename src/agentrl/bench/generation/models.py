"""Models of the Qwen3 architecture with random weights, drawn from seed 0, so that all sides have the same."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.bench.floor import Sizes

SMALL = Sizes(name="small", vocabulary=512, width=128, layers=3, heads=4, key_heads=2, mlp_width=384)
"""0.66 million parameters."""
LARGE = Sizes(name="large", vocabulary=151_936, width=96, layers=6, heads=3, key_heads=1, mlp_width=288)
"""15 million parameters, with the vocabulary of the real Qwen3. A head has 32 numbers, the fewest that vLLM takes."""


def model(sizes: Sizes, *, context: int = 2048, spread: float = 0.02) -> Qwen3ForCausalLM:
    """Fresh weights in float32, the output tied to the embedding, ready to sample.

    Args:
        sizes: of the model.
        context: the longest sequence in tokens.
        spread: standard deviation of the weights.
    """
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.mlp_width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_heads,
        head_dim=sizes.head_width,
        max_position_embeddings=context,
        initializer_range=spread,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    made = Qwen3ForCausalLM(config)
    made.train(False)
    return made
