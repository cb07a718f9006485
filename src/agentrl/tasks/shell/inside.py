"""Runs in the box for a whole attempt: keeps one bash, and reads and writes the files of edits. Standard library only.

Bash runs as it does for a person, so that an interrupt ends a command and not the shell, but without a terminal: its
commands come on a pipe, output and errors leave on another, and the status of each command on a third, which is how
the end of a command is known whatever it prints. Programs of the policy have our user and may tamper with all this, so
what is said from here is read as an adversary's.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import stat
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

REPLY = struct.Struct("!BiQII")
"""Kind, a number, bytes left out, and the sizes of the two parts that follow."""
READY, DONE, TIME, FLOOD, ENDED, GONE, CROWDED, FILE, MISSING, REFUSED = range(1, 11)
"""Kinds of replies: bash runs; a command ended, was interrupted after its time or for its output, ended bash itself,
was not run as bash had ended before, or left no process to be had; a file; no file; what is wrong with a path."""
RESTARTED = 0x40
"""Added to a kind when bash is another one from then on."""

CHANNEL = 3
GRACE_S = 0.75
START_S = 15.0
KEPT_BYTES = 1 << 16
"""What is kept of the beginning and of the end of an output."""
FLOOD_BYTES = 1 << 24
MOST_FILE_BYTES = 1 << 20
_DRAIN_BYTES = 1 << 18
_CHUNK = 1 << 16
_ARGV = ["bash", "--noprofile", "--norc", "--noediting", "+H", "+o", "history", "-i"]
_REPORT = b'\\builtin printf "%%s %%s %%s\\0" %s "$?" "$PWD" >&9\n'
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python
_OUTPUT, _STATUS, _FIRST_FREE = 8, 9, 20
_VARIABLES = {"PS1": "", "PS2": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""No prompts; and no plugins that happen to lie beside our own packages, which make pytest four times as slow."""


class Kept:
    """The beginning and the end of what was printed; ``total`` counts all of it."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take in what came next."""
        self.total += len(data)
        room = KEPT_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        del self.tail[: max(0, len(self.tail) - KEPT_BYTES)]

    @property
    def cut(self) -> int:
        """Bytes that were left out between the two."""
        return self.total - len(self.head) - len(self.tail)


class Ending(NamedTuple):
    """How a command ended: a kind of reply, and a status, or minus a signal for a bash that one ended."""

    kind: int
    status: int = 0


class Bash:
    """A bash that waits for commands.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.last_status = 0
        self.ended: int | None = None
        read_control, self.control = _pipe()
        self.output, write_output = _pipe()
        self.status, write_status = _pipe()
        theirs = {0: read_control, 1: write_output, 2: write_output, _OUTPUT: write_output, _STATUS: write_status}
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in theirs.items()]
        variables = {**os.environ, **_VARIABLES}
        self.unread = read_control
        try:
            os.chdir(folder)
            self.pid = os.posix_spawnp(
                _ARGV[0], _ARGV, variables, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_IGNORED
            )
        finally:
            os.close(write_output)
            os.close(write_status)
        self.life = os.pidfd_open(self.pid)
        for fd in (self.control, self.output):
            os.set_blocking(fd, False)

    def run(self, command: bytes, wall_s: float, kept: Kept) -> Ending:
        """Carry out a command, and take what it prints."""
        token = os.urandom(8).hex().encode()  # or a report that a program forged would be taken for one to come
        report = _REPORT % token
        waiting = memoryview(self._lines(command) + report)
        said = bytearray()
        deadline, reason = time.monotonic() + wall_s, 0
        poll = select.poll()
        for fd in (self.output, self.status, self.life):
            poll.register(fd, select.POLLIN)
        poll.register(self.control, select.POLLOUT)
        while not (said.endswith(b"\0") and token in said) and not self.has_ended():
            for fd, _ in poll.poll(max(1, int(1000 * min(0.2, deadline - time.monotonic())))):
                if fd == self.control:
                    waiting = self._feed(waiting, poll)
                elif fd == self.output and not self._take(kept):
                    poll.unregister(self.output)
                elif fd == self.status:
                    said += os.read(self.status, _CHUNK)
            flooded = kept.total > FLOOD_BYTES
            if reason and time.monotonic() >= deadline:
                return Ending(reason | RESTARTED)
            if not reason and (flooded or time.monotonic() >= deadline):
                reason = FLOOD if flooded else TIME
                if waiting or self._num_unread() > len(report):  # the rest would be read as other commands
                    return Ending(reason | RESTARTED)
                os.killpg(self.pid, signal.SIGINT)
                deadline = time.monotonic() + GRACE_S
        self._drain(kept)
        if self.ended is not None:
            return Ending(ENDED | RESTARTED, self.ended)
        if reason:
            os.killpg(self.pid, signal.SIGTERM)  # ends what it left behind; bash ignores it
        self._note(bytes(said).rpartition(token + b" ")[2])
        return Ending(reason or DONE, self.last_status)

    def close(self) -> None:
        """End it and all that is in its session's first group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        while self.ended is None and not self.has_ended():
            select.select([self.life], [], [], 1.0)
        for fd in (self.control, self.output, self.status, self.life, self.unread):
            os.close(fd)

    def _lines(self, command: bytes) -> bytes:
        quoted = b"'" + command.replace(b"'", b"'\\''") + b"'"
        again = b"[[ $- == *e* ]] || (exit %d)\n" % self.last_status if self.last_status else b""
        streams = b"</dev/null >&%d 2>&%d %d>&- %d>&-" % (_OUTPUT, _OUTPUT, _OUTPUT, _STATUS)
        return again + b"\\builtin eval -- " + quoted + b" " + streams + b"\n"

    def _feed(self, waiting: memoryview, poll: select.poll) -> memoryview:
        try:
            waiting = waiting[os.write(self.control, waiting[:_CHUNK]) :]
        except BlockingIOError:
            return waiting
        if not waiting:
            poll.unregister(self.control)
        return waiting

    def _take(self, kept: Kept) -> int:
        data = os.read(self.output, _CHUNK)
        kept.add(data)
        return len(data)

    def _drain(self, kept: Kept) -> None:
        """What was printed and not yet taken; of what goes on to print in the background, not for ever."""
        left = _DRAIN_BYTES
        while left > 0 and select.select([self.output], [], [], 0)[0]:
            count = self._take(kept)
            left -= count or left

    def _num_unread(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.unread, termios.FIONREAD, bytes(4)), sys.byteorder)

    def _note(self, said: bytes) -> None:
        status, _, folder = said.partition(b"\0")[0].partition(b" ")
        self.last_status = int(status) & 0xFF if status.isdigit() else 0
        self.folder = os.fsdecode(folder)

    def has_ended(self) -> bool:
        """Whether bash has."""
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.ended = os.waitstatus_to_exitcode(status) if pid else None
        return self.ended is not None


