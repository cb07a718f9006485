"""The judge: a warm trusted process that forks one child per grading. It never runs a candidate's code.

Run by `process.JudgeProcess` with a socket on descriptor 0, on which each message carries the
descriptor of a new grading. The child takes from that a job and the candidate's channel, runs the hidden tests, which
talk with the candidate, and writes the verdict.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from agentrl.rewards.judge.link import Link
from agentrl.rewards.judge.running import BrokenTest, OutOfTime, run
from agentrl.rewards.judge.wire import Wire

GRACE_S = 2.0
"""How long after the end of the candidate's time the tests themselves may go on."""
LAST_S = 7.0
"""How long after it a test that hears nothing is ended; by then nobody waits for it any more."""
HEARD = bytes(4)
"""Says, as the length of nothing, that the candidate has answered: what a test takes from then on may be its doing."""
MEMORY_BYTES = 2 << 30
_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the socket closes."""
    control = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl = _prctl()
    prctl(_PR_SET_DUMPABLE, 0)  # no process of the same user may read our memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            control.close()
            child(socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


def child(end: socket.socket) -> NoReturn:
    """One grading."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        judge(end)
        status = 0
    except EOFError:
        status = 0  # nobody waits for the verdict any more
    finally:
        os._exit(status)


def judge(end: socket.socket) -> None:
    """Take the job, run it, send the verdict. Raises EOFError when whoever wants it has hung up."""
    job, channel = receive_job(end)
    wire = Wire(socket.socket(fileno=channel), job["wall_s"], on_first=lambda: end.sendall(HEARD))
    link = Link(wire)
    end_for_good_after(job["wall_s"] + LAST_S)
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, job["wall_s"] + GRACE_S)
    try:
        verdict = run(job, link)
    except BrokenTest as error:
        verdict = {"broken": str(error)}
    except OutOfTime:
        wire.late = True
        fault = "out of time" if link.replies else ""
        verdict = {"passed": [], "why": {"": fault}} if fault else {"broken": "the hidden tests take too long alone"}
    except MemoryError:
        verdict = {"passed": [], "why": {"": "out of memory"}, "repeatable": False}
    signal.setitimer(signal.ITIMER_REAL, 0)
    body = json.dumps({**verdict, "left": wire.left, "late": wire.late}).encode()
    end.sendall(len(body).to_bytes(4, "big") + body)


def end_for_good_after(seconds: float) -> None:
    """Have the kernel end this process after so much processor time: what goes on in C alone hears no alarm."""
    most = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def receive_job(end: socket.socket) -> tuple[dict[str, Any], int]:
    """The job, and the descriptor of the candidate's channel, which comes with the job's length.

    Raises:
        EOFError: the other side has hung up.
    """
    head, descriptors, _, _ = socket.recv_fds(end, 4, 1)
    if len(head) < 4 or not descriptors:
        raise EOFError
    length = int.from_bytes(head, "big")
    body = end.recv(length, socket.MSG_WAITALL)
    if len(body) < length:
        raise EOFError
    return json.loads(body), descriptors[0]


def _out_of_time(_signal: int, _frame: Any) -> None:
    raise OutOfTime


def _prctl() -> Callable[[int, int], object]:
    """The system call of that name with two arguments, looked up once for all children; nothing where there is none."""
    if sys.platform != "linux":
        return lambda _option, _value: None
    call = ctypes.CDLL(None).prctl
    return lambda option, value: call(option, value, 0, 0, 0)
