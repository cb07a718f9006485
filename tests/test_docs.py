"""The pages of docs/: each block of Python prints what stands below it, commands are valid, names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli import train
from agentrl.config import apply_overrides, load_recipe
from agentrl.metrics import METRICS
from agentrl.settings import EngineConfig, RlConfig
from agentrl.settings.engine import OF_LOCAL, OF_VLLM

DOCS = Path(__file__).parents[1] / "docs"
PAGE, SAMPLING = ((DOCS / name).read_text(encoding="utf-8") for name in ("asynchronous.md", "sampling.md"))
BLOCKS = [
    block
    for page in (PAGE, SAMPLING)
    for block in re.findall(r"^```python\n(.*?)^```$\n+^```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_prints_what_stands_below_it(number: int) -> None:
    code, expected = BLOCKS[number]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (expected, "")


def test_every_block_of_python_is_run() -> None:
    assert (PAGE.count("```python"), SAMPLING.count("```python"), len(BLOCKS)) == (3, 2, 5)


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


def test_the_tables_name_the_settings_of_each_kind_of_engine_with_their_defaults() -> None:
    served, local = re.findall(r"\| setting \| by default .*?\n\n", SAMPLING, flags=re.DOTALL)
    rows = re.compile(r"^\| `engine\.([a-z_]+)` \| ([^|]*) \|", flags=re.MULTILINE)
    assert set(dict(rows.findall(served))) == {"kind", "servers", "max_running", *OF_VLLM}
    assert set(dict(rows.findall(local))) == {"max_running", *OF_LOCAL}
    said = dict(rows.findall(served)) | dict(rows.findall(local))
    for name in ("chunk_tokens", "reply_s", "publish_s", "route", "api_key_env", "at_publication_keys"):
        assert said[name].strip("`") == f"{EngineConfig.model_fields[name].default}".removesuffix(".0")


def test_the_command_that_trains_with_servers_is_valid() -> None:
    [command] = re.findall(r"agentrl train (qwen.*?)\n   ```", SAMPLING, flags=re.DOTALL)
    recipe, *words = command.replace("\\\n", " ").split()
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    short = {f"--{name}" for name in train.OPTIONS}
    given = {
        ("rl." if f"--{key}" in short else "") + key.replace("-", "_"): text
        for key, text in ((word.removeprefix("--"), text) for word, text in pairs.items())
    }
    config = apply_overrides(load_recipe(recipe), given)
    assert (config.engine.kind, len(config.engine.servers), config.rl.overlaps) == ("vllm", 2, True)


def test_the_metrics_that_are_named_are_known() -> None:
    [table] = re.findall(r"\| metric \|.*?\n\n", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"`([a-z]+_[a-z_]+|overlap)`", table)) - {"_error"}
    assert len(named) == 14
    assert named <= METRICS.keys()
