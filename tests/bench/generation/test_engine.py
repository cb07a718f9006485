"""``agentrl bench engine`` at the smallest size, without any claim about time."""

import json
import shutil
import sys

import pytest

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

from agentrl.bench.floor import Speed, floor
from agentrl.bench.generation import engine, vllm_peer
from agentrl.bench.generation.models import SMALL, model
from agentrl.bench.generation.players import check
from agentrl.bench.generation.work import make
from agentrl.bench.report import BenchError
from agentrl.bench.rounds import Took
from agentrl.cli import main
from tests.engine.vllm_process import PYTHON


def test_json_has_every_contestant_and_says_why_vllm_is_left_out(capsys, monkeypatch):
    monkeypatch.delenv(vllm_peer.VARIABLE, raising=False)
    with pytest.raises(SystemExit) as left:
        main(["bench", "engine", "--quick", "--json", "--threads", "1", "--only", "turns"])
    assert left.value.code == 0
    said = json.loads(capsys.readouterr().out)
    (table,) = said["tables"]
    assert [row["contestant"] for row in table["rows"]] == [
        "ours",
        "ours, lockstep",
        "generate",
        "generate, prompt once",
        "floor",
    ]
    assert table["rows"][0]["time / ours"] == 1.0
    assert any("make vllm-env" in note for note in table["notes"])
    (aim,) = said["aims"]
    assert (aim["name"], aim["wanted"], aim["reached"]) == ("turns: generate / ours", 6.0, aim["value"] >= 6.0)


def test_shares_of_the_floor_are_of_the_median_time():
    took = {"ours": Took(passed=(1.0, 2.0, 4.0), used=(1.0, 1.0, 1.0)), "x": Took(passed=(3.0,) * 3, used=(2.0,) * 3)}
    fast = Speed(operations_per_s=1e9, bytes_per_s=1e12)
    limit = floor(SMALL, engine.SINGLE).operations / 1e9
    ours, other, least = engine.as_table("small", SMALL, engine.SINGLE, took, fast, "").rows
    assert ours == ("ours", 3072 / 2.0, 1.0, 1.0, 1.0, 1.0, pytest.approx(limit / 2.0))
    # within rounds: 3/1, 3/2 and 3/4; 3072 tokens in 3 s
    assert other == ("x", 1024.0, 1.5, 0.75, 3.0, 2.0, pytest.approx(limit / 3.0))
    assert least[1] == pytest.approx(3072 / limit)


def test_an_aim_of_a_peer_that_is_not_there_is_neither_reached_nor_missed():
    took = {name: Took(passed=(seconds,), used=(seconds,)) for name, seconds in (("ours", 1.0), ("generate", 4.0))}
    generate, vllm = engine.aims("small", took, "left out")
    assert (generate.value, generate.reached) == (4.0, True)
    assert (vllm.value, vllm.reached, vllm.note) == (None, None, "left out")


def test_vllm_without_an_interpreter_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv(vllm_peer.VARIABLE, "/nowhere/python")
    with (
        pytest.raises(BenchError, match="make vllm-env"),
        vllm_peer.running(model(SMALL), context=128, sequences=4, threads=1),
    ):
        pass


@pytest.mark.skipif(bool(shutil.which("vllm")), reason="vLLM is in this environment")
def test_an_interpreter_that_has_no_vllm_is_an_error_with_its_reason(monkeypatch):
    monkeypatch.setenv(vllm_peer.VARIABLE, sys.executable)
    with (
        pytest.raises(BenchError, match=r"(?s)ended before it answered.*No module named 'vllm'"),
        vllm_peer.running(model(SMALL), context=128, sequences=4, threads=1),
    ):
        pass


@pytest.mark.vllm
@pytest.mark.skipif(shutil.which(PYTHON) is None, reason="no environment of vLLM here: make vllm-env")
def test_a_real_vllm_plays_the_same_work(monkeypatch):
    monkeypatch.setenv(vllm_peer.VARIABLE, shutil.which(PYTHON))
    shape = engine.workloads(quick=True)["turns"][1]
    work = make(shape, SMALL.vocabulary)
    with vllm_peer.running(model(SMALL), context=128, sequences=4, threads=1) as server:
        for logprobs in (False, True):
            assert check("vLLM", server.play(work, logprobs=logprobs), work) == shape.sampled
        assert server.used() > 0
