"""``agentrl report``: what reinforcement learning changed in the model of a run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from agentrl.cli import BadInput, bad_input_for
from agentrl.cli.runs import DEFAULT_ROOT, open_run
from agentrl.errors import StoreError
from agentrl.evals.report.drift import Reading
from agentrl.evals.report.findings import Findings, Missing, measure, plain
from agentrl.evals.report.wording import p_spoken, spoken
from agentrl.store import RunFolder

HELP = """Say what RL changed in the model of a run, as HTML and Markdown with figures.

From the run's stored checkpoints and evaluations: the learning curve with a forecast that is scored on steps it has
not seen, pass@k of base and trained policy paired at each k and where they cross, the tasks that only one of them
solves, forgetting against divergence, the share of weights that changed with the stable rank of the change, and a
control run. Nothing is sampled; what the folder does not allow is left out with the reason.

For pass@k with a larger k evaluate both first:
  agentrl eval RUN/config.toml --attempts 32 --policy RUN@before
  agentrl eval RUN/config.toml --attempts 32 --policy RUN
A control with a drawn reward, which has nothing to learn from, is one line:
  agentrl train RUN/config.toml --tasks.reward random

\b
Examples:
  agentrl report latest
  agentrl report runs/a --control runs/b --out a-report
  agentrl report latest --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help=HELP)(report)


def report(
    run: str = typer.Argument(..., metavar="RUN", help="A path, a name below --runs, or latest."),
    control: str = typer.Option("", metavar="RUN", help="A control run to compare with."),
    threshold: float = typer.Option(
        None, metavar="X", help="The least score that passes, where scores are not 0 or 1."
    ),
    seed: int = typer.Option(0, metavar="N", help="Of the resamples."),
    out: Path = typer.Option(None, metavar="DIR", help="Where it is written. [default: RUN/report]"),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
    runs: Path = typer.Option(DEFAULT_ROOT, metavar="DIR", help="Where run folders are."),
) -> None:
    """Write the report of a run."""
    if seed < 0:
        raise BadInput(f"--seed {seed}: write 0 or more")
    folder = open_run(run, runs)
    beside = open_run(control, runs) if control else None
    if beside is not None and beside.path.resolve() == folder.path.resolve():
        raise BadInput(f"--control {control} is the run itself; give another run")
    working = Console(stderr=True).status("reading the run's checkpoints and attempts")
    with bad_input_for(StoreError), working:
        found = measure(folder, _readings, control=beside, threshold=threshold, seed=seed)
        writing = importlib.import_module("agentrl.evals.report.writing")  # figures take seconds to load; help does not
        files = writing.write_report(found, out or folder.path / "report")
    if as_json:
        typer.echo(json.dumps({**plain(found), "files": {name: str(path) for name, path in files.items()}}))
        return
    for line in _lines(found):
        typer.echo(line)
    typer.echo(f"report: {files['html']} (with its figures inside), {files['md']}")


def _readings(run: RunFolder) -> list[Reading]:
    """By the part that needs torch, loaded here because a report without it is still a report.

    Raises:
        StoreError: torch is missing.
    """
    try:
        library: Any = importlib.import_module("agentrl.loops.report")
    except (ImportError, OSError) as error:
        raise StoreError(f"torch cannot be imported ({error}); install it: pip install 'torch>=2.9'") from error
    found: list[Reading] = library.readings(run)
    return found


def _lines(found: Findings) -> list[str]:
    """The findings in short."""
    lines = []
    if isinstance(found.outcome, Missing):
        lines.append(f"mean score: not measured: {found.outcome.why}")
    else:
        one = found.outcome
        lines.append(
            f"mean score: base {spoken(one.before)}, trained {spoken(one.after)}, paired difference "
            f"{spoken(one.difference, signed=True)}, p {p_spoken(one.p_value)}"
        )
    lines.append(f"forecast: {found.forecast.refused or 'see the report'}")
    parts = {"pass@k": found.passes, "forgetting": found.drift, "weights": found.changes, "control": found.control}
    lines += [f"{name}: not measured: {part.why}" for name, part in parts.items() if isinstance(part, Missing)]
    return lines
