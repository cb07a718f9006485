"""The README's example runs and prints what it says; its commands and map exist."""

import re
import subprocess
import sys
from pathlib import Path

from agentrl.cli.overrides import split_overrides
from agentrl.config import TrainConfig, apply_overrides

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_example_environment_prints_what_stands_below_it() -> None:
    done = subprocess.run([sys.executable, "-c", blocks("python")[0]], capture_output=True, text=True, check=True)
    assert done.stdout == blocks("text")[0]


def test_the_example_environment_is_about_twenty_lines() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 20


def test_the_overrides_that_are_shown_are_valid() -> None:
    lines = [line for block in blocks("") for line in block.splitlines()]
    [line] = [line for line in lines if line.startswith("agentrl train bugfix-tiny --seed")]
    words, overrides = split_overrides(line.split()[2:])
    assert words == ["bugfix-tiny"]
    assert len(overrides) == 3
    assert apply_overrides(TrainConfig(recipe="bugfix-tiny"), overrides).seed == 1


def test_every_target_that_is_shown_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "lint", "check", "bench"):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", README))


def test_the_map_names_every_part_of_the_package() -> None:
    parts = {path.name for path in (ROOT / "src" / "agentrl").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    named = set(re.findall(r"`(\w+)/`", README))
    assert parts <= named, f"missing in the README's map: {parts - named}"
