"""Run folders as a run leaves them, made by hand: checkpoints of two numbers, evaluations, a learning curve."""

import hashlib
import json

import numpy as np

from agentrl.config import TrainConfig
from agentrl.store import RunFolder
from agentrl.types import Score, Stop, Trace

BEFORE = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def checkpoint(run, name, weights):
    """A checkpoint with one matrix ``w``."""
    path = run.checkpoints / name
    path.mkdir()
    header = {"w": {"dtype": "F32", "shape": list(weights.shape), "data_offsets": [0, weights.nbytes]}}
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + weights.tobytes()
    (path / "model.safetensors").write_bytes(data)
    digests = {"model.safetensors": hashlib.sha256(data).hexdigest()}
    (path / "state.json").write_text(json.dumps({"sha256": digests}))


def attempts(name, passed, made):
    """Attempts of an evaluation; two tasks share a program."""
    return [
        Trace(
            id=f"{name}-{t}-{k}",
            task_id=f"t{t}",
            group_id=f"{name}-{t}",
            attempt=k,
            seed=0,
            nodes=(),
            stop=Stop.DONE,
            scores=(Score(name="hidden_tests", value=float(k < passed[t])),),
            metadata={"cluster": str(t // 2)},
        )
        for t in range(len(passed))
        for k in range(made)
    ]


def run(root, *, base=(0, 1, 2, 0, 1, 1, 0, 2), trained=(2, 2, 2, 1, 2, 0, 2, 2), steps=60, config=None):
    """A run of some steps whose reward rises from 0.35 to 0.92, with evaluations before and after."""
    folder = RunFolder.create(root, config or TrainConfig(recipe="hand-made"))
    x = np.arange(steps)
    rewards = np.random.default_rng(0).binomial(512, 0.35 + 0.57 * x**2 / (x**2 + 36.0)) / 512
    for step, reward in enumerate(rewards, start=1):
        folder.append_metrics("rl", step, {"reward": reward})
    for step, rate in ((0, 0.35), (30, 0.85), (60, 0.9)):
        row = {"pass_rate": rate, "pass_rate_low": rate - 0.1, "pass_rate_high": min(1.0, rate + 0.1)}
        folder.append_metrics("eval", step, row)
    folder.write_traces("eval_before", 0, attempts("before", base, 2))
    folder.write_traces("eval", steps, attempts("after", trained, 2))
    checkpoint(folder, "warm_start-000090-end", BEFORE)
    checkpoint(folder, f"rl-{2 * steps // 3:06d}", BEFORE + 1)
    checkpoint(folder, f"rl-{steps:06d}-end", BEFORE + np.array([[0, 1], [0, 0]], np.float32))
    return folder
