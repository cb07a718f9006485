"""The command line. Each command is a module that is imported only when it is called, so that help comes at once.

Exit status: 0 when a command did what was asked, 1 for a failure, 2 for bad input, 130 when Ctrl-C ended it early.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from agentrl import __version__
from agentrl.errors import AgentRLError, ConfigError

COMMANDS = {
    "train": ("agentrl.cli.train", "Train an agent with a recipe, and measure it before and after."),
    "eval": ("agentrl.cli.eval", "Evaluate a policy on held-out tasks, with intervals; go on with what is missing."),
    "compare": ("agentrl.cli.compare", "Compare checkpoints, pairwise by task, with what may be concluded."),
    "plan": ("agentrl.cli.plan", "Say how many tasks and attempts show a difference, and what they cost."),
    "plan-memory": ("agentrl.cli.plan_memory", "Say how much memory and time a run will need."),
    "report": ("agentrl.cli.report", "Say what RL changed in the model of a run, with figures."),
    "show": ("agentrl.cli.show", "Look at a run, or at one attempt token by token."),
    "export": ("agentrl.cli.export", "Write the model of a run for transformers and vLLM."),
    "algorithms": ("agentrl.cli.algorithms", "List the algorithms, or say what one of them is."),
    "check": ("agentrl.cli.check", "Check that a loss is the same however a step is laid out."),
    "tasks": ("agentrl.cli.tasks", "List, show, validate and export the tasks of the BugFix gym."),
    "grade": ("agentrl.cli.grade", "Grade a directory by the hidden tests of a task, as training would."),
    "sandbox": ("agentrl.cli.sandbox", "Say how well this machine keeps untrusted code inside."),
    "bench": ("agentrl.cli.bench", "Measure this machine: sampling, training, asynchrony, isolation and grading."),
}
"""Name of each command: the module whose ``register(app)`` adds it, and its line in the help."""

INTRODUCTION = f"""Reinforcement learning for language-model agents (version {__version__}).

Start with: agentrl train bugfix-tiny
"""


class BadInput(AgentRLError):
    """What was asked for cannot be done as it was written; the message says what to write instead."""

    boundary = "input"


@contextmanager
def bad_input_for(*kinds: type[AgentRLError]) -> Iterator[None]:
    """Within the block, an error of these kinds means that the words of the command line were wrong.

    Raises:
        BadInput: in place of such an error, with its message.
    """
    try:
        yield
    except kinds as error:
        raise BadInput(str(error)) from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit status.

    Args:
        arguments: the words after ``agentrl``; those of this process when None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.formatwarning = _plain_warning
    try:
        _application(words)(args=words, prog_name="agentrl")
    except (ConfigError, BadInput) as error:
        _leave(f"error: {error}", 2)
    except AgentRLError as error:
        _leave(f"error ({error.boundary}): {error}", 1)
    except KeyboardInterrupt:
        _leave("interrupted", 130)


def _plain_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> str:
    """Without the line of source that it came from, which is of no use to whoever set the value."""
    return f"warning: {message}\n"


def _application(words: Sequence[str]) -> typer.Typer:
    """The application with the command that was asked for; the others are there by name and help only."""
    first = words[0] if words else "--help"
    if not first.startswith("-") and first not in COMMANDS:
        close = difflib.get_close_matches(first, COMMANDS, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise BadInput(f"there is no command {first!r}; {hint}the commands are {', '.join(COMMANDS)}")
    app = typer.Typer(
        help=INTRODUCTION,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_version)
    for name, (module, line) in COMMANDS.items():
        if name == first:
            importlib.import_module(module).register(app)
        else:
            app.command(name, help=line)(_never_called)
    return app


def _version(version: bool = typer.Option(False, "--version", is_eager=True, help="Print the version.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _never_called() -> None:
    raise AssertionError("only the command that was asked for can be called")


def _leave(message: str, status: int) -> None:
    typer.echo(message, err=True)
    raise SystemExit(status)
