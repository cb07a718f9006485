"""``agentrl eval``: a policy on held-out tasks, with intervals, in a folder that can be gone on with."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agentrl.cli import BadInput, bad_input_for
from agentrl.cli.attempts import bad_values, read_table
from agentrl.cli.eval_parts import Asked, folder_of, library, maker
from agentrl.cli.eval_show import Ended, Watcher, missing_share, print_results
from agentrl.cli.interrupt import stop_on_interrupt
from agentrl.cli.runs import DEFAULT_ROOT
from agentrl.cli.writing import RendererName, Today, writing
from agentrl.engine.openai import DEFAULT_URL, Endpoint
from agentrl.errors import ConfigError, StoreError, TaskError
from agentrl.evals.baselines import CEILING, FLOORS, no_ceiling
from agentrl.evals.folder import EvaluationFolder
from agentrl.evals.names import ENDPOINT, REASONING_GYM, parse_policy, parse_tasks
from agentrl.evals.result import summarize, table_of
from agentrl.evals.running import Evaluator
from agentrl.evals.stopping import Question, means_of
from agentrl.store import RunFolder
from agentrl.tasks.answering import READ
from agentrl.ui.live import PlainReporter

HELP = """Evaluate a policy on held-out tasks.

TASKS is a recipe (bugfix-tiny, or a .toml file), a level of the gym (bugfix-v1/tiny, see --split),
humanevalfix:FILE.jsonl, a data set of reasoning-gym (reasoning-gym:countdown), or questions in mathematics from a file
(math:FILE.jsonl with question and answer). The policy is a run (RUN for its latest checkpoint, RUN@STEP, RUN@before),
sampled as in training; a Hugging Face model (its folder, or a name such as Qwen/Qwen3-0.6B); a model behind an
OpenAI-compatible endpoint (openai:NAME); or a script: submit (hands in at once), random (random legal calls), reference
(the task set's solution). A run keeps its own [harness] (prompts, compaction, times) on any tasks; a model and an
endpoint have that of the recipe that TASKS is. --renderer says what writes the conversations of a Hugging Face model,
in place of what such a recipe says; a base model without a chat template needs it.

Attempts are kept as they come. The same command again goes on with what is missing, and with a larger --tasks or
--attempts makes only what is new. Another policy, temperature, seed or setting gets another folder.

While it runs the interval is shown for orientation. --stop-when-decided ends the evaluation as soon as a test that is
valid at every look says that the score is above or below --target, or that of --against on the same tasks.

\b
Exit status: 0 done, 1 more attempts could not be scored than --max-missing, 2 bad input, 130 Ctrl-C.

\b
Examples:
  agentrl eval bugfix-tiny --policy latest --tasks 200 --attempts 4
  agentrl eval bugfix-tiny --policy runs/a@100 --baselines
  agentrl eval bugfix-tiny --policy runs/b --against runs/a --stop-when-decided
  agentrl eval humanevalfix:humanevalfix.jsonl --policy reference --tasks 20
  agentrl eval bugfix-v1/small --policy Qwen/Qwen3-0.6B-Base --renderer chatml
  agentrl eval reasoning-gym:countdown --policy openai:my-model --base-url http://127.0.0.1:8000/v1 --baselines
"""


TasksWord = Annotated[str, typer.Argument(metavar="TASKS", help="A recipe or a task set.")]
PolicyWord = Annotated[
    str,
    typer.Option(
        "--policy", metavar="POLICY", help="RUN, RUN@STEP, RUN@before, a Hugging Face model, openai:NAME, or a script."
    ),
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="Of sampling; that of training by default, 0 for greedy.")
]
Baselines = Annotated[bool, typer.Option("--baselines", help="Also a floor and a ceiling on the same tasks.")]
Against = Annotated[str, typer.Option(metavar="SOURCE", help="Another evaluation of the same tasks, to compare with.")]
StopWhenDecided = Annotated[bool, typer.Option("--stop-when-decided", help="End early; needs --against or --target.")]
Threshold = Annotated[
    float | None,
    typer.Option(metavar="X", help="Reward from which an answer passes (reasoning-gym); 1 by default."),
]
BaseUrl = Annotated[str, typer.Option(metavar="URL", envvar="OPENAI_BASE_URL", help="Of the endpoint of openai:NAME.")]
ApiKeyEnv = Annotated[str, typer.Option(metavar="NAME", help="Environment variable with its key.")]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Tokens of one reply of a model; 8192 by default.")]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Whether a Hugging Face model reasons first; by default as in training: not, or as the recipe TASKS says.",
    ),
]
Dtype = Annotated[str | None, typer.Option(metavar="TYPE", help="Of its weights: float32 (by default) or bfloat16.")]
Concurrency = Annotated[int | None, typer.Option(metavar="N", help="Requests to it at the same time; 16 by default.")]
MaxMissing = Annotated[float, typer.Option(metavar="SHARE", help="Exit 1 when more attempts could not be scored.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where it is kept; below the run by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON; progress goes to stderr.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval", help=HELP)(run)


def run(
    tasks_word: TasksWord,
    policy: PolicyWord,
    tasks: Annotated[int, typer.Option(metavar="N", help="The first N tasks of the split.")] = 200,
    attempts: Annotated[int, typer.Option(metavar="K", help="Attempts at each task.")] = 1,
    split: Annotated[str, typer.Option(metavar="SPLIT", help="test, validation or train.")] = "test",
    temperature: Temperature = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the attempts' draws and of the order of tasks.")] = 0,
    baselines: Baselines = False,
    against: Against = "",
    target: Annotated[float | None, typer.Option(metavar="X", help="A score to be above or below.")] = None,
    margin: Annotated[float, typer.Option(metavar="X", help="Being this close also decides.")] = 0.0,
    stop_when_decided: StopWhenDecided = False,
    threshold: Threshold = None,
    base_url: BaseUrl = DEFAULT_URL,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
    max_tokens: MaxTokens = None,
    thinking: Thinking = None,
    dtype: Dtype = None,
    renderer: RendererName = None,
    today: Today = None,
    concurrency: Concurrency = None,
    max_missing: MaxMissing = 0.05,
    out: Out = None,
    as_json: AsJson = False,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where run folders are.")] = DEFAULT_ROOT,
) -> None:
    """Evaluate a policy."""
    _check_numbers(tasks=tasks, attempts=attempts, seed=seed, margin=margin, max_missing=max_missing)
    with bad_input_for(StoreError, ConfigError):
        asked = Asked(
            tasks=parse_tasks(tasks_word),
            policy=parse_policy(policy, runs),
            word=policy,
            split=split,
            num_tasks=tasks,
            attempts=attempts,
            temperature=temperature,
            seed=seed,
            out=out,
            runs=runs,
            question=_question(against, target, margin, stop_when_decided, runs),
        )
        asked = _with_threshold(asked, threshold)
        asked = _with_model(asked, max_tokens=max_tokens, thinking=thinking, dtype=dtype, **writing(renderer, today))
        asked = _with_endpoint(asked, base_url, os.environ.get(api_key_env, ""), concurrency)
    _evaluate_and_tell(asked, baselines=baselines, as_json=as_json, max_missing=max_missing)


def _evaluate_and_tell(asked: Asked, *, baselines: bool, as_json: bool, max_missing: float) -> None:
    """Evaluate, and print what came of it.

    Raises:
        typer.Exit: 130 where somebody stopped it, 1 where too many attempts could not be scored.
    """
    console = Console(stderr=as_json)
    reporter = PlainReporter(sys.stderr if as_json else sys.stdout)
    again = "the same command goes on with what is missing"
    stopping = f"stopping when the attempts that are under way have ended (Ctrl-C again stops at once); {again}"
    with stop_on_interrupt(reporter.request_stop, lambda _: reporter.note(stopping), again):
        ended = _evaluate_all(asked, reporter, console, baselines=baselines)
    if as_json:
        typer.echo(json.dumps(_plain(ended), allow_nan=False))
    else:
        print_results(console, ended)
    if reporter.stop_requested:
        raise typer.Exit(130)
    if any(missing_share(one.result) > max_missing for one in ended):
        reporter.note(f"more than {max_missing:.0%} of the attempts could not be scored; {again}")
        raise typer.Exit(1)


def _check_numbers(*, tasks: int, attempts: int, seed: int, margin: float, max_missing: float) -> None:
    for name, value, least in (("tasks", tasks, 2), ("attempts", attempts, 1), ("seed", seed, 0)):
        if value < least:
            raise BadInput(f"--{name} {value}: write {least} or more")
    if margin < 0:
        raise BadInput(f"--margin {margin:g} is negative; write 0 or more")
    if not 0.0 <= max_missing <= 1.0:
        raise BadInput(f"--max-missing {max_missing:g} is no share; write a number from 0 to 1")


def _with_threshold(asked: Asked, threshold: float | None) -> Asked:
    """With the reward from which an answer passes, for tasks that have such."""
    if threshold is not None and asked.tasks.kind != REASONING_GYM:
        raise BadInput(f"--threshold {threshold:g} is for {REASONING_GYM}:NAME alone; leave it out")
    return replace(asked, threshold=threshold)


def _with_model(asked: Asked, **given: Any) -> Asked:
    """With how a model replies; options of models are refused for others."""
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        option = f"--{name.replace('_', '-')} {value}"
        if name == "max_tokens" and asked.policy.model:
            continue
        if not asked.policy.hugging_face:
            owner = "a Hugging Face model" + (f" or {ENDPOINT}:NAME" if name == "max_tokens" else "")
            raise BadInput(f"{option} is for --policy with {owner} alone; leave it out")
    if chosen.get("max_tokens", 1) < 1:
        raise BadInput(f"--max-tokens {chosen['max_tokens']}: write 1 or more")
    if chosen.get("dtype", "float32") not in ("float32", "bfloat16"):
        raise BadInput(f"--dtype {chosen['dtype']}: write float32 or bfloat16")
    return replace(asked, **chosen)


def _with_endpoint(asked: Asked, base_url: str, key: str, concurrency: int | None) -> Asked:
    """With where the model is, for a policy that is one."""
    if concurrency is not None and concurrency < 1:
        raise BadInput(f"--concurrency {concurrency}: write 1 or more")
    if not asked.policy.model:
        if concurrency is not None:
            raise BadInput(f"--concurrency {concurrency} is for --policy {ENDPOINT}:NAME alone; leave it out")
        return asked
    endpoint = Endpoint(
        model=asked.policy.model,
        base_url=base_url,
        api_key=key,
        temperature=asked.temperature,
        concurrency=concurrency or Endpoint.concurrency,
    )
    return replace(asked, endpoint=endpoint)


def _question(against: str, target: float | None, margin: float, stop: bool, runs: Path) -> Question | None:
    if target is not None and against:
        raise BadInput("--target and --against ask two questions; leave one of them out")
    if target is None and not against:
        if stop or margin:
            raise BadInput("--stop-when-decided and --margin need a question: add --against SOURCE or --target X")
        return None
    if target is not None and not 0.0 <= target <= 1.0:
        raise BadInput(f"--target {target:g} is not in [0, 1], where scores are")
    if not stop:
        raise BadInput("--target and --against are what --stop-when-decided decides; add it, or use `agentrl compare`")
    if target is not None:
        return Question(target=target, margin=margin)
    with bad_values():
        return Question(baseline=means_of(read_table([against], runs, "", "zero")), margin=margin)


def _evaluate_all(asked: Asked, reporter: PlainReporter, console: Console, *, baselines: bool) -> list[Ended]:
    parts_of = library()
    with ExitStack() as stack, bad_input_for(TaskError, StoreError):
        make = maker(asked, parts_of, reporter, stack)
        ended = [_evaluate(asked, make(""), reporter, console)]
        if baselines:
            for name in _baselines(asked, make(FLOORS[0]).task_set, reporter):
                if not reporter.stop_requested:
                    ended.append(_evaluate(asked, make(name), reporter, console))
    return ended


def _baselines(asked: Asked, task_set: Any, reporter: PlainReporter) -> list[str]:
    silent = not task_set[0].tools  # with no tool to call, random calls are the same as handing in at once
    names = [name for name in (FLOORS[:1] if silent else FLOORS) if name != asked.policy.scripted]
    reason = no_ceiling(task_set)
    if reason:
        reporter.note(reason)
    elif asked.policy.scripted != CEILING:
        names.append(CEILING)
    return names


def _evaluate(asked: Asked, parts: Any, reporter: PlainReporter, console: Console) -> Ended:
    main = parts.spec.policy == asked.word
    out = asked.out
    if out is not None and not main:
        out = out.with_name(f"{out.name}-{parts.spec.policy}")
    run_path = None if asked.policy.run is None else asked.policy.run.path
    tasks = parts.tasks
    if main and asked.question is not None:
        asked.question.check([task.id for task in tasks])
    folder = EvaluationFolder.begin(folder_of(out, run_path, asked.runs, parts.spec), parts.spec, tasks)
    if run_path is not None:
        folder.adopt(run_path)
    if parts.agent is not None:
        parts.agent.keep_vocabulary(RunFolder(path=folder.path))
    reporter.note(f"{parts.spec.policy}: {len(tasks)} tasks, {asked.attempts} attempt(s) at each, in {folder.path}")
    evaluator = Evaluator(
        folder=folder,
        task_set=parts.task_set,
        harness=parts.harness,
        open_session=parts.open_session,
        version=parts.spec.version,
        seed=asked.seed,
    )
    watch = Watcher(reporter, console, asked.question if main else None)
    with watch.shown():
        asyncio.run(evaluator.run(tasks, asked.attempts, watch))
    return _finish(folder, watch, parts.sandbox, asked)


def _finish(folder: EvaluationFolder, watch: Watcher, sandbox: Any, asked: Asked) -> Ended:
    assert watch.last is not None
    traces = watch.last.traces
    before = _earlier(folder)
    played, seconds = watch.played + before["played"], watch.seconds + before["wall_s"]
    result: dict[str, Any] = {
        "folder": str(folder.path),
        "spec": asdict(folder.spec),
        "asked": {"tasks": asked.num_tasks, "attempts": asked.attempts, "split": asked.split},
        "complete": watch.last.done == watch.last.total,
        "decision": None if watch.decision is None else asdict(watch.decision),
        "sandbox": sandbox,
        "played": played,
        "wall_s": seconds,
        "seconds_per_attempt": seconds / played if played else None,
        "figures": {},
    }
    if traces:
        table = table_of(folder.spec.policy, traces)
        result |= summarize(table, traces)
        result["unread"] = sum(score.name == READ and score.value == 0.0 for one in traces for score in one.scores)
        if result["scores"]:
            figures = importlib.import_module("agentrl.evals.figures")  # takes seconds, and help does not need it
            result["figures"] = {name: str(path) for name, path in figures.draw_evaluation(table, folder.path).items()}
    folder.finish(result)
    return Ended(folder, result)


def _earlier(folder: EvaluationFolder) -> dict[str, Any]:
    """How many attempts were played before in this folder, and for how long."""
    path = folder.path / "result.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"played": found.get("played", 0), "wall_s": found.get("wall_s", 0.0)}


def _plain(ended: list[Ended]) -> dict[str, Any]:
    """The policy's result with those of the baselines by name."""
    first, *others = [{**one.result, "missing_share": missing_share(one.result)} for one in ended]
    return {**first, "baselines": {one["spec"]["policy"]: one for one in others}}
