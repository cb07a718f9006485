"""What acts, as a configuration names it: a policy, and the renderer that writes and reads its tokens."""

from __future__ import annotations

import os
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
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tokens.tiny import WORDS, TinyRenderer
from agentrl.types import Message

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
            source, target = self.folder / name, run.tokenizer / name
            if source.is_file() and not target.is_file():
                _link_or_copy(source.resolve(), target)


def check_tools(agent: Agent, name: str) -> None:
    """Whether an agent can be told of the tools of its tasks, and of their results.

    Args:
        agent: that will act.
        name: of its model, for the error.

    Raises:
        ConfigError: its chat template has no place for them.
    """
    try:
        opening = [Message(role="system", content="You repair."), Message(role="user", content="Repair a.py.")]
        agent.renderer.render(opening, BugFixEnvironment.tool_specs())
        agent.renderer.extend([Message(role="tool", content="1 passed")], ())
    except RendererError as error:
        raise ConfigError(f"model.name {name}: the tasks need tools, and {error}") from error


def _link_or_copy(source: Path, target: Path) -> None:
    """A file of ten megabytes is not kept twice where that can be had."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


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


def model_context(name: str) -> int:
    """The longest sequence in tokens that a model's configuration allows.

    Raises:
        ConfigError: it cannot be had.
    """
    # here and below, because TinyAgent does not need them
    from transformers import AutoConfig

    from agentrl.policy.load import base_of, hub_folder

    folder = hub_folder(base_of(name), ("config.json",))
    try:
        return int(AutoConfig.from_pretrained(folder).max_position_embeddings)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"no model {name!r}: {str(error).splitlines()[0]}") from error


def tokenizer_folder(name: str) -> Path:
    """The folder of a model's tokenizer: the model's own, or what the hub gives for its name.

    Raises:
        ConfigError: it cannot be had.
    """
    from agentrl.policy.load import base_of, hub_folder

    own = Path(name)
    name = name if (own / TOKENIZER_FILES[0]).is_file() else base_of(name)
    return hub_folder(name, TOKENIZER_FILES, "tokenizer of")


def _hugging_face(config: TrainConfig) -> Agent:
    from agentrl.policy.load import check_stops, load_policy
    from agentrl.tokens.choose import choose_renderer
    from agentrl.tokens.vocabulary import Vocabulary

    name = config.model.name
    folder = tokenizer_folder(name)
    try:
        vocabulary = Vocabulary.load(folder)
        settings = config.hf
        renderer = choose_renderer(vocabulary, thinking=settings.thinking, kind=settings.renderer, today=settings.today)
    except RendererError as error:
        raise ConfigError(f"model.name {name}: {error}") from error
    seed = derive_seed(config.seed, "weights")
    model = load_policy(name, config.hf, value_head=config.model.value_head, seed=seed, vocabulary=vocabulary)
    check_stops(model.model, renderer.stop_ids, vocabulary)
    if config.model.context > model.context:
        raise ConfigError(f"model.context {config.model.context}: {name} takes {model.context} tokens at most")
    return Agent(model=model, renderer=renderer, vocabulary=vocabulary, folder=folder)
