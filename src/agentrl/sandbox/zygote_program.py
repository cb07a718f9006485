"""Process 1 of a program's pid namespace: puts up the walls around itself, starts the program, reports its end.

Everything here already runs behind the walls when the program starts, with nothing of ours in memory but this module.
Its own end ends every process that the program has left.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import select
import signal
from dataclasses import dataclass, field
from typing import NoReturn

from agentrl.sandbox import zygote_jobs, zygote_warm
from agentrl.sandbox.walls import beneath, capabilities, kernel, landlock, limits, mounts, seccomp

ENDED, FAILED = b"E", b"F"
"""How a report begins: the wait status and processor seconds follow, or why nothing could be started."""
_REPORT, _RULES, _WORKSPACE, _FIRST_FREE = 4, 5, 6, 10
_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
_MISSING, _NOT_EXECUTABLE = 127, 126
_SHARED = "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to start and behind which walls; ``rules``, ``workspace`` and the pipes are descriptors.

    ``trees`` are the folders of the interpreter, to be shown wherever they lie.
    """

    argv: list[str]
    environment: dict[str, str]
    folder: str
    python: str
    limits: dict[str, float]
    rules: int
    system_calls: bytes
    workspace: int
    trees: list[str]


@dataclass(kw_only=True)
class Pipes:
    """Standard streams and the pipe on which the end is reported: each (end to read, end to write).

    Raises:
        OSError: no more descriptors.
    """

    stdin: tuple[int, int] = field(default_factory=os.pipe)
    stdout: tuple[int, int] = field(default_factory=os.pipe)
    stderr: tuple[int, int] = field(default_factory=os.pipe)
    status: tuple[int, int] = field(default_factory=os.pipe)

    def __post_init__(self) -> None:
        self._open = {*self.stdin, *self.stdout, *self.stderr, *self.status}

    def close_far_ends(self) -> None:
        """Close the ends that the program has."""
        for descriptor in (self.stdin[0], self.stdout[1], self.stderr[1], self.status[1]):
            self.close(descriptor)

    def close(self, descriptor: int) -> None:
        """Close one end, if it is open."""
        if descriptor in self._open:
            self._open.remove(descriptor)
            os.close(descriptor)

    def close_all(self) -> None:
        """Close what is open still."""
        for descriptor in tuple(self._open):
            self.close(descriptor)


def start(program: Program, pipes: Pipes, channel: int | None) -> NoReturn:
    """In the new process: put up the walls, run the program, report how it ended, and end with all that it left."""
    gc.disable()  # a collection would copy the pages that are shared with the keeper
    try:
        kernel.die_with_parent()
        _arrange_descriptors(program, pipes, channel)
        if _is_abandoned():
            os._exit(0)
        try:
            mounts.mount_processes("/proc")
            _volunteer_for_the_oom_killer()
            _mount_shared_memory(program)
            status = _enter_folder(program.folder)
            if status is None:
                _wall_in(program)
                status = _run(program)
            seconds = resource.getrusage(resource.RUSAGE_CHILDREN)
            os.write(_REPORT, ENDED + f"{status} {seconds.ru_utime + seconds.ru_stime}".encode())
        except (OSError, MemoryError) as error:
            os.write(_REPORT, FAILED + (str(error) or "the limits leave too little memory to start in").encode())
    finally:
        os._exit(0)


def _arrange_descriptors(program: Program, pipes: Pipes, channel: int | None) -> None:
    """Standard streams to 0, 1, 2, the channel to 3, what no program inherits behind them; close all others."""
    given = [pipes.stdin[0], pipes.stdout[1], pipes.stderr[1], pipes.status[1] if channel is None else channel]
    kept = [pipes.status[1], program.rules, program.workspace]
    for target, source in enumerate([_move_up(descriptor) for descriptor in (*given, *kept)]):
        os.dup2(source, target, inheritable=target < _REPORT)
    if channel is None:
        os.close(_REPORT - 1)
    kernel.call("close_range", _WORKSPACE + 1, 0xFFFFFFFF, 0)


def _is_abandoned() -> bool:
    """Whether the keeper died before we could ask to die with it: then nobody reads reports."""
    watched = select.poll()
    watched.register(_REPORT, 0)  # errors are told always
    return bool(watched.poll(0))


def _move_up(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


def _mount_shared_memory(program: Program) -> None:
    held = mounts.hold(program.trees, below=_SHARED)
    files = int(program.limits["files"]) + len(mounts.mount_points(program.trees, below=_SHARED))
    mounts.mount_memory(_SHARED, mib=int(program.limits["disk_mib"]), files=files, mode="1777")
    mounts.show_held(held, below=_SHARED)
    for folder in held:
        os.close(folder.place)


def _enter_folder(folder: str) -> int | None:
    """Go where the program is to start, or say that there is no such folder and give the status for it."""
    try:
        place = beneath.open_beneath(_WORKSPACE, folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        os.fchdir(place)
        os.close(place)
    except OSError as error:
        return _complain(f"{folder}: {os.strerror(error.errno or 0)}", _MISSING)
    return None


def _volunteer_for_the_oom_killer() -> None:
    """Should the machine run out of memory before the watchdog has looked, it ends the box and not its owner."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def _wall_in(program: Program) -> None:
    bounds = {name: int(program.limits[name]) for name in ("memory_mib", "processes", "disk_mib")}
    limits.limit_process(cpu_s=program.limits["cpu_s"], **bounds)
    capabilities.give_up()  # the bounding set is empty since the box was made
    kernel.forbid_new_privileges()
    kernel.set_dumpable(False)
    if landlock.abi():
        landlock.enforce(_RULES)
    seccomp.install(program.system_calls)


def _run(program: Program) -> int:
    """The wait status of the program, after which nothing else is waited for."""
    if program.argv == [zygote_jobs.NAME]:
        zygote_jobs.serve(program.environment)
        return 0
    try:
        child = _start(program)
    except MemoryError:
        return _complain(f"{program.argv[0]}: no memory to start it", _NOT_EXECUTABLE)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        message = f"{program.argv[0]}: {os.strerror(error.errno or 0)}"
        return _complain(message, _MISSING if missing else _NOT_EXECUTABLE)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _start(program: Program) -> int:
    name = program.argv[0]
    if name == zygote_warm.NAME and len(program.argv) > 1:
        return zygote_warm.fork(program.argv, program.environment, range(_REPORT, _WORKSPACE + 1))
    path = program.python if name == "python" else name
    os.environ["PATH"] = program.environment["PATH"]  # where the search looks
    return os.posix_spawnp(path, program.argv, program.environment, setsid=True, setsigmask=(), setsigdef=_SIGNALS)


def _complain(message: str, status: int) -> int:
    os.write(2, f"sandbox: {message}\n".encode(errors="replace"))
    return status << 8
