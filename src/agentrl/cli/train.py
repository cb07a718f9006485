"""``agentrl train``: build the configuration, make or open the run folder, train, show the result."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console

from agentrl.catalogue import entry
from agentrl.cli import BadInput
from agentrl.cli.interrupt import stop_on_interrupt
from agentrl.cli.overrides import split_overrides
from agentrl.cli.runs import DEFAULT_ROOT, open_run
from agentrl.config import TrainConfig, apply_overrides, load_recipe, to_toml
from agentrl.errors import ConfigError
from agentrl.store import RunFolder
from agentrl.ui.live import PlainReporter, RichReporter
from agentrl.ui.show import result, time_lines

HELP = """Train an agent with a recipe, and measure it before and after.

RECIPE is a name (bugfix-tiny) or a .toml file (a run's config.toml repeats that run). Any field of the configuration
can be set: --rl.steps 10 or --rl.steps=10. Ctrl-C stops after the present step with a checkpoint and exit status 130.

\b
Examples:
  agentrl train bugfix-tiny
  agentrl train bugfix-tiny --seed 1 --rl.learning_rate 3e-4
  agentrl train bugfix-tiny --algorithm grpo
  agentrl train bugfix-tiny --mode async --max-staleness 2
  agentrl train qwen3-0.6b-bugfix --dry-run
  agentrl train qwen3-0.6b-bugfix --engine.kind vllm --engine.servers http://127.0.0.1:8000
  agentrl train --resume latest
"""

OPTIONS = ("resume", "algorithm", "mode", "max-staleness", "runs", "print-config", "dry-run", "json", "help")
"""Options of the command, without their dashes."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"ignore_unknown_options": True}
    app.command("train", help=HELP, context_settings=settings)(train)


def train(
    words: list[str] = typer.Argument(
        None, metavar="RECIPE [--dotted.key value]", help="What to run, and fields to set."
    ),
    resume: str = typer.Option("", metavar="RUN", help="Go on with this run (a path, a name or latest)."),
    algorithm: str = typer.Option(
        "", metavar="NAME", help="Another algorithm, with its own clips; see `agentrl algorithms`."
    ),
    mode: str = typer.Option(
        "", metavar="sync|async", help="Whether attempts are played while the trainer learns; short for --rl.mode."
    ),
    max_staleness: str = typer.Option(
        "", metavar="STEPS", help="With async, how old a trained token may be; short for --rl.max_staleness."
    ),
    runs: Path = typer.Option(DEFAULT_ROOT, metavar="DIR", help="Where run folders are made."),
    print_config: bool = typer.Option(False, "--print-config", help="Print the whole configuration and do nothing."),
    dry: bool = typer.Option(
        False, "--dry-run", help="Every step in miniature, a Hugging Face model as a small random one, and an export."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON; progress goes to stderr."),
) -> None:
    """Train, or go on with a run."""
    _refuse_misspelled(words or [])
    plain, overrides = split_overrides(words or [])
    short = {"algorithm": algorithm, "mode": mode, "max-staleness": max_staleness}
    if resume:
        folder = open_run(resume, runs)
        if overrides or any(short.values()) or plain not in ([], [folder.config.recipe]):
            surplus = [*(words or []), *(f"--{name} {value}" for name, value in short.items() if value)]
            raise BadInput(f"--resume goes on with the run's own configuration; leave out {' '.join(surplus)}")
        if dry:
            raise BadInput("--dry-run makes a run of its own; leave out --resume")
        return _run(folder.config, folder, _train_loop(), resume=True, as_json=as_json)
    recipe = load_recipe(_one_recipe(plain))
    overrides = _with_mode(overrides, mode, max_staleness)
    config = apply_overrides(_with_algorithm(recipe, algorithm, overrides) if algorithm else recipe, overrides)
    if max_staleness and config.rl.mode == "sync":
        raise BadInput(f"--max-staleness {max_staleness} without --mode async: in a synchronous run nothing is old")
    if print_config:
        return typer.echo(_printed(config, overrides, as_json=as_json))
    loop = _train_loop()
    if dry:
        return _dry_run(config, runs, as_json=as_json)
    return _run(config, RunFolder.create(runs, config), loop, resume=False, as_json=as_json)


def _refuse_misspelled(words: Sequence[str]) -> None:
    """Options that are nearly spelled right would else be taken for fields of the configuration.

    Raises:
        BadInput: naming the option that was meant.
    """
    for word in words:
        key = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and "." not in key and key not in TrainConfig.model_fields:
            close = difflib.get_close_matches(key.lower().replace("_", "-"), OPTIONS, n=1, cutoff=0.8)
            if close:
                raise BadInput(f"there is no option --{key}; did you mean --{close[0]}?")


def _with_mode(overrides: Mapping[str, str], mode: str, max_staleness: str) -> dict[str, str]:
    """The overrides with those of the short options.

    Raises:
        BadInput: one is given both ways.
    """
    short = {"rl.mode": mode, "rl.max_staleness": max_staleness}
    given = {key: text for key, text in short.items() if text}
    for key in given.keys() & overrides.keys():
        option = key.removeprefix("rl.").replace("_", "-")
        raise BadInput(f"--{option} {given[key]} with --{key} {overrides[key]}: they are one setting; leave one out")
    return {**overrides, **given}


def _with_algorithm(config: TrainConfig, name: str, overrides: Mapping[str, str]) -> TrainConfig:
    """The configuration with another algorithm. The parameters of the recipe were meant for its own.

    An algorithm with a critic gets its value head, unless its critic is a network of its own.
    """
    rl = config.rl.model_copy(update={"algorithm": entry(name).name, "parameters": {}})
    separate = overrides.get("rl.separate_critic", str(rl.separate_critic)).lower() == "true"
    needs_head = entry(name).critic and not separate
    model = config.model.model_copy(update={"value_head": config.model.value_head or needs_head})
    return config.model_copy(update={"rl": rl, "model": model})


def _one_recipe(plain: list[str]) -> str:
    if len(plain) != 1:
        given = f"{len(plain)} were given ({', '.join(plain)})" if plain else "none was given"
        raise BadInput(f"one RECIPE is needed and {given}; write e.g. `agentrl train bugfix-tiny --rl.steps 10`")
    return plain[0]


def _printed(config: TrainConfig, overrides: Mapping[str, str], *, as_json: bool) -> str:
    """The configuration as text, with a comment at each value that the command line set."""
    if as_json:
        return json.dumps(config.model_dump(mode="json"), indent=2)
    lines, section = [], ""
    for line in to_toml(config).splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        key = section + line.split(" = ")[0]
        lines.append(f"{line}  # set on the command line" if key in overrides else line)
    return "\n".join(lines)


def _train_loop() -> Callable[..., dict[str, Any]]:
    """The loop, imported here because torch takes seconds and only training needs it.

    Threads of OpenMP that wait by spinning take the core that another process needs: beside a second run, a training
    step takes 20 times as long with the default of GNU's library, and 5 times as long with this one.

    Raises:
        BadInput: torch is missing or does not fit this machine; said before a run folder is made.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # read once, when torch loads
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        raise BadInput(f"torch cannot be imported ({error}); install it: pip install 'torch>=2.9'") from error
    from agentrl.loops.run import train as loop

    return loop


def _run(
    config: TrainConfig, folder: RunFolder, loop: Callable[..., dict[str, Any]], *, resume: bool, as_json: bool
) -> None:
    out = Console(stderr=as_json)
    reporter = reporter_for(out, sys.stderr if as_json else sys.stdout)
    again = f"go on with: agentrl train --resume {folder.path}"
    with reporter, stop_on_interrupt(reporter.request_stop, reporter.note, again), _only_if_begun(folder, resume):
        reporter.note(f"run folder: {folder.path}")
        summary = loop(config, folder, reporter, resume=resume)
    if as_json:
        typer.echo(json.dumps(summary))
    if not summary["finished"]:
        out.print(f"stopped early with a checkpoint; {again}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130)
    show_result(out, folder, summary)


@contextmanager
def _only_if_begun(folder: RunFolder, resume: bool) -> Iterator[None]:
    """Remove the folder of a run that was refused before anything was done, which `latest` would else mean."""
    try:
        yield
    except ConfigError:
        begun = any(any((folder.path / name).iterdir()) for name in ("traces", "checkpoints"))
        if not resume and not begun and not (folder.path / "metrics.jsonl").exists():
            shutil.rmtree(folder.path)
        raise


def _dry_run(config: TrainConfig, runs: Path, *, as_json: bool) -> None:
    dry_runs = importlib.import_module("agentrl.loops.dry_run")  # torch takes seconds, as above
    small = dry_runs.dry_config(config, runs)
    folder = RunFolder.create(runs, small)
    out = Console(stderr=as_json)
    reporter = reporter_for(out, sys.stderr if as_json else sys.stdout)
    again = "start it again"
    with reporter, stop_on_interrupt(reporter.request_stop, reporter.note, again), _only_if_begun(folder, False):
        reporter.note(f"dry run, in miniature: {folder.path}")
        found = dry_runs.dry_run(small, folder, reporter)
    if as_json:
        exported = None if found.exported is None else str(found.exported)
        typer.echo(json.dumps({**found.summary, "exported": exported, "logits_differ": found.difference}))
    if reporter.stop_requested:
        raise typer.Exit(130)
    show_result(out, folder, found.summary)
    out.print("dry run: all steps ran; the scores are those of a random model", markup=False, highlight=False)


def reporter_for(out: Console, stream: TextIO) -> RichReporter | PlainReporter:
    """A live table on a terminal that can redraw; plain lines elsewhere, such as in a pipe or with TERM=dumb."""
    return RichReporter(out) if out.is_terminal and not out.is_dumb_terminal else PlainReporter(stream)


def show_result(out: Console, folder: RunFolder, summary: Mapping[str, Any]) -> None:
    """Print what came of a run, where its time went, and how to look at it."""
    out.print(result(summary, folder.metrics()))
    lines = (
        *time_lines(summary),
        f"run folder: {folder.path}",
        "the result and its curve:",
        f"  agentrl show {folder.path}",
        "one attempt turn by turn, or token by token:",
        f"  agentrl show {folder.path} --trace ID [--tokens]",
    )
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)
