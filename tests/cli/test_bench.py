"""What `agentrl bench` prints. It asserts the shape of the numbers and never their size."""

import json
from pathlib import Path

import pytest

from agentrl.bench.rounds import Rate
from agentrl.bench.sandbox import Aim, Found
from agentrl.cli.bench import _show
from agentrl.sandbox.choose import WALLED
from tests.sandbox.backends import why_not

DATA = Path(__file__).parents[3] / "shared" / "data" / "humanevalfix" / "humanevalpack-python.jsonl"
ARMS = {
    "true",
    "python",
    "pytest",
    "zygote job",
    "zygote warm-python",
    "zygote python",
    "5 hidden tests",
    "5 hidden calls",
    "gym's test tool",
}


@pytest.mark.skipif(bool(why_not("zygote")), reason=why_not("zygote"))
@pytest.mark.skipif(not DATA.exists(), reason="the data set is not on this machine")
def test_json_has_every_arm_and_every_aim(agentrl):
    done = agentrl("bench", "sandbox", "--quick", "--json", "--data", str(DATA))
    said = json.loads(done.stdout)
    assert (done.returncode, said["bench"], said["rounds"], said["lanes"]) == (0, "sandbox", 1, 2)
    assert said["machine"].keys() >= {"processor", "cores", "system", "python", "agentrl", "pytest"}
    assert said["arms"].keys() == ARMS
    assert all(arm["per_s"] > 0 and arm["ms"] > 0 and arm["floors"] > 0 for arm in said["arms"].values())
    assert said["arms"]["true"]["floors"] == 1.0
    aims = {aim["name"]: aim for aim in said["aims"]}
    job, python = said["arms"]["zygote job"]["per_s"], said["arms"]["python"]["per_s"]
    assert aims["zygote job / python"]["value"] == pytest.approx(job / python)
    assert aims["gym's test tool"]["value"] == said["arms"]["gym's test tool"]["ms"]
    assert aims["idle pool of 2 and judge"]["value"] > 0
    graded = {name: aim["value"] for name, aim in aims.items() if name.startswith("HumanEvalFix")}
    assert {name: value is not None for name, value in graded.items()} == {
        f"HumanEvalFix in {name}": not why_not(name) for name in WALLED
    }


def test_text_says_what_was_reached_and_what_was_not_measured(capsys):
    arms = {name: Rate(per_s=100.0, best_per_s=200.0, ms=20.0) for name in ("true", "python")}
    aims = (
        Aim(name="fast", value=3.0, wanted=2.5),
        Aim(name="slow", value=12.0, wanted=10.0, at_most=True, unit="ms"),
        Aim(name="nothing", value=None, wanted=10.0, note="it is not here"),
    )
    _show(Found(rounds=7, load=(0.5, 1.5), rates=arms, aims=aims))
    said = capsys.readouterr().out
    assert "7 rounds, 2 at a time; load 0.5 before and 1.5 after" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["python", "100.0", "200.0", "20.00", "1.0"] in lines
    assert ["fast", "3.0", ">=", "2.5", "reached"] in lines
    assert ["slow", "12.0", "ms", "<=", "10", "ms", "not", "reached"] in lines
    assert ["nothing", "-", ">=", "10", "it", "is", "not", "here"] in lines


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["engine-of-mine"], "there is no benchmark 'engine-of-mine'; the benchmarks are sandbox"),
        (["sandbox", "--quick", "--data", "nothing.jsonl"], "nothing.jsonl"),
    ],
)
def test_bad_words_are_refused(agentrl, words, problem):
    done = agentrl("bench", *words)
    assert done.returncode == 2
    assert problem in done.stderr


def test_help_lists_the_benchmarks(agentrl):
    assert "what isolation and grading cost" in agentrl("bench", "--help").stdout
