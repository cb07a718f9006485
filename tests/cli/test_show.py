"""`agentrl show` on a run that lies on disk."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from agentrl.store import RunFolder
from tests.cli.conftest import Command


def test_a_run_is_shown_with_result_curve_and_ids(agentrl: Command, run_folder: RunFolder) -> None:
    done = agentrl("show", "latest")
    assert done.returncode == 0, done.stderr
    for text in ("wall_s  61.2", "before RL", "[0.125, 0.375]", "reward over 3 steps of RL, last 1.000", "75.0%"):
        assert text in done.stdout
    assert "\nseconds: RL 61.0\n" in done.stdout
    for text in ("rl-3-0", "rl-3-1"):
        assert text in done.stdout
    assert "rl-3-0" in done.stdout
    below_path = done.stdout.partition("\n")[2]
    assert agentrl("show", str(run_folder.path)).stdout.partition("\n")[2] == below_path
    assert agentrl("show", run_folder.path.name).stdout == done.stdout


def test_a_run_as_json(agentrl: Command, run_folder: RunFolder) -> None:
    found = json.loads(agentrl("show", "latest", "--json").stdout)
    assert found["summary"] == run_folder.summary()
    assert [row["step"] for row in found["metrics"]] == [1, 2, 3, 0, 3]
    assert found["config"]["recipe"] == "book-example"
    assert found["traces"] == ["rl-3-0", "rl-3-1"]


def test_an_attempt_is_shown_turn_by_turn(agentrl: Command, run_folder: RunFolder) -> None:
    out = agentrl("show", "latest", "--trace", "rl-3-1").stdout
    for text in (
        "[0] user  (2 tokens given, 0 sampled)",
        '→ edit(line=2, text="return a")',
        "stopped: max_turns",
        "score hidden_tests: 0.000 (weight 1) 8 of 8",
        "reward: +0.000   advantage: -0.500",
        "trained: yes, by policy gradient",
    ):
        assert text in out
    assert "logprob" not in out


def test_tokens_are_shown_with_logprob_and_weight(agentrl: Command, run_folder: RunFolder) -> None:
    out = agentrl("show", "latest", "--trace", "rl-3-0", "--tokens").stdout
    rows = [line.split() for line in out.splitlines()]
    assert ["id", "text", "logprob", "version", "trained", "advantage", "weight"] in rows
    assert ["0", "'<user>'", "no", "0"] in rows  # given: no logprob, not trained
    assert ["2", "'return'", "-0.2500", "7", "yes", "+0.500", "1"] in rows  # sampled: trained with the advantage
    assert ["3", "'<end>'", "-1.5000", "7", "yes", "+0.500", "1"] in rows  # the stop token too


def test_an_attempt_as_json_has_its_reward(agentrl: Command, run_folder: RunFolder) -> None:
    found = json.loads(agentrl("show", "latest", "--trace", "rl-3-0", "--json").stdout)
    assert (found["id"], found["reward"], found["stop"]) == ("rl-3-0", 1.0, "max_turns")


def test_a_run_without_a_summary_says_how_to_go_on(agentrl: Command, run_folder: RunFolder) -> None:
    (run_folder.path / "summary.json").unlink()
    assert "agentrl train --resume" in agentrl("show", "latest").stdout


def test_a_run_without_a_folder_of_traces_is_shown_without_them(agentrl: Command, run_folder: RunFolder) -> None:
    shutil.rmtree(run_folder.path / "traces")
    done = agentrl("show", "latest")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nearest are none: no traces" in agentrl("show", "latest", "--trace", "rl-3-0").stderr


def test_the_runs_of_another_root_are_nearby_too(agentrl: Command, run_folder: RunFolder, tmp_path: Path) -> None:
    elsewhere = run_folder.path.parent.rename(tmp_path / "elsewhere")
    assert f"runs nearby: {elsewhere}" in agentrl("show", "T0", "--runs", str(elsewhere)).stderr
    assert "there are no runs nearby" in agentrl("show", "T0").stderr
    (tmp_path / "afile").write_text("")
    assert "afile is a file, and a run is a folder; there are no runs nearby" in agentrl("show", "afile").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["latets"], "error: latets does not exist; runs nearby: runs/book-example-0-"),
        (["latest", "--trace", "rl-4"], "the nearest are rl-3-"),
        (["latest", "--trace", "rl"], "2 traces start with 'rl': rl-3-0, rl-3-1"),
        (["latest", "--tokens"], "--tokens needs --trace ID"),
        (["latest", "--drift"], "tokenizer has no tokenizer.json; name a folder"),
        (["latest", "--tokenizer", "x"], "--tokenizer needs --drift"),
    ],
)
def test_bad_input_is_one_line_on_stderr(
    agentrl: Command,
    run_folder: RunFolder,
    words: list[str],
    message: str,
) -> None:
    done = agentrl("show", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def tokenizer_folder(path: Path, pieces: list[str]) -> Path:
    """A tokenizer of whole words with the longest first: piece by piece, spaces none."""
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [("a", "b")]))
    tokenizer.decoder = decoders.Fuse()
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_what_encoding_again_would_change(agentrl: Command, run_folder: RunFolder, tmp_path: Path) -> None:
    # The attempts have the ids 0 1 | 0, sampled 2 3. With the pieces c d a b ab, "ab" is one piece.
    folder = tokenizer_folder(tmp_path / "model", ["c", "d", "a", "b", "ab"])
    out = agentrl("show", "latest", "--drift", "--tokenizer", str(folder)).stdout.splitlines()
    assert out[0].startswith(
        "4 of 4 sampled tokens (100.000%) would be lost by decoding and encoding, in 2 of 2 replies"
    )
    assert out[1:] == [f"rl-3-{i}, node 1, at 1 (2 sampled): 2:'a' 3:'b' -> 4:'ab'" for i in (0, 1)]
    one = agentrl("show", "latest", "--trace", "rl-3-0", "--drift", "--tokenizer", str(folder), "--json").stdout
    assert (json.loads(one)["num_drifted"], json.loads(one)["rate"]) == (2, 1.0)
    folder.rename(run_folder.path / "tokenizer")
    assert agentrl("show", "latest", "--drift").stdout.splitlines() == out


def test_a_tokenizer_with_too_few_ids_is_another_models(
    agentrl: Command, run_folder: RunFolder, tmp_path: Path
) -> None:
    folder = tokenizer_folder(tmp_path / "model", ["a", "b", "ab"])
    done = agentrl("show", "latest", "--drift", "--tokenizer", str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    assert "trace 'rl-3-0' has the id 3 and the vocabulary ends at 2" in done.stderr


def test_a_damaged_run_is_a_failure_and_not_bad_input(agentrl: Command, run_folder: RunFolder) -> None:
    (run_folder.path / "summary.json").write_text("{")
    done = agentrl("show", "latest")
    assert done.returncode == 1
    assert "error (store): " in done.stderr
