"""Figures of evaluations, as files: curves over k, families, differences, and whether a verifier tells the truth."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from agentrl.evals import stats
from agentrl.evals.compare import Report
from agentrl.evals.metric import Metric
from agentrl.evals.table import Table
from agentrl.files import write_atomic

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

COLOURS = ("#3b6fb6", "#d1495b", "#2a9d8f", "#e9a03b", "#7b5ea7", "#4a4a4a")
GREY = "#8a8a8a"
MOST_FAMILIES = 24


class Curve(NamedTuple):
    """A metric over k with its interval at each."""

    ks: list[int]
    intervals: list[stats.Interval]


def curve(table: Table, checkpoint: str, name: str) -> Curve:
    """``pass@`` or ``pass^`` for k = 1, 2, 4, ... up to the attempts that every task of a checkpoint has.

    Args:
        table: scores of 0 and 1.
        checkpoint: one of the table's.
        name: ``pass@`` or ``pass^``.
    """
    scores = table.of_checkpoint(checkpoint)
    kept = ~np.isnan(scores).all(axis=1)
    scores, clusters = scores[kept], None if table.clusters is None else table.clusters[kept]
    fewest = int((~np.isnan(scores)).sum(axis=1).min())
    ks = sorted({2**power for power in range(fewest.bit_length())} | {fewest})
    values = [Metric(name=name, k=k).values(scores) for k in ks]
    return Curve(ks, [stats.interval_of(one, clusters=clusters) for one in values])


def pass_curves(table: Table, path: Path) -> Path:
    """pass@k (lines that rise) and pass^k (lines that fall, dashed) of every checkpoint with bands of 95 %.

    Raises:
        StoreError: scores that are neither 0 nor 1.
    """
    table = table.passing(None)
    figure = Figure(figsize=(7.2, 4.6), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    ticks: set[int] = set()
    for c, checkpoint in enumerate(table.checkpoints):
        for name, style, marker in (("pass@", "-", "o"), ("pass^", "--", "s")):
            found = curve(table, checkpoint, name)
            colour = COLOURS[c % len(COLOURS)]
            low, mean, high = ([getattr(one, end) for one in found.intervals] for end in ("low", "mean", "high"))
            axes.fill_between(found.ks, low, high, color=colour, alpha=0.13, linewidth=0)
            axes.plot(found.ks, mean, style, marker=marker, markersize=4, color=colour, label=f"{name}k  {checkpoint}")
            if len(found.ks) == 1:
                axes.errorbar(found.ks, mean, yerr=_reach(found.intervals), color=colour, capsize=3)
            ticks |= set(found.ks)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [str(k) for k in sorted(ticks)])
    axes.minorticks_off()
    axes.set_ylim(-0.02, 1.02)
    _dress(axes, "At least one of k attempts passes, and all of k pass", "attempts k")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, path)


def family_bars(table: Table, path: Path) -> Path:
    """The mean score of each family with its 95 % interval, a bar a checkpoint; families with most tasks first.

    A family with fewer than two tasks, or clusters of tasks, has a bar without an interval.
    """
    order = sorted(set(table.families), key=lambda name: (-table.families.count(name), name))[:MOST_FAMILIES]
    figure = Figure(figsize=(7.2, 1.3 + 0.34 * len(order) * max(1, len(table.checkpoints)) ** 0.6), dpi=140)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(table.checkpoints)
    for c, checkpoint in enumerate(table.checkpoints):
        for place, family in enumerate(order):
            y = place + (c - (len(table.checkpoints) - 1) / 2) * height
            _bar(axes, y, *_family_values(table, checkpoint, family), COLOURS[c % len(COLOURS)], height)
        axes.barh([0], [0], color=COLOURS[c % len(COLOURS)], alpha=0.75, label=checkpoint)
    names = [f"{name or 'no family'} ({table.families.count(name)})" for name in order]
    axes.set_yticks(range(len(order)), names)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlim(0, 1.02)
    _dress(axes, "Mean score by family (tasks), 95 % intervals", "mean score")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, path)


def _family_values(table: Table, checkpoint: str, family: str) -> tuple[Floats, Labels | None]:
    """The mean score of each scored task of a family, and the tasks' clusters."""
    scores = table.of_checkpoint(checkpoint)
    named = np.array([name == family for name in table.families])
    chosen = named & ~np.isnan(scores).all(axis=1)
    values = stats.mean_score(scores[chosen]) if chosen.any() else np.array([])
    return values, None if table.clusters is None else table.clusters[chosen]


def _bar(axes: Axes, y: float, values: Floats, clusters: Labels | None, colour: str, height: float) -> None:
    if not len(values):
        return
    axes.barh([y], [values.mean()], height=height * 0.9, color=colour, alpha=0.75)
    if len(values if clusters is None else set(clusters.tolist())) >= 2:
        found = stats.interval_of(values, clusters=clusters)
        axes.errorbar([found.mean], [y], xerr=_reach([found]), color="#222222", capsize=2, linewidth=1)


