"""``agentrl bench rollout``: how tokens a second and memory grow with concurrency, context and group size.

Each point is a process of its own. Beside every number stands its floor: the time that the arithmetic or the bytes of
the work take at least, and the keys and values that must be kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentrl.bench.floor import Shape
from agentrl.bench.generation.engine import described, threads_of, told
from agentrl.bench.generation.models import SMALL
from agentrl.bench.generation.point import Point
from agentrl.bench.report import BenchError, Cell, Report, Table

CONCURRENCY, CONTEXT, GROUP = "concurrency", "context", "group size"
COLUMNS = (
    "conversations",
    "group size",
    "context",
    "tokens/s",
    "floor tokens/s",
    "share of the floor",
    "bound by",
    "peak MiB",
    "floor MiB",
)
REPLY = 48
FIGURE_TYPES = (".png", ".svg", ".pdf")
LONGEST_S = 600
Sweep = Mapping[int, Shape]
"""Value on the axis -> what is played."""


def sweeps(*, quick: bool = False) -> dict[str, Sweep]:
    """Name of each axis -> its points."""
    if quick:
        return {CONCURRENCY: {n: Shape(groups=n // 2, group=2, prompt=8, reply=2) for n in (4,)}}
    return {
        CONCURRENCY: {n: Shape(groups=n // 8, group=8, prompt=200, reply=REPLY) for n in (8, 32, 128, 512)},
        CONTEXT: {n: Shape(groups=1, group=8, prompt=n - REPLY, reply=REPLY) for n in (256, 1024, 4096, 8192)},
        GROUP: {n: Shape(groups=64 // n, group=n, prompt=200, reply=REPLY) for n in (1, 4, 16, 64)},
    }


def measure(
    *,
    rounds: int = 3,
    threads: int = 0,
    quick: bool = False,
    out: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure all points, which takes about four minutes on a quiet machine.

    Args:
        rounds: that are timed at each point.
        threads: of the engine; 0 for as many as there are cores.
        quick: a few points as small as they can be.
        out: where the figure goes; none when None.
        tell: is told of each point before it is measured.

    Raises:
        BenchError: a point failed, or the figure's name is of no known kind.
    """
    if out is not None and out.suffix not in FIGURE_TYPES:
        raise BenchError(f"--out {out} is of no known kind; end it with {', '.join(FIGURE_TYPES)}")
    before, used = os.getloadavg()[0], threads_of(threads)
    found: dict[str, dict[int, Point]] = {}
    for axis, sweep in sweeps(quick=quick).items():
        found[axis] = {}
        for value, shape in sweep.items():
            tell(f"{axis} {value}")
            found[axis][value] = in_child(shape, used, rounds)
    if out is not None:
        draw(found, out)
    return Report(
        bench="rollout",
        settings={"rounds": rounds, "threads": used, "quick": int(quick)},
        machine=described(),
        load=(before, os.getloadavg()[0]),
        tables=[as_table(axis, sweeps(quick=quick)[axis], points) for axis, points in found.items()],
    )


def in_child(shape: Shape, threads: int, rounds: int) -> Point:
    """`agentrl.bench.generation.point.measure` in a fresh process.

    Raises:
        BenchError: it failed, or took ten minutes.
    """
    module = "agentrl.bench.generation.point"
    command = [sys.executable, "-m", module, json.dumps(asdict(shape)), str(threads), str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{shape} took more than {LONGEST_S} s") from error
    if done.returncode:
        raise BenchError(f"{shape} ended with status {done.returncode}: {done.stderr[-1000:]}")
    return Point(**json.loads(done.stdout))


def as_table(axis: str, sweep: Sweep, points: Mapping[int, Point]) -> Table:
    """One row a point."""
    rows: list[tuple[Cell, ...]] = []
    for value, point in points.items():
        shape = sweep[value]
        rate, limit = point.tokens_per_s, point.floor_tokens_per_s
        speed = (rate, limit, rate / limit, point.bound, point.peak_mib, point.floor_mib)
        rows.append((shape.conversations, shape.group, shape.longest, *speed))
    notes = (
        f"model: {told(SMALL)}; replies of {REPLY} tokens",
        "peak MiB: most resident in a process of its own above what was resident before, weights among that",
        "floor MiB: keys and values of all tokens, each prompt once for its group",
    )
    return Table(title=f"against {axis}", columns=COLUMNS, rows=tuple(rows), notes=notes)


def draw(found: Mapping[str, Mapping[int, Point]], path: Path) -> None:
    """A figure with a column for each axis: tokens a second above, memory below, floors dashed."""
    figure = Figure(figsize=(4.2 * len(found), 6.4), dpi=140, layout="constrained")
    grid = figure.subplots(2, len(found), squeeze=False)
    for column, (axis, points) in enumerate(found.items()):
        values, measured = list(points), list(points.values())
        rates = [point.tokens_per_s for point in measured]
        _lines(grid[0, column], values, rates, [point.floor_tokens_per_s for point in measured], "tokens/s")
        peaks = [point.peak_mib for point in measured]
        _lines(grid[1, column], values, peaks, [point.floor_mib for point in measured], "MiB")
        grid[1, column].set_xlabel(axis)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _lines(axes: Axes, values: Sequence[int], measured: Sequence[float], floor: Sequence[float], label: str) -> None:
    axes.plot(values, measured, marker="o", label="measured")
    axes.plot(values, floor, linestyle="--", color="grey", label="floor")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()
