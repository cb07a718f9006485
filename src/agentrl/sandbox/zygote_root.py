"""What a zygote box shows of this machine, and who its programs are: the plan that the fork server follows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache")
_FOLDERS = ("/workspace", "/tmp", "/dev/shm", "/proc")
_FILES = {
    "/etc/passwd": "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_NOT_SHOWN = {"/tmp", "/var/tmp", "/workspace", "/dev", "/dev/shm", "/proc", "/sys", "/etc", "/var", "/home", "/root"}
_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
_FIRST_UNUSED_USER = 2_000_000_000


def plan() -> dict[str, Any]:
    """Paths to show read-only, folders to cover, files to make, and the user to become (None: stay who we are)."""
    shown = [*_SYSTEM, *python_trees()]
    package = str(Path(__file__).resolve().parents[1])
    return {"shown": shown, "hidden": [package], "files": _FILES, "folders": _FOLDERS, "user": unused_user()}


def python_trees() -> list[str]:
    """The folders of the interpreter that runs us, outside of what is shown anyway: its installation, its packages.

    Raises:
        SandboxError: one is a folder that holds more than an interpreter and has to stay out of sight.
    """
    executable = Path(sys.executable)
    candidates = [sys.base_prefix, sys.prefix, str(executable.parent), str(executable.resolve().parent)]
    trees: list[str] = []
    for tree in sorted(
        {form for path in candidates for form in (os.path.abspath(path), os.path.realpath(path))}, key=len
    ):
        if tree != "/" and not any(tree == above or tree.startswith(f"{above}/") for above in (*_SYSTEM, *trees)):
            trees.append(tree)
    for tree in trees:
        if tree in _NOT_SHOWN or tree == os.path.expanduser("~"):
            raise SandboxError(
                f"the interpreter {sys.executable} lies in {tree} itself, which programs may not see;"
                f" take one in a folder of its own: python -m venv {tree}/venv"
            )
    return trees


def environment() -> dict[str, str]:
    """The variables of every program in a box: nothing of ours, one thread for the pools of numeric libraries."""
    folders = (os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin")
    return {
        "PATH": ":".join(dict.fromkeys(folders)),
        "HOME": "/tmp",
        "USER": "user",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{f"{library}_NUM_THREADS": "1" for library in _THREADS},
    }


def unused_user() -> int | None:
    """For root: a user that owns nothing, another one in every process of ours. None for who is not root.

    A root whose user namespace holds few users (in a container) takes one of the last of these; one that is the only
    user there is as good as not root.
    """
    if os.geteuid() != 0:
        return None
    extents = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, count = max(extents, key=lambda extent: extent[2])
    if first + count > _FIRST_UNUSED_USER + (1 << 22):
        return _FIRST_UNUSED_USER + os.getpid()
    return first + count - 2 - os.getpid() % min(count // 2, 1000) if count > 2 else None
