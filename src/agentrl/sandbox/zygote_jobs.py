"""Many jobs in one box, one after another: ``warm-jobs``, a program that is process 1 itself and talks on a channel.

To make namespaces anew costs several times what a small job does. Here process 1 of the pid namespace, which runs no
line of a candidate's, forks a process for each job, and when that ends kills and reaps every other process that there
is. No job can send it a signal, look into it or change its limits: the kernel keeps process 1 from signals of its own
namespace, and the system call filter does the rest. What a job may have left for the next one, beside processes, are
files and how process 1 is scheduled; when `_traces` shows any, the answer says so and the server ends, and with it its
namespaces. A forked process can read the memory of process 1 as it was, freed memory too; so the job and its reports
are only ever in memory of their own, which is given back before the next fork.

A request is a length and as many bytes: a line of JSON, then the job. The line has the limits of the job and
``tests``, the test files to compile ahead, path to text. An answer is a length and as many bytes too: a line of how the
job ended (``finished``, ``timeout`` or ``lost``) and what it left (``clean`` or ``dirty``), then what it reported.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import time
import types
from typing import Any, NoReturn

from agentrl.sandbox import guest
from agentrl.sandbox.ahead import compiled_tests
from agentrl.sandbox.walls.apart import Memory
from agentrl.sandbox.zygote_warm import look_new

NAME = "warm-jobs"
_CHANNEL = 3
_MAX_OPEN = 64
_CHUNK = 1 << 16


def serve(environment: dict[str, str]) -> None:
    """Answer requests until the channel ends, or a job has left something behind."""
    look_new(["program"], environment)
    guest.silence()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what has no handler does not reach process 1
    gc.freeze()  # a collection in a forked process would copy what it shares with us
    places = (os.getcwd(), "/tmp", "/dev/shm")
    before = _traces(places)
    left = "clean"
    while left == "clean" and (length := _read_length()):
        with contextlib.closing(Memory(length)) as request:
            request.take_all(_CHANNEL)
            numbers = json.loads(request.first_line())
            with contextlib.closing(Memory(numbers["max_bytes"] + _CHUNK)) as reports:
                end = _run(numbers, request, reports)
                left = "clean" if _traces(places) == before else "dirty"
                _answer(f"{end} {left}\n".encode(), reports)


def _traces(places: tuple[str, ...]) -> tuple[object, ...]:
    """What a job could change for the next one. A change of a folder also changes its time, which nobody can set."""
    states = [os.stat(place) for place in places]
    files = [(state.st_mode, state.st_size, state.st_ctime_ns) for state in states]
    return files, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0)


def _read_length() -> int:
    """The length of the next request; 0 when the channel has ended."""
    data = b""
    while len(data) < 4:
        part = os.read(_CHANNEL, 4 - len(data))
        if not part:
            return 0
        data += part
    return int.from_bytes(data, "big")


def _answer(head: bytes, reports: Memory) -> None:
    said = reports.other_lines()  # behind what says that it began
    guest.write_all(_CHANNEL, (len(head) + len(said)).to_bytes(4, "big") + head)
    guest.write_all(_CHANNEL, said)


def _run(numbers: dict[str, Any], request: Memory, reports: Memory) -> str:
    """Fork a process for one job, wait for it within its limits, leave no process behind. How the job ended."""
    compiled = compiled_tests(numbers["tests"])
    source, sink = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(source)
        os.close(sink)
        return "lost"
    if pid == 0:
        _be_job(numbers, request, sink, compiled)
    os.close(sink)
    late = _collect(pid, source, numbers, reports)
    os.close(source)
    overused = _end(pid, numbers["cpu_s"])
    if not reports.starts_with(guest.READY):
        return "timeout" if late else "lost"
    return "timeout" if late or overused else "finished"


def _be_job(numbers: dict[str, Any], request: Memory, sink: int, compiled: dict[str, types.CodeType]) -> NoReturn:
    """The whole life of a job: a session of its own, and no descriptor but the sink."""
    try:
        os.setsid()
        os.closerange(_CHANNEL, sink)
        os.closerange(sink + 1, _MAX_OPEN)
        guest.carry_out(numbers, guest.read_job(request.other_lines(), sink), sink, compiled)
    finally:
        os._exit(0)


def _collect(pid: int, source: int, numbers: dict[str, Any], reports: Memory) -> bool:
    """Take what a job reports until it ends, its time is over or it says too much; whether its time was over."""
    deadline = time.monotonic() + numbers["wall_s"]
    os.set_blocking(source, False)
    life = os.pidfd_open(pid)
    watched = select.poll()
    watched.register(source, select.POLLIN)
    watched.register(life, select.POLLIN)
    try:
        while reports.used <= numbers["max_bytes"]:
            ready = dict(watched.poll(max(0.0, deadline - time.monotonic()) * 1000.0))
            if not ready:
                return True
            count = reports.take(source) if source in ready else 0
            if not count and (life in ready or count == 0):
                break
        return False
    finally:
        os.close(life)


def _end(pid: int, cpu_s: float) -> bool:
    """Kill and reap everything but ourselves; whether processor time was what had ended the job."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return os.WIFSIGNALED(status) and usage.ru_utime + usage.ru_stime >= cpu_s
