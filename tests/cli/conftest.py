"""A run folder as a run leaves it, and the command line."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from agentrl.cli import main
from agentrl.config import TrainConfig
from agentrl.store import RunFolder
from agentrl.types import Message, Node, Score, Stop, ToolCall, Trace


class Done(NamedTuple):
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]

BLOCKED = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split(','))); del sys.argv[1]"
ENTRY = "from agentrl.cli import main; main()"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Done:
    """Run the command line here."""
    with pytest.raises(SystemExit) as left:
        main(words)
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return Done(left.value.code, out, err)


@pytest.fixture
def agentrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in an empty folder, where torch cannot be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(sys.modules, "torch", None)
    return partial(call, capsys)


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line where it is."""
    monkeypatch.setenv("COLUMNS", "100")
    return partial(call, capsys)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_torch: Command) -> Command:
    """Run ``agentrl check parity`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(with_torch, "check", "parity")


@pytest.fixture
def agentrl_process(tmp_path: Path) -> Command:
    """Run the command line in a fresh process, where the modules ``without`` cannot be imported."""

    def call(*words: str, without: tuple[str, ...]) -> Done:
        arguments = [sys.executable, "-c", f"{BLOCKED}; {ENTRY}", ",".join(without), *words]
        environment = {**os.environ, "COLUMNS": "100"}
        done = subprocess.run(
            arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """Three steps of RL, two evaluations and two attempts."""
    folder = RunFolder.create(tmp_path / "runs", TrainConfig(recipe="book-example"))
    for step, reward in ((1, 0.25), (2, 0.5), (3, 1.0)):
        folder.append_metrics("rl", step, {"reward": reward})
    for step, rate in ((0, 0.25), (3, 0.75)):
        folder.append_metrics("eval", step, {"pass_rate": rate, "pass_rate_low": rate - 0.1, "pass_rate_high": 1.0})
    folder.write_vocabulary(["<user>", "fix", "return", "<end>"])
    folder.write_traces("rl", 3, [attempt("rl-3-0", 1.0, 0.5), attempt("rl-3-1", 0.0, -0.5)])
    score = {"mean": 0.25, "low": 0.125, "high": 0.375}
    result = {"pass@1": score, "tasks": 200, "attempts": 200}
    folder.write_summary(
        {
            "recipe": "book-example",
            "wall_s": 61.25,
            "eval": {"before": result, "difference": result},
            "seconds": {"rl": 61.0},
        }
    )
    return folder


def attempt(trace_id: str, reward: float, advantage: float) -> Trace:
    """An attempt of two turns with two sampled tokens."""
    question = Node(parent=None, message=Message(role="user", content="fix f"), context_ids=(0, 1))
    call = ToolCall(name="edit", arguments={"line": 2, "text": "return a"})
    reply = Node(
        parent=0,
        message=Message(role="assistant", tool_calls=(call,)),
        context_ids=(0,),
        sampled_ids=(2, 3),
        logprobs=(-0.25, -1.5),
        versions=(7, 7),
    )
    return Trace(
        id=trace_id,
        task_id="bugfix-v1/tiny/train/1",
        group_id="g",
        attempt=0,
        seed=1,
        nodes=(question, reply),
        stop=Stop.MAX_TURNS,
        scores=(Score(name="hidden_tests", value=reward, explanation="8 of 8"),),
        metadata={"objective": "pg", "advantage": advantage},
    )
