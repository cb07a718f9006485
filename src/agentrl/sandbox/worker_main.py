"""The worker process: a small warm interpreter that forks one child per job. Standard library only.

Run as ``python -s -S -P -B worker_main.py WALL_S CPU_S MEMORY_MIB OUTPUT_BYTES``, with an environment that holds
a fixed PYTHONHASHSEED and no secrets (``-I`` would ignore the hash seed). Jobs come in on stdin and answers go out
on stdout, each with a length of four bytes; an answer is a line (how the job ended, seconds) and what the job reported.
The worker compiles tame programs (see programs.py) and runs none; it never reads a report. It ends when stdin ends,
also in the midst of a job, and then removes the directory that it was started in.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import os
import resource
import select
import signal
import struct
import sys
import time
import types
from typing import Any, NoReturn

_HERE = os.path.dirname(os.path.abspath(__file__))
_READY = b"ready\n"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_SIGKILL = int(signal.SIGKILL)


def import_modules() -> tuple[types.ModuleType, types.ModuleType]:
    """Import our modules `child` and `programs` without their package, which this interpreter does not have.

    Their names are taken back afterwards, so that a candidate does not find our package under them.
    """
    for name, path in (("agentrl", os.path.dirname(_HERE)), ("agentrl.sandbox", _HERE)):
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [path]
    from agentrl.sandbox import child, programs  # the path to them exists only now

    for name in [name for name in sys.modules if name.split(".")[0] == "agentrl"]:
        del sys.modules[name]
    return child, programs


def read_exactly(size: int) -> bytes:
    """The next ``size`` bytes of stdin, fewer at its end."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Server:
    """Serves jobs one after another."""

    def __init__(self, wall_s: float, cpu_s: float, memory_mib: int, output_bytes: int) -> None:
        self.wall_s, self.cpu_s, self.memory_mib, self.output_bytes = wall_s, cpu_s, memory_mib, output_bytes
        self.child, self.programs = import_modules()
        self.null = os.open(os.devnull, os.O_RDWR)

    def serve(self) -> None:
        """Answer jobs until stdin ends."""
        while len(length := read_exactly(4)) == 4:
            size = struct.unpack(">I", length)[0]
            payload = read_exactly(size)
            if len(payload) < size:
                return
            started = time.monotonic()
            end, output = self.run(json.loads(payload))
            answer = f"{end} {time.monotonic() - started:.6f}\n".encode() + output
            write_all(1, struct.pack(">I", len(answer)) + answer)

    def run(self, job: dict[str, Any]) -> tuple[str, bytes]:
        """Fork a child for one job, wait for it within the limits, leave no process behind."""
        codes = self.programs.prepare(job)
        shares = len(job["parts"]) if "parts" in job else 1
        cpu_s = shares * self.cpu_s
        wall_s = self.wall_s + cpu_s - self.cpu_s
        source, sink = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(source)
            os.close(sink)
            return "lost", b""
        if pid == 0:
            self.be_child(job, codes, sink, wall_s, cpu_s)
        os.close(sink)
        output, expired = self.collect(source, wall_s, shares)
        os.close(source)
        overused = self.end_child(pid)
        clean_directory()
        if not output.startswith(_READY):
            return ("timeout" if expired else "lost"), b""
        return ("timeout" if expired or overused else "finished"), output[len(_READY) :]

    def be_child(self, job: dict[str, Any], codes: dict[str, Any], sink: int, wall_s: float, cpu_s: float) -> NoReturn:
        """The child's whole life. The exit status says nothing; only the reports count."""
        try:
            self.restrict(sink, cpu_s)
            os.write(sink, _READY)
            reporter = self.child.Reporter(lambda line: write_all(sink, line), self.output_bytes)
            self.child.run_job(job, codes, reporter, wall_s, self.cpu_s)
        finally:
            os._exit(0)

    def restrict(self, sink: int, cpu_s: float) -> None:
        """Own session, no inherited files but ``sink``, limits; dies with the worker."""
        os.setsid()
        if _PRCTL is not None:
            _PRCTL(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        for fd in (0, 1, 2):
            os.dup2(self.null, fd)
        os.closerange(3, sink)
        os.closerange(sink + 1, 64)
        memory = self.memory_mib << 20
        seconds = math.ceil(cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.output_bytes, self.output_bytes))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def collect(self, source: int, wall_s: float, shares: int) -> tuple[bytes, bool]:
        """What the job reports until it ends, its time is over or it writes too much; whether its time was over."""
        deadline = time.monotonic() + wall_s
        watched = select.poll()
        watched.register(source, select.POLLIN)
        watched.register(0, 0)  # no event but the end of the pool, which waits for its jobs unless it was killed
        cap = 2 * shares * self.output_bytes + 65_536
        output = bytearray()
        while len(output) <= cap:
            left = deadline - time.monotonic()
            ready = watched.poll(max(0.0, left) * 1000.0)
            if not ready or left <= 0 or 0 in dict(ready):
                return bytes(output), True
            part = os.read(source, 65_536)
            if not part:
                break
            output += part
        return bytes(output), False

    def end_child(self, pid: int) -> bool:
        """Kill the job's session and reap all that is left of it; whether processor time was what ended it."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        kill_orphans()
        used = usage.ru_utime + usage.ru_stime
        return os.WIFSIGNALED(status) and used >= self.cpu_s


def clean_directory() -> None:
    """Remove what the job wrote to the working directory."""
    if not os.listdir("."):
        return
    for folder, folders, files in os.walk(".", topdown=False):
        for name in folders + files:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # what a job has made unremovable stays
                (os.rmdir if name in folders and not os.path.islink(path) else os.unlink)(path)


def leave_directory() -> None:
    """Remove our working directory and, when we are the last worker there, the pool's. A killed pool cannot do it."""
    with contextlib.suppress(OSError):  # the pool was faster, or another worker still lives there
        clean_directory()
        path = os.getcwd()
        os.rmdir(path)
        os.rmdir(os.path.dirname(path))


def kill_orphans() -> None:
    """Kill processes that left the job's session; as their subreaper the worker inherits them."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for orphan in children.read().split():
                    os.kill(int(orphan), signal.SIGKILL)
            time.sleep(0.001)


def main() -> None:
    """Warm up, freeze, serve."""
    wall_s, cpu_s, memory_mib, output_bytes = sys.argv[1:]
    server = Server(float(wall_s), float(cpu_s), int(memory_mib), int(output_bytes))
    server.programs.import_random()
    server.child.rehearse()
    server.child.catch_time_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _PRCTL is not None:
        _PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.argv[:] = ["program"]
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):  # nobody waits for the answer any more
        server.serve()
    leave_directory()


if __name__ == "__main__":
    main()
