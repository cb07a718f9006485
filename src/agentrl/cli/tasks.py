"""``agentrl tasks``: look at the tasks of the BugFix gym, prove them, write one to a folder."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from rich.console import Console

from agentrl.cli import BadInput, bad_input_for
from agentrl.cli.lookup import DATA, Found, find_task
from agentrl.errors import TaskError
from agentrl.tasks.bugfix.taskset import LEVELS, BugFix
from agentrl.types import Task

HELP = """List, show, validate and export the tasks of the BugFix gym.

The id of a task is bugfix-v1/LEVEL/SPLIT/INDEX, with the levels tiny, small, repo and the splits train, validation,
test. Every such task is generated anew from its id and proved by running it. Tasks of HumanEvalFix, which can be shown
and exported, are humanevalfix-v1/INDEX; --data says where they are.

\b
Examples:
  agentrl tasks list --level small --n 5
  agentrl tasks show bugfix-v1/tiny/test/0
  agentrl tasks validate --level tiny --n 200
  agentrl tasks export bugfix-v1/small/train/3 repair-me
  agentrl tasks export humanevalfix-v1/12 repair-me --data humanevalpack.jsonl
"""

LEVEL = typer.Option("tiny", metavar="LEVEL", help="tiny, small or repo.")
SPLIT = typer.Option("train", metavar="SPLIT", help="train, validation or test.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
TASK_ID = typer.Argument(..., metavar="ID", help="Such as bugfix-v1/tiny/train/0, or humanevalfix-v1/12.")


def register(app: typer.Typer) -> None:
    """Add the command with its four parts."""
    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    group.command("list", help="List tasks. Example: agentrl tasks list --level small --n 5")(list_tasks)
    group.command("show", help="Show what the agent is given. Example: agentrl tasks show bugfix-v1/tiny/test/0")(show)
    group.command("validate", help="Generate and prove tasks. Example: agentrl tasks validate --n 200")(validate)
    group.command("export", help="Write one to a folder. Example: agentrl tasks export ID DIR --solution")(export)
    app.add_typer(group, name="tasks")


def list_tasks(
    level: str = LEVEL,
    split: str = SPLIT,
    n: int = typer.Option(20, "--n", metavar="N", help="How many tasks."),
    as_json: bool = AS_JSON,
) -> None:
    """List the first tasks of a level."""
    tasks = _generated(level, split, n)
    rows = [{"id": task.id, "family": task.family, **task.metadata} for task in _all(tasks)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    cells = [(row["id"], row["family"], row["kind"], row["failing_test"]) for row in rows]
    for line in _aligned([("id", "family", "kind of bug", "failing test"), *cells]):
        typer.echo(line)


def show(task_id: str = TASK_ID, data: str = DATA, as_json: bool = AS_JSON) -> None:
    """Show a task as the agent gets it: messages, tools and files."""
    task = _found(task_id, data).task
    if as_json:
        typer.echo(json.dumps(_as_json(task)))
        return
    parts = [f"{task.id}  {task.family}  bug: {task.metadata['kind']}"]
    parts += [f"[{message.role}]\n{message.content}" for message in task.prompt]
    parts += [f"--- {path}\n{text.rstrip()}" for path, text in task.files.items()]
    parts.append("tools: " + ", ".join(tool.name for tool in task.tools))
    typer.echo("\n\n".join(parts))


def validate(
    level: str = typer.Option("", metavar="LEVEL", help="tiny, small or repo; all three when left out."),
    split: str = SPLIT,
    n: int = typer.Option(50, "--n", metavar="N", help="How many tasks to end up with."),
    as_json: bool = AS_JSON,
) -> None:
    """Generate tasks, prove each by running it, and say how many candidates were dropped and why."""
    reports = {name: _report(name, split, n) for name in ([level] if level else LEVELS)}
    if as_json:
        typer.echo(json.dumps(reports))
        return
    for name, report in reports.items():
        dropped = ", ".join(f"{count} {reason}" for reason, count in report["dropped"].items() if count) or "none"
        kinds = ", ".join(f"{kind} {count}" for kind, count in report["kinds"].items())
        typer.echo(f"{name}/{split}: {report['generated']} generated, {report['kept']} kept; dropped: {dropped}")
        typer.echo(f"  kinds of bug: {kinds}")


def export(
    task_id: str = TASK_ID,
    folder: Path = typer.Argument(..., metavar="DIR", help="A folder that is new or empty."),
    data: str = DATA,
    solution: bool = typer.Option(False, "--solution", help="Write the right program in place of the broken one."),
) -> None:
    """Write a task's files into a folder, to look at or to repair by hand."""
    with _writable(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is not an empty folder; nothing in it is overwritten, so choose another")
    found = _found(task_id, data)
    task, files = found.task, {**found.task.files, **(found.solution if solution else {})}
    with _writable(folder):
        for name, text in files.items():
            path = folder / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    typer.echo(f"{len(files)} files of {task.id} written to {folder}")
    typer.echo(f"its tests need pytest (pip install pytest): cd {shlex.quote(str(folder))} && python -m pytest")


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Within the block, an error of the operating system means that the folder cannot be used."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}); choose another folder") from error


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text. No line is folded to fit the terminal, so that every cell can be copied whole."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _generated(level: str, split: str, n: int) -> BugFix:
    with bad_input_for(TaskError), Console(stderr=True).status(f"generating and proving {level} tasks"):
        return BugFix(level, split, n)


def _all(tasks: BugFix) -> list[Task]:
    return [tasks[index] for index in range(len(tasks))]


def _found(task_id: str, data: str) -> Found:
    with bad_input_for(TaskError), Console(stderr=True).status(f"looking for {task_id}"):
        return find_task(task_id, data)


def _report(level: str, split: str, n: int) -> dict[str, Any]:
    tasks = _generated(level, split, n)
    kinds = Counter(task.metadata["kind"] for task in _all(tasks))
    found = tasks.validation
    counts = {"generated": found.generated, "kept": found.kept, "dropped": dict(found.dropped)}
    return {**counts, "kinds": dict(kinds.most_common())}


def _as_json(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "family": task.family,
        "split": task.split,
        "prompt": [{"role": message.role, "content": message.content} for message in task.prompt],
        "tools": [{"name": tool.name, "description": tool.description} for tool in task.tools],
        "files": dict(task.files),
        "metadata": dict(task.metadata),
    }