def forest(report: Report, path: Path) -> Path:
    """The difference of every checkpoint from the first with its 95 % interval, in points; a filled mark where it is
    not explained by chance."""
    figure = Figure(figsize=(7.2, 1.5 + 0.45 * len(report.differences)), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0.0, color=GREY, linewidth=1)
    for place, one in enumerate(report.differences):
        found = one.comparison.difference
        axes.errorbar(
            [100 * found.mean],
            [place],
            xerr=100 * _reach([found]),
            color=COLOURS[0],
            marker="o",
            markersize=7,
            markerfacecolor=COLOURS[0] if one.different else "white",
            capsize=4,
        )
        text = f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
        axes.annotate(text, (100 * found.mean, place), (0, 8), textcoords="offset points", ha="center", fontsize=8)
    axes.set_yticks(range(len(report.differences)), [textwrap.fill(one.second, 28) for one in report.differences])
    axes.set_ylim(len(report.differences) - 0.4, -0.75)
    base = textwrap.fill(f"difference from {report.rows[0].name}", 60, break_long_words=True)
    _dress(axes, f"{report.metric}, {report.num_tasks} tasks:\n{base}", "points, with 95 % interval")
    return _save(figure, path)


def calibration(table: Table, checkpoint: str, verifier: str, path: Path) -> Path:
    """How often the gold score passes where a verifier gave a certain score: on the diagonal it tells the truth.

    Gold is the table's own score, the verifier one of its ``others``. The verifier's scores are put into ten bins of
    equal width, and the interval at each is clustered by task.
    """
    bins = calibration_bins(table.of_checkpoint(checkpoint), table.others[verifier][:, :, table.index(checkpoint)])
    figure = Figure(figsize=(5.2, 4.8), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    for one in bins:
        reach = None if one.interval is None else _reach([one.interval])
        axes.errorbar([one.verifier], [one.gold], yerr=reach, color=COLOURS[0], marker="o", capsize=4)
        beside = (8, 0) if one.verifier < 0.5 else (-8, 0)
        axes.annotate(
            f"{one.attempts}",
            (one.verifier, one.gold),
            beside,
            textcoords="offset points",
            ha="left" if one.verifier < 0.5 else "right",
            va="center",
            fontsize=8,
            color=GREY,
        )
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(-0.05, 1.05)
    axes.set_ylabel("mean gold score", fontsize=9)
    _dress(axes, f"{checkpoint}: {verifier} against gold (attempts)", f"score of {verifier}")
    return _save(figure, path)


class Bin(NamedTuple):
    """Attempts with like scores of a verifier: their mean score of it, their mean gold score, their number, and the
    interval of the gold score; None where the attempts are all at one task."""

    verifier: float
    gold: float
    attempts: int
    interval: stats.Interval | None


def calibration_bins(gold: np.ndarray, verifier: np.ndarray, number: int = 10) -> list[Bin]:
    """Attempts by the verifier's score, in bins of equal width over [0, 1]; empty bins are left out.

    Args:
        gold: [T, K] in [0, 1], NaN where missing.
        verifier: likewise.
        number: of bins.

    Raises:
        ValueError: a verifier's score outside [0, 1].
    """
    both = ~(np.isnan(gold) | np.isnan(verifier))
    tasks, gold, verifier = np.nonzero(both)[0], gold[both], verifier[both]
    wrong = verifier[(verifier < 0) | (verifier > 1)]
    if len(wrong):
        raise ValueError(f"a verifier's score of {wrong[0]:g} is not in [0, 1]; calibration needs a probability")
    place = np.minimum((verifier * number).astype(int), number - 1)
    groups = ((place == b) for b in range(number))
    return [_bin(verifier[g], gold[g], tasks[g]) for g in groups if g.any()]


def _bin(verifier: np.ndarray, gold: np.ndarray, tasks: np.ndarray) -> Bin:
    several = len(set(tasks.tolist())) > 1
    interval = stats.interval_of(gold, clusters=tasks) if several else None
    return Bin(float(verifier.mean()), float(gold.mean()), len(gold), interval)


def draw_evaluation(table: Table, folder: Path) -> Mapping[str, Path]:
    """The figures of one evaluation that its scores allow: curves over k for scores of 0 and 1, families where there
    are several, calibration for every other score in [0, 1]. Returns what was drawn, by name."""
    drawn: dict[str, Path] = {}
    if table.is_binary():
        drawn["pass_curves"] = pass_curves(table, folder / "pass_curves.png")
    if len(set(table.families)) > 1:
        drawn["families"] = family_bars(table, folder / "families.png")
    for name, values in table.others.items():
        known = values[~np.isnan(values)]
        if len(known) and np.all((known >= 0) & (known <= 1)) and not math.isclose(float(np.ptp(known)), 0.0):
            safe = "".join(letter if letter.isalnum() else "_" for letter in name)
            drawn[name] = calibration(table, table.checkpoints[0], name, folder / f"calibration_{safe}.png")
    return drawn


def draw_comparison(table: Table, report: Report, folder: Path) -> Mapping[str, Path]:
    """The figures of a comparison: its differences, and of all checkpoints the curves over k and the families that
    their scores allow. Returns what was drawn, by name."""
    drawn = {"forest": forest(report, folder / "forest.png")}
    shared = table.shared()
    if shared.is_binary():
        drawn["pass_curves"] = pass_curves(shared, folder / "pass_curves.png")
    if len(set(shared.families)) > 1:
        drawn["families"] = family_bars(shared, folder / "families.png")
    return drawn


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
