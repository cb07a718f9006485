"""Help comes without the heavy libraries; what is misspelled is answered with the nearest name."""

import subprocess
import sys

import pytest

from agentrl.cli import COMMANDS
from tests.cli.conftest import Command

HEAVY = ("torch", "scipy", "matplotlib", "numpy", "pydantic")


def test_help_needs_no_heavy_library(agentrl_process: Command) -> None:
    done = agentrl_process("--help", without=HEAVY)
    assert done.returncode == 0, done.stderr
    for command in ("train", "show", "tasks"):
        assert f"  {command} " in done.stdout


@pytest.mark.parametrize("command", ["train", "show", "tasks"])
def test_the_help_of_each_command_has_an_example_and_needs_no_torch(agentrl: Command, command: str) -> None:
    done = agentrl(command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout
    assert f"agentrl {command} " in done.stdout


@pytest.mark.parametrize("words", [(), ("train",), ("tasks",), ("tasks", "list")])
def test_the_short_option_shows_the_same_help(agentrl: Command, words: tuple[str, ...]) -> None:
    done = agentrl(*words, "-h")
    assert done.returncode == 0, done.stderr
    assert done.stdout == agentrl(*words, "--help").stdout


def test_a_misspelled_command_is_answered_with_the_nearest(agentrl: Command) -> None:
    done = agentrl("trian")
    assert (done.returncode, done.stdout) == (2, "")
    commands = ", ".join(COMMANDS)
    assert done.stderr == f"error: there is no command 'trian'; did you mean 'train'? the commands are {commands}\n"


def test_the_version_is_printed(agentrl: Command) -> None:
    done = agentrl("--version")
    assert (done.returncode, done.stdout) == (0, "0.1.0\n")


def test_no_command_prints_the_help_and_is_bad_input(agentrl: Command) -> None:
    done = agentrl()
    assert done.returncode == 2
    assert "Usage: agentrl" in done.stdout + done.stderr


def test_the_entry_point_is_installed() -> None:
    command = [sys.executable, "-c", "from importlib.metadata import entry_points as e; print(e(name='agentrl'))"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "agentrl.cli:main" in found.stdout
