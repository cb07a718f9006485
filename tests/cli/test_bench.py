"""What `agentrl bench` prints. It asserts the shape of the numbers and never their size."""

import json
from pathlib import Path

import pytest

from agentrl.bench.report import Aim, Report, Table
from agentrl.bench.rounds import Rate
from agentrl.bench.sandbox import Found
from agentrl.cli.bench import NAMES, _show_sandbox, show
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
    _show_sandbox(Found(rounds=7, load=(0.5, 1.5), rates=arms, aims=aims))
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
        (["engine", "--data", "x.jsonl"], "bench engine has no --data, which belongs to sandbox; leave it out"),
        (["rollout", "--max-staleness", "1"], "no --max-staleness, which belongs to async"),
        (["trl", "--only", "small"], "--only small: the parts of bench trl are single, tools"),
        (["async", "--at-publication", "never"], "--at-publication never: write continue or wait"),
    ],
)
def test_bad_words_are_refused(agentrl, words, problem):
    done = agentrl("bench", *words)
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_package_that_is_not_there_is_named_with_how_to_get_it(agentrl_process):
    pytest.importorskip("transformers")
    done = agentrl_process("bench", "engine", without=("transformers",))
    assert done.returncode == 2
    assert "bench engine cannot run here" in done.stderr
    assert "pip install 'agentrl[" in done.stderr


def test_help_lists_the_benchmarks(agentrl):
    said = agentrl("bench", "--help").stdout
    assert all(name in said for name in NAMES)
    assert "what isolation and grading cost" in said


def test_a_report_is_printed_as_markdown_with_its_aims(capsys):
    table = Table(title="a title", columns=("who", "tokens/s"), rows=(("ours", 1234.5), ("theirs", None)), notes=("n",))
    aims = (Aim(name="theirs / ours", value=2.0, wanted=3.0), Aim(name="gone", value=None, wanted=1.0, note="why"))
    given = {"settings": {"rounds": 3}, "machine": {"cores": 2}, "load": (0.5, 1.5), "notes": ["all was slow"]}
    show(Report(bench="x", **given, tables=[table], aims=aims))
    said = capsys.readouterr().out
    assert "cores 2\nrounds 3\nload 0.5 before and 1.5 after\nnote: all was slow\n" in said
    assert "| who    | tokens/s |\n| ------ | -------: |\n| ours   |    1,234 |\n| theirs |        - |\n" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["theirs", "/", "ours", "2.0", ">=", "3", "not", "reached"] in lines
    assert ["gone", "-", ">=", "1", "why"] in lines
