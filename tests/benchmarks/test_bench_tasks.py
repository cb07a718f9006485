"""The benchmark of tasks runs."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_tasks.py"


def test_it_prints_what_tasks_demonstrations_and_calls_cost():
    done = subprocess.run([sys.executable, SCRIPT, "16"], capture_output=True, text=True, check=True, timeout=120)
    for line in ("tasks  ", "demonstrations in shared processes", "ratio alone / shared", "tool calls"):
        assert line in done.stdout
