"""The memory that a run holds, its sandboxes included."""

from __future__ import annotations

import os
import resource
import sys

from agentrl.sandbox.walls import memory


def resident_mib() -> float:
    """Resident memory in MiB: the peak of this process, and what those below it, such as sandboxes, hold now.

    A page that several of those share is counted once. Where there is no /proc, only this process is counted.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own = peak / 1024 if sys.platform != "darwin" else peak / 2**20
    return own + memory.used_bytes(memory.descendants(os.getpid())[1:], enough=0) / 2**20
