"""One training run, from random weights to a measured result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentrl.config import TrainConfig
from agentrl.errors import StoreError
from agentrl.evals.stats import Interval, paired_difference, pass_at_1
from agentrl.loops.agent import check_tools
from agentrl.loops.context import RunContext
from agentrl.loops.progress import Stopped
from agentrl.loops.publication import local
from agentrl.loops.rejection import reject_and_imitate
from agentrl.loops.rl import reinforce
from agentrl.loops.rl_async import reinforce_async
from agentrl.loops.sampling import told_of_memory
from agentrl.loops.sft import warm_start
from agentrl.policy import compiled
from agentrl.policy.base import Policy
from agentrl.store import RunFolder
from agentrl.train.checkpoint import newest_whole
from agentrl.ui.live import Reporter
from agentrl.ui.plots import learning_curve


def train(config: TrainConfig, folder: RunFolder, reporter: Reporter, *, resume: bool) -> dict[str, Any]:
    """Supervised fine-tuning, evaluation, rejection sampling, reinforcement learning, evaluation, as far as they are
    configured. Returns the summary, which is also in the folder.

    A run of supervised fine-tuning alone is evaluated once, at its end.

    Args:
        config: the run's configuration.
        folder: where everything is kept.
        reporter: who is told, and who may ask for a stop; then the summary lacks ``eval["after"]``.
        resume: go on from the folder's latest checkpoint.

    Raises:
        AgentRLError: of the boundary that failed; a StoreError with the last good checkpoint when nothing can be
            written any more, because the disk is full or the folder cannot be written.
    """
    with _naming_the_last_good(folder), compiled.telling(reporter.note):
        return _train(config, folder, reporter, resume=resume)


@contextmanager
def _naming_the_last_good(folder: RunFolder) -> Iterator[None]:
    """Say of a failure to write or read what the run can go on from."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TimeoutError | ConnectionError):  # no word of the folder
            raise
        whole = newest_whole(folder.checkpoints)
        kept = f"the last good checkpoint is {whole}" if whole else "it has no checkpoint yet, so it would begin anew"
        raise StoreError(
            f"the run stopped: {error}; {kept}. When that is mended, go on with: agentrl train --resume {folder.path}"
        ) from error


def _train(config: TrainConfig, folder: RunFolder, reporter: Reporter, *, resume: bool) -> dict[str, Any]:
    run = RunContext(config, folder, reporter)
    run.agent.keep_vocabulary(folder)
    try:
        if not config.model.is_tiny:
            check_tools(run.agent, config.model.name)
        if run.served is None and (said := told_of_memory(config, local(run.engine))):
            reporter.note(said)
        if resume:
            run.resume()
        finished = False
        try:
            if run.progress.phase == "warm_start":
                warm_start(run)
            if config.rejection.rounds or config.rl.steps:
                run.measure("before", 0)
            if config.rejection.rounds and run.progress.phase != "rl":
                reject_and_imitate(run)
            if config.rl.steps:
                (reinforce_async if config.rl.mode == "async" else reinforce)(run)
            run.measure("after", config.rl.steps or config.rejection.rounds)
            finished = True
        except Stopped:
            pass
        run.add_wall()
    finally:
        run.close()
    summary = summarize(run) | {"finished": finished}
    folder.write_summary(summary)
    learning_curve(folder)
    return summary


def summarize(run: RunContext) -> dict[str, Any]:
    """What came of the run, as plain data."""
    progress, seconds = run.progress, run.progress.seconds
    outcomes = progress.outcomes
    measured: dict[str, Interval] = {
        name: pass_at_1(outcomes[name], progress.clusters) for name in ("before", "after") if name in outcomes
    }
    if len(measured) == 2:
        measured["difference"] = paired_difference(outcomes["before"], outcomes["after"], progress.clusters)
    return {
        "recipe": run.config.recipe,
        "seed": run.config.seed,
        "trained": _trained(run.config),
        "wall_s": seconds["wall"],
        "train_s": seconds.get("rl", 0.0),
        "seconds": dict(seconds),
        "steps": progress.step if progress.phase == "rl" else 0,
        "episodes": progress.episodes,
        "tokens_sampled": progress.tokens_sampled,
        "parameters": run.model.num_parameters,
        "resident_mib": run.resident_mib(),
        "notes": _notes(run.model),
        "sandbox": {name: run.sandbox[name] for name in ("backend", "level")},
        "eval": {name: _plain(interval) for name, interval in measured.items()},
    }


def _notes(model: Policy) -> list[str]:
    """What to know of how it was computed; nothing where all is as usual."""
    choice = model.sampling_choice
    return [*compiled.problems(), *([str(choice)] if choice is not None and choice.trials else [])]


def _trained(config: TrainConfig) -> str:
    """What stands between the two evaluations of a run, or before its only one."""
    parts = [("rejection sampling", config.rejection.rounds), ("RL", config.rl.steps)]
    return " and ".join(name for name, count in parts if count) or "supervised fine-tuning"


def _plain(interval: Interval) -> dict[str, Any]:
    return {
        "pass@1": {"mean": interval.mean, "low": interval.low, "high": interval.high},
        "tasks": interval.num_tasks,
        "attempts": interval.num_attempts,
        "unscored": interval.num_unscored,
        "method": interval.method,
    }
