"""What would make a run need less memory, and how much less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.config import TrainConfig
from agentrl.loops.footprint.estimate import Estimate, Traces, conversations_of, estimate, trace

_LORA_RANK = 32
_SAME_MODEL = {"hf.micro_batch_tokens", "rl.groups_per_step", "rl.group_size", "eval.at_once"}
"""Keys that leave the model as it is."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the configuration, and the bytes that the run would need less at its peak.

    Attributes:
        settings: dotted key to value, as on the command line.
        saves: in the memory that the model lies in; 0 or less where another part of the run needs as much.
    """

    settings: Mapping[str, str]
    saves: int


def changes(config: TrainConfig, now: Estimate, traces: Traces, *, libraries: int) -> list[Change]:
    """Changes that would save memory, the largest saving first. Each is estimated alone.

    Args:
        config: of the run.
        now: what it needs.
        traces: of its passes.
        libraries: as for `estimate`.
    """
    found = []
    for settings in _candidates(config, now):
        changed = _with(config, settings)
        assumed = now.conversations
        conversations = conversations_of(changed, prompt=assumed.prompt, length=assumed.length)
        same = all(key in _SAME_MODEL for key in settings)
        then = estimate(changed, trace(changed, conversations, known=traces if same else None), libraries=libraries)
        texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()}
        found.append(Change(settings=texts, saves=_needed(now) - _needed(then)))
    return sorted((change for change in found if change.saves > 0), key=lambda change: -change.saves)


def _needed(estimated: Estimate) -> int:
    return estimated.needed_on_device or estimated.needed_on_host


def _candidates(config: TrainConfig, now: Estimate) -> Iterator[Mapping[str, Any]]:
    rl, tokens = config.rl, min(now.tokens, config.hf.micro_batch_tokens)
    yield {"hf.micro_batch_tokens": max(1, tokens // 2)}
    if rl.groups_per_step > 1:
        yield {"rl.groups_per_step": rl.groups_per_step // 2}
    if rl.group_size >= 4:
        yield {"rl.group_size": rl.group_size // 2}
    attempts = config.eval.at_once or config.eval.tasks * config.eval.attempts
    if attempts > rl.groups_per_step * rl.group_size:
        yield {"eval.at_once": rl.groups_per_step * rl.group_size}
    if config.model.is_tiny:
        return
    if not config.hf.gradient_checkpointing:
        yield {"hf.gradient_checkpointing": True}
    if not config.hf.lora_rank:
        yield {"hf.lora_rank": _LORA_RANK}
        yield {"hf.lora_rank": _LORA_RANK, "hf.dtype": "bfloat16"}
    elif config.hf.dtype == "float32":
        yield {"hf.dtype": "bfloat16"}


def _with(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    for key, value in settings.items():
        section, name = key.split(".")
        part = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: part})
    return config
