"""``agentrl algorithms``: what each name means here, and elsewhere."""

from __future__ import annotations

import dataclasses
import json

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.catalogue import CATALOGUE, Entry, entry

HELP = """List the algorithms that `agentrl train --algorithm NAME` takes, or say what one of them is.

In the formulas A is the advantage, r a reward, m and s the mean and the standard deviation of a group's rewards, pi
the policy in training, mu the one that sampled, rho their ratio at a token, sg[] a constant, and T and N the trained
tokens and the sequences of the whole optimizer step.

\b
Examples:
  agentrl algorithms
  agentrl algorithms grpo
"""

_PARTS = ("credit", "objective", "reduction", "filters", "parameters", "source", "edge_cases", "elsewhere")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("algorithms", help=HELP)(algorithms)


def algorithms(
    name: str = typer.Argument("", metavar="[NAME]", help="One of the names; all of them when left out."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the algorithms, or describe one."""
    chosen = [entry(name)] if name else list(CATALOGUE.values())
    if as_json:
        described = [dataclasses.asdict(one) for one in chosen]
        typer.echo(json.dumps(described[0] if name else described))
    elif name:
        _describe(chosen[0])
    else:
        _list(chosen)


def _list(entries: list[Entry]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for one in entries:
        table.add_row(one.name, one.title)
    Console().print(table)


def _describe(one: Entry) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for part in _PARTS:
        table.add_row(part.replace("_", " "), Text(_text(getattr(one, part))))
    out = Console()
    out.print(Text(f"{one.name}: {one.title}"))
    out.print(table)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    assert isinstance(value, dict)
    return ", ".join(f"{key} = {number:g}" for key, number in value.items()) or "none"
