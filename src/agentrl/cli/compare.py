"""``agentrl compare``: checkpoints beside each other, on the tasks that they share."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from agentrl.cli import BadInput
from agentrl.cli.attempts import bad_values, read_table
from agentrl.cli.runs import DEFAULT_ROOT
from agentrl.evals.compare import Difference, Flip, Report, Requirement, Row, Verdict, compare
from agentrl.evals.metric import parse_bounds, parse_metric
from agentrl.evals.table import Table

HELP = """Compare checkpoints, pairwise by task: every one against the first.

Each SOURCE is a run (RUN, RUN@before, RUN@after, RUN@STEP), the folder of an evaluation, a trace file (.jsonl.gz), a
table (.csv or .jsonl with the columns task, attempt, score and, if wanted, checkpoint, cluster, family, status), an
Inspect log (.json, .eval) or a folder with lm-eval's samples_*.jsonl.

Intervals are paired and clustered by task, or by the clusters of tasks where they are known. With several
comparisons p-values are adjusted by Holm.

\b
Exit status:
  0  compared; with --require: met by every checkpoint after the first
  1  --require is shown not to be met, or more attempts are missing than --max-missing
  2  bad input
  3  --require is undecided: the interval says neither yes nor no
--require better: the whole interval of the difference is above --margin.
--require not-worse: the whole interval is above minus --margin.

\b
Examples:
  agentrl compare latest@before latest@after
  agentrl compare runs/a/evals/x runs/b/evals/x --metric pass@4
  agentrl compare base.csv new.csv --require not-worse --margin 0.02 --json
"""

SHOWN_FLIPS = 5
STATUS = {Verdict.MET: 0, Verdict.NOT_MET: 1, Verdict.UNDECIDED: 3}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", help=HELP)(run)


def run(
    sources: list[str] = typer.Argument(..., metavar="SOURCE...", help="The first is what the others are against."),
    metric: str = typer.Option("mean", metavar="NAME", help="mean, pass@K, pass^K, best@K or worst@K."),
    threshold: float = typer.Option(None, metavar="X", help="A score passes from X on; needed for partial scores."),
    bounds: str = typer.Option("0,1", metavar="LOW,HIGH", help="What a score can be, for means of rewards."),
    require: str = typer.Option("", metavar="WHAT", help="better or not-worse: a gate, by exit status."),
    margin: float = typer.Option(0.0, metavar="X", help="Of --require, in the units of the metric."),
    score: str = typer.Option("", metavar="NAME", help="Which score of a log that has several."),
    errors: str = typer.Option("zero", metavar="HOW", help="Errored and timed-out attempts: zero, or missing."),
    drop_undefined: bool = typer.Option(False, "--drop-undefined", help="Leave out tasks with too few attempts."),
    max_missing: float = typer.Option(0.05, metavar="SHARE", help="Exit 1 when more attempts than that are missing."),
    figures: Path = typer.Option(None, metavar="DIR", help="Draw differences, curves over k and families there."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    runs: Path = typer.Option(DEFAULT_ROOT, metavar="DIR", help="Where run folders are."),
) -> None:
    """Compare two or more checkpoints."""
    wanted = _requirement(require, margin)
    if not 0.0 <= max_missing <= 1.0:
        raise BadInput(f"--max-missing {max_missing:g} is no share; write a number from 0 to 1")
    table = read_table(sources, runs, score, errors)
    with bad_values():
        measure = parse_metric(metric, threshold, parse_bounds(bounds))
        report = compare(table, measure, require=wanted, margin=margin, drop_undefined=drop_undefined)
    if figures is not None:
        _draw(table, report, figures)
    lacking = [row.name for row in report.rows if missing_share(row) > max_missing]
    status = _status(report, lacking)
    if as_json:
        typer.echo(json.dumps({**as_plain(report), "exit_status": status}, allow_nan=False))
    else:
        _print(Console(), report, table, lacking, max_missing)
    if status:
        raise typer.Exit(status)


def _draw(table: Table, report: Report, folder: Path) -> None:
    """Draw the figures, with a library that takes seconds to load and is not needed elsewhere."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--figures {folder}: no folder can be made there ({error})") from error
    importlib.import_module("agentrl.evals.figures").draw_comparison(table, report, folder)


def _requirement(require: str, margin: float) -> Requirement | None:
    if margin < 0:
        raise BadInput(f"--margin {margin:g} is negative; write how far the difference may be off, such as 0.02")
    if margin and not require:
        raise BadInput("--margin is of --require; add --require better or --require not-worse")
    if require == "better":
        return "better"
    if require == "not-worse":
        return "not-worse"
    if require:
        raise BadInput(f"--require {require!r}: write better or not-worse")
    return None


def missing_share(row: Row) -> float:
    """Of the attempts that were made, the share that could not be scored."""
    return row.counts.unscored / row.counts.made if row.counts.made else 0.0


def _status(report: Report, lacking: list[str]) -> int:
    if lacking:
        return 1
    verdicts = [one.verdict for one in report.differences if one.verdict is not None]
    statuses = [STATUS[verdict] for verdict in verdicts]
    return 1 if 1 in statuses else max(statuses, default=0)


