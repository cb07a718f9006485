"""``agentrl grade``: grade a directory as training would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import typer

from agentrl.cli import BadInput
from agentrl.cli.lookup import DATA, Found, find_task
from agentrl.errors import SandboxError, TaskError
from agentrl.rewards.collect import collect, may_count
from agentrl.rewards.grading import Grader, PoolGrader
from agentrl.rewards.judge import Verdict
from agentrl.rewards.proof import proved
from agentrl.sandbox.base import Level, check_path
from agentrl.sandbox.choose import UNSAFE, choose
from agentrl.sandbox.pool import Pool
from agentrl.types import Task

HELP = """Grade a directory as training would, by the hidden tests of a task.

Only the task's source files count; tests and whatever else lies in the directory are left out. The exit status is 0
when it graded, whatever the verdict; it is 1 when there is no verdict, such as when the hidden tests fail the task's
own solution too, and 2 when there is nothing to grade: no such task or directory.

\b
Examples:
  agentrl tasks export bugfix-v1/small/train/3 repair-me
  agentrl grade --task bugfix-v1/small/train/3 --workspace repair-me
  agentrl grade --task humanevalfix-v1/12 --data humanevalpack.jsonl --workspace repair-me --json
"""
LEVELS = {"landlock": Level.LANDLOCK, "namespaces": Level.NAMESPACES}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("grade", help=HELP)(grade)


def grade(
    task: str = typer.Option(..., metavar="ID", help="Such as bugfix-v1/tiny/train/0 or humanevalfix-v1/12."),
    workspace: Path = typer.Option(..., metavar="DIR", help="The directory to grade."),
    data: str = DATA,
    level: str = typer.Option(
        "namespaces", metavar="LEVEL", help="The weakest walls to accept: namespaces or landlock."
    ),
    backend: str = typer.Option("", metavar="NAME", help="Use this backend; see `agentrl sandbox`."),
    allow_unsafe: bool = typer.Option(False, "--allow-unsafe", help="Accept no walls at all, for code that you trust."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Grade a directory."""
    if level not in LEVELS:
        raise BadInput(f"--level {level!r}: write one of {', '.join(LEVELS)}")
    if backend in UNSAFE and not allow_unsafe:
        raise BadInput(f"--backend {backend} has no walls; for code that you trust add --allow-unsafe")
    with _named(task):
        found = find_task(task, data)
        sources = _sources(found.task)
        files = collect(workspace.resolve() if workspace.is_symlink() else workspace, sources)
        chosen = choose(require=LEVELS[level], name=backend, allow_unsafe=allow_unsafe)
    for path in sorted({*sources} - {*files}):
        typer.echo(f"note: {path} is no regular file in {workspace}; it counts as missing", err=True)
    with Pool(chosen.backend, size=1) as pool:
        verdict = asyncio.run(_graded(PoolGrader(pool), files, found))
    _say(task, verdict, as_json=as_json)
    if verdict.verdict == "error":
        raise typer.Exit(1)


@contextmanager
def _named(task_id: str) -> Iterator[None]:
    """Within the block, errors name the task.

    Raises:
        BadInput: what was asked for, or the task, is wrong.
        SandboxError: no sandbox can be had.
    """
    try:
        yield
    except TaskError as error:
        raise BadInput(str(error) if task_id in str(error) else f"{task_id}: {error}") from error
    except SandboxError as error:
        raise SandboxError(f"{task_id}: {error}") from error


def _sources(task: Task) -> list[str]:
    """The files of a task that count.

    Raises:
        TaskError: a file of the task lies outside of its workspace.
    """
    for path in task.files:
        try:
            check_path(path)
        except SandboxError as error:
            raise TaskError(f"{task.id}: its file {path!r} lies outside of the workspace; mend the task") from error
    return [path for path in task.files if may_count(path)]


async def _graded(grader: Grader, files: Mapping[str, bytes], found: Found) -> Verdict:
    """The verdict; a fail only when the task's own solution does not fail as well."""
    verdict = await grader.grade(files, found.hidden)
    sources = {path: text for path, text in {**found.task.files, **found.solution}.items() if may_count(path)}
    return await proved(verdict, grader, found.hidden, {path: text.encode() for path, text in sources.items()})


def _say(task_id: str, verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        why = {"why": verdict.why} if verdict.verdict == "error" else {}
        typer.echo(json.dumps({"task": task_id, **verdict.as_json(), **why}))
        return
    counts = f"{verdict.num_passed} of {verdict.num_tests} hidden tests"
    typer.echo(f"{task_id}: {verdict.verdict} ({counts}, tier {verdict.tier}, {verdict.wall_ms:.0f} ms)")
    if verdict.verdict == "error":
        typer.echo(f"{task_id}: no verdict: {verdict.why}", err=True)
