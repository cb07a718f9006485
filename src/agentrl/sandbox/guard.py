"""Runs one program to its end, in a process forked for it: starts it behind its walls, watches it, ends all it started.

The guard adopts the orphans of the program, so that nothing gets out of its sight. The end of its control socket tells
it to stop; how the program ended it says there, in one line. Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

from agentrl.sandbox import tally
from agentrl.sandbox.orders import (
    CHANNEL_FD,
    ENDED,
    FILTER_FD,
    MARKER_FD,
    NOT_FOUND,
    NOT_RUN,
    STARTED,
    Order,
    Report,
    Streams,
    Walls,
)
from agentrl.sandbox.walls import kernel, landlock, limits, seccomp
from agentrl.sandbox.watch import Watch

_END_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_SHELL_ADDS = 128
_UNSAID = (signal.SIGINT, signal.SIGPIPE)


def run_guard(order: Order, walls: Walls, streams: Streams, folders: Sequence[str], *, watch_disk: bool) -> NoReturn:
    """Be the guard of one program, from a fork of the keeper, and exit.

    Args:
        order: what to run.
        walls: what to put around it.
        streams: its descriptors, all above 9.
        folders: the folder that it starts in first, then the others that it may write.
        watch_disk: add the folders up now and then, because no file system bounds them.
    """
    keeper = os.getppid()
    os.setsid()
    kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1, step="subreaper")
    wake = _wake_on_child()
    marker, marker_out = (_high(fd) for fd in os.pipe())
    confined = walls.readable is not None and _confine_signals(keeper)
    begin = time.monotonic()
    program = os.fork()
    if program == 0:
        os.close(marker)
        _become(order, walls, streams, folders, marker_out)
    for fd in (streams.stdin, streams.stdout, streams.stderr, marker_out, streams.channel):
        if fd is not None:
            os.close(fd)
    counted = folders if watch_disk else ()
    watched = Watch(order=order, walls=walls, folders=counted, program=program, streams=streams, wake=wake, begin=begin)
    report = Report(killed_for=watched.until_it_ends())
    ended = tally.end_all(_END_S, by_signal=confined)
    report.wall_s = time.monotonic() - begin
    _fill(report, {**(ended or {}), **watched.ended}.get(program), _marked(marker), by_shell=walls.by_bubblewrap)
    if ended is None:
        report.fault = "some of its processes could not be ended"
    elif watched.orphaned:
        report.fault = "the keeper of its box was lost"
    with contextlib.suppress(OSError), socket.socket(fileno=streams.control) as control:  # nobody may be left to tell
        control.sendall(json.dumps(asdict(report)).encode() + b"\n")
    os._exit(0)


def _high(fd: int) -> int:
    """The same descriptor with a number that no program knows it by."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return high


def _marked(marker: int) -> bytes:
    """What was written to the marker until now."""
    os.set_blocking(marker, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(marker, 4096)
    return b""


def _wake_on_child() -> int:
    """A descriptor that can be read when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _confine_signals(keeper: int) -> bool:
    """Have walls around ourselves that let us signal only what is below us; whether there are any."""
    if landlock.abi() < 6:
        return False
    rules = landlock.ruleset(readable=("/",), writable=("/",), sockets=True)
    kernel.forbid_new_privileges()
    landlock.enforce(rules)
    os.close(rules)
    return tally.walled_in(keeper)


def _fill(report: Report, status: int | None, marked: bytes, *, by_shell: bool) -> None:
    """Say how the program ended, from its wait status and from what it wrote to the marker before it ran."""
    report.started = marked.startswith(STARTED)
    if not report.started:
        report.fault = marked.decode(errors="replace")
    if status is None:
        report.fault = "its end was not seen"
    elif os.WIFSIGNALED(status):
        report.signal = os.WTERMSIG(status)
    else:
        number = os.WEXITSTATUS(status)
        if by_shell and _was_signal(number, marked):
            report.signal = number - _SHELL_ADDS
        else:
            report.status = number
    if report.signal == signal.SIGXCPU:
        report.killed_for = "time"


def _was_signal(status: int, marked: bytes) -> bool:
    """Whether an exit status that came through a shell stands for a signal.

    The shell says so on the marker, between the start and the end, except of the two signals that users send; and when
    it was ended itself it does not come to the end.
    """
    if not _SHELL_ADDS < status <= _SHELL_ADDS + signal.SIGRTMAX:
        return False
    said = marked.removeprefix(STARTED)
    return said != ENDED or status - _SHELL_ADDS in _UNSAID


def _become(order: Order, walls: Walls, streams: Streams, folders: Sequence[str], marker: int) -> NoReturn:
    """In the forked child: put up the walls and turn into the program."""
    try:
        _arrange(streams, walls, marker)
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        _wall_in(order, walls)
    except BaseException as error:  # nothing may return from a forked child
        os.write(MARKER_FD, f"{type(error).__name__}: {error}".encode())
        os._exit(NOT_RUN)
    _enter(order, walls, folders)


def _arrange(streams: Streams, walls: Walls, marker: int) -> None:
    """Give the descriptors the numbers under which the program knows them, and close all others."""
    os.dup2(marker, MARKER_FD, inheritable=walls.by_bubblewrap)
    for fd, number in ((streams.stdin, 0), (streams.stdout, 1), (streams.stderr, 2), (streams.channel, CHANNEL_FD)):
        if fd is not None:
            os.dup2(fd, number)
    kept = MARKER_FD
    if walls.by_bubblewrap and walls.filter:
        text = os.memfd_create("filter")
        os.write(text, base64.b64decode(walls.filter))
        os.lseek(text, 0, os.SEEK_SET)
        os.dup2(text, FILTER_FD)
        kept = FILTER_FD
    os.closerange(kept + 1, 4096)
    if streams.channel is None:
        os.closerange(CHANNEL_FD, CHANNEL_FD + 1)


def _wall_in(order: Order, walls: Walls) -> None:
    limits.limit_process(
        cpu_s=order.cpu_s,
        memory_mib=order.memory_mib,
        processes=order.processes + walls.uncounted,
        disk_mib=order.disk_mib,
    )
    rules = None
    if walls.readable is not None:
        rules = landlock.ruleset(readable=walls.readable, writable=walls.writable, sockets=walls.sockets)
    if walls.user is not None:
        user, group = walls.user
        for fd in range(3):
            os.fchown(fd, user, group)  # or /dev/stdout and the like could not be opened
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    kernel.die_with_parent()  # after the change of user, which forgets it
    if walls.by_bubblewrap:
        return
    if rules is not None:
        kernel.forbid_new_privileges()
        landlock.enforce(rules)
        os.close(rules)
    if walls.filter:
        kernel.forbid_new_privileges()
        seccomp.install(base64.b64decode(walls.filter))


def _enter(order: Order, walls: Walls, folders: Sequence[str]) -> NoReturn:
    """Run the program, or say as a shell does why it cannot be run."""
    if not walls.by_bubblewrap:
        os.write(MARKER_FD, STARTED)
        try:
            os.chdir(os.path.join(folders[0], order.cwd))
        except OSError as error:
            _complain(order.cwd, error)
            os._exit(NOT_FOUND)
    try:
        os.execvpe(order.argv[0], order.argv, order.env)
    except OSError as error:
        if error.errno == errno.E2BIG:  # bwrap is there; it is the program that was given too much
            os.write(MARKER_FD, STARTED)
        _complain(order.argv[0], error)
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN)


def _complain(name: str, error: OSError) -> None:
    os.write(2, f"{name}: {error.strerror}\n".encode(errors="surrogateescape"))
