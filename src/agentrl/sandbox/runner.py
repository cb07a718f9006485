"""One program in the box of a keeper, from our side: its streams, its deadline, the output that is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Finished, Reason
from agentrl.sandbox.orders import Report
from agentrl.sandbox.walls.output import Kept

_READ_SIZE = 1 << 16
_GRACE_S = 20.0
_DRAIN_S = 2.0
_GONE = "the program at the other end of the channel is gone"
_FLOOD = 256
"""Output beyond this many times what is kept is a program that never stops; it is ended for it."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Both ends of the descriptors of one program: ``theirs`` are handed to its guard in this order, then closed."""

    stdin: int
    stdout: int
    stderr: int
    control: socket.socket
    theirs: tuple[int, ...]

    @classmethod
    def open(cls, channel: socket.socket | None = None) -> Ends:
        """Pipes for the standard streams, and a socket to the guard.

        Args:
            channel: the program's end of its channel.

        Raises:
            OSError: there are no more descriptors.
        """
        with contextlib.ExitStack() as undo:
            pairs = []
            for _ in range(3):
                pairs.append(os.pipe())
                for fd in pairs[-1]:
                    undo.callback(os.close, fd)
            ours, theirs = socket.socketpair()
            undo.pop_all()
        (their_in, our_in), (our_out, their_out), (our_err, their_err) = pairs
        for fd in (our_in, our_out, our_err, ours.fileno()):
            os.set_blocking(fd, False)
        handed = (their_in, their_out, their_err, theirs.detach())
        last = () if channel is None else (channel.detach(),)
        return cls(stdin=our_in, stdout=our_out, stderr=our_err, control=ours, theirs=handed + last)

    def close_theirs(self) -> None:
        """Close what the guard has by now."""
        for fd in self.theirs:
            os.close(fd)


class Program:
    """A program that runs, until `close`.

    Args:
        ends: its descriptors, which this object closes.
        stdin: what it reads.
        output_bytes: what is kept of each output stream.
        wall_s: the time that its guard gives it.
        channel: our end of its channel, which ends with it.
    """

    def __init__(
        self, ends: Ends, *, stdin: bytes, output_bytes: int, wall_s: float, channel: socket.socket | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = ends
        self._stdin = memoryview(stdin)
        self._stdin_is_open = True
        self._flood = output_bytes * _FLOOD
        self._kept = {ends.stdout: Kept(output_bytes), ends.stderr: Kept(output_bytes)}
        self._channel = channel
        self._reading = {ends.stdout, ends.stderr, ends.control.fileno()}
        self._said = bytearray()
        self._told = asyncio.Event()
        self._all_read = asyncio.Event()
        self._killed_for: Reason | None = None
        self.was_killed = False
        self._fault = "the process that watched a program was lost"
        for fd in (ends.stdout, ends.stderr):
            self._loop.add_reader(fd, self._take_output, fd)
        self._loop.add_reader(ends.control.fileno(), self._take_report)
        self._loop.add_writer(ends.stdin, self._give_input)
        self._timer = self._loop.call_later(wall_s + _GRACE_S, self.close, "nobody told of a program's end in time")

    async def told(self) -> Report:
        """How the program ended, when nothing of it is left and its output is all here.

        Raises:
            SandboxError: its guard was lost, or was not to be had.
        """
        await self._told.wait()
        with contextlib.suppress(TimeoutError):  # someone outside may have been handed the stream
            async with asyncio.timeout(_DRAIN_S):
                await self._all_read.wait()
        if not self._said.endswith(b"\n"):
            raise SandboxError(f"{self._fault}; the program was lost, not failed")
        return Report(**json.loads(self._said))

    def finished(self, report: Report) -> Finished:
        """What is handed to the user."""
        out, err = self._kept[self._ends.stdout], self._kept[self._ends.stderr]
        return Finished(
            status=report.status,
            signal=report.signal,
            killed_for=self._killed_for or report.killed_for,
            stdout=out.data,
            stderr=err.data,
            cut=out.cut + err.cut,
            wall_s=report.wall_s,
        )

    def kill(self, reason: Reason | None = None) -> None:
        """End it and all that it started, for this reason."""
        self._killed_for = self._killed_for or reason
        self.was_killed = True
        with contextlib.suppress(OSError):  # it has ended already
            self._ends.control.send(b"!")

    def close(self, fault: str = "its box was closed") -> None:
        """Let go of the program; its guard ends what still runs. Safe to call twice.

        Args:
            fault: what to tell whoever still waits for its end.
        """
        if self._timer.cancelled():
            return
        self._timer.cancel()
        if not self._told.is_set():
            self._fault = fault
        for fd in tuple(self._reading):
            self._stop_reading(fd)
        self._close_input()
        for fd in (self._ends.stdout, self._ends.stderr):
            os.close(fd)
        self._ends.control.close()
        self._tell()

    def _tell(self) -> None:
        self._told.set()
        if self._channel is not None:
            with contextlib.suppress(OSError):  # closed already; what has come can still be read
                self._channel.shutdown(socket.SHUT_RDWR)

    def _take_output(self, fd: int) -> None:
        try:
            data = os.read(fd, _READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._stop_reading(fd)
            return
        self._kept[fd].add(data)
        if self._kept[fd].total > self._flood:
            self.kill("output")

    def _take_report(self) -> None:
        try:
            data = self._ends.control.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self._said += data
        if not data or self._said.endswith(b"\n"):
            self._stop_reading(self._ends.control.fileno())
            self._tell()

    def _give_input(self) -> None:
        try:
            while self._stdin:
                self._stdin = self._stdin[os.write(self._ends.stdin, self._stdin) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read on
            pass
        self._close_input()

    def _close_input(self) -> None:
        if self._stdin_is_open:
            self._stdin_is_open = False
            self._loop.remove_writer(self._ends.stdin)
            os.close(self._ends.stdin)

    def _stop_reading(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._reading.discard(fd)
        if not self._reading:
            self._all_read.set()


class ProgramChannel:
    """The stream of bytes to a program; see `Channel`.

    Args:
        ours: our end.
        program: what is at the other end.
        end: gives how it ended once it has, and lets go of it.
    """

    def __init__(self, ours: socket.socket, program: Program, end: Callable[[], Awaitable[Finished]]) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._program = program
        self._end = end
        self._finished: Finished | None = None

    async def send(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            EOFError: the program is gone.
        """
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            raise EOFError(_GONE) from error

    async def receive(self, count: int) -> bytes:
        """Exactly so many bytes.

        Raises:
            EOFError: the program is gone before.
        """
        received = bytearray()
        while len(received) < count:
            try:
                part = await asyncio.get_running_loop().sock_recv(self._socket, min(count - len(received), _READ_SIZE))
            except OSError as error:
                raise EOFError(_GONE) from error
            if not part:
                raise EOFError(_GONE)
            received += part
        return bytes(received)

    def fileno(self) -> int:
        """As `Channel.fileno`."""
        return self._socket.fileno()

    async def close(self) -> Finished:
        """End the program, if it still runs, and say how it ended. Safe to call twice.

        Raises:
            SandboxError: it was lost.
        """
        if self._finished is None:
            self._program.kill()
            try:
                self._finished = await self._end()
            finally:
                self._socket.close()
        return self._finished
