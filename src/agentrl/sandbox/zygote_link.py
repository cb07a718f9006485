"""Our side of one zygote box: requests to its keeper, and what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agentrl.errors import SandboxError
from agentrl.sandbox.base import BoxFull, Channel, Finished, Level, Reason, Spec, check_path
from agentrl.sandbox.zygote_channel import ZygoteChannel
from agentrl.sandbox.zygote_frames import LENGTHS, pack, pack_files, unpack_files

if TYPE_CHECKING:
    from agentrl.sandbox.zygote import ZygoteBackend

_GRACE_S = 20.0
_CLOSE_S = 5.0
_RETRY_S = 0.002
_CHUNK = 1 << 18


class _Reply(NamedTuple):
    head: dict[str, Any]
    body: bytes


class ZygoteBox:
    """A box whose keeper is at the other end of ``connection``. `ZygoteBackend.start` makes them."""

    level = Level.NAMESPACES

    def __init__(self, backend: ZygoteBackend, connection: socket.socket, spec: Spec) -> None:
        self._backend = backend
        self._socket = connection
        self._spec = spec
        self._sending, self._asking, self._programs = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._reply: asyncio.Future[_Reply] | None = None
        self._end: asyncio.Future[_Reply] | None = None
        self._channel: ZygoteChannel | None = None
        self._gone = ""
        self._released = False
        self._reader = asyncio.create_task(self._read_frames())

    @property
    def ended(self) -> bool:
        """Whether the box is closed or lost."""
        return self._reader.done()

    async def open(self, ready_within_s: float) -> None:
        """Wait for the keeper, and put the first files in.

        Raises:
            SandboxError: no keeper, or it could not make the box.
        """
        reply = await self._awaited(self._expect_reply(), ready_within_s)
        if "error" in reply.head:
            raise SandboxError(f"a zygote box could not be made: {reply.head['error']}")
        if self._spec.files:
            await self.write(self._spec.files)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        wall_s: float | None = None,
    ) -> Finished:
        """As `Box.exec`."""
        request = self._request(argv, env, cwd, wall_s)
        if self._channel is not None:
            raise SandboxError("a program with a channel runs in this box; close the channel before the next program")
        async with self._programs, self._backend.running:
            end = await self._begin(request, stdin, None)
            try:
                return _finished(await self._awaited(asyncio.shield(end), self._patience_s(wall_s)))
            except asyncio.CancelledError:
                await self._stop(end)
                raise

    async def channel(self, argv: Sequence[str], *, wall_s: float | None = None) -> Channel:
        """As `Box.channel`."""
        request = self._request(argv, None, "", wall_s)
        if self._channel is not None:
            raise SandboxError("this box has a channel already; close it before the next")
        await self._programs.acquire()
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            end = await self._begin(request, b"", theirs)
        except BaseException:
            ours.close()
            self._programs.release()
            raise
        finally:
            theirs.close()
        channel = ZygoteChannel(ours, lambda: self._end_of_program(end, channel))
        self._channel = channel
        return channel

    async def write(self, files: Mapping[str, bytes]) -> None:
        """As `Box.write`."""
        for path in files:
            check_path(path)
        sizes, body = pack_files(files)
        await self._ask({"do": "write", "files": sizes}, body)

    async def read(self, paths: Sequence[str], *, max_bytes: int = 1 << 20) -> Mapping[str, bytes]:
        """As `Box.read`."""
        for path in paths:
            check_path(path)
        reply = await self._ask({"do": "read", "paths": list(paths), "max_bytes": max_bytes})
        return unpack_files(reply.head["files"], reply.body)

    async def reset(self) -> None:
        """As `Box.reset`."""
        if self._channel is not None:
            await self._channel.close()
        sizes, body = pack_files(self._spec.files)
        async with self._programs:
            await self._ask({"do": "reset", "files": sizes}, body)

    async def close(self) -> None:
        """As `Box.close`. Returns when the keeper has ended every process of the box."""
        if self._released:
            return
        self._released = True
        self._gone = self._gone or "the box is closed"
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        if not self.ended and self._reader.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({self._reader}, timeout=_CLOSE_S)
        self.abandon(self._gone)
        self._backend.forget(self)

    def abandon(self, reason: str) -> None:
        """Let go of the keeper, which then ends the box; whoever waits is told ``reason``."""
        self._gone = self._gone or reason
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the reader closes it, when nothing waits for it any more
        for waiter in (self._reply, self._end):
            if waiter is not None and not waiter.done():
                waiter.set_exception(SandboxError(self._gone))
                waiter.exception()  # seen: it may be that nobody waits any more

    async def _end_of_program(self, end: asyncio.Future[_Reply], channel: ZygoteChannel) -> Finished:
        """End the program of a channel, if it still runs, and say how it ended."""
        try:
            await self._stop(end)
            return _finished(await self._awaited(asyncio.shield(end), _GRACE_S))
        finally:
            if self._channel is channel:
                self._channel = None
                self._programs.release()

    def _request(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str, wall_s: float | None
    ) -> dict[str, Any]:
        variables = dict(env or {})
        if not argv or any("=" in name for name in variables):
            raise SandboxError(f"program {list(argv)!r} with {variables!r}: give a program, and names without '='")
        try:
            words = b"".join(map(os.fsencode, (*argv, *variables, *variables.values())))
        except UnicodeEncodeError as error:
            raise SandboxError(f"program {list(argv)!r}: {error.reason}; give text") from error
        if b"\0" in words:
            raise SandboxError(f"program {list(argv)!r}: a zero byte cannot be passed to a program")
        folder = check_path(cwd) if cwd else ""
        return {"do": "run", "argv": list(argv), "env": variables, "cwd": folder, "wall_s": wall_s}

    def _patience_s(self, wall_s: float | None) -> float:
        return min(wall_s or self._spec.limits.wall_s, self._spec.limits.wall_s) + _GRACE_S

    async def _begin(
        self, request: dict[str, Any], stdin: bytes, descriptor: socket.socket | None
    ) -> asyncio.Future[_Reply]:
        """Have the keeper run a program; the future is of its end."""
        self._check()
        self._end = asyncio.get_running_loop().create_future()
        await self._send(pack(request, stdin), descriptor)
        return self._end

    async def _stop(self, end: asyncio.Future[_Reply]) -> None:
        """End the program that runs, and wait until it has."""
        if not end.done():
            with contextlib.suppress(SandboxError):
                await self._send(pack({"do": "stop"}))
            await asyncio.wait({end}, timeout=_GRACE_S)

    async def _ask(self, head: dict[str, Any], body: bytes = b"") -> _Reply:
        """One request about files, and its reply. A caller that gives up leaves the reply to be read by nobody.

        Raises:
            BoxFull: no room for what is to be written.
            SandboxError: refused by the keeper, or the box is gone.
        """
        async with self._asking:
            self._check()
            reply = self._expect_reply()
            try:
                await self._send(pack(head, body))
                answer = await self._awaited(asyncio.shield(reply), _GRACE_S)
            except asyncio.CancelledError:
                await asyncio.wait({reply}, timeout=_GRACE_S)
                raise
        if "error" in answer.head:
            raise (BoxFull if answer.head.get("full") else SandboxError)(answer.head["error"])
        return answer

    def _expect_reply(self) -> asyncio.Future[_Reply]:
        self._reply = asyncio.get_running_loop().create_future()
        if self._gone:
            self._reply.set_exception(SandboxError(self._gone))
        return self._reply

    async def _awaited(self, future: asyncio.Future[_Reply], within_s: float) -> _Reply:
        try:
            return await asyncio.wait_for(future, within_s)
        except TimeoutError:
            self.abandon(f"the keeper of a zygote box gave no answer for {within_s:g} s")
            raise SandboxError(self._gone) from None

    def _check(self) -> None:
        if self._gone or self._released:
            raise SandboxError(self._gone or "the box is closed")

    async def _send(self, frame: bytes, descriptor: socket.socket | None = None) -> None:
        loop = asyncio.get_running_loop()
        async with self._sending:
            try:
                if descriptor is not None:
                    await self._send_start(frame[: LENGTHS.size], descriptor)
                    frame = frame[LENGTHS.size :]
                await loop.sock_sendall(self._socket, frame)
            except OSError as error:
                self.abandon(f"the zygote box was lost: {error.strerror}")
                raise SandboxError(self._gone) from error

    async def _send_start(self, start: bytes, descriptor: socket.socket) -> None:
        while True:
            try:
                sent = socket.send_fds(self._socket, [start], [descriptor.fileno()])
            except BlockingIOError:
                await asyncio.sleep(_RETRY_S)
                continue
            assert sent == len(start), "a few bytes go whole into a socket"
            return

    async def _read_frames(self) -> None:
        """Hand on what the keeper says, until it is gone."""
        loop, data = asyncio.get_running_loop(), bytearray()
        reason = "the zygote box was lost: its keeper has ended"
        try:
            while True:
                while len(data) < LENGTHS.size or len(data) < LENGTHS.size + sum(LENGTHS.unpack_from(data)):
                    part = await loop.sock_recv(self._socket, _CHUNK)
                    if not part:
                        return
                    data += part
                reply = _take_frame(data)
                head = reply.head
                if "gone" in head:
                    reason = f"the zygote box was lost: {head['gone']}"
                    return
                waiter = self._end if "status" in head or "lost" in head else self._reply
                if waiter is not None and not waiter.done():
                    waiter.set_result(reply)
        except OSError:
            return
        finally:
            self.abandon(reason)
            self._backend.forget(self)
            async with self._sending:
                self._socket.close()


def _take_frame(data: bytearray) -> _Reply:
    """Remove the first frame, which is there as a whole, from what was received."""
    head_size, body_size = LENGTHS.unpack_from(data)
    begin = LENGTHS.size + head_size
    frame = _Reply(json.loads(data[LENGTHS.size : begin]), bytes(data[begin : begin + body_size]))
    del data[: begin + body_size]
    return frame


def _finished(reply: _Reply) -> Finished:
    head = reply.head
    if "lost" in head:
        raise SandboxError(head["lost"])
    killed_for: Reason | None = head["killed_for"]
    return Finished(
        status=head["status"],
        signal=head["signal"],
        killed_for=killed_for,
        stdout=reply.body[: head["stdout"]],
        stderr=reply.body[head["stdout"] :],
        cut=head["cut"],
        wall_s=head["wall_s"],
    )
