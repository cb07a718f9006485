"""The run folder: nothing is overwritten, nothing is lost to a kill, nothing is counted twice after a resume."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config import TrainConfig
from agentrl.errors import StoreError
from agentrl.store import RunFolder, versions
from agentrl.types import Stop, Trace

CONFIG = TrainConfig(recipe="book-example", seed=4)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, CONFIG)


def trace(trace_id: str) -> Trace:
    return Trace(id=trace_id, task_id="k", group_id="g", attempt=0, seed=1, nodes=(), stop=Stop.DONE)


def test_a_new_run_has_its_configuration_and_versions(folder: RunFolder) -> None:
    assert folder.path.name.startswith("book-example-4-2")
    assert folder.config == CONFIG
    found = json.loads((folder.path / "versions.json").read_text())
    assert found == versions()
    assert {"python", "torch", "numpy", "agentrl", "platform", "cpu_count"} <= set(found)


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path / "runs", CONFIG).path for _ in range(5)]
    assert len(set(folders)) == 5
    assert sum(path.name.endswith("-2") for path in folders) >= 1


def test_a_path_that_is_no_run_is_refused_with_the_runs_nearby(tmp_path: Path, folder: RunFolder) -> None:
    with pytest.raises(StoreError, match=f"does not exist; runs nearby: .*{folder.path.name}"):
        RunFolder.open(tmp_path / "book-example")
    with pytest.raises(StoreError, match=f"runs nearby: {folder.path}"):
        RunFolder.open("nowhere", runs=folder.path.parent)
    with pytest.raises(StoreError, match=r"config\.toml is a file, and a run is a folder; "):
        RunFolder.open(folder.path / "config.toml")
    with pytest.raises(StoreError, match=r"has no config\.toml, so it is no run folder; runs nearby"):
        RunFolder.open(tmp_path)
    assert RunFolder.open(folder.path) == folder


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match="choose another with --runs"):
        RunFolder.create(tmp_path / "runs", CONFIG)


def test_the_latest_run_is_the_one_started_last(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no run in"):
        RunFolder.latest(tmp_path)
    RunFolder.create(tmp_path, TrainConfig(recipe="z-first"))
    last = RunFolder.create(tmp_path, TrainConfig(recipe="a-second"))
    assert RunFolder.latest(tmp_path) == last


def test_summary_and_vocabulary_are_none_until_written(folder: RunFolder) -> None:
    assert folder.summary() is None
    assert folder.vocabulary() is None
    folder.write_summary({"wall_s": 1.5})
    folder.write_vocabulary(["<end>", "é\n"])
    assert folder.summary() == {"wall_s": 1.5}
    assert folder.vocabulary() == ["<end>", "é\n"]


def test_a_summary_with_nan_is_refused_and_the_old_one_stays(folder: RunFolder) -> None:
    folder.write_summary({"wall_s": 1.5})
    with pytest.raises(StoreError, match=r"summary\.json: .*only finite numbers"):
        folder.write_summary({"wall_s": math.nan})
    assert folder.summary() == {"wall_s": 1.5}


# --- metrics ---------------------------------------------------------------------------------------------------------


def strict_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """The rows as a parser reads them that refuses NaN and Infinity."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    return [
        json.loads(line, parse_constant=refuse) for line in (folder.path / "metrics.jsonl").read_text().splitlines()
    ]


def test_numbers_of_every_kind_become_plain_ones_and_nan_becomes_null_by_name(folder: RunFolder) -> None:
    measured = {
        "episodes": np.int64(3),
        "reward": np.float32(0.5),
        "loss": np.array(2.0),
        "grad_norm": math.inf,
        "kl": math.nan,
        "entropy": None,
    }
    folder.append_metrics("rl", 1, measured)
    expected = {"phase": "rl", "step": 1, "episodes": 3, "reward": 0.5, "loss": 2.0, "entropy": None}
    assert strict_rows(folder) == [{**expected, "grad_norm": None, "kl": None, "nonfinite": ["grad_norm", "kl"]}]
    assert folder.metrics() == strict_rows(folder)


@pytest.mark.parametrize("value", ["0.5", {"mean": 0.5}, [0.5], b"1", np.array([1.0, 2.0])])
def test_what_is_no_number_is_refused_by_name_and_leaves_no_row(folder: RunFolder, value: Any) -> None:
    with pytest.raises(StoreError, match="metric 'reward' is"):
        folder.append_metrics("rl", 1, {"reward": value})
    assert folder.metrics() == []


def test_each_phase_has_its_own_steps_and_rows_stay_in_order(folder: RunFolder) -> None:
    # steps that go back, as when an evaluation of step 2 arrives after training is at step 3 (case L01)
    for phase, step in (("warm_start", 8073), ("rl", 0), ("rl", 3), ("eval", 2)):
        folder.append_metrics(phase, step, {"reward": 1.0})
    assert [(row["phase"], row["step"]) for row in folder.metrics()] == [
        ("warm_start", 8073),
        ("rl", 0),
        ("rl", 3),
        ("eval", 2),
    ]
    assert [row["step"] for row in folder.metrics("rl")] == [0, 3]


