"""How fast this machine computes and reads, with the threads that the benchmarks use."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from agentrl.bench.floor import Speed

_PRODUCTS = ((1024, 1024, 1024), (512, 96, 4096), (2048, 512, 512))
"""Rows, inner width and columns: the fastest of them counts."""


def speed(working_set: float) -> Speed:
    """The best of several tries each: a large float32 product, and the product of a matrix with a vector.

    Args:
        working_set: bytes of that matrix: as many as a step of the workload reads, so that the caches of the processor
            hold as much of it.
    """
    tall, vector = torch.randn(max(1, int(working_set) // 4096), 1024), torch.randn(1024)
    return Speed(
        operations_per_s=max(_rate(*shape) for shape in _PRODUCTS),
        bytes_per_s=tall.nbytes / _least(lambda: tall @ vector, 30),
    )


def _rate(rows: int, inner: int, columns: int) -> float:
    left, right, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    return 2 * rows * inner * columns / _least(lambda: torch.mm(left, right, out=out), 30)


def _least(play: Callable[[], object], tries: int) -> float:
    seconds = []
    for _ in range(tries):
        started = time.perf_counter()
        play()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
