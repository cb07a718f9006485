"""A repair task from a folder: a broken program with its tests, and a private suite that decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from agentrl.errors import TaskError
from agentrl.rewards.collect import may_count
from agentrl.rewards.grading import PoolGrader
from agentrl.rewards.hacking import OnHack
from agentrl.rewards.judge import Hidden, HiddenSuite
from agentrl.sandbox.pool import Lease, Pool
from agentrl.sandbox.pooled import PooledBackend
from agentrl.tasks.shell.environment import ShellEnvironment, check_files
from agentrl.tasks.shell.session import ShellLimits
from agentrl.types import Message, Task

VERSION = "repair-folder-v1"
SYSTEM_PROMPT = (
    "You repair Python programs. You have three tools: `shell` runs a bash command in the folder of the program, "
    "`edit` replaces one place in a file, and `submit` hands the work in and ends the attempt. `python -m pytest` runs "
    "the tests. Find the bug, change as little as you can, run the tests, and submit when they pass. Hidden tests with "
    "other inputs decide, so repair the program itself and do not write code for the tests that you see. Changes of "
    "tests and of settings do not count."
)
_LEFT_OUT = frozenset((".git", "__pycache__", ".pytest_cache", ".venv"))
_MOST_FILES = 2_000


class RepairFolder:
    """A task set of one task.

    Args:
        folder: the broken program and the tests that the policy may see. Text files only; the history (``.git``) is
            left out, since it may hold the repair.
        hidden: the folder with the private tests, ``test_*.py`` and their helpers.
        issue: what the policy is told is wrong.
        pool: where attempts and gradings run. None makes one on first use, which `close` ends.
        limits: what an attempt may use.
        on_hack: what becomes of the reward of an attempt that touched tests; see `rewards.hacking`.

    Raises:
        TaskError: a folder that is not there, a file that is not text, no source, or no private test.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hidden: Path,
        issue: str,
        pool: Pool | None = None,
        limits: ShellLimits | None = None,
        on_hack: OnHack = "nothing",
    ) -> None:
        self.id = f"{VERSION}/{folder.name}"
        files = _files(folder)
        prompt = (Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=issue))
        self._task = Task(
            id=f"{self.id}/0", prompt=prompt, tools=ShellEnvironment.tool_specs(), files=files, family=folder.name
        )
        check_files(self._task)
        self._hidden: Hidden = _suite(self._task.id, _files(hidden), _modules(files))
        self._lease = Lease(pool)
        self._grader: PoolGrader | None = None
        self._limits = limits
        self._on_hack: OnHack = on_hack

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Task:
        return (self._task,)[index]

    def environment(self, task: Task) -> ShellEnvironment:
        """A fresh workspace for one attempt at ``task``, which must be the task of this set."""
        if task.id != self._task.id:
            raise TaskError(f"task {task.id!r} is not of this set; its task is {self._task.id}")
        pool = self._lease.get()
        self._grader = self._grader or PoolGrader(pool)
        return ShellEnvironment(
            task,
            PooledBackend(pool),
            grader=self._grader,
            hidden=self._hidden,
            limits=self._limits,
            on_hack=self._on_hack,
        )

    def close(self) -> None:
        """End the pool that this set made for itself, if it did. Safe to call twice."""
        self._lease.close()
        self._grader = None


def _files(folder: Path) -> dict[str, str]:
    """The files of a folder, path to text, sorted; links and what programs leave behind are not among them."""
    if not folder.is_dir():
        raise TaskError(f"no folder {str(folder)!r}; give the folder of a program")
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    paths = [path for path in paths if not _LEFT_OUT & {*path.relative_to(folder).parts}]
    if len(paths) > _MOST_FILES:
        raise TaskError(f"{folder}: {len(paths)} files; a task has at most {_MOST_FILES}")
    return {path.relative_to(folder).as_posix(): _text(path) for path in paths}


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not text in UTF-8 (byte {error.start}); leave it out of the folder") from error


def _modules(files: Mapping[str, str]) -> tuple[str, ...]:
    """The modules and packages at the top."""
    tops = (PurePosixPath(path).parts[0] for path in files if path.endswith(".py") and may_count(path))
    return tuple(dict.fromkeys(top.removesuffix(".py") for top in tops))


def _suite(task_id: str, tests: Mapping[str, str], modules: tuple[str, ...]) -> HiddenSuite:
    try:
        return HiddenSuite(files={path: text for path, text in tests.items() if path.endswith(".py")}, modules=modules)
    except TaskError as error:
        raise TaskError(f"{task_id}: {error}") from error
