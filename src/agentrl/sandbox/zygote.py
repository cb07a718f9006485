"""The `zygote` backend: boxes behind namespaces, from a warm fork server. The strongest walls; the default on Linux.

What a box holds back, and by what: files of the machine (a root of its own, read-only; Landlock), other processes (a
pid namespace for every program, and its death ends all), the network (a namespace, seccomp), the kernel (seccomp, no
capabilities), memory (a limit for each process and a look at all of them 20 times a second), disk (file systems in
memory), time and output (the keeper). Memory and disk limits are apart: a box can hold ``memory_mib`` and three times
``disk_mib`` (workspace, /tmp, /dev/shm).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import zygote_root
from agentrl.sandbox.admission import Admission
from agentrl.sandbox.base import Level, Spec, Support
from agentrl.sandbox.zygote_advice import advice
from agentrl.sandbox.zygote_link import ZygoteBox

_START_S = 20.0
_CLOSE_S = 5.0
_MAX_PACKET = 1 << 17
_HERE = Path(__file__).resolve().parent
_BOOT = """
import sys, types
for name, path in (("agentrl", {package!r}), ("agentrl.sandbox", {folder!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from agentrl.sandbox.zygote_main import main
main({control})
"""
_TRIAL = "import os; print(os.getuid(), os.getpid(), os.access('/usr', os.W_OK), os.path.exists('/proc/self/fd'))"
_TRIAL_SAYS = b"1000 2 False True\n"
_NO_LANDLOCK = "Landlock, a second wall around files: start Linux 5.13 or later with lsm=landlock,..."
_NO_CHILDREN = "memory watchdog: the kernel has no CONFIG_PROC_CHILDREN; only single processes are bounded"


class ZygoteBackend:
    """Boxes behind namespaces.

    Args:
        max_boxes: how many boxes there may be at a time; the next `start` waits.
        max_running: how many programs may run at a time, those with a channel not counted; the next waits, its clock
            not yet running. By default four for each processor.
        wait_s: how long a start or a program may wait for its turn.
        recycle_after: boxes that one fork server makes; then a new one takes its place, and it ends with its last box.

    Raises:
        SandboxError: a number that is not positive.
    """

    name = "zygote"

    def __init__(
        self,
        *,
        max_boxes: int = 256,
        max_running: int | None = None,
        wait_s: float = 600.0,
        recycle_after: int = 10_000,
    ) -> None:
        if recycle_after < 1:
            raise SandboxError(f"recycle_after is {recycle_after}; a fork server makes at least 1 box")
        self.running = Admission(max_running or 4 * (os.cpu_count() or 1), wait_s, "programs that run")
        self._boxes = Admission(max_boxes, wait_s, "zygote boxes")
        self._server: _Server | None = None
        self._starting = Admission(1, wait_s, "starts of the zygote")
        self._recycle_after = recycle_after
        self._open: dict[ZygoteBox, _Server] = {}
        self._retired: set[_Server] = set()
        self._closed = False
        self.restarts = 0
        """How often the fork server was lost and another one was started."""

    def probe(self) -> Support:
        """As `Backend.probe`: makes a box and runs a program in it."""
        with concurrent.futures.ThreadPoolExecutor(1) as thread:  # a loop of its own, whether or not one runs here
            return thread.submit(asyncio.run, _try_out()).result()

    async def start(self, spec: Spec) -> ZygoteBox:
        """As `Backend.start`."""
        await self._boxes.enter()
        try:
            try:
                return await self._start(spec)
            except _ServerLost:
                return await self._start(spec)
        except BaseException as error:
            self._boxes.leave()
            if isinstance(error, OSError):
                raise SandboxError(f"no zygote box could be started: {error.strerror or error}") from error
            raise

    async def close(self) -> None:
        """As `Backend.close`."""
        self._closed = True
        await asyncio.gather(*(box.close() for box in tuple(self._open)))
        self._retire()
        await self._end_retired()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The starter of the fork server, while one is warm."""
        return () if self._server is None else (self._server.process.pid,)

    def forget(self, box: ZygoteBox) -> None:
        """A box was closed or lost; its place is free."""
        if box in self._open:
            self._leave(self._open.pop(box))
            self._boxes.leave()

    def _leave(self, server: _Server) -> None:
        server.users -= 1
        if server in self._retired and server.users == 0:
            server.end()

    async def _start(self, spec: Spec) -> ZygoteBox:
        server = await self.warm_server()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                server.request(spec, theirs)
            except OSError as error:
                ours.close()
                raise _ServerLost(f"the zygote was lost: {error.strerror}") from error
        server.users += 1
        ours.setblocking(False)
        box = ZygoteBox(self, ours, spec)
        try:
            await box.open(_START_S)
        except BaseException as error:
            box.abandon("the box could not be started")
            self._leave(server)
            if isinstance(error, SandboxError) and server.lost:
                raise _ServerLost(str(error)) from error
            raise
        self._open[box] = server
        if box.ended:
            self.forget(box)
        return box

    async def warm_server(self) -> _Server:
        """The fork server, started when it is first needed and when the last one was lost."""
        async with self._starting:
            if self._closed:
                raise SandboxError("the zygote backend is closed; make a new one")
            if self._server is not None and self._server.lost:
                self.restarts += 1
                self._retire()
            elif self._server is not None and self._server.made >= self._recycle_after:
                self._retire()
            await self._end_retired()
            if self._server is None:
                server = _Server()
                try:
                    await asyncio.wait_for(server.ready(), _START_S)
                except BaseException as error:
                    await asyncio.to_thread(server.close)
                    if isinstance(error, TimeoutError):
                        raise SandboxError(f"the zygote was not ready after {_START_S:g} s") from None
                    raise
                self._server = server
            return self._server

    def _retire(self) -> None:
        if self._server is not None:
            self._retired.add(self._server)
            self._server = None

    async def _end_retired(self) -> None:
        """End the fork servers that are lost or have no box left."""
        over = {server for server in self._retired if server.lost or server.users == 0}
        self._retired -= over
        for server in over:
            await asyncio.to_thread(server.close)


class _ServerLost(SandboxError):
    """The fork server had ended before it could make a box."""


class _Server:
    """The fork server: its process and the socket that it takes requests from."""

    def __init__(self) -> None:
        self.landlock, self.sees_children = 0, False
        self.made, self.users = 0, 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            boot = _BOOT.format(package=str(_HERE.parent), folder=str(_HERE), control=theirs.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-B", "-"],  # not -c: programs in boxes can read this line
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for us to handle
            )
        self._control.setblocking(False)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stream:  # its end is noticed in `ready`
            stream.write(boot.encode())

    async def ready(self) -> None:
        """Wait until boxes can be made.

        Raises:
            SandboxError: which step this machine refused, and what helps.
        """
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._control, json.dumps(zygote_root.plan()).encode())
        answer = await loop.sock_recv(self._control, _MAX_PACKET)
        if not answer:
            raise SandboxError(f"the zygote ended at its start: {await asyncio.to_thread(self._complaint)}")
        said = json.loads(answer)
        if "error" in said:
            raise SandboxError(f"the zygote backend does not work here: {advice(said['error'], said['number'])}")
        self.landlock, self.sees_children = said["landlock"], said["children"]

    @property
    def lost(self) -> bool:
        """Whether it has ended."""
        try:
            return not self._control.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def request(self, spec: Spec, connection: socket.socket) -> None:
        """Ask for a keeper at the other end of ``connection``.

        Raises:
            OSError: it has ended, or does not take requests.
        """
        asked = {
            "limits": dataclasses.asdict(spec.limits),
            "network": spec.network,
            "python": sys.executable,
            "trees": zygote_root.python_trees(),
            "environment": zygote_root.environment(),
        }
        socket.send_fds(self._control, [json.dumps(asked).encode()], [connection.fileno()])
        self.made += 1

    def end(self) -> None:
        """Have it end, and with it every box."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # also where a forked child of ours holds a copy

    def close(self) -> None:
        """End it, and with it every box, and wait until it has. Safe to call twice."""
        self.end()
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_CLOSE_S)
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _complaint(self) -> str:
        assert self.process.stderr is not None
        lines = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"status {self.process.wait()}, and no message"


def _environment() -> dict[str, str]:
    """The fork server's: nothing of ours but where an interpreter with shared libraries finds them."""
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    fixed = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
    return fixed | {"LD_BIND_NOW": "1"} | inherited


async def _try_out() -> Support:
    """Start everything once and run a program."""
    backend = ZygoteBackend()
    try:
        box = await backend.start(Spec(files={"trial.py": _TRIAL.encode()}))
        done = await box.exec(["python", "-I", "-S", "trial.py"])
        server = await backend.warm_server()
    except (SandboxError, OSError) as error:
        return Support(backend="zygote", level=Level.NONE, works=False, missing=(str(error),))
    finally:
        await backend.close()
    if done.stdout != _TRIAL_SAYS:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        reason = f"a trial program ended with status {done.status}, signal {done.signal}: {said[-300:]}"
        return Support(backend="zygote", level=Level.NONE, works=False, missing=(reason,))
    wanted = {
        "own user, pid, mount, ipc, uts and network namespaces": "",
        "read-only root": "",
        "quota of bytes and files": "",
        "seccomp": "",
        "warm-python": "",
        f"Landlock ABI {server.landlock}": "" if server.landlock else _NO_LANDLOCK,
        "memory watchdog": "" if server.sees_children else _NO_CHILDREN,
    }
    missing = [reason for reason in wanted.values() if reason]
    if 0 < server.landlock < 6:
        missing.append(f"Landlock ABI 6: this kernel has {server.landlock}; namespaces do the same, or take Linux 6.12")
    features = tuple(name for name, reason in wanted.items() if not reason)
    return Support(backend="zygote", level=Level.NAMESPACES, works=True, features=features, missing=tuple(missing))
