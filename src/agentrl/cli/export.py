"""``agentrl export``: a trained Hugging Face model as a folder that other programs load."""

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
from agentrl.evals.load import split_step
from agentrl.store import RunFolder

HELP = """Write the model of a run as a folder that transformers and vLLM load.

Configuration, weights, generation settings, tokenizer and chat template. Adapters (LoRA) are added to the weights;
--adapter writes them alone, in peft's format, to be loaded on top of their base. A value head stays behind: it is for
training.

\b
Examples:
  agentrl export latest my-model
  agentrl export runs/a@100 my-model
  agentrl export latest my-adapter --adapter
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", help=HELP)(export)


def export(
    run: str = typer.Argument(..., metavar="RUN[@STEP]", help="A path, a name below --runs, or latest."),
    folder: Path = typer.Argument(..., metavar="DIR", help="The folder to make."),
    adapter: bool = typer.Option(False, "--adapter", help="Only the adapter, in peft's format."),
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
    runs: Path = typer.Option(DEFAULT_ROOT, metavar="DIR", help="Where run folders are."),
) -> None:
    """Write the model of a run."""
    name, step = split_step(run)
    found = open_run(name, runs)
    _check_kind(found, adapter)
    writing = _library("agentrl.policy.export")
    writing.check_target(folder)
    checkpoint = _checkpoint(found, step)
    with Console(stderr=True).status(f"reading {checkpoint.name} and writing {folder}"):
        policy = _policy(found, checkpoint)
        tokenizer = found.path / "tokenizer"
        if adapter:
            base = _library("agentrl.policy.load").base_of(found.config.model.name)
            notes = writing.export_adapter(policy, folder, tokenizer=tokenizer, base=base)
        else:
            notes = writing.export_model(policy, folder, tokenizer=tokenizer)
    _tell(folder, checkpoint, notes, adapter=adapter, as_json=as_json)


def _tell(folder: Path, checkpoint: Path, notes: tuple[str, ...], *, adapter: bool, as_json: bool) -> None:
    files = sorted(path.name for path in folder.iterdir())
    if as_json:
        kind = "adapter" if adapter else "model"
        record = {"folder": str(folder), "kind": kind, "checkpoint": checkpoint.name, "files": files, "notes": notes}
        typer.echo(json.dumps(record))
        return
    typer.echo(f"{folder}: {'the adapter' if adapter else 'the model'} of {checkpoint.name} ({', '.join(files)})")
    for note in notes:
        typer.echo(f"note: {note}")


def _check_kind(run: RunFolder, adapter: bool) -> None:
    """Whether there is what was asked for, before anything is loaded."""
    if run.config.model.is_tiny:
        raise BadInput(
            f"{run.path} trained a TinyAgent, whose network and vocabulary are our own, so that no other program loads "
            f"it; play it with `agentrl eval bugfix-v1/tiny --policy {run.path}`"
        )
    if adapter and not run.config.hf.lora_rank:
        raise BadInput(f"{run.path} trained all weights (hf.lora_rank 0) and has no adapter; leave --adapter out")


def _checkpoint(run: RunFolder, step: str) -> Path:
    with bad_input_for(StoreError):
        path: Path = _library("agentrl.loops.evaluation").find_checkpoint(run, step)
    return path


def _policy(run: RunFolder, checkpoint: Path) -> Any:
    """The policy of a run as a checkpoint holds it, on the CPU."""
    weights = _library("agentrl.train.checkpoint").read_checkpoint(checkpoint).weights
    own = {name: tensor for name, tensor in weights.items() if ":" not in name}
    config = run.config
    settings = config.hf.model_copy(update={"device": "cpu", "attention": "auto", "gradient_checkpointing": False})
    policy = _library("agentrl.policy.load").load_policy(
        config.model.name, settings, value_head="value.weight" in own, seed=config.seed
    )
    policy.load_tensors(own)
    return policy


def _library(name: str) -> Any:
    """A part that needs torch and the libraries of Hugging Face, loaded when it is needed.

    Raises:
        BadInput: one of them is missing.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise BadInput(f"{error}; install what is missing: pip install 'agentrl[hf]'") from error
