"""A kill at any moment of writing a checkpoint leaves a whole one to go on from, and nothing that stays for ever."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from agentrl.config import TrainConfig
from agentrl.store import RunFolder
from agentrl.train.checkpoint import Checkpoint, latest_checkpoint, read_checkpoint, write_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")


def checkpoint(step):
    return Checkpoint(weights={"w": torch.full((3,), float(step))}, optimizer={}, state={"step": step})


def written_and_killed(folder: RunFolder, step: int, number: int) -> bool:
    """Write the checkpoint of a step in a process that dies before its so-manieth file operation; whether it died."""
    pid = os.fork()
    if pid == 0:
        left = number

        def watch(event, values):
            nonlocal left
            if event in OPERATIONS and str(folder.path) in " ".join(map(str, values[:2])):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(watch)
            write_checkpoint(folder.checkpoints, f"rl-{step}", checkpoint(step))
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def names(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


def test_there_is_always_a_whole_checkpoint_and_a_resumed_run_leaves_no_other_files(tmp_path):
    number, died, seen = 0, True, set()
    while died:
        number += 1
        folder = RunFolder.create(tmp_path, TrainConfig(recipe="killed"))
        for step in (1, 2):
            write_checkpoint(folder.checkpoints, f"rl-{step}", checkpoint(step))
        died = written_and_killed(folder, 3, number)
        latest = read_checkpoint(latest_checkpoint(folder.checkpoints))
        seen.add(latest.state["step"])
        folder.remove_leftovers()
        for step in range(latest.state["step"] + 1, 5):  # the resumed run goes on
            write_checkpoint(folder.checkpoints, f"rl-{step}", checkpoint(step))
        assert names(folder.checkpoints) == ["latest", "rl-3", "rl-4"], number
        assert float(read_checkpoint(latest_checkpoint(folder.checkpoints)).weights["w"][0]) == 4.0
    assert number > 15  # there were so many moments at which it was killed
    assert seen == {2, 3}
