"""Small models of a run's shape: fewer layers and words, random weights, the run's own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from agentrl.config import TrainConfig
from agentrl.loops.footprint.layers import shallow
from agentrl.loops.footprint.outline import hub_shape, reshaped
from agentrl.policy.base import Policy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tokens.tiny import WORDS

FEW_WORDS = 256
_EMBEDDED = 2**25
"""Numbers of the embeddings of the wider model, at most: 128 MiB in float32, more than a processor's cache has."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Layers and words of a model."""

    layers: int
    words: int


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that a run's own is told from, since what a layer and a word cost is the same in all of them.

    Attributes:
        whole: the run's own.
        base: the smallest.
        deeper, wider: with more layers, and with more words; None where the smallest has all.
    """

    whole: Sizes
    base: Sizes
    deeper: Sizes | None
    wider: Sizes | None

    @property
    def members(self) -> list[Sizes]:
        """Those to measure, the smallest first."""
        return [sizes for sizes in (self.base, self.deeper, self.wider) if sizes is not None]

    def told(self, base: float, deeper: float, wider: float) -> float:
        """What the run's own model costs, by what the others do; 0 at least."""
        cost = base
        if self.deeper is not None:
            more = (self.whole.layers - self.base.layers) / (self.deeper.layers - self.base.layers)
            cost += more * max(0.0, deeper - base)
        if self.wider is not None:
            more = (self.whole.words - self.base.words) / (self.wider.words - self.base.words)
            cost += more * max(0.0, wider - base)
        return cost


def family(config: TrainConfig) -> Family:
    """Of the model of a run.

    Raises:
        ConfigError: the model's ``config.json`` cannot be had.
    """
    if config.model.is_tiny:
        whole = Sizes(layers=config.model.layers, words=len(WORDS))
        return Family(whole=whole, base=whole, deeper=None, wider=None)
    shape: Any = hub_shape(config.model.name).get_text_config()
    whole = Sizes(layers=shape.num_hidden_layers, words=shape.vocab_size)
    depths = shallow(whole.layers, getattr(shape, "layer_types", None))
    few, more = depths or (whole.layers, None)
    wide = _EMBEDDED // shape.hidden_size
    several = whole.words > 4 * FEW_WORDS
    words = FEW_WORDS if several else whole.words
    return Family(
        whole=whole,
        base=Sizes(layers=few, words=words),
        deeper=None if more is None else Sizes(layers=more, words=words),
        wider=Sizes(layers=few, words=min(whole.words, FEW_WORDS + wide)) if several else None,
    )


def made(config: TrainConfig, sizes: Sizes, device: torch.device) -> Policy:
    """A model of such sizes with random weights.

    Raises:
        ConfigError: as for `family`, or adapters do not fit the model.
    """
    if config.model.is_tiny:
        numbers = config.model.model_dump(exclude={"name", "layers"})
        return TinyTransformer(TransformerShape(vocab_size=sizes.words, layers=sizes.layers, **numbers), seed=0)
    # here, because they need transformers, which TinyAgent does not
    from transformers import AutoModelForCausalLM

    from agentrl.policy import lora
    from agentrl.policy.hf import HuggingFacePolicy

    shape, settings = reshaped(hub_shape(config.model.name), layers=sizes.layers, words=sizes.words), config.hf
    model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        shape, dtype=getattr(torch, settings.dtype)
    )
    if settings.lora_rank:
        targets = settings.lora_targets
        lora.add_adapter(model, rank=settings.lora_rank, alpha=settings.lora_alpha, targets=targets, seed=0)
    policy = HuggingFacePolicy(model.to(device), value_head=config.model.value_head, attention=settings.attention)
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable()
        policy.train()
    return policy
