"""What the tests of the zygote backend share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.sandbox import zygote_root
from agentrl.sandbox.base import Spec
from agentrl.sandbox.zygote import ZygoteBackend
from agentrl.sandbox.zygote_link import ZygoteBox

PYTHON = ("python", "-I", "-S", "-c")


def with_backend(body: Callable[[ZygoteBackend], Awaitable[None]], **options: int) -> None:
    async def main() -> None:
        backend = ZygoteBackend(**options)
        try:
            await asyncio.wait_for(body(backend), 120)
        finally:
            await backend.close()

    asyncio.run(main())


def with_box(body: Callable[[ZygoteBox], Awaitable[None]], spec: Spec | None = None) -> None:
    async def main(backend: ZygoteBackend) -> None:
        await body(await backend.start(spec or Spec()))

    with_backend(main)


async def python(box: ZygoteBox, source: str) -> bytes:
    done = await box.exec([*PYTHON, source])
    assert done.ok, done
    return done.stdout.strip()


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zygote_of(backend: ZygoteBackend) -> int:
    (starter,) = backend.process_ids
    (zygote,) = children_of(starter)
    return zygote


def eventually(holds: Callable[[], bool], within_s: float = 30.0) -> bool:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


class Census:
    """What this process and the machine hold that boxes could leave behind."""

    def __init__(self) -> None:
        self.children = set(children_of(os.getpid()))
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.mounts = len(Path("/proc/self/mounts").read_text().splitlines())
        places = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))
        self.files = {path for place in places for path in place.iterdir() if owner(path) == zygote_root.unused_user()}

    def within(self, other: Census) -> bool:
        """Whether there is nothing that was not there before."""
        fewer = self.children <= other.children and self.files <= other.files
        return fewer and self.descriptors <= other.descriptors and self.mounts <= other.mounts
