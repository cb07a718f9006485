"""``agentrl check parity``: whether trainer and sampler say the same of the same tokens."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli import BadInput, bad_input_for
from agentrl.cli.runs import DEFAULT_ROOT
from agentrl.cli.writing import RendererName, Today, writing
from agentrl.errors import ConfigError, SamplerError, StoreError, TaskError
from agentrl.evals.names import parse_policy
from agentrl.types import Sampling

HELP = """Check that the trainer scores tokens as the sampler drew them.

Conversations of several turns are sampled, with tool results between the replies, several from each prompt. The trainer
then scores exactly the sampled tokens, packed as in training, at the same temperature. What differs beyond rounding is
reported with the tokens where it is most, and with the likely fault where the numbers show one: another temperature, a
truncation that is not reported, numbers of the wrong token, other ids than the trace has, stale or half-published
weights, another precision.

One token may differ by 0.001 nats in float32 and by 1 in bfloat16, the mean of all by 0.0001 and 0.05. Measured on a
random Qwen3 model of 15 million parameters with the real vocabulary: 2.3e-5 and 0.38, the mean 4.8e-6 and 0.045.

MODEL is the folder of a Hugging Face model or its name, on tasks of bugfix-v1/small; or a run (RUN, RUN@STEP,
RUN@before), on its own tasks and sampled as in its training, where nothing else is said here. A base model that has no
chat template needs a --renderer.

--engine vllm checks servers that run already (vLLM 0.32), one --url for each. As in training, the weights of MODEL are
published to them first, and they keep these. Start each, where agentrl can be imported, with VLLM_SERVER_DEV_MODE=1 in
its environment, on a network that nobody else reaches:

\b
  vllm serve MODEL --enable-scale-out --generation-config vllm
    --logprobs-mode processed_logprobs
    --worker-extension-cls agentrl.engine.vllm_worker.FolderTransfer
    --weight-transfer-config '{"backend": "agentrl"}'
    (and --return-sampling-mask for --top-p or --min-p)

\b
Exit status: 0 within the tolerance, 1 beyond it, 2 bad input, or a server that is not the right one.

\b
Examples:
  agentrl check parity --model Qwen/Qwen3-0.6B --dtype bfloat16
  agentrl check parity --model Qwen/Qwen3-0.6B-Base --renderer chatml
  agentrl check parity --model latest --temperature 0.7 --top-p 0.9
  agentrl check parity --model runs/a@100 --json
  agentrl check parity --model Qwen/Qwen3-0.6B --engine vllm --url http://127.0.0.1:8000 --context 4096
