"""`agentrl eval` of a model behind an endpoint, on questions that others made."""

import json
import re
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.evals.folder import EvaluationFolder
from tests.cli.conftest import Command, Done
from tests.engine.chat_server import Answer, ChatServer, said

pytest.importorskip("httpx")
pytest.importorskip("math_verify")
SMALL = ("--tasks", "3", "--attempts", "2")


@pytest.fixture
def agentrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    rows = ({"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(4))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def call(*words: str) -> Done:
        with pytest.raises(SystemExit) as left:
            main(words)
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Done(left.value.code, out, err)

    return call


def adder(number: int, body: dict) -> Answer:
    """Adds one, except to two; and marks no answer to nought."""
    n = int(re.findall(r"\d+", body["messages"][-1]["content"])[0])
    return said(f"\\boxed{{{n + (n != 2)}}}" if n else "one", usage=(20, 4))


def test_mathematics_from_a_file_is_answered_over_http(agentrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k")
    with ChatServer(adder) as server:
        words = ("eval", "math:sums.jsonl", "--policy", "openai:small", "--base-url", server.url, *SMALL)
        done = agentrl(*words, "--api-key-env", "MY_KEY", "--temperature", "0.7", "--baselines", "--json")
        asked = len(server.requests)
        again = agentrl(*words, "--api-key-env", "MY_KEY", "--temperature", "0.7")
        assert len(server.requests) == asked == 6  # nothing is asked twice
    assert set(server.tokens) == {"Bearer k"}
    assert {body["temperature"] for body in server.requests} == {0.7}
    assert len({body["seed"] for body in server.requests}) == 6
    found = json.loads(done.stdout)
    # 0: not marked, 1: right, 2: wrong; so one task of three, in both attempts
    assert found["scores"]["mean"]["mean"] == pytest.approx(1 / 3)
    assert found["scores"]["pass^2"]["mean"] == pytest.approx(1 / 3)
    assert (found["unread"], found["tokens_per_attempt"]) == (2, 4.0)
    assert "0.333" in again.stdout
    baselines = {name: one["scores"]["mean"]["mean"] for name, one in found["baselines"].items()}
    assert baselines == {"submit": 0.0, "reference": 1.0}
    assert "2 of 6 replies mark no answer" in again.stdout  # case W07: it is said that the form was missed
    assert "k" not in (Path(found["folder"]) / "evaluation.json").read_text().split('"')


def test_attempts_that_an_endpoint_failed_are_made_again(agentrl: Command, tmp_path: Path) -> None:
    failing = True

    def script(number: int, body: dict) -> Answer:
        return Answer("no", 401) if failing and "1+1" in body["messages"][-1]["content"] else adder(number, body)

    with ChatServer(script) as server:
        words = ("eval", "math:sums.jsonl", "--policy", "openai:small", "--base-url", server.url, *SMALL, "--out", "e")
        done = agentrl(*words)
        assert done.returncode == 1
        assert "2 of 6 attempts could not be scored (2 sampler)" in done.stdout
        failing = False
        assert agentrl(*words).returncode == 0
        assert len(server.requests) == 6 + 2
    traces = EvaluationFolder.open(tmp_path / "e").traces()
    assert len(traces) == 6
    assert all(trace.error is None for trace in traces)


# case W04, before anything is spent
def test_right_answers_that_cannot_be_read_are_said(agentrl: Command, tmp_path: Path) -> None:
    rows = [{"question": "a?", "answer": gold} for gold in ("1", "$\\operatorname{undefined}($")]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = agentrl("eval", "math:odd.jsonl", "--policy", "reference", "--tasks", "2", "--max-missing", "0.5")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 right answers cannot be read as mathematics" in done.stdout
    assert "1 of 2 attempts could not be scored (1 scorer)" in done.stdout


# case E08: another endpoint or model, with the same folder
def test_two_models_never_share_what_is_kept(agentrl: Command) -> None:
    with ChatServer(adder) as server:
        words = ("eval", "math:sums.jsonl", "--base-url", server.url, *SMALL, "--out", "e", "--policy")
        assert agentrl(*words, "openai:a").returncode == 0
        refused = agentrl(*words, "openai:b")
    assert refused.returncode == 2
    assert "weights: 'a http" in refused.stderr


def test_a_data_set_of_reasoning_gym_has_a_scale(agentrl: Command) -> None:
    pytest.importorskip("reasoning_gym")
    with ChatServer(lambda n, body: said("<answer>0</answer>")) as server:
        words = ("eval", "reasoning-gym:chain_sum", "--policy", "openai:small", "--base-url", server.url, *SMALL)
        found = json.loads(agentrl(*words, "--baselines", "--json").stdout)
    assert found["spec"]["task_set"].endswith("/chain_sum/test")
    assert found["spec"]["settings"] == {"threshold": 1.0}
    assert found["scores"]["mean"]["mean"] == 0.0
    assert found["baselines"]["reference"]["scores"]["mean"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["math:", "--policy", "submit"], "'math:' names no tasks; write math: and a .jsonl or .parquet file"),
        (["math:none.jsonl", "--policy", "submit"], "no file 'none.jsonl'"),
        (["math:sums.jsonl", "--policy", "submit", "--tasks", "9"], "--tasks 9: math-v1/sums-"),
        (["math:sums.jsonl", "--policy", "openai:m", "--base-url", "x"], "base URL 'x': write an address"),
        (["math:sums.jsonl", "--policy", "openai:m", "--concurrency", "0"], "--concurrency 0: write 1 or more"),
        (["math:sums.jsonl", "--policy", "openai:m", "--max-tokens", "0"], "--max-tokens 0: write 1 or more"),
        (
            ["math:sums.jsonl", "--policy", "submit", "--threshold", "1"],
            "--threshold 1 is for reasoning-gym:NAME alone",
        ),
        (["math:sums.jsonl", "--policy", "submit", "--max-tokens", "9"], "--max-tokens 9 is for --policy with"),
        (["math:sums.jsonl", "--policy", "random", "--temperature", "1"], "the script random samples nothing"),
    ],
)
def test_bad_words_are_refused(agentrl: Command, words: list[str], message: str) -> None:
    done = agentrl("eval", *words)
    assert done.returncode == 2
    assert message in done.stderr
