"""``agentrl bench``: measure this machine, as ratios within one run."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.bench import sandbox
from agentrl.bench.report import Aim, Report, markdown
from agentrl.bench.rounds import machine
from agentrl.cli import BadInput, bad_input_for
from agentrl.errors import TaskError


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A benchmark of the command line.

    Args:
        line: what it measures.
        module: has its ``measure``, and is imported only when it is asked for; empty for the sandbox.
        options: those that it takes beside ``--quick`` and ``--json``.
        parts: what ``--only`` may name.
    """

    line: str
    module: str = ""
    options: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


NAMES: Mapping[str, Bench] = {
    "sandbox": Bench(line="what isolation and grading cost, beside a bare interpreter and pytest", options=("data",)),
    "engine": Bench(
        line="generated tokens a second, beside `generate` of transformers and vLLM",
        module="agentrl.bench.generation.engine",
        options=("rounds", "threads", "only"),
        parts=("small", "large", "turns"),
    ),
    "rollout": Bench(
        line="how tokens a second and memory grow with concurrency, context and group size",
        module="agentrl.bench.generation.rollout",
        options=("rounds", "threads", "out"),
    ),
    "trl": Bench(
        line="episodes a second of GRPO, beside TRL's trainer",
        module="agentrl.bench.training.trl",
        options=("rounds", "threads", "only"),
        parts=("single", "tools"),
    ),
    "async": Bench(
        line="asynchronous beside synchronous training, with slow tools",
        module="agentrl.bench.training.asynchronous",
        options=("threads", "steps", "seeds", "max_staleness", "at_publication"),
    ),
}
"""Name of each benchmark: what it is."""

_LISTED = "\n".join(f"  {name:<8} {one.line}" for name, one in NAMES.items())
HELP = f"""Measure how fast this machine is at one thing.

The arms take turns in one run, so that their ratios hold even on a machine that does other work. Run it twice, and
look at the load that it prints, before you believe a number.

\b
Benchmarks:
{_LISTED}

engine compares with vLLM where AGENTRL_VLLM_PYTHON names the python of an environment that has it (make vllm-env).

\b
Examples:
  agentrl bench sandbox
  agentrl bench sandbox --data humanevalpack.jsonl --json
  agentrl bench engine --only small --rounds 5
  agentrl bench rollout --out growth.png
  agentrl bench async --steps 40 --seeds 5
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help=HELP)(bench)


def bench(
    name: str = typer.Argument(..., metavar="NAME", help="Which benchmark."),
    data: str = typer.Option(None, metavar="FILE", help="The tasks of HumanEvalFix, as JSONL, to grade them too."),
    rounds: int = typer.Option(None, min=1, metavar="N", help="Rounds, or optimizer steps, that are timed."),
    threads: int = typer.Option(None, min=1, metavar="N", help="Threads of every contestant; else one a core."),
    only: str = typer.Option(None, metavar="PART", help="engine: small, large or turns. trl: single or tools."),
    out: Path = typer.Option(None, metavar="FILE", help="Where the figure goes: .png, .svg or .pdf."),
    steps: int = typer.Option(None, min=1, metavar="N", help="Steps of each run."),
    seeds: int = typer.Option(None, min=1, metavar="N", help="Seeds, each with runs of its own."),
    max_staleness: int = typer.Option(None, min=0, metavar="N", help="The bound of the asynchronous run."),
    at_publication: str = typer.Option(None, metavar="WHAT", help="What attempts in flight do: continue or wait."),
    quick: bool = typer.Option(False, "--quick", help="One short round, to see that it works; do not quote it."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Run a benchmark."""
    given = {
        "data": data,
        "rounds": rounds,
        "threads": threads,
        "only": only,
        "out": out,
        "steps": steps,
        "seeds": seeds,
        "max_staleness": max_staleness,
        "at_publication": at_publication,
    }
    options = {key: value for key, value in given.items() if value is not None}
    check(name, options)
    if name == "sandbox":
        _sandbox(data or "", quick=quick, as_json=as_json)
        return
    found = measured(name, options, quick=quick)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        show(found)


