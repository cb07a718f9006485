"""One point of ``agentrl bench rollout``, in a process of its own, so that its peak of memory is its own.

    python -m agentrl.bench.generation.point '{"groups": 8, ...}' THREADS ROUNDS

prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import re
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from agentrl.bench.floor import FLOAT_BYTES, Shape, floor, working_set
from agentrl.bench.generation.models import SMALL, model
from agentrl.bench.generation.players import OurEngine, check
from agentrl.bench.generation.speed import speed
from agentrl.bench.generation.work import make
from agentrl.policy.hf import HuggingFacePolicy

WARM = Shape(groups=2, group=2, prompt=16, reply=4)
"""What is played before the clock and the memory count."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one shape of work took.

    Attributes:
        tokens_per_s: generated, from the median of the rounds.
        floor_tokens_per_s: the most that this machine allows.
        bound: ``arithmetic`` or ``bytes``, whichever bounds it.
        peak_mib: most that was resident while it played, above what was resident before.
        floor_mib: keys and values of all tokens at the end, each prompt once for its group.
    """

    tokens_per_s: float
    floor_tokens_per_s: float
    bound: str
    peak_mib: float
    floor_mib: float


def measure(shape: Shape, rounds: int) -> Point:
    """Play a shape of work with the small model.

    Args:
        shape: of the work.
        rounds: that are timed; memory is the peak of all.

    Raises:
        BenchError: the engine did other work.
    """
    engine = OurEngine(HuggingFacePolicy(model(SMALL, context=max(shape.longest, WARM.longest) + 1)).eval())
    engine.play(make(WARM, SMALL.vocabulary))
    work, seconds = make(shape, SMALL.vocabulary), []
    gc.collect()
    before = _peak_starts_again()
    for _ in range(rounds):
        started = time.perf_counter()
        replies = engine.play(work)
        seconds.append(time.perf_counter() - started)
        check("ours", replies, work)
    peak = _peak() - before
    least, fast = floor(SMALL, shape), speed(working_set(SMALL, shape))
    weights = SMALL.layers * SMALL.layer_weights + SMALL.head_weights
    return Point(
        tokens_per_s=shape.sampled / statistics.median(seconds),
        floor_tokens_per_s=shape.sampled / least.seconds(fast),
        bound=least.bound(fast),
        peak_mib=peak / 2**20,
        floor_mib=(working_set(SMALL, shape) - FLOAT_BYTES * weights) / 2**20,
    )


def _peak_starts_again() -> int:
    """Bytes resident now, from which the peak counts where the kernel lets it start again."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()  # the peak so far, so that only what goes beyond it is counted
    return _status("VmRSS")


def _peak() -> int:
    """Most bytes resident so far."""
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, f"the kernel gives {name}"
    return 1024 * int(found[1])


def main() -> None:
    """Measure the shape that is given."""
    torch.set_num_threads(int(sys.argv[2]))
    print(json.dumps(asdict(measure(Shape(**json.loads(sys.argv[1])), int(sys.argv[3])))))


if __name__ == "__main__":
    main()