"""
DTYPES = ("float32", "bfloat16")


def parity(
    model: str = typer.Option(..., metavar="MODEL", help="A Hugging Face model, RUN, RUN@STEP or RUN@before."),
    engine: str = typer.Option("local", metavar="ENGINE", help="The sampler: local, in this process; or vllm."),
    url: list[str] = typer.Option([], metavar="URL", help="Of a running vLLM server; may be given several times."),
    served_name: str = typer.Option("", metavar="NAME", help="Of the model at the servers; that of MODEL by default."),
    folder: Path = typer.Option(
        None, metavar="DIR", help="That the servers read too, for the weights; in memory here by default."
    ),
    api_key_env: str = typer.Option("VLLM_API_KEY", metavar="NAME", help="Environment variable with their key."),
    context: int = typer.Option(None, metavar="N", help="Longest conversation in tokens; that of MODEL by default."),
    dtype: str = typer.Option("", metavar="TYPE", help="Of a Hugging Face model's weights: float32 or bfloat16."),
    thinking: bool = typer.Option(False, "--thinking", help="A Hugging Face model reasons before it replies."),
    renderer: RendererName = None,
    today: Today = None,
    temperature: float = typer.Option(None, metavar="T", help="Of sampling; that of the run, or 1."),
    top_p: float = typer.Option(None, metavar="P", help="Sample from the likeliest tokens of this probability."),
    top_k: int = typer.Option(None, metavar="K", help="Sample from so many of the likeliest tokens; 0 for all."),
    min_p: float = typer.Option(None, metavar="P", help="Sample from tokens of this share of the likeliest one's."),
    tasks: int = typer.Option(3, metavar="N", help="Prompts."),
    attempts: int = typer.Option(4, metavar="K", help="Conversations that begin with each."),
    turns: int = typer.Option(3, metavar="N", help="Replies in the longest of them."),
    tokens: int = typer.Option(48, metavar="N", help="Tokens of the longest replies."),
    worst: int = typer.Option(10, metavar="N", help="Tokens to list."),
    seed: int = typer.Option(0, metavar="N", help="Of the draws."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    runs: Path = typer.Option(DEFAULT_ROOT, metavar="DIR", help="Where run folders are."),
) -> None:
    """Check one model."""
    least = {"tasks": (tasks, 1), "attempts": (attempts, 1), "turns": (turns, 1), "tokens": (tokens, 1)}
    for name, (value, smallest) in {**least, "worst": (worst, 0), "seed": (seed, 0)}.items():
        if value < smallest:
            raise BadInput(f"--{name} {value}: write {smallest} or more")
    servers = _servers(engine, url, served_name, folder, api_key_env)
    written = writing(renderer, today)
    drawn = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    library = _library()
    if engine not in library.ENGINES:
        raise BadInput(
            f"--engine {engine}: write {' or '.join(library.ENGINES)}; a sampler can be checked where it takes ids, "
            "says which ids it drew, and reports their log-probabilities"
        )
    with bad_input_for(ConfigError, StoreError, TaskError, SamplerError):
        asked = _asked(library, model, dtype, thinking, written, runs)
        asked = replace(asked, sampling=_sampling(asked.sampling, drawn), engine=engine, context=context)
        asked = replace(asked, servers=library.Servers(**servers))
        found = library.check(
            replace(asked, tasks=tasks, attempts=attempts, turns=turns, max_tokens=tokens, seed=seed, worst=worst)
        )
    if as_json:
        typer.echo(json.dumps({"model": model, "engine": engine, **found.as_json()}, allow_nan=False))
    else:
        _print(model, found)
    if not found.within:
        raise typer.Exit(1)


def _servers(engine: str, urls: list[str], name: str, folder: Path | None, key_name: str) -> dict[str, Any]:
    """Where servers are, for the engine that has some.

    Raises:
        BadInput: none is given, or some for another engine.
    """
    given = {"--url": " ".join(urls), "--served-name": name, "--folder": folder}
    needless = [f"{option} {value}" for option, value in given.items() if value]
    if engine != "vllm" and needless:
        raise BadInput(f"{needless[0]} is for --engine vllm alone; leave it out, or add --engine vllm")
    if engine == "vllm" and not urls:
        raise BadInput("--engine vllm needs running servers; add --url http://127.0.0.1:8000, and see --help")
    return {"urls": tuple(urls), "model": name, "folder": folder, "api_key": os.environ.get(key_name, "")}


def _library() -> Any:
    """What needs torch, loaded when a check runs.

    Raises:
        BadInput: torch is missing.
    """
    try:
        return importlib.import_module("agentrl.loops.parity")
    except (ImportError, OSError) as error:
        raise BadInput(f"torch cannot be imported ({error}); install it: pip install 'torch>=2.9'") from error


def _asked(library: Any, model: str, dtype: str, thinking: bool, written: Mapping[str, str], runs: Path) -> Any:
    """The model or the run that is meant, with what is given here in place of the run's own."""
    if dtype and dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype}: write {' or '.join(DTYPES)}")
    try:
        policy = parse_policy(model, runs)
    except StoreError as error:
        raise BadInput(
            f"--model {model}: {error.__cause__ or error}. Write RUN, RUN@STEP, RUN@before, or the folder or "
            "the name of a Hugging Face model"
        ) from error
    if policy.hugging_face:
        config = library.model_config(policy.hugging_face, dtype=dtype or DTYPES[0], thinking=thinking, **written)
        return library.Asked(config=config, sampling=Sampling())
    if policy.run is None:
        raise BadInput(f"--model {model}: it has no weights here; name a run, or a Hugging Face model")
    config = policy.run.config
    if config.model.is_tiny and (dtype or thinking or written):
        raise BadInput(
            f"--model {model} is a TinyAgent, in float32, without thoughts, and with words of its own; leave out "
            "--dtype, --thinking, --renderer, --today"
        )
    given = {"dtype": dtype or config.hf.dtype, "thinking": thinking or config.hf.thinking, **written}
    config = config.model_copy(update={"hf": config.hf.model_copy(update=given)})
    checkpoint = library.find_checkpoint(policy.run, policy.step)
    return library.Asked(config=config, checkpoint=checkpoint, sampling=config.rl.sampling)


def _sampling(usual: Sampling, given: dict[str, Any]) -> Sampling:
    with bad_input_for(SamplerError):
        return replace(usual, **{name: value for name, value in given.items() if value is not None})


def _print(model: str, found: Any) -> None:
    out, figures, tolerance = Console(), found.figures, found.tolerance
    out.print(
        Text(
            f"{model}, weights in {found.dtype}: {found.num_conversations} conversations, {found.num_replies} replies, "
            f"{figures.num_tokens} sampled tokens"
        )
    )
    table = _table("trainer minus sampler, in nats", "found", "at most")
    for name, value, most in (
        ("largest of one token", figures.largest, f"{tolerance.largest:g}"),
        ("mean, unsigned", figures.mean, f"{tolerance.mean:g}"),
        ("mean, signed", figures.signed_mean, ""),
        ("root mean square", figures.root_mean_square, ""),
        ("k3", figures.k3, ""),
    ):
        table.add_row(name, f"{value:.2e}", most)
    table.add_row("share of tokens beyond rounding", f"{figures.share_beyond:.1%}", "")
    table.add_row("perplexity of the sampler", f"{figures.sampler_perplexity:.6g}", "")
    table.add_row("perplexity of the trainer", f"{figures.trainer_perplexity:.6g}", "")
    out.print(table)
    if found.worst:
        out.print(_worst(found.worst))
    out.print(_verdict(found))


def _worst(worst: Any) -> Table:
    table = _table("differ most", "token", "reply", "trainer", "sampler", "conversation", "text")
    for one in worst:
        numbers = (f"{one.place}", f"{one.reply + 1}", f"{one.trainer:.5f}", f"{one.sampler:.5f}")
        name = "/".join(one.trace_id.split("/")[-2:])
        table.add_row(f"{one.trainer - one.sampler:+.1e}", *numbers, Text(name), Text(repr(one.text)))
    return table


def _verdict(found: Any) -> Text:
    if found.within:
        return Text("they agree", style="green")
    diagnosis = found.diagnosis
    named = "no known fault explains it" if diagnosis.fault == "unknown" else f"likely fault: {diagnosis.fault}"
    return Text.assemble(
        ("they do not agree; " + named, "bold red"), f"\n{diagnosis.evidence}\nto do: {diagnosis.advice}"
    )


def _table(*headings: str) -> Table:
    table = Table(header_style="bold cyan", box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=heading != "text", overflow="fold")
    return table
