"""``agentrl plan-memory``: how much memory and time a run will need, before it starts."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from agentrl.cli import BadInput
from agentrl.cli.overrides import split_overrides
from agentrl.config import TrainConfig, apply_overrides, load_recipe
from agentrl.ui.live import duration

HELP = """Say how much memory and time a run will need, and what would save some.

RECIPE is a name (bugfix-tiny) or a .toml file. Any field of the configuration can be set, as for `agentrl train`. The
weights are not needed: the run's own passes are carried out on shapes alone, which takes seconds. It is assumed that
every conversation becomes as long as --tokens, by default all of model.context.

The time is that of a step, without the tools. Small models of the same shape, with fewer layers and words, sample and
train on this machine for some seconds, and what a layer, a word and a token cost there is taken to be what they cost in
the run. On a processor it is processor time: with one thread and nothing beside it, that of the clock.

\b
Examples:
  agentrl plan-memory bugfix-tiny
  agentrl plan-memory qwen3-0.6b-bugfix --hf.lora_rank 32 --hf.dtype bfloat16
  agentrl plan-memory runs/mine/config.toml --tokens 1500 --json
"""
FOOTPRINT = "agentrl.loops.footprint"
Facts = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan-memory", help=HELP, context_settings={"ignore_unknown_options": True})(run)


def run(
    words: list[str] = typer.Argument(
        None, metavar="RECIPE [--dotted.key value]", help="What would run, and fields to set."
    ),
    tokens: int = typer.Option(None, min=2, metavar="N", help="Tokens of the longest conversations."),
    prompt: int = typer.Option(None, min=1, metavar="N", help="Tokens of a prompt, by default a quarter of them."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Estimate a run."""
    plain, overrides = split_overrides(words or [])
    if len(plain) != 1:
        raise BadInput("one RECIPE is needed; write e.g. `agentrl plan-memory bugfix-tiny --rl.group_size 4`")
    config = apply_overrides(load_recipe(plain[0]), overrides)
    with Console(stderr=True).status("running the passes on shapes, and small ones with numbers"):
        found = facts(config, prompt=prompt, length=tokens)
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False))
    else:
        show(Console(), found)


def facts(config: TrainConfig, *, prompt: int | None = None, length: int | None = None) -> Facts:
    """The estimate of a run as plain data: bytes, seconds and operations.

    Args:
        config: of the run.
        prompt: tokens of a prompt, and ``length`` of a whole conversation; unset: assumed.
        length: see there.

    Raises:
        ConfigError: the model's shape cannot be had.
    """
    # here, because torch takes seconds and help should come at once
    estimates = importlib.import_module(f"{FOOTPRINT}.estimate")
    machine = importlib.import_module(f"{FOOTPRINT}.machine")
    advice = importlib.import_module(f"{FOOTPRINT}.advice")
    times = importlib.import_module(f"{FOOTPRINT}.duration")
    libraries = machine.warm_up(transformers=not config.model.is_tiny)
    traces = estimates.trace(config, estimates.conversations_of(config, prompt=prompt, length=length))
    found = estimates.estimate(config, traces, libraries=libraries)
    changes = [] if found.fits else advice.changes(config, found, traces, libraries=libraries)
    return {
        "recipe": config.recipe,
        "model": config.model.name,
        **{name: getattr(found, name) for name in ("device", "parameters", "trained", "tokens", "micro_batches")},
        "conversations": dataclasses.asdict(found.conversations),
        "parts": [dataclasses.asdict(part) for part in found.parts],
        "phases": {name: found.phase(name) for name in estimates.PHASES},
        "needed": {"host": found.needed_on_host, "device": found.needed_on_device},
        "free": {"host": found.host and found.host.free, "device": found.accelerator and found.accelerator.free},
        "fits": found.fits,
        "changes": [dataclasses.asdict(change) for change in changes],
        "seconds_per_step": {
            name: {**one.seconds, "total": one.total, "flops": one.flops}
            for name, one in times.durations(config, traces).items()
        },
    }


def show(out: Console, found: Facts) -> None:
    """Print an estimate."""
    assumed = found["conversations"]
    _say(
        out,
        f"{found['recipe']}: {found['model']}, {found['parameters']:,} parameters, {found['trained']:,} trained, on "
        f"{found['device']}; {assumed['groups']} groups of {assumed['members']} conversations with up to "
        f"{assumed['length']:,} tokens, {assumed['prompt']:,} of them the prompt; micro-batches of up to "
        f"{found['tokens']:,} tokens, {found['micro_batches']} in a step",
    )
    out.print(_grid(found))
    for part in found["parts"]:
        if part["note"]:
            _say(out, f"{part['name']}: {part['note']}")
    for line in (*_verdict(found), *_times(found["seconds_per_step"], found["device"])):
        _say(out, line)


def _say(out: Console, line: str) -> None:
    out.print(Text(line), soft_wrap=True)


def _grid(found: Facts) -> Grid:
    phases = found["phases"]
    grid = Grid(box=None, header_style="bold cyan", padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("MiB at the peak of")
    for name in phases:
        grid.add_column(name, justify="right")
    for part in found["parts"]:
        grid.add_row(part["name"], *(_mib(part["bytes"].get(name, 0)) for name in phases))
    grid.add_row("together", *map(_mib, phases.values()), style="bold")
    return grid


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f}"


def _verdict(found: Facts) -> list[str]:
    lines = []
    for place, name in (("host", "memory"), ("device", "device memory")):
        needed, free = found["needed"][place], found["free"][place]
        if not needed:
            continue
        if free is None:
            lines.append(f"needs {_mib(needed)} MiB of {name}; how much is free here is not known")
        else:
            verdict = "fits" if needed <= free else "does not fit"
            lines.append(f"{verdict}: needs {_mib(needed)} MiB of {name}, and {_mib(free)} MiB are free")
    return [*lines, *map(_change, found["changes"])]


def _change(change: Mapping[str, Any]) -> str:
    words = " ".join(f"--{key} {value}" for key, value in change["settings"].items())
    return f"{words} would save {_mib(change['saves'])} MiB"


def _times(steps: Mapping[str, Mapping[str, float]], device: str) -> Sequence[str]:
    kind = " of processor time" if device == "cpu" else ""
    return [
        f"{name}, estimated: {duration(one['total'])}{kind} a step for {one['flops'] / 1e9:,.0f} billion operations ("
        + ", ".join(f"{part} {seconds:.1f} s" for part, seconds in one.items() if part not in ("total", "flops"))
        + ")"
        for name, one in steps.items()
    ]
