"""Takes out of the box of an attempt what is graded, and finds out which files of tests were touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from agentrl.errors import SandboxError
from agentrl.rewards.collect import MAX_FILE_BYTES, MAX_FILES, STEERING, may_count
from agentrl.sandbox.base import Box, check_path

_MOST_NAME_BYTES = 60_000
"""Of all that is graded: bytes, and files and folders. A box of the judge holds twice that."""
_LIST = f"""
import os
left, names = {MAX_FILES}, []
for folder, folders, files in os.walk("."):
    folders.sort()
    for name in sorted(files)[:left]:
        names.append(os.fsencode(os.path.join(folder, name)[2:]))
    left = {MAX_FILES} - len(names)
data = b"\\0".join(names)[:{_MOST_NAME_BYTES}]
os.write(1, data.rpartition(b"\\0")[0] if len(data) == {_MOST_NAME_BYTES} else data)
"""


def is_guarded(path: str) -> bool:
    """Whether a file is of the tests or steers them, so that no repair needs to change it."""
    return not may_count(path) and not any(part.startswith(".") for part in path.split("/"))


def steers(path: str) -> bool:
    """Whether a file steers a test runner or the interpreter, so that no repair needs to add it."""
    return PurePosixPath(path).name in STEERING or path.endswith(".pth")


async def listed(box: Box) -> list[str]:
    """The paths of files in the workspace, as many as may count, sorted.

    There are none when no program can be run there. That may be the policy's doing, who can close the folder for all,
    and must not get it out of a zero; where the box itself was lost, the next to ask it for something is told.
    """
    try:
        done = await box.exec(["python", "-I", "-S", "-c", _LIST])
    except SandboxError:
        return []
    if not done.ok:
        return []
    paths = done.stdout.decode(errors="replace").split("\0")
    return sorted(path for path in paths if _is_plain(path))


def _is_plain(path: str) -> bool:
    try:
        return "\ufffd" not in check_path(path)
    except SandboxError:
        return False


async def sources_of(box: Box, start: Mapping[str, str], found: list[str]) -> dict[str, bytes]:
    """What is graded: the files of the start that can count, as they are now, and modules of Python that were added."""
    added = [path for path in found if path.endswith(".py")]
    wanted = [path for path in dict.fromkeys((*start, *added)) if may_count(path)]
    return dict(await box.read(wanted, max_bytes=MAX_FILE_BYTES))


async def touched_tests(box: Box, start: Mapping[str, str], found: list[str]) -> list[str]:
    """The files of tests that are not as they were at the start, and those that steer tests and were added."""
    guarded = [path for path in start if is_guarded(path)]
    now = await box.read(guarded, max_bytes=MAX_FILE_BYTES)
    changed = [path for path in guarded if now.get(path) != start[path].encode()]
    return [*changed, *(path for path in found if path not in start and steers(path))]
