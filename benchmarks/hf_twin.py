"""What the comparison with `transformers` needs of it: our network as one of its models, and one of its own.

Twin runs our very weights under `generate`. The arithmetic of a layer is ours, called as it stands, so that no clumsy
rewrite slows it; the cache, masks, positions, attention (`scaled_dot_product_attention`) and the loop are the
library's.

Shape suffixes: B rows, T padded tokens, M = B * T, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, GenerationMixin, LlamaConfig, LlamaForCausalLM, LogitsProcessor, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from agentrl.engine.random import uniforms
from agentrl.policy.transformer import TinyTransformer, TransformerShape

PAD = 0
"""The id that pads rows on the left, and the one that TinyTransformer takes to stand before a conversation."""


def llama_config(shape: TransformerShape, mlp_width: int) -> LlamaConfig:
    """The library's description of a network of our sizes."""
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=mlp_width,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )


def llama(shape: TransformerShape) -> LlamaForCausalLM:
    """Its gated feed-forward has three matrices to our two, so it gets two thirds of the width."""
    return LlamaForCausalLM(llama_config(shape, round(shape.mlp_width * 2 / 3))).eval()


class Twin(PreTrainedModel, GenerationMixin):
    """TinyTransformer as a model that the library can run: it shares the weights and the layers' arithmetic."""

    config_class = LlamaConfig
    _supports_sdpa = True

    def __init__(self, network: TinyTransformer) -> None:
        super().__init__(llama_config(network.shape, network.shape.mlp_width))
        self.post_init()
        self.network = network  # after post_init, which draws the weights of what it finds

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, next_sequence_length: int | None = None, **kwargs: object
    ) -> dict[str, object]:
        """What `generate` gives to a forward: the library's inputs, and the token before each new one."""
        inputs: dict[str, object] = super().prepare_inputs_for_generation(input_ids, next_sequence_length, **kwargs)
        if next_sequence_length == 1:  # a sampled token follows a token, never padding
            return {**inputs, "previous_ids": input_ids[:, -2:-1]}
        previous = previous_ids(input_ids, kwargs["attention_mask"])
        return {**inputs, "previous_ids": previous[:, -(next_sequence_length or previous.shape[1]) :]}

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        cache: DynamicCache,
        previous_ids: Tensor,
        logits_to_keep: int = 0,
        **kwargs: object,  # noqa: ARG002
    ) -> CausalLMOutputWithPast:
        """Logits (B, logits_to_keep or T, V); the new keys and values go into ``cache``."""
        network, shape = self.network, self.network.shape
        x_MD = network.embed(input_ids.flatten(), previous_ids.flatten())
        x_BTD = x_MD.view(*input_ids.shape, -1)
        turn_M = network.turn[position_ids.flatten()]
        mask = create_causal_mask(self.config, x_BTD, attention_mask, cache, position_ids)
        causal = mask is None and input_ids.shape[1] > 1
        for layer, block in enumerate(network.layers):
            rotated = block.project(x_MD, turn_M)
            q, k, v = (t.view(*input_ids.shape, shape.heads, -1).transpose(1, 2) for t in rotated)
            k, v = cache.update(k, v, layer)
            attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=1.0)
            x_MD = block.finish(x_MD, attended.transpose(1, 2).reshape(x_MD.shape))
        kept = network.final(x_MD.view(x_BTD.shape)[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=network.logits(kept), cache=cache)


def previous_ids(ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The last token before each that is not padding; the padding id where there is none."""
    places = torch.arange(ids_BT.shape[1])
    last_BT = torch.where(mask_BT.bool(), places, -1).cummax(1).values
    before_BT = torch.nn.functional.pad(last_BT[:, :-1], (1, 0), value=-1)
    return torch.where(before_BT < 0, PAD, ids_BT.gather(1, before_BT.clamp_min(0)))


def left_padded(rows: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Ids and mask (B, T), both int64, the rows aligned at their ends."""
    width = max(map(len, rows))
    ids = torch.tensor([(PAD,) * (width - len(row)) + row for row in rows])
    mask = torch.tensor([(0,) * (width - len(row)) + (1,) * len(row) for row in rows])
    return ids, mask


def compute(model: PreTrainedModel, ids_BT: Tensor, mask_BT: Tensor, cache: DynamicCache) -> Tensor:
    """One forward pass over padded rows that fills ``cache``. Returns the last logits (B, V)."""
    position_ids = (mask_BT.cumsum(1) - 1).clamp_min(0)
    before = {"previous_ids": previous_ids(ids_BT, mask_BT)} if isinstance(model, Twin) else {}
    with torch.inference_mode():
        output = model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=position_ids,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
            **before,
        )
    return output.logits[:, -1]


class SameDraws(LogitsProcessor):
    """Leaves `generate` no choice but the token that the engine's own uniform number draws, and notes its
    log-probability: ``logprobs`` gets one (B,) tensor a step."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = np.array(seeds, dtype=np.uint64)
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Scores (B, V) that are zero at the drawn token and minus infinity elsewhere."""
        logprobs_BV = scores.log_softmax(-1)
        cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
        uniform_B = torch.from_numpy(uniforms(self.seeds, np.full_like(self.seeds, len(self.logprobs))))
        drawn_B1 = torch.searchsorted(cumulative_BV, (uniform_B * cumulative_BV[:, -1])[:, None], right=True)
        self.logprobs.append(logprobs_BV.gather(1, drawn_B1).squeeze(1))
        return torch.full_like(scores, -torch.inf).scatter(1, drawn_B1, 0.0)
