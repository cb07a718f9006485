"""The benchmark of evaluation statistics runs, whichever of its peers are installed."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_evals.py"


def test_it_prints_every_metric_and_the_peers():
    done = subprocess.run([sys.executable, SCRIPT, "1000"], capture_output=True, text=True, check=True, timeout=120)
    for line in ("maj@8  ", "all of it: ", "scipy.stats.bootstrap of the mean", "rliable", "inspect_ai"):
        assert line in done.stdout
