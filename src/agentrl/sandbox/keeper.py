"""Our end of the process that keeps a box: starting it, handing it programs, ending it. See keeper_main.py for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Level
from agentrl.sandbox.keeper_main import FOLDERS, Plan, Ready, parse
from agentrl.sandbox.orders import Walls
from agentrl.sandbox.workspace import Workspace

_START_S = 20.0
_END_S = 15.0
_SOURCE = str(Path(__file__).resolve().parents[2])
_ENTRY = """
import sys, types
for name in ("agentrl", "agentrl.sandbox"):  # without what these packages import for their users
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
from agentrl.sandbox.keeper_main import main
main(int(sys.argv[2]))
"""

Folders = tuple[str, str, str]
"""Where the keeper sees the workspace, the folder for temporary files, and that for memory shared by name."""


@dataclass(frozen=True, kw_only=True)
class Outfit:
    """What a backend decides about its boxes.

    Args:
        level: the walls.
        plan: what the keeper prepares, given the box's home.
        walls: what is put around each program, given its folders.
        command: what the keeper starts for a program, and its environment, from the folders, the program with its
            arguments, the variables that the user adds, and the folder that it starts in.
        release: give back what was taken for the box.
    """

    level: Level
    plan: Callable[[str], Plan]
    walls: Callable[[Folders], Walls]
    command: Callable[[Folders, tuple[str, ...], Mapping[str, str], str], tuple[tuple[str, ...], dict[str, str]]]
    release: Callable[[], None] = lambda: None


@dataclass(kw_only=True)
class Keeper:
    """A keeper process that is ready."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    home: str
    ready: Ready
    folders: list[Workspace]

    @classmethod
    async def start(cls, outfit: Outfit, spare: Spare) -> Keeper:
        """Take a process and wait until its folders are made. It belongs to the box from then on.

        Raises:
            SandboxError: it cannot, with its reason; nothing is left of it.
        """
        home = ""
        try:
            home = os.path.realpath(tempfile.mkdtemp(prefix=f"agentrl-box-{os.getpid()}-"))
            process, link = spare.take()
        except OSError as error:
            if home:
                os.rmdir(home)
            raise SandboxError(f"a box's keeper cannot be started: {error}") from error
        plan, walls = outfit.plan(home), outfit.walls(inside(home))
        keeper = cls(process=process, link=link, home=home, ready=Ready(), folders=[])
        try:
            keeper.tell({"plan": dataclasses.asdict(plan), "walls": dataclasses.asdict(walls)})
            text, handed = await _receive(link)
            keeper.ready = parse(Ready, json.loads(text or b'{"fault": "the keeper ended"}'))
            keeper.folders = [Workspace(fd=fd, owner=plan.user) for fd in handed[:-1]]
            keeper.folders += [Workspace(fd=fd, owner=plan.user, kept=keeper.ready.kept) for fd in handed[-1:]]
            keeper.check()
        except BaseException as error:
            await keeper.close()
            if isinstance(error, OSError):
                raise SandboxError(f"a box's keeper cannot be started: {error}") from error
            raise
        return keeper

    def check(self) -> None:
        """Raise SandboxError when it could not prepare the box."""
        if self.ready.fault:
            raise SandboxError(self.ready.fault)
        if self.ready.closed:
            raise SandboxError(
                f"the user of a box cannot reach {', '.join(self.ready.closed)}, and there are no mounts to show it;"
                " install it where everyone may read it, or give the container CAP_SYS_ADMIN"
            )

    def tell(self, text: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message with descriptors.

        Raises:
            OSError: the process is gone.
        """
        memory = os.memfd_create("agentrl-order")
        try:
            with os.fdopen(os.dup(memory), "w") as stream:
                json.dump(text, stream)
            socket.send_fds(self.link, [b"!"], [memory, *descriptors])
        finally:
            os.close(memory)

    async def close(self) -> None:
        """End the process, with it all programs, and remove its folders. Safe to call twice."""
        for folder in self.folders:
            folder.close()
        self.folders = []
        self.link.close()
        await asyncio.shield(asyncio.to_thread(self._end))

    def _end(self) -> None:
        _wait_or_kill(self.process)
        if os.path.exists(self.home):
            shutil.rmtree(self.home, ignore_errors=True)


class Spare:
    """A process that waits to be the keeper of the next box: most of a start is that of its interpreter."""

    def __init__(self) -> None:
        self._waiting: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._taken = 0
        self._maker = os.getpid()

    def take(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """The one that waits, or a new one.

        Raises:
            OSError: none can be started.
        """
        self._taken += 1
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[0].poll() is None:
            return waiting
        if waiting is not None:
            waiting[1].close()
        return _spawn()

    def refill(self) -> None:
        """Have one wait again, once there were two boxes: who starts two will start more."""
        if self._taken > 1 and self._waiting is None:
            with contextlib.suppress(OSError):  # the next start says so, should it fail as well
                self._waiting = _spawn()

    def close(self) -> None:
        """End the one that waits. Safe to call twice."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or os.getpid() != self._maker:  # a forked child has no say in it
            return
        process, link = waiting
        with link, contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
        _wait_or_kill(process)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The one that waits, if one does."""
        return () if self._waiting is None else (self._waiting[0].pid,)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _ENTRY, _SOURCE, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for us to handle
        )
    return process, ours


async def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """The keeper's answer and the descriptors that come with it.

    Raises:
        SandboxError: it takes too long.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link.fileno(), readable.set)
    try:
        async with asyncio.timeout(_START_S):
            await readable.wait()
    except TimeoutError:
        raise SandboxError(f"a box's keeper was not ready within {_START_S:g} s") from None
    finally:
        loop.remove_reader(link.fileno())
    text, handed, _, _ = socket.recv_fds(link, 1 << 16, len(FOLDERS))
    return text, handed


def inside(home: str) -> Folders:
    """Where the keeper sees the folders of a box."""
    work, temporary, shared = (os.path.join(home, name) for name in FOLDERS)
    return work, temporary, shared
