"""What a kept box shows of this machine, who its programs are, and how a backend is tried out."""

from __future__ import annotations

import asyncio
import base64
import os
import pwd
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Backend, BoxLimits, Spec
from agentrl.sandbox.walls import seccomp
from agentrl.sandbox.zygote_root import environment, python_trees

SYSTEM = tuple(
    path for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32") if os.path.exists(path)
)
SETTINGS = tuple(path for path in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime") if os.path.exists(path))
"""What programs look for in /etc and what says nothing about anybody."""

_FIRST_USER, _USERS = 2_010_000_000, 4096
_SAID = b"it runs\n"


class User:
    """For root: a user that owns nothing and that no other box has, until `release`.

    Raises:
        SandboxError: all are taken, or a user namespace holds none.
    """

    def __init__(self) -> None:
        first = _first_user()
        for number in range(first, first + _USERS):
            self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._lock.bind(f"\0agentrl-user-{number}")  # gone with this process, whatever ends it
            except OSError:
                self._lock.close()
                continue
            if not _has_name(number):
                self.number = number
                return
            self._lock.close()
        raise SandboxError(f"no unused user from {first} to {first + _USERS - 1} for a box; close some boxes")

    @classmethod
    def for_root(cls) -> User | None:
        """A user, when we are root and can become it; None for whoever is nobody special anyway."""
        return cls() if os.geteuid() == 0 else None

    def release(self) -> None:
        """Let another box have it."""
        self._lock.close()


def _first_user() -> int:
    """The first of a range that this machine, or the container that we are in, can have."""
    extents = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, count = max(extents, key=lambda extent: extent[2])
    if count < 2 * _USERS:
        raise SandboxError(f"only {count} users exist in this container, too few to give each box its own")
    return _FIRST_USER if first + count > _FIRST_USER + _USERS else first + count - 2 * _USERS


def _has_name(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        return False
    return True


def own_package() -> tuple[str, ...]:
    """Our own folder, where it lies in what is shown: it holds how tasks and their hidden tests are made."""
    ours = str(Path(__file__).resolve().parents[1])
    shown = (*python_trees(), *map(os.path.realpath, SYSTEM))
    return (ours,) if any(ours.startswith(f"{folder}/") for folder in shown) else ()


def variables(*, temporary: str, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program whose home and folder for temporary files is ``temporary``."""
    return environment() | {"HOME": temporary, "TMPDIR": temporary} | dict(more)


def with_python(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The same with the interpreter that runs us for ``python``."""
    return (sys.executable, *argv[1:]) if argv[0] == "python" else argv


def filter_for(spec: Spec, *, among_own_files: bool = False) -> str:
    """The system call filter of a box, in base64; see `seccomp.program`.

    Raises:
        SandboxError: there is none for this processor.
    """
    try:
        return base64.b64encode(
            seccomp.program(sockets=spec.network == "loopback", among_own_files=among_own_files)
        ).decode()
    except OSError as error:
        raise SandboxError(f"no system call filter: {error.strerror}") from error


def trial(backend: Backend) -> str:
    """Start a box and run Python in it; why that does not work, or nothing.

    It may be called in a running event loop, which waits for it.
    """
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.append(asyncio.run(_try(backend))))
    thread.start()
    thread.join()
    return reasons[0] if reasons else "the trial ended without a word"


async def _try(backend: Backend) -> str:
    try:
        box = await backend.start(Spec(files={"trial.py": b"print('it runs')"}, limits=BoxLimits(wall_s=20.0)))
    except (SandboxError, OSError) as error:
        return str(error)
    try:
        finished = await box.exec(["python", "-I", "-S", "trial.py"])
    except SandboxError as error:
        return str(error)
    finally:
        await box.close()
    if finished.ok and finished.stdout == _SAID:
        return ""
    return f"Python ended with {finished.status or finished.signal}: {finished.stderr.decode(errors='replace').strip()}"
