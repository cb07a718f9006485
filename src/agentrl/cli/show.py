"""``agentrl show``: a run in the terminal."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from agentrl.cli import BadInput, bad_input_for
from agentrl.cli.eval_show import Ended, print_results
from agentrl.cli.runs import DEFAULT_ROOT, open_run
from agentrl.config import fingerprint
from agentrl.errors import RendererError, StoreError
from agentrl.evals.folder import EvaluationFolder
from agentrl.records import trace_to_json
from agentrl.store import RunFolder
from agentrl.types import Trace
from agentrl.ui.show import attempt, curves, result, summary_lines, trace_list

_LISTED = 8
HELP = """Look at a run: its result and its curve, or one attempt turn by turn.

RUN is a path, a name below --runs, or latest; or the folder of an evaluation. An ID may be the beginning of one.

\b
Examples:
  agentrl show latest
  agentrl show latest --trace ID --tokens
  agentrl show latest --drift --tokenizer models/qwen3
  agentrl show runs/bugfix-tiny-0-20260101T000000Z --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show", help=HELP)(show)


def show(
    run: str = typer.Argument(..., metavar="RUN", help="A path, a name below --runs, or latest."),
    trace: str = typer.Option("", metavar="ID", help="Show this attempt turn by turn."),
    tokens: bool = typer.Option(False, "--tokens", help="With --trace: every token, its logprob, how it was trained."),
    drift: bool = typer.Option(False, "--drift", help="What decoding and encoding the sampled tokens would change."),
    tokenizer: Path | None = typer.Option(
        None, metavar="DIR", help="With --drift: the model's tokenizer.json is here. [default: RUN/tokenizer]"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    runs: Path = typer.Option(DEFAULT_ROOT, metavar="DIR", help="Where run folders are."),
) -> None:
    """Show a run or one of its attempts."""
    evaluation = _evaluation(run)
    folder = open_run(run, runs) if evaluation is None else RunFolder(path=evaluation.path)
    if tokens and not trace:
        raise BadInput("--tokens needs --trace ID; `agentrl show RUN` lists some ids")
    if tokenizer is not None and not drift:
        raise BadInput("--tokenizer needs --drift")
    found = None
    if trace:
        with bad_input_for(StoreError):
            found = folder.find_trace(trace)
    if drift:
        _show_drift(folder, found, tokenizer or folder.path / "tokenizer", as_json=as_json)
    elif found is not None:
        _show_trace(folder, found, tokens=tokens, as_json=as_json)
    elif evaluation is not None:
        _show_evaluation(evaluation, as_json=as_json)
    elif as_json:
        typer.echo(json.dumps(_run_as_json(folder)))
    else:
        _show_run(folder)


def _evaluation(word: str) -> EvaluationFolder | None:
    """The evaluation that a path means, if it means one."""
    if not (Path(word) / EvaluationFolder.MARK).is_file():
        return None
    with bad_input_for(StoreError):
        return EvaluationFolder.open(Path(word))


def _show_evaluation(folder: EvaluationFolder, *, as_json: bool) -> None:
    with bad_input_for(StoreError):
        result, traces = folder.result(), folder.traces()
    if as_json:
        described = {"evaluation": str(folder.path), "spec": asdict(folder.spec), "result": result}
        typer.echo(json.dumps({**described, "traces": [trace.id for trace in traces]}))
        return
    out = Console()
    out.print(f"{folder.spec.policy} on {folder.spec.task_set}, {len(traces)} attempts", markup=False, soft_wrap=True)
    if result is None:
        out.print("no result yet: it goes on, or was ended early; the same `agentrl eval` goes on", soft_wrap=True)
    else:
        print_results(out, [Ended(folder, result)])
    out.print(trace_list(traces[:_LISTED]))
    out.print("one attempt: agentrl show FOLDER --trace ID", markup=False, highlight=False)


def _show_trace(folder: RunFolder, trace: Trace, *, tokens: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**trace_to_json(trace), "reward": trace.reward}))
    else:
        Console().print(attempt(trace, _texts(folder) if tokens else None, tokens=tokens))


def _texts(folder: RunFolder) -> Sequence[str] | None:
    """The text of each token id, where it is known."""
    if not folder.tokenizer.is_dir():
        return folder.vocabulary()
    try:  # optional, as below
        from agentrl.tokens.vocabulary import Texts, Vocabulary
    except ImportError:
        return None
    with bad_input_for(RendererError):
        return Texts(Vocabulary.load(folder.tokenizer))


def _show_drift(folder: RunFolder, trace: Trace | None, tokenizer: Path, *, as_json: bool) -> None:
    """Of one attempt, or of all that the run kept."""
    try:  # optional: the tokenizer's library, which nothing else of this command needs
        from agentrl.tokens.drift import drift_lines, vocabulary_drift
        from agentrl.tokens.vocabulary import Vocabulary
    except ImportError as error:
        raise BadInput(str(error)) from error
    with bad_input_for(RendererError):
        vocabulary = Vocabulary.load(tokenizer)
        found = vocabulary_drift(folder.iter_traces() if trace is None else [trace], vocabulary)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "rate": found.rate}))
        return
    for line in drift_lines(found, vocabulary.decode):
        typer.echo(line)


def _show_run(folder: RunFolder) -> None:
    out, summary = Console(), folder.summary()
    out.print(str(folder.path), style="bold", soft_wrap=True, highlight=False)
    if summary is None:
        out.print(
            f"no summary yet: the run goes on, or stopped early (agentrl train --resume {folder.path})", soft_wrap=True
        )
    else:
        for line in summary_lines(summary):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
        out.print(result(summary, folder.metrics()))
    for part in curves(folder.metrics()):
        out.print(part)
    out.print(trace_list(_last_traces(folder)))
    out.print("one attempt: agentrl show RUN --trace ID [--tokens]", markup=False, highlight=False)


def _last_traces(folder: RunFolder, limit: int = 8) -> list[Trace]:
    """Some attempts of the last step of RL, or else of the last round of rejection sampling, or of the last file."""
    files = folder.trace_files()
    by_phase = ([found for found in files if found[0] == phase][-1:] for phase in ("rl", "rejection"))
    chosen = next(filter(None, by_phase), files[-1:])
    return [trace for phase, step, _ in chosen for trace in itertools.islice(folder.iter_traces(phase, step), limit)]


def _run_as_json(folder: RunFolder) -> dict[str, Any]:
    config = folder.config
    return {
        "run": str(folder.path),
        "fingerprint": fingerprint(config),
        "config": config.model_dump(mode="json"),
        "summary": folder.summary(),
        "metrics": folder.metrics(),
        "traces": [trace.id for trace in _last_traces(folder)],
    }
