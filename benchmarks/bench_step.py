"""Where the time of a step goes: a short run of bugfix-tiny, its stages as shares of the whole.

python benchmarks/bench_step.py [steps]
"""

import sys
import tempfile
from pathlib import Path

from agentrl.config import apply_overrides, load_recipe
from agentrl.loops.run import train
from agentrl.store import RunFolder
from agentrl.ui.live import PlainReporter


def main() -> None:
    steps = sys.argv[1] if len(sys.argv) > 1 else "20"
    overrides = {
        "rl.steps": steps,
        "rl.eval_every": "0",
        "tasks.train_tasks": "1000",
        "warm_start.steps": "200",  # enough that groups teach something, so that training is in the picture
        "eval.tasks": "20",
    }
    config = apply_overrides(load_recipe("bugfix-tiny"), overrides)
    with tempfile.TemporaryDirectory() as root:
        summary = train(config, RunFolder.create(Path(root), config), PlainReporter(sys.stderr), resume=False)
    seconds = summary["seconds"]
    total = seconds["rl"]
    print(f"{steps} steps of RL, {summary['episodes']} episodes, {summary['tokens_sampled']} tokens sampled")
    for stage in ("sampling", "tools", "training"):
        print(f"{stage:<10} {seconds[stage] / total:6.1%} of the step")
    print(f"sampled tokens per second of sampling: {summary['tokens_sampled'] / seconds['sampling']:,.0f}")
    print(f"ratio training / sampling: {seconds['training'] / seconds['sampling']:.2f}")


if __name__ == "__main__":
    main()