def _pipe() -> tuple[int, int]:
    """A pipe whose numbers are none that bash is given."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for fd in ends)
    for fd in ends:
        os.close(fd)
    return high[0], high[1]


def _a_process_can_be_had() -> bool:
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


class Supervisor:
    """Answers requests one after the other."""

    def __init__(self) -> None:
        self.root = os.path.realpath(os.getcwd())
        self.bash = self._started(self.root)

    def serve(self) -> NoReturn:
        """Until the other side is gone."""
        _send(READY)
        while True:
            request, body = _receive()
            if request["do"] == "run":
                self._run(body, request["wall_s"])
            elif request["do"] == "load":
                self._load(request["path"])
            else:
                self._store(request["path"], body, new=request["new"])

    def _started(self, folder: str) -> Bash:
        bash = Bash(folder if os.path.isdir(folder) else self.root)
        bash.run(b"", START_S, Kept())  # what it says of a terminal that is not there
        return bash

    def _run(self, command: bytes, wall_s: float) -> None:
        kept = Kept()
        gone = self.bash.has_ended()
        ending = Ending(GONE | RESTARTED) if gone else self.bash.run(command, wall_s, kept)
        if not ending.kind & RESTARTED and not _a_process_can_be_had():
            ending = Ending(CROWDED | RESTARTED)
        if ending.kind & RESTARTED:
            self.bash.close()
            self.bash = self._started(self.bash.folder)
        _send(ending.kind, bytes(kept.head), bytes(kept.tail), number=ending.status, cut=kept.cut)

    def _load(self, path: str) -> None:
        try:
            place = self._place(path)
            state = os.stat(place)
            if not stat.S_ISREG(state.st_mode):
                kind = "a folder" if stat.S_ISDIR(state.st_mode) else "no regular file"
                raise _Refused(f"{path!r} is {kind}; name a file")
            if state.st_size > MOST_FILE_BYTES:
                raise _Refused(f"{path!r} has {state.st_size:,} bytes; edit takes files of at most {MOST_FILE_BYTES:,}")
            with open(place, "rb") as file:
                _send(FILE, file.read(MOST_FILE_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            _send(MISSING)
        except (_Refused, OSError) as error:
            _send(REFUSED, _said(path, error))

    def _store(self, path: str, content: bytes, *, new: bool) -> None:
        try:
            place = self._place(path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            mode = 0o644 if new else stat.S_IMODE(os.stat(place).st_mode)
            _replace(place, content, mode)
            _send(FILE)
        except (_Refused, OSError) as error:
            _send(REFUSED, _said(path, error))

    def _place(self, path: str) -> str:
        """Where a path of an edit leads, links followed, when that lies in the workspace."""
        named = os.path.normpath(os.path.join(self.root, path))
        place = os.path.realpath(named)
        if not _is_below(named, self.root):
            raise _Refused(f"{path!r} lies outside of the workspace; name a file below {self.root}")
        if not _is_below(place, self.root):
            raise _Refused(f"{path!r} leads outside of the workspace by a link; name a file below {self.root}")
        return place


class _Refused(Exception):
    """Says what is wrong with the path of an edit."""


def _said(path: str, error: Exception) -> bytes:
    return (f"{path!r}: {error.strerror}" if isinstance(error, OSError) else str(error)).encode()


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _replace(place: str, content: bytes, mode: int) -> None:
    """Put a content in the place of a file, whole or not at all."""
    beside = f"{place}.{os.getpid()}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.chmod(beside, mode)
        os.replace(beside, place)
    except OSError:
        os.unlink(beside)
        raise


def _receive() -> tuple[dict[str, Any], bytes]:
    head, body = struct.unpack("!II", _take(8))
    return json.loads(_take(head)), _take(body)


def _take(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = os.read(CHANNEL, min(_CHUNK, count - len(data)))
        if not part:
            sys.exit()
        data += part
    return bytes(data)


def _send(kind: int, first: bytes = b"", second: bytes = b"", *, number: int = 0, cut: int = 0) -> None:
    data = memoryview(REPLY.pack(kind, number, cut, len(first), len(second)) + first + second)
    while data:
        data = data[os.write(CHANNEL, data) :]


def main() -> None:
    """Serve the other end of the channel."""
    os.set_inheritable(CHANNEL, False)
    try:
        supervisor = Supervisor()
    except OSError as error:
        sys.exit(f"bash cannot be started: {error.strerror}")
    supervisor.serve()


if __name__ == "__main__":
    main()