def as_plain(report: Report) -> dict[str, Any]:
    """The report as JSON holds it."""
    plain = dataclasses.asdict(report)
    for row, made in zip(plain["rows"], report.rows, strict=True):
        row["counts"], row["bounds"] = made.counts._asdict(), made.bounds._asdict()
        row["missing_share"] = missing_share(made)
    return plain


def _print(out: Console, report: Report, table: Table, lacking: list[str], max_missing: float) -> None:
    out.print(_grid(report))
    for line in _notes(report, lacking, max_missing):
        _say(out, line)
    for one in report.differences:
        out.print()
        _say(out, one.sentence, style="bold")
        for line in _details(one, report):
            _say(out, line)
        _print_flips(out, one, table)


def _say(out: Console, line: str, style: str = "") -> None:
    out.print(Text(line, style=style), soft_wrap=True)


def _grid(report: Report) -> Grid:
    grid = Grid(box=None, header_style="bold cyan", padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("checkpoint", overflow="fold")
    for heading in (report.metric, "95 % interval", "difference", "95 % interval", "p"):
        grid.add_column(heading, justify="right", no_wrap=True)
    differences = {one.second: one for one in report.differences}
    for row in report.rows:
        cells = [row.name, f"{row.interval.mean:.3f}", f"[{row.interval.low:.3f}, {row.interval.high:.3f}]"]
        if row.name in differences:
            one = differences[row.name]
            found = one.comparison.difference
            cells += [f"{found.mean:+.3f}", f"[{found.low:+.3f}, {found.high:+.3f}]", _p_value(one.p_value)]
        grid.add_row(*map(Text, cells))
    return grid


def _p_value(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"


def _notes(report: Report, lacking: list[str], max_missing: float) -> list[str]:
    methods = ", ".join(dict.fromkeys(row.interval.method for row in report.rows))
    paired = ", ".join(dict.fromkeys(one.comparison.difference.method for one in report.differences))
    clusters = f" in {report.num_clusters} clusters" if report.num_clusters < report.num_tasks else ""
    lines = [f"{report.num_tasks} tasks{clusters}; intervals: {methods}; of differences: {paired}"]
    for name, tasks in report.left_out.items():
        lines.append(f"left out, {name}: {len(tasks)} task(s), such as {', '.join(tasks[:3])}")
    if report.undefined:
        lines.append(
            f"left out, too few attempts: {len(report.undefined)} of {report.num_tasks + len(report.undefined)}"
        )
    lines += [line for row in report.rows if (line := _missing(row))]
    lines += [f"{name}: more than {max_missing:.0%} of its attempts are missing" for name in lacking]
    return lines


def _missing(row: Row) -> str:
    counts = row.counts
    parts = [
        f"{number} {what}"
        for number, what in (
            (counts.errored, "errored"),
            (counts.timed_out, "timed out"),
            (counts.unscored, "could not be scored"),
        )
        if number
    ]
    if not parts:
        return ""
    bounds = ""
    if row.bounds.low < row.bounds.high:
        bounds = f"; mean {row.bounds.low:.3f} to {row.bounds.high:.3f} if all that is missing failed or passed"
    return f"{row.name}: of {counts.made} attempts {', '.join(parts)}{bounds}"


def _details(one: Difference, report: Report) -> list[str]:
    found = one.comparison
    unadjusted = " before Holm" if len(report.differences) > 1 else ""
    lines = [
        f"better on {found.wins} tasks, worse on {found.losses}, equal on {found.ties}; {found.test}: "
        f"p {_p_value(found.p_value)}{unadjusted}; probability of being better {found.probability_better:.3f}"
    ]
    if one.blind:
        seen = 100 * found.minimum_detectable
        lines.append(
            f"warning: this evaluation sees a difference of {seen:.1f} points in 8 of 10 cases; a smaller one, such as "
            "that measured, may be real and be missed. `agentrl plan` says what it takes"
        )
    if one.verdict is not None:
        lines.append(f"requirement: {one.verdict}")
    return lines


def _print_flips(out: Console, one: Difference, table: Table) -> None:
    for title, flips in (("solved now", one.gained), ("lost", one.lost)):
        if not flips:
            continue
        more = f", the first {SHOWN_FLIPS}" if len(flips) > SHOWN_FLIPS else ""
        _say(out, f"{title}: {len(flips)} task(s){more}")
        for flip in flips[:SHOWN_FLIPS]:
            _say(out, f"  {flip.task}  {flip.before:.2f} -> {flip.after:.2f}")
            for line in _commands(one, flip, table):
                _say(out, f"    {line}", style="dim")


def _commands(one: Difference, flip: Flip, table: Table) -> list[str]:
    lines = []
    for name, trace in ((one.first, flip.trace_before), (one.second, flip.trace_after)):
        show = table.show[table.index(name)]
        if trace:
            lines.append(f"agentrl show {show} --trace {trace}" if show else f"trace {trace} of {name}")
    return lines
