"""`agentrl check` on losses in a user's own file, and on the presets."""

import json
import sys
from itertools import count
from pathlib import Path

import pytest

from agentrl.algorithms import presets
from agentrl.algorithms.invariance import CHECKS
from agentrl.cli import main
from tests.cli.conftest import Command, Done

MODULE = """
import functools
import torch

CLIP = 0.2

def loss(logprobs, old_logprobs, advantages, mask):
    return -torch.where(mask, advantages, 0.0).detach() * torch.where(mask, logprobs, 0.0)

def step_loss(logprobs, old_logprobs, advantages, mask, num_tokens):
    return loss(logprobs, old_logprobs, advantages, mask).sum() / num_tokens

def mean_loss(logprobs, old_logprobs, advantages, mask):
    return loss(logprobs, old_logprobs, advantages, mask).sum() / mask.sum()

def pull(logprobs, old_logprobs, advantages, mask, beta):
    return loss(logprobs, old_logprobs, advantages, mask) + beta * torch.where(mask, logprobs, 0.0).square()

pulled = functools.partial(pull, beta=0.5)
"""


NUMBERS = count()
"""A module of its own for each test, because modules stay imported."""


class Checked:
    """The command in a folder of its own with a module of losses."""

    def __init__(self, capsys: pytest.CaptureFixture[str], module: str) -> None:
        self._capsys, self.module = capsys, module

    def __call__(self, *words: str) -> Done:
        with pytest.raises(SystemExit) as left:
            main(["check", *words])
        out, err = self._capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Done(left.value.code, out, err)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Checked:
    module = f"losses_{next(NUMBERS)}"
    (tmp_path / f"{module}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    return Checked(capsys, module)


@pytest.mark.parametrize("name", ["loss", "step_loss"])
def test_a_loss_that_is_right_passes(check: Checked, name: str) -> None:
    done = check("objective", f"{check.module}:{name}")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line for line in done.stdout.splitlines() if line.startswith(tuple(CHECKS))]
    assert len(rows) == len(CHECKS)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert " 0 fail" not in done.stdout
    assert f"{check.module}:{name}: 12 pass, 1 not applicable" in " ".join(done.stdout.split())


def test_a_loss_that_is_wrong_fails_with_the_reason_and_where_it_was_seen(check: Checked) -> None:
    done = check("objective", f"{check.module}:mean_loss")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert f"{check.module}:mean_loss, micro-batches: deviation" in said
    assert "divide by totals of the step (num_tokens, num_sequences) and not of the piece (SkyRL#1296" in said
    assert "2 fail" in said  # also 0 / 0 where a micro-batch has no trained token
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_json_has_a_row_per_check_and_no_numbers_that_json_lacks(check: Checked) -> None:
    done = check("objective", f"{check.module}:mean_loss", "--json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert done.returncode == 1
    rows = {row["check"]: row for row in found["checks"]}
    assert list(rows) == list(CHECKS)
    assert set(rows["padding"]) == {"check", "promise", "verdict", "deviation", "tolerance", "note", "meaning"}
    assert rows["untrained sequence"]["deviation"] == "infinite"
    assert rows["statistics"]["deviation"] is None


def test_a_check_can_be_left_out(check: Checked) -> None:
    assert check("objective", f"{check.module}:pulled").returncode == 1
    done = check("objective", f"{check.module}:pulled", "--skip", "ratio one", "--skip", "way back")
    assert done.returncode == 0
    assert "left out with --skip" in done.stdout


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("losses.py", "'losses.py' names no loss; write"),
        ("no_such_module:loss", "no_such_module cannot be imported: ModuleNotFoundError"),
        ("MODULE:los", "did you mean MODULE:loss?"),
        ("MODULE:CLIP", "MODULE:CLIP is of type float; name a function"),
        ("MODULE:pull", "missing a required argument: 'beta'"),
    ],
)
def test_what_cannot_be_called_is_told_what_to_write(check: Checked, where: str, words: str) -> None:
    done = check("objective", where.replace("MODULE", check.module))
    assert (done.returncode, done.stdout) == (2, "")
    assert words.replace("MODULE", check.module) in done.stderr


def test_an_unknown_check_is_answered_with_the_names(check: Checked) -> None:
    done = check("objective", f"{check.module}:loss", "--skip", "ratio 1")
    assert done.returncode == 2
    assert "there is no check 'ratio 1'; the checks are masked places, " in done.stderr


def test_a_module_that_breaks_while_imported_is_bad_input(check: Checked, tmp_path: Path) -> None:
    (tmp_path / "breaks_at_once.py").write_text("1 / 0\n", encoding="utf-8")
    done = check("objective", "breaks_at_once:loss")
    assert done.returncode == 2
    assert "breaks_at_once cannot be imported: ZeroDivisionError" in done.stderr


def test_the_algorithms_pass_in_a_table_of_80_columns(check: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: presets.PRESETS[name] for name in ("reinforce_pp_baseline", "ppo")}
    monkeypatch.setattr(presets, "PRESETS", some)
    done = check("algorithms")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    counts = {line.split()[0]: [int(number) for number in line.split()[1:5]] for line in lines[1:3]}
    # Two parts of 13 checks, three with a critic; the step returns no PolicyLoss, a value loss has no ratio.
    assert counts == {"reinforce_pp_baseline": [23, 0, 2, 1], "ppo": [32, 0, 2, 5]}
    assert "limit: " in done.stdout
    found = json.loads(check("algorithms", "--json").stdout, parse_constant=pytest.fail)
    assert {name: list(parts) for name, parts in found.items()} == {
        "reinforce_pp_baseline": ["objective", "step"],
        "ppo": ["objective", "step", "value"],
    }
    assert [row["check"] for row in found["ppo"]["step"]] == list(CHECKS)


@pytest.mark.parametrize("words", [(), ("algorithms",), ("objective",)])
def test_help_has_an_example_and_needs_no_torch(agentrl: Command, words: tuple[str, ...]) -> None:
    done = agentrl("check", *words, "--help")
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout
    assert "agentrl check " in done.stdout
