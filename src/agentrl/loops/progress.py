"""How far a run has come, and what its folder keeps of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.store import RunFolder

PHASES = ("warm_start", "rejection", "rl")
"""In the order in which a run goes through them."""


@dataclass
class Progress:
    """How far a run has come; everything that a resumed run cannot compute anew."""

    phase: str = "warm_start"
    step: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    episodes: int = 0
    tokens_sampled: int = 0
    outcomes: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    entropy_coef: float = 0.0
    stopped_early: bool = False
    best_loss: float | None = None
    best_step: int = 0
    misses: int = 0


class Stopped(Exception):
    """Somebody asked the run to stop; a checkpoint has been written."""


def forget_all(folder: RunFolder) -> None:
    """Remove what a run recorded that begins anew."""
    folder.truncate_after(-1, phases=(*PHASES, "eval", "eval_before"))


def forget_later(folder: RunFolder, progress: Progress, *, rl_steps: int) -> None:
    """Remove what was recorded after the checkpoint that a run goes on from.

    Args:
        folder: of the run.
        progress: at the checkpoint.
        rl_steps: that the run takes in all.
    """
    phase = progress.phase
    folder.truncate_after(progress.step, phases=(phase,))
    folder.truncate_after(-1, phases=PHASES[PHASES.index(phase) + 1 :])
    if phase == "warm_start":
        folder.truncate_after(-1, phases=("eval", "eval_before"))
    elif phase == "rejection":
        folder.truncate_after(0, phases=("eval",))
    else:
        folder.truncate_after(progress.step)
        # no checkpoint follows the last evaluation, so it is always done again
        folder.truncate_after(rl_steps - 1, phases=("eval",))
