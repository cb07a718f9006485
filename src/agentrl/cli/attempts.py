"""What `compare` and `plan` share: words that name attempts, and refusals on one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentrl.cli import BadInput
from agentrl.errors import StoreError
from agentrl.evals.load import load_table
from agentrl.evals.table import Errors, Table


@contextmanager
def bad_values() -> Iterator[None]:
    """Within the block, a value or a file that cannot be used was named wrongly on the command line.

    Raises:
        BadInput: in place of a ValueError or a StoreError, with its message.
    """
    try:
        yield
    except (ValueError, StoreError) as error:
        raise BadInput(str(error)) from error


def read_table(words: Sequence[str], runs: Path, score: str, errors: str) -> Table:
    """The table of all sources. Raises BadInput."""
    if errors not in ("zero", "missing"):
        raise BadInput(f"--errors {errors!r}: write zero, or missing to leave errored and timed-out attempts out")
    policy: Errors = "zero" if errors == "zero" else "missing"
    with bad_values():
        return load_table(words, runs=runs, score=score or None, errors=policy)
