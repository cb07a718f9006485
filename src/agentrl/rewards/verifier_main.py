"""A process that verifies answers: one job a line comes in by a socket, one result a line goes out."""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from agentrl.rewards.verifier_jobs import JOBS, MissingPackage

MEMORY = 4 << 30
"""Bytes of data; more raises MemoryError inside the job."""


def main(descriptor: int) -> None:
    """Serve until the other side closes."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.set_int_max_str_digits(20_000)
    with socket.socket(fileno=descriptor) as link, link.makefile("rwb") as lines:
        for line in lines:
            lines.write(json.dumps(_result(json.loads(line))).encode() + b"\n")
            lines.flush()


def _result(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a job gives, or what it raised. A job that uses up its processor time ends the process by a signal."""
    arguments = dict(request)
    job, cpu_s = JOBS[arguments.pop("job")], arguments.pop("cpu_s")
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        return job(**arguments)
    except MissingPackage as error:
        return {"missing": str(error)}
    except Exception as error:  # whatever a library raises is told to the other side
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
