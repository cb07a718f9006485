"""A disk that takes nothing more: the run stops, says what it can go on from, and goes on as if nothing had happened.

A limit on the size of files makes the kernel refuse writes for real, wherever tests run.
"""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from agentrl.errors import StoreError
from agentrl.loops.run import train
from agentrl.store import RunFolder
from agentrl.train.checkpoint import Checkpoint, latest_checkpoint, newest_whole, read_checkpoint, write_checkpoint
from tests.loops.killing import CONFIG, Place, result
from tests.loops.test_kill import AHEAD
from tests.loops.test_kill import same as same_result
from tests.loops.test_rl_async import small, trained
from tests.loops.test_run import Reporter, measured, run, same, weights

RUNS = {
    "sync": small(groups_per_step=2, steps=4, checkpoint_every=2, eval_every=0),
    "async": small(mode="async", max_staleness=2, groups_per_step=2, steps=4, checkpoint_every=2, eval_every=0),
}


@contextmanager
def files_of_at_most(num_bytes):
    """What goes on meanwhile can make no file longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Filling(Reporter):
    """After so many steps no file may grow beyond so many bytes."""

    def __init__(self, step, num_bytes):
        super().__init__()
        self.at, self.num_bytes = step, num_bytes

    def step(self, step, metrics):
        super().step(step, metrics)
        if step == self.at:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.num_bytes, before[1]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return {mode: run(tmp_path_factory.mktemp(mode), config)[0] for mode, config in RUNS.items()}


# A checkpoint of this model is longer than 20 kB and the metrics are not, so the one size stops the checkpoint of the
# last step and the other the row of metrics before it.
@pytest.mark.parametrize(("num_bytes", "refused"), [(0, ""), (20_000, "checkpoints/.rl-000004-end.partial/")])
@pytest.mark.parametrize("mode", RUNS)
def test_a_full_disk_stops_the_run_which_goes_on_from_its_last_good_checkpoint(
    whole, tmp_path, mode, num_bytes, refused
):
    config = RUNS[mode]
    folder = RunFolder.create(tmp_path, config)
    with pytest.raises(StoreError) as caught, files_of_at_most(resource.RLIM_INFINITY):
        train(config, folder, Filling(3, num_bytes), resume=False)
    said = str(caught.value)
    assert "File too large" in said
    assert refused in said
    assert f"the last good checkpoint is {folder.checkpoints / 'rl-000002'}." in said
    assert said.endswith(f"agentrl train --resume {folder.path}")
    assert read_checkpoint(latest_checkpoint(folder.checkpoints)).state["progress"]["step"] == 2
    assert not list(folder.path.rglob(".*")), "nothing half made takes room"
    train(config, folder, Reporter(), resume=True)
    assert trained(folder) == trained(whole[mode])
    assert [row["step"] for row in folder.metrics("rl")] == [1, 2, 3, 4]
    if mode == "sync":
        assert same(weights(folder), weights(whole[mode]))
        assert measured(folder) == measured(whole[mode])


def written(tmp_path, steps=(1, 2, 3), keep=2):
    """Checkpoints of these steps, one after the other."""
    for step in steps:
        one = Checkpoint(weights={"w": torch.full((3,), float(step))}, optimizer={}, state={"step": step})
        write_checkpoint(tmp_path, f"rl-{step:06d}", one, keep=keep)
    return latest_checkpoint(tmp_path)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_stay_and_the_ends_of_phases(tmp_path, keep):
    written(tmp_path, steps=(1, 2))
    end = Checkpoint(weights={}, optimizer={}, state={})
    write_checkpoint(tmp_path, "warm_start-000009-end", end, keep=keep)
    written(tmp_path, steps=(3, 4, 5), keep=keep)
    expected = [f"rl-{step:06d}" for step in range(6 - keep, 6)]
    assert names(tmp_path) == ["latest", *expected, "warm_start-000009-end"]


def flip(path):
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: flip(path / "model.safetensors"), "model.safetensors: damaged, its checksum differs"),
        (lambda path: flip(path / "optimizer.safetensors"), "optimizer.safetensors: damaged"),
        (lambda path: (path / "model.safetensors").unlink(), "rl-000003: not a readable checkpoint"),
        (lambda path: (path / "state.json").write_text('{"sha'), "rl-000003: not a readable checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_the_newest_whole_one(tmp_path, damage, problem):
    path = written(tmp_path)
    assert newest_whole(tmp_path) == path
    damage(path)
    with pytest.raises(StoreError, match=problem) as caught:
        read_checkpoint(path)
    assert f"the newest whole one is rl-000002: to go on from it, write that name into {tmp_path / 'latest'}" in str(
        caught.value
    )
    (tmp_path / "latest").write_text("rl-000002\n")
    assert read_checkpoint(latest_checkpoint(tmp_path)).state["step"] == 2


def test_where_no_checkpoint_is_whole_it_says_so(tmp_path):
    assert newest_whole(tmp_path / "none") is None
    path = written(tmp_path, steps=(1,))
    flip(path / "model.safetensors")
    with pytest.raises(StoreError, match="there is no whole one beside it"):
        read_checkpoint(path)


def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it_and_nothing_else(tmp_path):
    written(tmp_path, steps=(1, 2))
    large = Checkpoint(weights={"w": torch.zeros(5_000)}, optimizer={}, state={"step": 3})
    problem = r"rl-000003\.partial/model\.safetensors cannot be written .*File too large"
    with pytest.raises(OSError, match=problem), files_of_at_most(1_000):
        write_checkpoint(tmp_path, "rl-000003", large)
    assert names(tmp_path) == ["latest", "rl-000001", "rl-000002"]
    assert read_checkpoint(latest_checkpoint(tmp_path)).state["step"] == 2
    write_checkpoint(tmp_path, "rl-000003", large)
    assert names(tmp_path) == ["latest", "rl-000002", "rl-000003"]


TRAIN = f"{sys.executable} -c 'from agentrl.cli import main; main()' train"
FILLED = f"""
mkdir runs
mount -t tmpfs -o size="$1" none runs || exit 99
{TRAIN} killed.toml --runs runs 2>full; echo $?
mount -o remount,ro runs
{TRAIN} --resume runs/* 2>closed; echo $?
mount -o remount,rw,size=64m runs
{TRAIN} --resume runs/* 2>mended; echo $?
cp -r runs kept
"""
"""In a name space of its own, so that the disk goes with the shell."""


@pytest.mark.faults
@pytest.mark.parametrize(("config", "size"), [(CONFIG, "300k"), (CONFIG, "700k"), (AHEAD, "200k"), (AHEAD, "500k")])
def test_a_disk_that_is_full_and_one_that_cannot_be_written(tmp_path, config, size):
    """Before the first checkpoint, and after some; then mounted to be read alone."""
    alone, place = Place(root=tmp_path / "alone").prepare(config), Place(root=tmp_path / "filled").prepare(config)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", FILLED, "sh", size],
        cwd=place.root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(place.temporary)},
        capture_output=True,
        text=True,
    )
    if done.returncode in (1, 99) and not (place.root / "full").exists():
        pytest.skip("a disk can be mounted by root alone")
    said = {name: (place.root / name).read_text() for name in ("full", "closed", "mended")}
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["1", "1", "0"], said
    assert "the run stopped: " in said["full"]
    assert "No space left on device" in said["full"]
    assert "Read-only file system" in said["closed"]
    for text in (said["full"], said["closed"]):
        assert ("the last good checkpoint is runs/" in text) == (size in ("700k", "500k"))
        assert "go on with: agentrl train --resume runs/" in text
        assert "Traceback" not in text
    found, expected = RunFolder.latest(place.root / "kept"), alone.finish()
    if config is AHEAD:
        assert trained(found) == trained(expected)
    else:
        same_result(result(found), result(expected))
