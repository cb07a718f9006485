"""``agentrl plan``: how many tasks and attempts show a difference, and what they cost."""

from __future__ import annotations

import dataclasses
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
from agentrl.evals.plan import Option, Plan, Rates, assume, plan
from agentrl.evals.rates import rates_of
from agentrl.ui.live import duration

HELP = """Say how many tasks and attempts show a difference between two checkpoints, and what they cost.

The spread over tasks and over attempts is taken from --from, once for one evaluation, or twice for the two sides of a
comparison like the one that is planned. Sources are those of `agentrl compare`. Without it tasks of all difficulties
are assumed to be equally frequent. Costs are those of both sides, from the source's own tokens and seconds per
attempt; the seconds are those of the same machine doing nothing else.

\b
Examples:
  agentrl plan --delta 0.03
  agentrl plan --delta 0.03 --from latest
  agentrl plan --delta 0.05 --from runs/a@before --from runs/a@after --tasks 200 --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", help=HELP)(run)


def run(
    delta: float = typer.Option(..., metavar="X", help="The difference to be seen, such as 0.03 for 3 points."),
    sources: list[str] = typer.Option([], "--from", metavar="SOURCE", help="What to measure the spread on; 0 to 2."),
    tasks: int = typer.Option(None, metavar="N", help="Tasks that there are; those of --from by default."),
    power: float = typer.Option(0.8, metavar="P", help="Share of evaluations that shall see the difference."),
    correlation: float = typer.Option(0.5, metavar="R", help="With one --from: of task means between checkpoints."),
    score: str = typer.Option("", metavar="NAME", help="Which score of a log that has several."),
    errors: str = typer.Option("zero", metavar="HOW", help="Errored and timed-out attempts: zero, or missing."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    runs: Path = typer.Option(DEFAULT_ROOT, metavar="DIR", help="Where run folders are."),
) -> None:
    """Plan an evaluation."""
    if len(sources) > 2:
        raise BadInput(f"--from is given {len(sources)} times; give one evaluation, or the two sides of a comparison")
    table = read_table(sources, runs, score, errors) if sources else None
    with bad_values():
        assumed = assume(table, correlation=correlation)
        rates = Rates() if table is None else rates_of(table, sources[-1], runs)
        made = plan(assumed, delta, rates=rates, tasks=tasks, power=power)
    if as_json:
        typer.echo(json.dumps(as_plain(made), allow_nan=False))
    else:
        _print(Console(), made)


def as_plain(made: Plan) -> dict[str, Any]:
    """The plan as JSON holds it."""
    return {**dataclasses.asdict(made), "cheapest": dataclasses.asdict(made.cheapest)}


def _print(out: Console, made: Plan) -> None:
    _say(
        out,
        f"To see a difference of {100 * made.delta:g} points in {made.power:.0%} of evaluations, at a level of "
        f"{made.level:.0%}:",
    )
    out.print(_grid(made))
    for line in _lines(made):
        _say(out, line)


def _say(out: Console, line: str) -> None:
    out.print(Text(line), soft_wrap=True)


def _grid(made: Plan) -> Grid:
    grid = Grid(box=None, header_style="bold cyan", padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("attempts", "tasks", "attempts in all", "tokens", "time"):
        grid.add_column(heading, justify="right")
    for option in made.options:
        style = "bold" if option == made.cheapest else ""
        grid.add_row(*_cells(option), style=style)
    return grid


def _cells(option: Option) -> tuple[str, ...]:
    return (
        f"{option.attempts}",
        f"{option.tasks:,}",
        f"{2 * option.attempts * option.tasks:,}",
        "?" if option.tokens is None else f"{option.tokens:,.0f}",
        "?" if option.seconds is None else duration(option.seconds),
    )


def _lines(made: Plan) -> list[str]:
    variance = made.assumed.variance
    lines = [
        f"spread {made.assumed.source}: variance of the difference over tasks {max(0.0, variance.task):.4f}, "
        f"of attempts {variance.before:.4f} and {variance.after:.4f}"
    ]
    if made.assumed.design_effect > 1.0:
        lines.append(f"tasks of one cluster come out alike: {made.assumed.design_effect:.2f} times as many tasks")
    if made.tasks and made.attempts_with_tasks is not None:
        lines.append(f"with {made.tasks} tasks: {made.attempts_with_tasks} attempts at each")
    elif made.tasks:
        lines.append(
            f"with {made.tasks} tasks no number of attempts is enough: they show {100 * (made.limit or 0):.1f} points "
            "at best; add tasks"
        )
    return lines
