"""The keeper of one box: owns its file systems, starts its programs, bounds and ends them. Standard library only.

It sits in the box's namespaces with every capability there, outside of the pid namespace of any program, and answers
requests one after another: ``write``, ``read``, ``run``, ``reset``. While a program runs it also takes ``write``,
``read`` and ``stop``. It ends when our end of the socket does, and the box with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import time
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox.base import BoxFull
from agentrl.sandbox.walls import capabilities, kernel, landlock, mounts, namespaces
from agentrl.sandbox.workspace import Workspace
from agentrl.sandbox.zygote_frames import Line, pack_files, unpack_files
from agentrl.sandbox.zygote_watch import Running

WORKSPACE = "/workspace"
_TEMPORARY = "/tmp"
_WRITABLE = (WORKSPACE, _TEMPORARY, "/dev")


def keep(connection: socket.socket, request: dict[str, Any], filters: dict[str, bytes]) -> None:
    """Make the box that ``request`` describes, say so, and serve it until our end closes."""
    line = Line(connection)
    try:
        box = Keeper(line, request, filters[request["network"]])
    except OSError as error:
        line.send({"error": str(error.strerror or error)})
        return
    gc.freeze()
    line.send({"ready": True})
    try:
        while True:
            head, body, descriptors = line.receive()
            with contextlib.closing(body):
                box.answer(head, body.view, descriptors)
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        line.send({"gone": f"its keeper failed: {type(error).__name__}: {error}"})


class Keeper:
    """One box."""

    def __init__(self, line: Line, request: dict[str, Any], system_calls: bytes) -> None:
        self.line = line
        self.limits = request["limits"]
        self.python = request["python"]
        self.environment = request["environment"]
        self.system_calls = system_calls
        self.sockets = request["network"] == "loopback"
        namespaces.enter_users()
        own = [namespaces.MOUNTS, namespaces.SHARED_MEMORY, namespaces.HOST_NAME]
        namespaces.unshare(*own, *([namespaces.NETWORK] if self.sockets else []))
        kernel.die_with_parent()
        capabilities.drop_from_bounding_set()
        if self.sockets:
            namespaces.raise_loopback()
        self.folder = -1
        self.rules = -1
        self.trees = request["trees"]
        self.held = {place: mounts.hold(self.trees, below=place) for place in (WORKSPACE, _TEMPORARY)}
        self._mount()

    def answer(self, head: dict[str, Any], body: memoryview, descriptors: list[int]) -> None:
        """Do what one request asks for."""
        if head["do"] == "run":
            self._run(head, body, descriptors)
        elif head["do"] != "stop":  # which came when the program had ended
            self._do_with_files(head, body)

    def _mount(self) -> None:
        for target, mode in ((WORKSPACE, "0755"), (_TEMPORARY, "1777")):
            held = self.held[target]
            files = self.limits["files"] + len(mounts.mount_points(self.trees, below=target))
            mounts.mount_memory(target, mib=self.limits["disk_mib"], files=files, mode=mode)
            mounts.show_held(held, below=target)
        self.folder = os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.rules = self._rules()

    def _rules(self) -> int:
        """The Landlock rules of programs; on a kernel without Landlock, which `probe` tells, an empty file instead."""
        if landlock.abi() == 0:
            return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        return landlock.ruleset(readable=("/",), writable=_WRITABLE, sockets=self.sockets)

    def _reset(self) -> None:
        os.close(self.folder)
        os.close(self.rules)
        for target in (WORKSPACE, _TEMPORARY):
            mounts.unmount(target)
        self._mount()

    def _do_with_files(self, head: dict[str, Any], body: memoryview) -> None:
        """``write``, ``read`` or ``reset``, and what came of it."""
        if head["do"] == "read":
            self._send_files(head["paths"], head["max_bytes"])
            return
        try:
            if head["do"] == "reset":
                self._reset()
            Workspace(fd=self.folder).write(unpack_files(head["files"], body))
        except (OSError, SandboxError) as error:
            self.line.send({"error": str(error), "full": isinstance(error, BoxFull)})
        else:
            self.line.send({"done": True})

    def _send_files(self, paths: list[str], max_bytes: int) -> None:
        sizes, body = pack_files(Workspace(fd=self.folder).read(paths, max_bytes=max_bytes))
        self.line.send({"files": sizes}, body)

    def _run(self, head: dict[str, Any], stdin: memoryview, descriptors: list[int]) -> None:
        """Run a program to its end; the answer goes out when nothing of it is left."""
        try:
            running = Running(self, head, stdin, descriptors)
        except OSError as error:
            self.line.send({"lost": f"cannot start a process for a program: {error.strerror or error}"})
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        try:
            self._watch(running)
        finally:
            running.end()
        try:
            self.line.send(*running.finished())
        except ConnectionError:
            raise
        except OSError as error:
            self.line.send({"lost": str(error)})
        finally:
            running.forget()

    def _watch(self, running: Running) -> None:
        """Take in output, feed input, look at the clock and the memory, serve requests, until the program has ended."""
        poll = select.poll()
        poll.register(self.line.socket, select.POLLIN)
        running.register(poll)
        while not running.over:
            for descriptor, _ in poll.poll(running.patience_ms()):
                if descriptor != self.line.socket.fileno():
                    running.serve(descriptor, poll)
                    continue
                head, body, _ = self.line.receive()
                with contextlib.closing(body):
                    if head["do"] == "stop":
                        running.kill(None)
                    else:
                        self._do_with_files(head, body.view)
            running.look(time.monotonic())
