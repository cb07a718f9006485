"""The program inside a box that carries out one job and reports on it. Standard library only.

A fork server loads it once, by `warm_up`, and the processes that it forks find it ready (see zygote_jobs.py); elsewhere
it is started as a file of the box, by `start`. The candidate is imported into this very process, so nothing here is
secret, and what is reported after ``READY`` was written by an adversary.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import random
import resource
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from agentrl.sandbox import child

READY = b"ready\n"
"""The first line, written when all that is ours has gone well."""
# fmt: off
_STANDARD_MODULES = (
    "abc", "ast", "bisect", "calendar", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math",
    "numbers", "operator", "re", "statistics", "string", "textwrap", "time", "typing",
)
# fmt: on


def warm_up() -> None:
    """Import what candidates import, and run harmless jobs, so that forked children find all of it done."""
    for name in _STANDARD_MODULES:
        importlib.import_module(name)
    child.rehearse()


def start() -> NoReturn:
    """As the main program of an interpreter of its own, with the job on standard input and reports on standard output.

    Our names and our path are taken back first, so that a candidate does not find our package.
    """
    forget_ourselves()
    del sys.path[0]
    sys.argv[:] = ["program"]
    numbers, _, payload = _read_all().partition(b"\n")
    sink = _be_quiet()
    carry_out(json.loads(numbers), read_job(payload, sink), sink)


def _writer(sink: int) -> Callable[[bytes], None]:
    """Writes what this process reports, and nothing that one says which the program forked and which ran on."""
    reporting = os.getpid()
    return lambda line: write_all(sink, line) if os.getpid() == reporting else None


def read_job(payload: bytes | memoryview, sink: int) -> dict[str, Any]:
    """The job, or the end of this process when it takes more memory than there is: that is the program's doing."""
    try:
        job: dict[str, Any] = json.loads(bytes(payload))
    except MemoryError:
        write_all(sink, READY)
        os._exit(0)
    return job


def forget_ourselves() -> None:
    """Take our modules' names back; the modules themselves are still in use."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "agentrl"]:
        del sys.modules[name]


def carry_out(
    numbers: dict[str, Any], job: dict[str, Any], sink: int, compiled: Mapping[str, types.CodeType] | None = None
) -> NoReturn:
    """Carry out one job in this process and end it. The exit status says nothing; only the reports count.

    Args:
        numbers: ``wall_s``, ``cpu_s`` (of each part of a batch) and ``output_bytes``.
        job: as `jobs.encode_job` gives it.
        sink: the descriptor that reports go to.
        compiled: the code of test files that were compiled already, by path.
    """
    try:
        _limit_processor_time(numbers["cpu_s"] * len(job.get("parts", (None,))))
        child.catch_time_signals()
        random.seed(0)  # at a fork it is seeded from the system's noise
        write_all(sink, READY)
        reporter = child.Reporter(_writer(sink), numbers["output_bytes"])
        child.run_job(job, reporter, numbers["wall_s"], numbers["cpu_s"], compiled or {})
    finally:
        os._exit(0)


def _read_all() -> bytes:
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _be_quiet() -> int:
    """Standard streams to nowhere, since programs print; where reports go now."""
    sink = os.dup(1)
    silence()
    return sink


def silence() -> None:
    """Standard streams from and to nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _limit_processor_time(cpu_s: float) -> None:
    """For who swallows the interrupts: the soft limit ends it with a signal that tells what for."""
    seconds = math.ceil(cpu_s) + 1
    with contextlib.suppress(ValueError):  # the box allows less
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
