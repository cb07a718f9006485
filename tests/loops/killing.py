"""Runs of the real command line that are killed: from inside, before a chosen file operation, or from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.config import (
    EvalConfig,
    ModelConfig,
    RlConfig,
    SandboxConfig,
    TasksConfig,
    TrainConfig,
    WarmStartConfig,
    to_toml,
)
from agentrl.records import trace_to_json
from agentrl.sandbox.walls import memory
from agentrl.store import RunFolder
from agentrl.train.checkpoint import latest_checkpoint, read_checkpoint

CONFIG = TrainConfig(
    recipe="killed",
    tasks=TasksConfig(train_tasks=32, max_turns=4),
    model=ModelConfig(layers=1, width=32, heads=2, mlp_width=64, context=320),
    warm_start=WarmStartConfig(steps=105, batch_size=6, demonstrations=1, learning_rate=1e-2),
    rl=RlConfig(
        steps=5, groups_per_step=4, group_size=4, learning_rate=1e-3, eval_every=2, checkpoint_every=2, traces_every=2
    ),
    eval=EvalConfig(tasks=4, attempts=1, during_tasks=3),
    sandbox=SandboxConfig(workers=2),
)

# The words of the command line follow a pattern and a number: just before the so-manieth file operation whose text
# matches, the process group is killed. Without a pattern it is left alone.
ENTRY = """
import os, re, signal, sys
pattern, number, *words = sys.argv[1:]
left = int(number)
def watch(event, values):
    global left
    if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"):
        left -= bool(re.search(pattern, " ".join([event, *map(str, values[:2])])))
        if left == 0:
            os.killpg(0, signal.SIGKILL)
if pattern:
    sys.addaudithook(watch)
sys.argv[1:] = words
from agentrl.cli import main
main()
"""
TIMED = ("seconds", "per_s", "resident")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs, their configuration and their temporary files lie."""

    root: Path
    below: set[int] = field(default_factory=set)
    """Processes that runs here have started, as far as they were seen."""

    def prepare(self, config: TrainConfig = CONFIG) -> "Place":
        """Make the folders."""
        for folder in (self.root, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        (self.root / "killed.toml").write_text(to_toml(config))
        return self

    @property
    def temporary(self) -> Path:
        """The run's TMPDIR."""
        return self.root / "tmp"

    def folder(self) -> RunFolder | None:
        """The run that can be resumed, if there is one."""
        return RunFolder.latest(self.root / "runs") if list(self.root.glob("runs/*/config.toml")) else None

    def start(self, pattern: str = "", number: int = 0) -> subprocess.Popen[bytes]:
        """Go on with the run, or start it when there is none, in a process group of its own."""
        folder = self.folder()
        words = ["--resume", str(folder.path)] if folder else ["killed.toml", "--runs", "runs"]
        settings = {
            "OMP_NUM_THREADS": "1",  # two runs side by side on few cores would wait for each other
            "TMPDIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "torch"),
        }
        with (self.root / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-c", ENTRY, pattern, str(number), "train", *words],
                cwd=self.root,
                env={**os.environ, **settings},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def finish(self) -> RunFolder:
        """Go on to the end."""
        return self.finished(self.start())

    def finished(self, process: subprocess.Popen[bytes]) -> RunFolder:
        """Wait for a run that must end well."""
        assert process.wait(timeout=300) == 0, (self.root / "output").read_text()[-2000:]
        folder = self.folder()
        assert folder is not None
        return folder

    def kill_before(self, pattern: str, number: int = 1) -> None:
        """Go on until just before the so-manieth operation that matches, and be killed there."""
        process = self.start(pattern, number)
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            self.boxes(process)
            time.sleep(0.02)
        assert process.wait(timeout=1) == -signal.SIGKILL, (self.root / "output").read_text()[-2000:]

    def kill_when(self, ready: Callable[[subprocess.Popen[bytes]], object], seconds: float = 0.0) -> bool:
        """Go on, be killed so many seconds after ``ready``. Whether it was; not so a run that ended before."""
        process = self.start()
        while not ready(process) and process.poll() is None:
            time.sleep(0.002)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
        self.boxes(process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), (self.root / "output").read_text()[-2000:]
        return process.returncode != 0

    def rows(self) -> int:
        """Rows of metrics that the run has, whole or not."""
        found = list(self.root.glob("runs/*/metrics.jsonl"))
        return max((len(path.read_bytes().splitlines()) for path in found), default=0)

    def kill_after_row(self, number: int, seconds: float) -> bool:
        """Go on, be killed so many seconds after a row, one at least that no run before had. Whether it was."""
        wanted = max(number, self.rows() + 1)
        return self.kill_when(lambda _process: self.rows() >= wanted, seconds)

    def boxes(self, process: subprocess.Popen[bytes]) -> list[int]:
        """Processes that a run has started, those of the sandbox."""
        found = memory.descendants(process.pid)[1:]
        self.below.update(found)
        return found

    def leaves_nothing_behind(self, seconds: float = 30.0) -> bool:
        """Whether all boxes end and their folders go, soon after the run was killed."""
        deadline = time.monotonic() + seconds
        while any(Path(f"/proc/{pid}").exists() for pid in self.below) or list(self.temporary.iterdir()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def result(folder: RunFolder) -> dict[str, object]:
    """What must not depend on interruptions, as plain data."""
    checkpoint = read_checkpoint(latest_checkpoint(folder.checkpoints))
    summary = folder.summary()
    assert summary is not None
    return {
        "weights": {name: tensor.numpy().tobytes() for name, tensor in checkpoint.weights.items()},
        "optimizer": {name: tensor.numpy().tobytes() for name, tensor in checkpoint.optimizer.items()},
        "metrics": [without_time(row) for row in folder.metrics()],
        "summary": {key: summary[key] for key in ("eval", "steps", "episodes", "tokens_sampled")},
        "traces": [(phase, step, stored(folder, phase, step)) for phase, step, _ in folder.trace_files()],
        "files": sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*")),
    }


def stored(folder: RunFolder, phase: str, step: int) -> list[dict[str, object]]:
    """The traces of one file, without the time that they took."""
    return [trace_to_json(trace) | {"seconds": None} for trace in folder.iter_traces(phase, step)]


def without_time(row: dict[str, object]) -> dict[str, object]:
    """A row of metrics without what the clock decides."""
    return {key: value for key, value in row.items() if not any(word in key for word in TIMED)}
