"""The figures of a run's report."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentrl.evals import stats
from agentrl.evals.report.curve import LearningCurve
from agentrl.evals.report.drift import Drift
from agentrl.evals.report.forecast import Forecast
from agentrl.evals.report.passes import Passes, SolvedBy
from agentrl.evals.report.weights import Change
from agentrl.files import write_atomic

BLUE, RED, GREEN, GREY = "#3b6fb6", "#d1495b", "#2a9d8f", "#8a8a8a"
MOST_BARS = 40
MOST_NUMBERED = 12


def draw_curve(curve: LearningCurve, seen: Forecast, path: Path) -> Path:
    """Training reward in bins and small evaluations with 95 % intervals; the forecast, dotted where it had not seen."""
    figure = Figure(figsize=(8.0, 4.4), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    for one in curve.bins:
        middle, half = (one.first + one.last) / 2, (one.last - one.first) / 2
        reach = None if one.interval is None else _reach([one.interval])
        label = "training reward, by bins of steps" if one is curve.bins[0] else None
        axes.errorbar([middle], [one.mean], yerr=reach, xerr=half, color=BLUE, fmt="o", markersize=4, label=label)
    if curve.points:
        below = [max(0.0, one.mean - one.low) for one in curve.points]
        above = [max(0.0, one.high - one.mean) for one in curve.points]
        steps, means = [one.step for one in curve.points], [one.mean for one in curve.points]
        axes.errorbar(
            steps, means, yerr=[below, above], color=RED, fmt="s", markersize=5, capsize=3, label="small evaluations"
        )
    if seen.score is not None:
        _forecast(axes, seen, len(curve.rewards))
    axes.set_ylim(-0.02, 1.05)
    _dress(axes, "Learning curve, 95 % intervals", "step of RL")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return _save(figure, path)


def _forecast(axes: Axes, seen: Forecast, number: int) -> None:
    assert seen.early is not None
    steps = np.arange(number, dtype=np.float64)
    first = seen.early.num_steps
    low, high = seen.early.band(steps)
    axes.plot(steps[:first], seen.early(steps[:first]), color=GREEN, linewidth=1.6, label="sigmoid, fitted")
    axes.plot(steps[first:], seen.early(steps[first:]), ":", color=GREEN, linewidth=2, label="its forecast")
    axes.fill_between(steps, low, high, color=GREEN, alpha=0.15, linewidth=0)
    axes.axvline(first, color=GREY, linewidth=0.8, linestyle="--")


def draw_passes(found: Passes, path: Path) -> Path:
    """pass@k of both with 95 % bands, and below it their paired difference."""
    figure = Figure(figsize=(7.2, 5.6), dpi=140, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1.0))
    ks = [one.k for one in found.at]
    for name, colour in (("before", GREY), ("after", BLUE)):
        sides = [getattr(one.comparison, name) for one in found.at]
        label = {"before": "base (before RL)", "after": "trained"}[name]
        low, high = ([getattr(one, end) for one in sides] for end in ("low", "high"))
        above.fill_between(ks, low, high, color=colour, alpha=0.18, linewidth=0)
        above.errorbar(
            ks, [one.mean for one in sides], yerr=_reach(sides), color=colour, marker="o", capsize=3, label=label
        )
    above.set_ylim(-0.02, 1.05)
    above.legend(frameon=False, fontsize=8, loc="lower right")
    _dress(above, f"pass@k, {found.num_tasks} tasks in {found.num_clusters} clusters", "")
    gaps = [one.comparison.difference for one in found.at]
    below.axhline(0.0, color=GREY, linewidth=1)
    below.errorbar(ks, [one.mean for one in gaps], yerr=_reach(gaps), color=GREEN, marker="o", capsize=3)
    below.set_xscale("log", base=2)
    below.set_xticks(ks, [str(k) for k in ks])
    below.minorticks_off()
    _dress(below, "trained minus base, paired by task", "attempts k")
    return _save(figure, path)


def draw_solved(found: SolvedBy, path: Path) -> Path:
    """Each task by its share of passed attempts before and after; above the diagonal it got better."""
    figure = Figure(figsize=(5.2, 5.0), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    counts: dict[tuple[float, float], int] = {}
    for one in found.tasks:
        place = (one.base[0] / one.base[1], one.trained[0] / one.trained[1])
        counts[place] = counts.get(place, 0) + 1
    x, y = zip(*counts, strict=True)
    axes.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1)
    axes.scatter(x, y, s=[18 + 500 * n / len(found.tasks) for n in counts.values()], color=BLUE, alpha=0.6)
    for place, number in counts.items():
        if len(counts) <= MOST_NUMBERED:
            axes.annotate(str(number), place, fontsize=8, ha="center", va="center")
    axes.set_xlim(-0.06, 1.06)
    axes.set_ylim(-0.06, 1.06)
    axes.set_ylabel("trained: share of attempts that pass", fontsize=9)
    _dress(axes, f"{len(found.tasks)} tasks; area: tasks at one place", "base: share of attempts that pass")
    return _save(figure, path)


def draw_drift(found: Sequence[Drift], path: Path) -> Path:
    """Forgetting and unlearning against forward divergence, a checkpoint a mark; the base is at the origin."""
    figure = Figure(figsize=(6.4, 4.4), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    sets = (("forgetting", RED, "o", "demonstrations to retain"), ("unlearning", GREY, "s", "other demonstrations"))
    for name, colour, marker, label in sets:
        _drift_line(axes, found, name, colour, marker, label)
    axes.plot([0], [0], "D", color="#222222", markersize=5, label="base")
    axes.set_ylabel("rise of the loss, nats per token", fontsize=9)
    _dress(axes, "Forgetting against divergence, 95 % intervals", "KL(base || checkpoint), nats per token")
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def _drift_line(axes: Axes, found: Sequence[Drift], name: str, colour: str, marker: str, label: str) -> None:
    """The checkpoints that have both numbers, from the base on."""
    rows = [(one.step, one.divergence, getattr(one, name)) for one in found]
    x, y = [x for _, x, y in rows if x and y], [y for _, x, y in rows if x and y]
    if not x:
        return
    across, up = [one.mean for one in x], [one.mean for one in y]
    axes.plot([0.0, *across], [0.0, *up], color=colour, linewidth=0.8, alpha=0.6)
    axes.errorbar(
        across, up, xerr=_reach(x), yerr=_reach(y), color=colour, fmt=marker, markersize=5, capsize=3, label=label
    )
    place = (across[-1], up[-1])
    axes.annotate(f"step {rows[-1][0]}", place, (6, 5), textcoords="offset points", fontsize=8, color=colour)


def draw_weights(changes: Sequence[Change], path: Path) -> Path:
    """The share of weights that changed in float32 and in bfloat16, and the stable rank of the change beside noise."""
    shown = list(changes)[:MOST_BARS]
    figure = Figure(figsize=(8.6, 1.4 + 0.26 * len(shown)), dpi=140, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(shown))
    left.barh(places - 0.2, [one.share for one in shown], height=0.36, color=GREY, label="float32")
    left.barh(places + 0.2, [one.share_bf16 for one in shown], height=0.36, color=BLUE, label="bfloat16")
    left.set_xlim(0, 1.02)
    left.set_yticks(places, [one.name for one in shown])
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.06), ncols=2)
    _dress(left, "share of weights changed", "")
    ranks = [math.nan if one.stable_rank is None else one.stable_rank for one in shown]
    noise = [math.nan if one.stable_rank_noise is None else one.stable_rank_noise for one in shown]
    right.plot(ranks, places, "o", color=BLUE, markersize=5, label="of the change")
    right.plot(noise, places, "|", color=GREY, markersize=9, label="of noise")
    right.set_xlim(left=0)
    right.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.06), ncols=2)
    _dress(right, "stable rank", "")
    return _save(figure, path)


def _reach(intervals: Sequence[stats.Interval]) -> np.ndarray:
    """Lengths below and above the mean, [2, n], for error bars."""
    ends = [[max(0.0, one.mean - one.low), max(0.0, one.high - one.mean)] for one in intervals]
    return np.array(ends).T


def _dress(axes: Axes, title: str, xlabel: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(xlabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    picture = io.BytesIO()
    figure.savefig(picture)
    write_atomic(path, picture.getvalue())
    return path
