"""``agentrl bench``: measure this machine, as ratios within one run."""

from __future__ import annotations

import asyncio
import json

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.bench import sandbox
from agentrl.bench.rounds import machine
from agentrl.cli import BadInput, bad_input_for
from agentrl.errors import TaskError

NAMES = {"sandbox": "what isolation and grading cost, beside a bare interpreter and pytest"}
"""Name of each benchmark: what it measures."""

_LISTED = "\n".join(f"  {name}  {line}" for name, line in NAMES.items())
HELP = f"""Measure how fast this machine is at one thing.

The arms take turns in one run, so that their ratios hold even on a machine that does other work. Run it twice, and
look at the load that it prints, before you believe a number.

\b
Benchmarks:
{_LISTED}

\b
Examples:
  agentrl bench sandbox
  agentrl bench sandbox --data humanevalpack.jsonl --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help=HELP)(bench)


def bench(
    name: str = typer.Argument(..., metavar="NAME", help="Which benchmark."),
    data: str = typer.Option("", metavar="FILE", help="The tasks of HumanEvalFix, as JSONL, to grade them too."),
    quick: bool = typer.Option(False, "--quick", help="One short round, to see that it works; do not quote it."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Run a benchmark."""
    if name not in NAMES:
        raise BadInput(f"there is no benchmark {name!r}; the benchmarks are {', '.join(NAMES)}")
    with bad_input_for(TaskError):
        found = asyncio.run(sandbox.measure(quick=quick, data=data))
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _show(found)


def _show(found: sandbox.Found) -> None:
    out = Console()
    described = ", ".join(f"{key} {value}" for key, value in machine().items() if value)
    out.print(Text(described))
    load = f"load {found.load[0]:.1f} before and {found.load[1]:.1f} after"
    out.print(Text(f"{found.rounds} rounds, {sandbox.LANES} at a time; {load}\n"))
    out.print(_arms(found), "")
    out.print(_aims(found))


def _arms(found: sandbox.Found) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("arm", no_wrap=True)
    for column in ("per s", "best", "ms each", "times `true`"):
        table.add_column(column, justify="right")
    floor = found.rates["true"].ms
    for name, rate in found.rates.items():
        numbers = (f"{rate.per_s:.1f}", f"{rate.best_per_s:.1f}", f"{rate.ms:.2f}", f"{rate.ms / floor:.1f}")
        table.add_row(Text(name), *numbers)
    return table


def _aims(found: sandbox.Found) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("measured", "value", "aim", ""):
        table.add_column(column, no_wrap=column != "")
    for aim in found.aims:
        wanted = f"{'<=' if aim.at_most else '>='} {aim.wanted:g} {aim.unit}".strip()
        value = "-" if aim.value is None else f"{aim.value:.1f} {aim.unit}".strip()
        said = {True: "reached", False: "not reached", None: aim.note}[aim.reached]
        table.add_row(Text(aim.name), value, wanted, Text(said))
    return table
