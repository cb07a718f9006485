"""What a run samples with, and whether what it plays at a time fits into memory."""

from __future__ import annotations

from typing import Protocol

from agentrl.algorithms.presets import preset
from agentrl.config import EngineConfig, TrainConfig
from agentrl.engine.local import LocalEngine, Schedule
from agentrl.errors import ConfigError
from agentrl.policy.base import Policy
from agentrl.protocols import Sampler
from agentrl.types import Sampling


class Work(Protocol):
    """What a sampler has done so far."""

    @property
    def seconds(self) -> float:
        """Spent sampling."""
        ...

    @property
    def prefilled(self) -> int | None:
        """Tokens computed as context; None where the sampler does not know."""
        ...


class RunSampler(Sampler, Protocol):
    """A sampler that says what it has done."""

    @property
    def stats(self) -> Work:
        """So far."""
        ...


def prefilled_since(work: Work, before: int | None) -> int | None:
    """Tokens computed as context since there were so many."""
    return None if work.prefilled is None or before is None else work.prefilled - before


def local_engine(
    config: TrainConfig,
    model: Policy,
    *,
    sampling: Sampling | None = None,
    schedule: Schedule = "lockstep",
    version: int = 0,
) -> LocalEngine:
    """The engine of this process as a configuration sets it.

    Args:
        config: of the run.
        model: whose weights are sampled.
        sampling: how tokens are drawn; as in training when None.
        schedule: see `agentrl.engine.local`.
        version: of the weights.
    """
    engine = config.engine
    return LocalEngine(
        model,
        sampling=config.rl.sampling if sampling is None else sampling,
        version=version,
        schedule=schedule,
        cache_bytes=None if engine.cache_gib is None else max(1, int(engine.cache_gib * 2**30)),
        max_running=engine.max_running,
        chunk_tokens=engine.chunk_tokens,
        at_publication=engine.at_publication_keys,
    )


def in_process(engine: EngineConfig) -> EngineConfig:
    """The engine of this process, as it is set where it samples anyway."""
    return engine if engine.kind == "local" else EngineConfig()


def played_at_once(config: TrainConfig) -> tuple[int, str]:
    """The most conversations of a run that are open at a time, and where."""
    rl, evaluation = config.rl, config.eval
    attempts = rl.group_size + rl.extra_attempts + (preset(rl.algorithm).greedy if rl.steps else 0)
    ahead = min(rl.max_staleness, rl.steps - 1) if rl.overlaps else 0
    whole = evaluation.tasks * evaluation.attempts
    measured = min(whole, evaluation.at_once or whole)
    small = min(evaluation.during_tasks, evaluation.at_once or whole) if rl.eval_every else 0
    counts = {
        "rl": (rl.groups_per_step * attempts * (1 + ahead)) if rl.steps else 0,
        "an evaluation": max(measured, small if rl.steps else 0),
        "rejection": config.rejection.tasks_at_once * config.rejection.attempts if config.rejection.rounds else 0,
    }
    where = max(counts, key=lambda name: counts[name])
    return counts[where], where


def told_of_memory(config: TrainConfig, engine: LocalEngine) -> str | None:
    """What to say where not all that a run plays at a time fits into the engine's memory; None where all fits.

    Raises:
        ConfigError: not even one conversation fits for certain.
    """
    tokens, cache = config.model.context, engine.store.cache
    fit, limit_gib = engine.conversations_that_fit(tokens), cache.budget.limit / 2**30
    each_mib = tokens * cache.bytes_per_token / 2**20
    what = f"{each_mib:.3g} MiB of keys and values each, in slots of up to twice that"
    if not fit:
        raise ConfigError(
            f"engine.cache_gib {limit_gib:.3g} holds no conversation of {tokens} tokens (model.context) for certain: "
            f"{what}; raise engine.cache_gib, or lower model.context"
        )
    count, where = played_at_once(config)
    if count <= fit:
        return None
    return (
        f"memory: {where} plays {count} conversations at a time, and {fit} of {tokens} tokens fit for certain ({what}; "
        f"engine.cache_gib {limit_gib:.3g}); where others do not, they wait or are computed again"
    )
