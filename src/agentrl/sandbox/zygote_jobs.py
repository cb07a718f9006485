"""Many jobs in one box, one after another: ``warm-jobs``, a program that is process 1 itself and talks on a channel.

To make namespaces anew costs several times what a small job does. Here process 1 of the pid namespace, which runs no
line of a candidate's, forks a process for each job, and when that ends kills and reaps every other process that there
is. No job can send it a signal, look into it or change its limits: the kernel keeps process 1 from signals of its own
namespace, and the system call filter does the rest. What a job may have left for the next one, beside processes, are
files and how process 1 is scheduled; when `_traces` shows any, the answer says so and the server ends, and with it its
namespaces.

A request is a length and as many bytes: a line of numbers as JSON, then the job. So is an answer: a line of how the job
ended (``finished``, ``timeout`` or ``lost``) and what it left (``clean`` or ``dirty``), then what it reported.
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
from agentrl.sandbox.zygote_warm import look_new

NAME = "warm-jobs"
_CHANNEL = 3
_PLACES = (".", "/tmp", "/dev/shm")
_MAX_OPEN = 64


def serve(environment: dict[str, str]) -> None:
    """Answer requests until the channel ends, or a job has left something behind."""
    look_new(["program"], environment)
    guest.silence()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what has no handler does not reach process 1
    gc.freeze()  # a collection in a forked process would copy what it shares with us
    before = _traces()
    while length := _read(4):
        request = _read(int.from_bytes(length, "big"))
        numbers, _, payload = request.partition(b"\n")
        end, output = _run(json.loads(numbers), json.loads(payload))
        left = "clean" if _traces() == before else "dirty"
        answer = f"{end} {left}\n".encode() + output
        guest.write_all(_CHANNEL, len(answer).to_bytes(4, "big") + answer)
        if left == "dirty":
            return


def _traces() -> tuple[object, ...]:
    """What a job could change for the next one."""
    files = [sorted(os.listdir(place)) for place in _PLACES]
    return files, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0)


def _read(count: int) -> bytes:
    """So many bytes; none when the channel has ended."""
    parts = []
    while count:
        part = os.read(_CHANNEL, min(count, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _run(numbers: dict[str, Any], job: dict[str, Any]) -> tuple[str, bytes]:
    """Fork a process for one job, wait for it within its limits, leave no process behind."""
    compiled = compiled_tests(job)
    source, sink = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(source)
        os.close(sink)
        return "lost", b""
    if pid == 0:
        _be_job(numbers, job, sink, compiled)
    os.close(sink)
    output, late = _collect(pid, source, numbers)
    os.close(source)
    overused = _end(pid, numbers["cpu_s"])
    if not output.startswith(guest.READY):
        return ("timeout" if late else "lost"), b""
    return ("timeout" if late or overused else "finished"), output[len(guest.READY) :]


def _be_job(numbers: dict[str, Any], job: dict[str, Any], sink: int, compiled: dict[str, types.CodeType]) -> NoReturn:
    """The whole life of a job: a session of its own, and no descriptor but the sink."""
    try:
        os.setsid()
        os.closerange(_CHANNEL, sink)
        os.closerange(sink + 1, _MAX_OPEN)
        guest.carry_out(numbers, job, sink, compiled)
    finally:
        os._exit(0)


def _collect(pid: int, source: int, numbers: dict[str, Any]) -> tuple[bytes, bool]:
    """What a job reports until it ends, its time is over or it says too much; whether its time was over."""
    deadline = time.monotonic() + numbers["wall_s"]
    most = numbers["max_bytes"]
    os.set_blocking(source, False)
    life = os.pidfd_open(pid)
    watched = select.poll()
    watched.register(source, select.POLLIN)
    watched.register(life, select.POLLIN)
    output = bytearray()
    try:
        while len(output) <= most:
            ready = dict(watched.poll(max(0.0, deadline - time.monotonic()) * 1000.0))
            if not ready:
                return bytes(output), True
            part = _part(source) if source in ready else b""
            output += part or b""
            if not part and (life in ready or part == b""):
                break
        return bytes(output), False
    finally:
        os.close(life)


def _part(source: int) -> bytes | None:
    """What has come; None when nothing has, and nothing at the end."""
    try:
        return os.read(source, 65_536)
    except BlockingIOError:
        return None


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
