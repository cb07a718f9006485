"""The page docs/agent-loop.md: its settings are those that there are, its examples do what stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.writing import NAMES
from agentrl.config import HarnessConfig, HuggingFaceConfig, TrainConfig, from_toml
from agentrl.harness.chat_count import ChatCount
from agentrl.settings.agent import TASK_SETS

PAGE = (Path(__file__).parents[2] / "docs" / "agent-loop.md").read_text(encoding="utf-8")
WORDS = {"": "empty", "{}": "none"}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_block_prints_what_stands_below_it():
    (code,), (expected,) = blocks("python"), blocks("text")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (expected, "")


def test_the_table_has_every_setting_with_its_default():
    rows = dict(re.findall(r"^\| `harness\.([a-z_]+)` \| ([^|]*) \|", PAGE, flags=re.MULTILINE))
    defaults = {name: str(value).removesuffix(".0") for name, value in HarnessConfig().model_dump().items()}
    assert {name: said.strip("`") for name, said in rows.items()} == {
        name: WORDS.get(value, value) for name, value in defaults.items()
    }


def test_the_table_names_the_values_that_may_be_chosen():
    for name in ("compaction", "malformed"):
        (row,) = re.findall(rf"^\| `harness\.{name}` .*$", PAGE, flags=re.MULTILINE)
        for value in HarnessConfig.model_fields[name].annotation.__args__:
            assert f"`{value}`" in row


def test_the_file_is_a_configuration_and_the_names_are_those_that_there_are():
    (text,) = blocks("toml")
    model = '[model]\nname = "some/model"\ncontext = 4096\n'
    config = from_toml(f'recipe = "x"\n{model}{text}')
    assert isinstance(config, TrainConfig)
    assert config.harness.system_prompts == {"math": "Think, and give the answer in \\boxed{}.", "bugfix": ""}
    (names,) = re.findall(r"the words of `agentrl eval`: (.*?); another", PAGE)
    assert tuple(re.findall(r"`([a-z-]+)`", names)) == TASK_SETS


def test_the_renderers_are_those_that_may_be_named():
    names = re.findall(r"^\| `([a-z]+(?::FAMILY)?)` \|", PAGE, flags=re.MULTILINE)
    assert [name for name in re.split(r", or |, | \(.*?\)", NAMES) if name] == names
    for name in names:
        assert HuggingFaceConfig(renderer=name.replace("FAMILY", "qwen3")).renderer.startswith(name.partition(":")[0])


def test_the_way_of_counting_is_the_one_that_is_used():
    how = ChatCount(()).how
    assert how == "3 bytes of UTF-8 a token and 4 tokens a message"
    assert how in " ".join(PAGE.split())


@pytest.mark.parametrize("word", ["branches", "cuts", "withheld", "counts", "calls_without_arguments"])
def test_the_notes_are_called_what_the_loop_calls_them(word):
    source = Path(sys.modules[ChatCount.__module__].__file__).parent
    assert f"`{word}`" in PAGE
    assert any(re.search(rf'"{word}"', path.read_text(encoding="utf-8")) for path in source.glob("*.py"))
