"""The backend `landlock`: no namespaces, for where they are refused. Weaker than those that have them.

Landlock keeps programs from files, sockets and processes that are not theirs, a filter from dangerous system calls,
and as root each box has a user of its own that owns nothing. What is left open without root: programs can see that
files exist, can take rights from files of their own user (and give the right to read to others), and set their times.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from agentrl.sandbox.base import Box, Level, Spec, Support
from agentrl.sandbox.interior import SETTINGS, SYSTEM, User, filter_for, own_package, trial, variables, with_python
from agentrl.sandbox.keeper import Folders, Outfit
from agentrl.sandbox.keeper_main import Plan
from agentrl.sandbox.kept_box import KeptBackend
from agentrl.sandbox.orders import Walls
from agentrl.sandbox.walls import landlock, mounts
from agentrl.sandbox.zygote_root import python_trees

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SIGNALS_SINCE = 6


class LandlockBackend(KeptBackend):
    """Boxes whose programs are kept inside by Landlock, a system call filter and, as root, a user of their own."""

    name = "landlock"

    def probe(self) -> Support:
        """Whether a program runs inside, found out by running one."""
        version = landlock.abi()
        reason = trial(self) if version else "this kernel has no Landlock; Linux 5.13 or later with lsm=landlock has it"
        if reason:
            return Support(backend=self.name, level=Level.NONE, works=False, missing=(reason,))
        features = [f"Landlock ABI {version}", "seccomp", "memory watchdog"]
        features += ["a user of its own for each box"] if os.geteuid() == 0 else []
        missing = tuple(_missing(version))
        return Support(backend=self.name, level=Level.LANDLOCK, works=True, features=tuple(features), missing=missing)

    async def start(self, spec: Spec) -> Box:
        """A box with these files.

        Raises:
            SandboxError: it cannot be had, with the reason and the remedy.
        """
        filter_ = filter_for(spec, among_own_files=os.geteuid() != 0)
        return await self._start(spec, _outfit(spec, filter_, User.for_root()))


def _missing(version: int) -> list[str]:
    missing = ["namespaces: programs can find out which files and processes the machine has"]
    if os.geteuid() != 0:
        lost = "programs can make your files unreadable, or readable to other users, and set their times"
        missing.append(f"a user of its own: {lost}; run as root to have one")
        missing += [f"a cover for {path}: programs can read how tasks are made" for path in own_package()]
        missing.append("a bounded disk: files are added up now and then; run as root to have one")
    if version < _SIGNALS_SINCE:
        missing.append("walls for signals; Linux 6.12 or later has them")
    return missing


def _outfit(spec: Spec, filter_: str, user: User | None) -> Outfit:
    identity = (user.number, user.number) if user else None
    sockets = spec.network == "loopback"

    def plan(home: str) -> Plan:
        return Plan(
            home=home,
            user=identity,
            mounts="privileged",
            network="own with loopback" if sockets else "own if privileged",
            visible=tuple(python_trees()),
            hidden=own_package(),
            disk_mib=spec.limits.disk_mib,
            files=spec.limits.files + len(mounts.mount_points(python_trees(), below="/dev/shm")),
        )

    def walls(folders: Folders) -> Walls:
        readable = (*SYSTEM, *SETTINGS, *python_trees(), *_DEVICES)
        return Walls(
            user=identity, readable=readable, writable=(*folders[:2], "/dev/null"), sockets=sockets, filter=filter_
        )

    def command(
        folders: Folders,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        cwd: str,  # noqa: ARG001
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        return with_python(argv), variables(temporary=folders[1], more=env)

    return Outfit(
        level=Level.LANDLOCK, plan=plan, walls=walls, command=command, release=user.release if user else lambda: None
    )
