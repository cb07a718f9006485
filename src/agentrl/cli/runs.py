"""Run folders as words of the command line."""

from __future__ import annotations

from pathlib import Path

from agentrl.cli import bad_input_for
from agentrl.errors import StoreError
from agentrl.store import RunFolder

DEFAULT_ROOT = Path("runs")


def open_run(word: str, root: Path = DEFAULT_ROOT) -> RunFolder:
    """The run that a path, a name below ``root`` or ``latest`` means.

    Raises:
        BadInput: there is no such run, with those nearby.
    """
    with bad_input_for(StoreError):
        if word == "latest":
            return RunFolder.latest(root)
        below = root / word
        return RunFolder.open(below if (below / "config.toml").is_file() else word, runs=root)