@pytest.mark.parametrize("phase", ["", "RL", "a/b", "rl-1"])
def test_a_phase_that_cannot_name_a_file_is_refused(folder: RunFolder, phase: str) -> None:
    with pytest.raises(StoreError, match="phase"):
        folder.append_metrics(phase, 1, {})
    with pytest.raises(StoreError, match="phase"):
        folder.write_traces(phase, 1, [])


def test_a_cut_at_any_byte_of_the_last_row_loses_that_row_only(folder: RunFolder) -> None:
    folder.append_metrics("rl", 1, {"reward": 1.0})
    folder.append_metrics("rl", 2, {"reward": 0.5})
    path = folder.path / "metrics.jsonl"
    whole = path.read_bytes()
    first = len(whole.splitlines(keepends=True)[0])
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert [row["step"] for row in folder.metrics()] == [1]
    path.write_bytes(whole)
    assert [row["step"] for row in folder.metrics()] == [1, 2]


def test_damage_that_no_kill_explains_is_an_error(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").write_text('{"phase": "rl", "st\n{"phase": "rl", "step": 2}\n')
    with pytest.raises(StoreError, match="line 1 is damaged"):
        folder.metrics()


# --- traces and resuming ---------------------------------------------------------------------------------------------


def test_traces_are_found_by_phase_step_and_beginning_of_the_id(folder: RunFolder) -> None:
    folder.write_traces("rl", 2, [trace("rl-2-a0"), trace("rl-2-b0")])
    folder.write_traces("rl", 10, [trace("rl-10-a0"), trace("rl-10-a0x")])
    folder.write_traces("eval", 0, [trace("eval-0")])
    assert [found.id for found in folder.iter_traces("rl")] == ["rl-2-a0", "rl-2-b0", "rl-10-a0", "rl-10-a0x"]
    assert [found.id for found in folder.iter_traces(step=0)] == ["eval-0"]
    assert folder.find_trace("rl-2-b").id == "rl-2-b0"
    assert folder.find_trace("rl-10-a0").id == "rl-10-a0"  # whole id wins although another starts with it
    with pytest.raises(StoreError, match="2 traces start with 'rl-2': rl-2-a0, rl-2-b0; give more"):
        folder.find_trace("rl-2")
    with pytest.raises(StoreError, match=r"no trace 'evil-0' in .*the nearest are eval-0"):
        folder.find_trace("evil-0")


def test_an_empty_run_says_that_it_has_no_traces(folder: RunFolder) -> None:
    with pytest.raises(StoreError, match="no traces"):
        folder.find_trace("a")


def test_a_resume_counts_every_step_once(folder: RunFolder) -> None:
    def write(step: int) -> None:
        folder.append_metrics("rl", step, {"episodes": 1})
        folder.write_traces("rl", step, [trace(f"rl-{step}")])
        folder.append_metrics("eval", step, {"pass_rate": 0.5})

    folder.append_metrics("warm_start", 9, {"loss": 1.0})
    for step in (1, 2, 3):
        write(step)
    uninterrupted = (folder.path / "metrics.jsonl").read_bytes()
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"phase": "rl", "st')  # killed in the middle of step 4, after a checkpoint of step 1

    for _ in range(2):  # a second kill right after the cut does no harm
        folder.truncate_after(1)
        assert [(row["phase"], row["step"]) for row in folder.metrics()] == [("warm_start", 9), ("rl", 1), ("eval", 1)]
        assert [file[:2] for file in folder.trace_files()] == [("rl", 1)]
    for step in (2, 3):
        write(step)
    assert (folder.path / "metrics.jsonl").read_bytes() == uninterrupted


def test_a_resume_within_the_warm_start_cuts_its_rows(folder: RunFolder) -> None:
    for step in (1, 2, 3):
        folder.append_metrics("warm_start", step, {"loss": 1.0})
    folder.truncate_after(2, phases=["warm_start"])
    assert [row["step"] for row in folder.metrics()] == [1, 2]


def test_what_a_killed_writer_left_half_made_is_removed_and_the_rest_stays(folder: RunFolder) -> None:
    folder.append_metrics("rl", 1, {"reward": 0.5})
    folder.write_traces("rl", 1, [trace("t")])
    (folder.checkpoints / "rl-000001").mkdir()
    before = sorted(folder.path.rglob("*"))
    (folder.path / ".summary.json.x1").write_text("{")
    (folder.path / "traces" / ".rl-000002.jsonl.gz.x2").write_bytes(b"")
    (folder.checkpoints / ".rl-000002.partial").mkdir()
    (folder.checkpoints / ".rl-000002.partial" / "model.safetensors").write_bytes(b"")
    folder.remove_leftovers()
    assert sorted(folder.path.rglob("*")) == before
