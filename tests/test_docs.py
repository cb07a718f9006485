"""The pages of docs/: each block of Python prints what stands below it, commands are valid, names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli import train
from agentrl.metrics import METRICS
from agentrl.settings import RlConfig

PAGE = (Path(__file__).parents[1] / "docs" / "asynchronous.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$\n+^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_prints_what_stands_below_it(number: int) -> None:
    code, expected = BLOCKS[number]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (expected, "")


def test_every_block_of_python_is_run() -> None:
    assert PAGE.count("```python") == len(BLOCKS) == 3


def test_the_options_and_settings_that_are_named_exist() -> None:
    [command] = [line for line in PAGE.splitlines() if line.startswith("agentrl ")]
    options = re.findall(r"--([a-z-]+)", command)
    assert options == ["mode", "max-staleness"]
    assert set(options) <= set(train.OPTIONS)
    named = re.findall(r"`rl\.([a-z_]+)`", PAGE)
    assert named
    assert set(named) <= RlConfig.model_fields.keys()


def test_the_table_names_the_settings_of_asynchronous_runs_and_their_values() -> None:
    for name in ("order", "at_publication"):
        for value in RlConfig.model_fields[name].annotation.__args__:  # type: ignore[union-attr]
            assert f"`{value}`" in PAGE
    for name in ("mode", "max_staleness", "order", "at_publication", "extra_attempts", "attempt_s", "correction"):
        assert f"| `rl.{name}` |" in PAGE


def test_the_metrics_that_are_named_are_known() -> None:
    [table] = re.findall(r"\| metric \|.*?\n\n", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"`([a-z]+_[a-z_]+|overlap)`", table)) - {"_error"}
    assert len(named) == 14
    assert named <= METRICS.keys()