def check(name: str, options: Mapping[str, Any]) -> None:
    """Whether a benchmark is there, and takes these options.

    Raises:
        BadInput: not so.
    """
    if name not in NAMES:
        raise BadInput(f"there is no benchmark {name!r}; the benchmarks are {', '.join(NAMES)}")
    one = NAMES[name]
    for option in options:
        if option not in one.options:
            takers = ", ".join(other for other, bench in NAMES.items() if option in bench.options)
            raise BadInput(f"bench {name} has no {_flag(option)}, which belongs to {takers}; leave it out")
    only = options.get("only")
    if only is not None and only not in one.parts:
        raise BadInput(f"--only {only}: the parts of bench {name} are {', '.join(one.parts)}")
    if options.get("at_publication", "wait") not in ("continue", "wait"):
        raise BadInput(f"--at-publication {options['at_publication']}: write continue or wait")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def measured(name: str, options: Mapping[str, Any], *, quick: bool) -> Report:
    """Run a benchmark of models. What it says meanwhile goes to the standard error.

    Raises:
        BadInput: a package that it needs is not installed.
    """
    try:
        module = importlib.import_module(NAMES[name].module)
    except ImportError as error:
        raise BadInput(f"bench {name} cannot run here: {error}; pip install 'agentrl[bench]'") from error
    with redirect_stdout(sys.stderr):  # of the libraries that are compared with
        if name == "async":
            rest = {key: value for key, value in options.items() if key != "threads"}
            threads = options.get("threads", 0)
            found = module.measure(module.Plan(**rest), threads=threads, quick=quick, log=sys.stderr)
        else:
            found = module.measure(**options, quick=quick, **({"rounds": 1} if quick else {}), tell=_tell)
    assert isinstance(found, Report)
    return found


def _tell(what: str) -> None:
    typer.echo(what, err=True)


def show(found: Report) -> None:
    """Print a report, whose tables are Markdown too."""
    typer.echo(", ".join(f"{key} {value}" for key, value in found.machine.items() if value))
    typer.echo(", ".join(f"{key} {value}" for key, value in found.settings.items()))
    typer.echo(f"load {found.load[0]:.1f} before and {found.load[1]:.1f} after")
    for note in found.notes:
        typer.echo(f"note: {note}")
    for table in found.tables:
        typer.echo(f"\n{table.title}\n\n{markdown(table)}\n")
        for note in table.notes:
            typer.echo(f"- {note}")
    typer.echo()
    if found.aims:
        Console().print(_aims(found.aims))


def _sandbox(data: str, *, quick: bool, as_json: bool) -> None:
    with bad_input_for(TaskError):
        found = asyncio.run(sandbox.measure(quick=quick, data=data))
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _show_sandbox(found)


def _show_sandbox(found: sandbox.Found) -> None:
    out = Console()
    described = ", ".join(f"{key} {value}" for key, value in machine().items() if value)
    out.print(Text(described))
    load = f"load {found.load[0]:.1f} before and {found.load[1]:.1f} after"
    out.print(Text(f"{found.rounds} rounds, {sandbox.LANES} at a time; {load}\n"))
    out.print(_arms(found), "")
    out.print(_aims(found.aims))


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


def _aims(aims: Sequence[Aim]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("measured", "value", "aim", ""):
        table.add_column(column, no_wrap=column != "")
    for aim in aims:
        wanted = f"{'<=' if aim.at_most else '>='} {aim.wanted:g} {aim.unit}".strip()
        value = "-" if aim.value is None else f"{aim.value:.1f} {aim.unit}".strip()
        said = {True: "reached", False: "not reached", None: aim.note}[aim.reached]
        table.add_row(Text(aim.name), value, wanted, Text(said))
    return table
