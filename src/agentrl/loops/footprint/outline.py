"""A run's policy on the meta device: the shapes of all its weights, and none of their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from agentrl.config import HuggingFaceConfig, TrainConfig
from agentrl.errors import ConfigError
from agentrl.policy.base import Policy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tokens.tiny import WORDS

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def outline(config: TrainConfig, *, layers: int | None = None, words: int | None = None) -> Policy:
    """The policy of a run, on the meta device.

    Args:
        config: of the run.
        layers: the first so many of a Hugging Face model; unset: all.
        words: so many of its vocabulary; unset: all.

    Raises:
        ConfigError: the model's ``config.json`` cannot be had, or adapters do not fit it.
    """
    if config.model.is_tiny:
        shape = TransformerShape(vocab_size=len(WORDS), **config.model.model_dump(exclude={"name"}))
        with torch.device("meta"):
            return TinyTransformer(shape, seed=0)
    found = reshaped(hub_shape(config.model.name), layers=layers, words=words)
    return outline_model(found, config.hf, value_head=config.model.value_head)


def reshaped(shape: Any, *, layers: int | None, words: int | None) -> Any:
    """The shape with the first so many layers, and a vocabulary of so many words; it is changed in place."""
    if layers is not None:
        shape.num_hidden_layers = layers
        if getattr(shape, "layer_types", None):
            shape.layer_types = shape.layer_types[:layers]
    if words is not None:
        shape.vocab_size = words
        shape.pad_token_id = None  # it may lie behind these words
    return shape


def outline_model(shape: PretrainedConfig, settings: HuggingFaceConfig, *, value_head: bool) -> Policy:
    """The policy of a Hugging Face model, from its configuration.

    Raises:
        ConfigError: adapters do not fit the model.
    """
    # here, because they need transformers, which TinyAgent does not
    from transformers import AutoModelForCausalLM

    from agentrl.policy import lora
    from agentrl.policy.hf import ATTENTION, HuggingFacePolicy

    on_cpu = settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available())

    class Outline(HuggingFacePolicy):
        """Its passes are those of the policy; the comparison of numbers, with which one begins, is left out."""

        def __init__(self, model: Any) -> None:
            nn.Module.__init__(self)
            model.set_attn_implementation(ATTENTION)
            self.model, self.attention = model, settings.attention
            self.logit_scale, self.dropouts = 1.0, ()
            self.adapted = lora.has_adapter(model)
            self._training_decided = not on_cpu  # elsewhere its own layers are trained
            width = model.get_output_embeddings().weight.shape[1]
            self.value = nn.Linear(width, 1) if value_head else None

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            shape, dtype=getattr(torch, settings.dtype)
        )
        if settings.lora_rank:
            targets = settings.lora_targets
            lora.add_adapter(model, rank=settings.lora_rank, alpha=settings.lora_alpha, targets=targets, seed=0)
        policy = Outline(model)
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable()
        policy.train()
    return policy


def hub_shape(name: str) -> PretrainedConfig:
    """The ``config.json`` of a model.

    Raises:
        ConfigError: it cannot be had.
    """
    from transformers import AutoConfig  # here, because TinyAgent does not need transformers

    from agentrl.policy.load import base_of, hub_folder

    try:
        shape: PretrainedConfig = AutoConfig.from_pretrained(hub_folder(base_of(name), ("config.json",)))
    except (OSError, ValueError) as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(
            f"model.name {name}: its config.json cannot be had ({said}); name a folder that has one"
        ) from error
    return shape
