"""What acts, as a configuration names it: a policy, and the renderer that writes and reads its tokens."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config import TrainConfig
from agentrl.engine.random import derive_seed
from agentrl.errors import ConfigError, RendererError
from agentrl.policy.base import Policy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.protocols import Renderer
from agentrl.store import RunFolder
from agentrl.tokens.tiny import WORDS, TinyRenderer

if TYPE_CHECKING:
    from agentrl.tokens.vocabulary import Vocabulary

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A policy with its renderer.

    Attributes:
        vocabulary: of a Hugging Face model, and ``folder`` where its tokenizer is; None for TinyAgent.
    """

    model: Policy
    renderer: Renderer
    vocabulary: Vocabulary | None = None
    folder: Path | None = None

    def keep_vocabulary(self, run: RunFolder) -> None:
        """Keep in a run folder what is needed to read its tokens, and to export the model."""
        if self.folder is None:
            run.write_vocabulary(WORDS)
            return
        run.tokenizer.mkdir(exist_ok=True)
        for name in TOKENIZER_FILES:
            if (self.folder / name).is_file() and not (run.tokenizer / name).is_file():
                shutil.copyfile(self.folder / name, run.tokenizer / name)


def make_agent(config: TrainConfig) -> Agent:
    """The agent of a run, with the weights that it begins with.

    Raises:
        ConfigError: the model cannot be had, or cannot be trained here; or its conversations cannot be written.
    """
    if config.model.is_tiny:
        return Agent(model=_tiny(config, "weights"), renderer=TinyRenderer())
    return _hugging_face(config)


def make_critic(config: TrainConfig) -> Policy:
    """A model like the policy's, with a value head, for a critic that is a network of its own."""
    with_head = config.model_copy(update={"model": config.model.model_copy(update={"value_head": True})})
    if config.model.is_tiny:
        return _tiny(with_head, "critic")
    return _hugging_face(with_head).model


def _tiny(config: TrainConfig, purpose: str) -> TinyTransformer:
    shape = TransformerShape(vocab_size=len(WORDS), **config.model.model_dump(exclude={"name"}))
    return TinyTransformer(shape, seed=derive_seed(config.seed, purpose))


def _hugging_face(config: TrainConfig) -> Agent:
    # here, because they need transformers, which TinyAgent does not
    from agentrl.policy.load import load_policy, model_folder
    from agentrl.tokens.choose import choose_renderer
    from agentrl.tokens.vocabulary import Vocabulary

    try:
        folder = model_folder(config.model.name)
        vocabulary = Vocabulary.load(folder)
        renderer = choose_renderer(vocabulary, thinking=config.hf.thinking)
    except RendererError as error:
        raise ConfigError(f"model.name {config.model.name}: {error}") from error
    seed = derive_seed(config.seed, "weights")
    model = load_policy(config.model.name, config.hf, value_head=config.model.value_head, seed=seed)
    context = model.context
    if config.model.context > context:
        raise ConfigError(f"model.context {config.model.context}: {config.model.name} takes {context} tokens at most")
    return Agent(model=model, renderer=renderer, vocabulary=vocabulary, folder=folder)
