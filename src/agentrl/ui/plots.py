"""The learning curve of a run as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentrl.files import write_atomic
from agentrl.store import RunFolder

Rows = Sequence[Mapping[str, Any]]

REWARD, HELD_OUT, PLAIN = "#3b6fb6", "#d1495b", "#4a4a4a"


def learning_curve(folder: RunFolder) -> Path:
    """Draw ``curves.png`` into the run folder and return its path.

    The picture has the training reward and held-out pass@1 with its 95 % intervals over the steps of RL, and below
    that the loss of the warm start, the entropy and the norm of the gradient, as far as the run measured them.
    """
    rows = folder.metrics()
    figure = Figure(figsize=(9.0, 6.6), dpi=140, layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(1.7, 1.0))
    _success(figure.add_subplot(grid[0, :]), rows)
    warm = [row for row in rows if row["phase"] == "warm_start"]
    rl = [row for row in rows if row["phase"] == "rl"]
    _line(figure.add_subplot(grid[1, 0]), warm, "loss", "warm start: loss per token", "step of the warm start")
    _line(figure.add_subplot(grid[1, 1]), rl, "entropy", "RL: entropy (nats)", "step of RL")
    _line(figure.add_subplot(grid[1, 2]), rl, "grad_norm", "RL: gradient norm", "step of RL")
    config = folder.config
    figure.suptitle(f"{config.recipe}, seed {config.seed}", fontsize=12, fontweight="bold")
    path = folder.path / "curves.png"
    picture = io.BytesIO()
    figure.savefig(picture)
    write_atomic(path, picture.getvalue())
    return path


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Centred moving mean; near the ends the window shrinks on both sides alike, so nothing is shifted."""
    half = window // 2
    reach = [min(half, index, len(values) - 1 - index) for index in range(len(values))]
    return [float(np.mean(values[i - r : i + r + 1])) for i, r in enumerate(reach)]


def _success(axes: Axes, rows: Rows) -> None:
    steps, rewards = _series([row for row in rows if row["phase"] == "rl"], "reward")
    if steps:
        axes.plot(steps, rewards, color=REWARD, alpha=0.25, linewidth=1)
        mean = smoothed(rewards, max(3, len(rewards) // 15))
        axes.plot(steps, mean, color=REWARD, linewidth=2, label="training reward (moving mean)")
    _held_out(axes, [row for row in rows if row["phase"] == "eval" and row.get("pass_rate") is not None])
    _dress(axes, "Reward and held-out pass@1", "step of RL")
    axes.set_ylim(-0.02, 1.06)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower right")


def _held_out(axes: Axes, rows: Rows) -> None:
    if not rows:
        return
    steps = [row["step"] for row in rows]
    rates = np.array([row["pass_rate"] for row in rows])
    low, high = (
        np.array([_or(row.get(f"pass_rate_{end}"), row["pass_rate"]) for row in rows]) for end in ("low", "high")
    )
    axes.fill_between(steps, low, high, color=HELD_OUT, alpha=0.12, linewidth=0)
    axes.errorbar(
        steps,
        rates,
        yerr=np.clip([rates - low, high - rates], 0.0, None),
        color=HELD_OUT,
        marker="o",
        markersize=5,
        linewidth=1.5,
        capsize=3,
        label="held-out pass@1 (95 % interval)",
    )
    _label(axes, (steps[0], high[0]), rates[0], "left")
    if len(rows) > 1:
        _label(axes, (steps[-1], high[-1]), rates[-1], "right")


def _label(axes: Axes, place: tuple[float, float], rate: float, side: Literal["left", "right"]) -> None:
    axes.annotate(f"{rate:.2f}", place, (0, 4), textcoords="offset points", ha=side, color=HELD_OUT, fontweight="bold")


def _line(axes: Axes, rows: Rows, metric: str, title: str, xlabel: str) -> None:
    steps, values = _series(rows, metric)
    if steps:
        axes.plot(steps, values, color=PLAIN, linewidth=1.2)
        axes.set_ylim(bottom=0.0)
    else:
        axes.text(0.5, 0.5, "not measured", ha="center", va="center", color="#999999", transform=axes.transAxes)
    _dress(axes, title, xlabel)


def _dress(axes: Axes, title: str, xlabel: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(xlabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _series(rows: Rows, metric: str) -> tuple[list[int], list[float]]:
    measured = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    return [step for step, _ in measured], [value for _, value in measured]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
