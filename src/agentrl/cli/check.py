"""``agentrl check``: whether a loss computes the same however a step is laid out, and whether trainer and sampler say
the same of the same tokens."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli import BadInput
from agentrl.cli.parity import HELP as PARITY_HELP
from agentrl.cli.parity import parity

HELP = """Check that a loss and its gradient stay the same under padding, order, masking and micro-batches, and that the
trainer scores tokens as the sampler drew them.

\b
Examples:
  agentrl check algorithms
  agentrl check objective my.module:loss
  agentrl check parity --model latest
"""

OBJECTIVE_HELP = """Check a loss of your own. WHERE is my.module:loss, found from the present folder too.

\b
It is called as
  loss(logprobs_T, old_logprobs_T, advantages_T, mask_T)
with flat tensors, one entry per token; mask_T is True at trained tokens. By
name it also gets those of these that it takes:
  sequence_T     which sequence each token is of, int64 from 0
  num_tokens     trained tokens of the whole optimizer step
  num_sequences  its sequences that have a trained token
It returns losses per token, shape [T] (or a PolicyLoss), or one scalar: this
micro-batch's share of the step's loss. Settings go in by functools.partial.

Exit status: 0 when all checks pass, 1 when one fails, 2 when it cannot be called this way.

\b
Example:
  agentrl check objective my.module:loss --skip "ratio one"
"""

AS_JSON = typer.Option(False, "--json", help="Print JSON.")
_LEGEND = (
    "limit: the formula itself has no bound there, as PPO's for negative credit. "
    "n/a: cannot be checked on it, and does not count as passed."
)

Row: TypeAlias = Mapping[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command with its two parts."""
    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    line = "Check every algorithm of `agentrl algorithms`. Example: agentrl check algorithms --json"
    group.command("algorithms", help=line)(algorithms)
    group.command("objective", help=OBJECTIVE_HELP)(objective)
    group.command("parity", help=PARITY_HELP)(parity)
    app.add_typer(group, name="check")


def algorithms(as_json: bool = AS_JSON) -> None:
    """Check each preset: its objective per token, its step with the reduction, and its critic."""
    presets, invariance = _library("presets"), _library("invariance")
    found = {
        name: {part: _rows(rows) for part, rows in invariance.examine_preset(preset).items()}
        for name, preset in presets.PRESETS.items()
    }
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False))
    else:
        _print_algorithms(found)
    _leave([row for parts in found.values() for rows in parts.values() for row in rows])


def objective(
    where: str = typer.Argument(..., metavar="WHERE", help="Such as my.module:loss."),
    skip: list[str] = typer.Option([], "--skip", metavar="CHECK", help="A check to leave out; may be repeated."),
    as_json: bool = AS_JSON,
) -> None:
    """Check one loss."""
    invariance = _library("invariance")
    reasons = dict.fromkeys(skip, "left out with --skip")
    rows = _rows(invariance.examine(_load(where), where, skip=reasons))
    if as_json:
        typer.echo(json.dumps({"objective": where, "checks": rows}, allow_nan=False))
    else:
        _print_objective(where, rows)
    _leave(rows)


def _library(name: str) -> Any:
    """A module of the algorithms, loaded when a check runs, so that help needs no torch."""
    return importlib.import_module(f"agentrl.algorithms.{name}")


def _load(where: str) -> Callable[..., Any]:
    module_name, colon, name = where.partition(":")
    if not (module_name and colon and name):
        raise BadInput(f"{where!r} names no loss; write MODULE:NAME, such as my.module:loss for my/module.py")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever another's module raises while it is imported is for its author to read
        raise BadInput(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}; run this in the folder that "
            f"{module_name.partition('.')[0]} is in, or install it"
        ) from error
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), n=1, cutoff=0.4)
        raise BadInput(
            f"{module_name} has no {name!r}" + (f"; did you mean {module_name}:{close[0]}?" if close else "")
        )
    found: Callable[..., Any] = getattr(module, name)
    if not callable(found):
        raise BadInput(f"{where} is of type {type(found).__name__}; name a function")
    return found


def _rows(findings: Sequence[Any]) -> list[Row]:
    return [_row(dataclasses.asdict(one)) for one in findings]


def _row(finding: dict[str, Any]) -> Row:
    """As JSON can say it: a deviation that is not finite is the text ``infinite``."""
    endless = finding["deviation"] is not None and not math.isfinite(finding["deviation"])
    return {**finding, "deviation": "infinite"} if endless else finding


def _print_objective(where: str, rows: Sequence[Row]) -> None:
    table = _table("check", "verdict", "deviation", "allowed", "what was seen")
    for row in rows:
        table.add_row(
            row["check"], _verdict(row), _number(row["deviation"]), _number(row["tolerance"]), Text(row["note"])
        )
    out = Console()
    out.print(table)
    _print_failures(out, [(where, row) for row in rows])
    counts = Counter(row["verdict"] for row in rows)
    out.print(Text(f"\n{where}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())))


def _print_algorithms(found: Mapping[str, Mapping[str, Sequence[Row]]]) -> None:
    table = _table("algorithm", "pass", "fail", "limit", "n/a", "nearest to its tolerance")
    for name, parts in found.items():
        rows = [row for part in parts.values() for row in part]
        counts = Counter(row["verdict"] for row in rows)
        numbers = [str(counts[verdict]) for verdict in ("pass", "fail", "limit", "not applicable")]
        table.add_row(name, *numbers, _nearest(rows))
    out = Console()
    out.print(table)
    out.print(Text(f"\n{_LEGEND}"))
    _print_failures(
        out, [(f"{n} ({p})", row) for n, parts in found.items() for p, rows in parts.items() for row in rows]
    )


def _print_failures(out: Console, rows: Sequence[tuple[str, Row]]) -> None:
    for name, row in rows:
        if row["verdict"] == "fail":
            out.print(Text(f"\n{name}, {row['check']}: {row['note'] or 'deviation ' + _number(row['deviation'])}"))
            out.print(Text(f"  promised: {row['promise']}."))
            out.print(Text(f"  a failure means: {row['meaning']}."))


def _nearest(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row["tolerance"] and isinstance(row["deviation"], float)]
    row = max(measured, key=lambda one: one["deviation"] / one["tolerance"])
    return f"{row['check']} {_number(row['deviation'])} of {_number(row['tolerance'])}"


def _table(*headings: str) -> Table:
    table = Table(header_style="bold cyan", box=None, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        last = place == len(headings) - 1
        table.add_column(heading, no_wrap=not last, overflow="fold")
    return table


def _verdict(row: Row) -> Text:
    styles = {"pass": "green", "fail": "bold red", "limit": "yellow"}
    return Text(
        "n/a" if row["verdict"] == "not applicable" else row["verdict"], style=styles.get(row["verdict"], "dim")
    )


def _number(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.1e}" if value else "0"


def _leave(rows: Sequence[Row]) -> None:
    if any(row["verdict"] == "fail" for row in rows):
        raise typer.Exit(1)
