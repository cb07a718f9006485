"""A backend without walls, in a plain folder: for the judge's own logic, not for anyone's safety."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from agentrl.sandbox.base import Finished, Level, Spec, Support


class PlainChannel:
    """Descriptor 3 of a child process."""

    def __init__(self, process, end):
        self.process, self.end, self.loop = process, end, asyncio.get_running_loop()

    async def send(self, data):
        try:
            await self.loop.sock_sendall(self.end, data)
        except OSError as error:
            raise EOFError from error

    async def receive(self, count):
        found = b""
        while len(found) < count:
            try:
                part = await self.loop.sock_recv(self.end, count - len(found))
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            found += part
        return found

    def fileno(self):
        return self.end.fileno()

    async def close(self):
        if self.process.returncode is None:
            self.process.kill()
        self.end.close()
        return Finished(status=await self.process.wait())


class PlainBox:
    """A folder."""

    level = Level.NONE

    def __init__(self, spec):
        self.folder = Path(tempfile.mkdtemp())
        self.spec = spec
        self.put(spec.files)

    def put(self, files):
        for path, content in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(content)

    async def write(self, files):
        self.put(files)

    async def reset(self):
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.put(self.spec.files)

    async def channel(self, argv, *, wall_s=None):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                "/bin/bash",
                "-c",
                f'exec "$0" "$@" 3<&{theirs.fileno()}',
                sys.executable,
                *argv[1:],
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"PYTHONHASHSEED": "0"},
            )
        return PlainChannel(process, ours)

    async def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class PlainBackend:
    """Starts folders."""

    name = "plain"

    def probe(self):
        return Support(backend=self.name, level=Level.NONE, works=True)

    async def start(self, spec: Spec):
        return PlainBox(spec)

    async def close(self):
        pass
