"""A run in miniature: every step of a recipe once or twice, on a small random model, before an expensive run begins.

What is run is what would be run: the same loops, tokens, tasks, checkpoints and files. The numbers that come out say
nothing of learning.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.config import TrainConfig
from agentrl.engine.random import derive_seed
from agentrl.errors import ConfigError, RendererError, TrainerError
from agentrl.loops.agent import TOKENIZER_FILES, tokenizer_folder
from agentrl.loops.evaluation import find_checkpoint
from agentrl.loops.parity import Asked, check
from agentrl.loops.run import train
from agentrl.loops.sampling import in_process
from agentrl.policy.base import Policy
from agentrl.store import RunFolder
from agentrl.train.checkpoint import read_checkpoint
from agentrl.train.parity.check import Parity
from agentrl.ui.live import Reporter

STEPS = 2
WIDTH, LAYERS, HEADS, HEAD_WIDTH = 96, 4, 4, 32
"""With the 151,936 words of Qwen3, 15 million parameters."""
PROBE = tuple(range(1, 33))


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What was done.

    Attributes:
        summary: of the run, as `agentrl.loops.run.train` gives it.
        parity: how far trainer and sampler are apart in the end, as `agentrl check parity` measures it.
        exported: the folder that the trained model was written to; None for TinyAgent, which no other program loads.
        difference: largest difference of a logit between the policy and the exported model, loaded again by
            `transformers` alone.
    """

    summary: dict[str, Any]
    parity: Parity | None = None
    exported: Path | None = None
    difference: float | None = None


def dry_config(config: TrainConfig, root: Path) -> TrainConfig:
    """The same configuration in miniature, without rejection sampling. A Hugging Face model is replaced by a small
    random one with its tokenizer, which is written to ``root/dry-run-model``.

    Raises:
        ConfigError: no tokenizer can be had.
    """
    small = config.model_copy(
        update={
            # drawn rewards, since a random model earns none and would have nothing to learn from
            "tasks": config.tasks.model_copy(update={"train_tasks": 4, "reward": "random", "on_hack": "nothing"}),
            "warm_start": _fewer(config.warm_start, steps=STEPS, batch_size=max(2, config.warm_start.demonstrations)),
            # a random model has no success to imitate
            "rejection": config.rejection.model_copy(update={"rounds": 0}),
            "rl": _fewer(
                config.rl,
                steps=STEPS,
                groups_per_step=2,
                group_size=max(2, min(config.rl.group_size, 4)),
                minibatches=1,
                critic_warmup=0,
                eval_every=1,
                checkpoint_every=1,
                traces_every=1,
            ),
            "eval": config.eval.model_copy(update={"tasks": 2, "attempts": 1, "during_tasks": 2}),
            "engine": in_process(config.engine),  # servers serve the whole model
        }
    )
    if not config.model.is_tiny:
        reply = min(config.tasks.max_reply, 48)  # a random model never stops by itself
        model = config.model.model_copy(update={"name": str(_random_model(config, root / "dry-run-model"))})
        small = small.model_copy(update={"model": model, "tasks": small.tasks.model_copy(update={"max_reply": reply})})
    return TrainConfig.model_validate(small.model_dump())


def _fewer(section: Any, **few: int) -> Any:
    """A section with smaller numbers; what it does not do at all (0) it does not do now."""
    return section.model_copy(update={name: min(getattr(section, name), value) for name, value in few.items()})


def dry_run(config: TrainConfig, folder: RunFolder, reporter: Reporter) -> DryRun:
    """Train in miniature, export what came of it, and load it again.

    Args:
        config: made by `dry_config`.
        folder: where everything is kept.
        reporter: who is told.

    Raises:
        AgentRLError: of the boundary that failed.
        TrainerError: trainer and sampler do not agree, or the model that was loaded again gives other numbers.
    """
    summary = train(config, folder, reporter, resume=False)
    if reporter.stop_requested:
        return DryRun(summary=summary)
    found = _check_parity(config, folder, reporter)
    if config.model.is_tiny:
        return DryRun(summary=summary, parity=found)
    exported = folder.path / "export"
    difference = _export(config, folder, exported)
    reporter.note(f"exported to {exported} and loaded again: logits differ by at most {difference:.1e}")
    if not difference <= 1e-4:
        raise TrainerError(
            f"the exported model in {exported} gives logits that differ by {difference:.3g} from the policy's"
        )
    return DryRun(summary=summary, parity=found, exported=exported, difference=difference)


def _check_parity(config: TrainConfig, folder: RunFolder, reporter: Reporter) -> Parity:
    asked = Asked(
        config=config,
        checkpoint=find_checkpoint(folder, ""),
        sampling=config.rl.sampling,
        tasks=2,
        attempts=2,
        turns=2,
        max_tokens=min(16, config.tasks.max_reply),
    )
    found = check(asked)
    figures = found.figures
    reporter.note(f"parity: {figures.num_tokens} tokens, log-probabilities differ by at most {figures.largest:.1e}")
    if not found.within:
        raise TrainerError(f"trainer and sampler do not agree: {found.diagnosis}")
    return found


def _export(config: TrainConfig, folder: RunFolder, target: Path) -> float:
    # here, because TinyAgent does not need them
    from transformers import AutoModelForCausalLM

    from agentrl.policy.export import export_model
    from agentrl.policy.load import load_policy, quiet

    settings = config.hf.model_copy(update={"device": "cpu", "dtype": "float32"})
    policy = load_policy(config.model.name, settings, value_head=config.model.value_head, seed=0)
    weights = read_checkpoint(find_checkpoint(folder, "")).weights
    policy.load_tensors({name: tensor for name, tensor in weights.items() if ":" not in name})
    export_model(policy, target, tokenizer=folder.tokenizer)
    with quiet():
        again = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        theirs = again(torch.tensor([PROBE])).logits[0, -1]
    return float((_last_logits(policy) - theirs).abs().max())


def _last_logits(policy: Policy) -> torch.Tensor:
    from agentrl.policy.cache import next_logits

    return next_logits(policy, [PROBE])[0]


def _random_model(config: TrainConfig, folder: Path) -> Path:
    """A small model of Qwen3's architecture with random weights, and the tokenizer of the configured model."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from agentrl.policy.load import quiet
    from agentrl.tokens.vocabulary import Vocabulary

    tokenizer = _tokenizer(config.model.name)
    vocabulary = Vocabulary.load(tokenizer)
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(derive_seed(config.seed, "dry run"))
    shape = Qwen3Config(
        vocab_size=-(-vocabulary.num_ids // 128) * 128,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        head_dim=HEAD_WIDTH,
        max_position_embeddings=max(config.model.context, 1024),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary.end_id,
    )
    with quiet():
        Qwen3ForCausalLM(shape).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    return folder


def _tokenizer(name: str) -> Path:
    """That of the model; where it cannot be had, Qwen3's, which is fetched into ``assets/``."""
    from agentrl.tokens.assets import fetch

    try:
        return tokenizer_folder(name)
    except ConfigError as error:
        try:
            return fetch(Path("assets"))
        except RendererError as second:
            raise ConfigError(f"{error}; and {second}") from error
