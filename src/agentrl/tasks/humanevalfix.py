"""HumanEvalFix: 164 hand-made bugs in the functions of HumanEval, as a task set of the BugFix kind.

Source: Muennighoff et al., "OctoPack: Instruction Tuning Code Large Language Models" (2023), the Python part of
``bigcode/humanevalpack``. Here the agent works in a file with tools instead of writing a whole function, and sees
the docstring as well as the example tests, so results do not compare with the published ones.
"""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import TaskError
from agentrl.rewards.grading import PoolGrader
from agentrl.rewards.judge import HiddenCheck
from agentrl.sandbox.base import BoxLimits
from agentrl.sandbox.pool import Lease, Pool
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tasks.bugfix.taskset import SYSTEM_PROMPT
from agentrl.types import Message, Task

HUB_NAME = "bigcode/humanevalpack"
VERSION = "humanevalfix-v1"
SOURCE_PATH = "program.py"
TEST_PATH = "test_program.py"
_MODULE = "program"
_FIELDS = (
    "task_id",
    "prompt",
    "canonical_solution",
    "buggy_solution",
    "bug_type",
    "entry_point",
    "example_test",
    "test",
)

LIMITS = BoxLimits(cpu_s=2.0, wall_s=20.0)
"""Of one grading: some of the bugs are loops without an end, and no right solution takes a tenth of that."""
Row = Mapping[str, Any]


class HumanEvalFix:
    """The benchmark's tasks: the example tests are visible, its full tests are hidden.

    Args:
        source: path of the JSONL file, or ``bigcode/humanevalpack`` to load it from the model hub, which needs the
            package ``datasets``.
        pool: where programs run. None makes one on first use, which `close` ends.

    Raises:
        TaskError: no such file, a row without a field that is needed, or ``datasets`` is not installed.
    """

    def __init__(self, source: str | Path = HUB_NAME, *, pool: Pool | None = None) -> None:
        self.id = VERSION
        rows = _load(source)
        self._tasks = tuple(_task(row) for row in rows)
        self._private = {task.id: row for task, row in zip(self._tasks, rows, strict=True)}
        self._lease = Lease(pool)
        self._grader: PoolGrader | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def environment(self, task: Task) -> BugFixEnvironment:
        """A fresh workspace for one attempt at ``task``, which must be a task of this set."""
        pool = self._lease.get()
        self._grader = self._grader or PoolGrader(pool, limits=LIMITS)
        hidden = self.hidden(task.id)
        return BugFixEnvironment(task, runner=pool, grader=self._grader, hidden=hidden, main=SOURCE_PATH, report="full")

    def hidden(self, task_id: str) -> HiddenCheck:
        """The hidden tests of a task, for scorers only.

        Raises:
            TaskError: a task that is not of this set, or whose hidden test does not end in a call of ``check``.
        """
        source = self._row(task_id)["test"]
        return HiddenCheck.of_script(module=_MODULE, source=source, reference=self.solution(task_id)[SOURCE_PATH])

    def solution(self, task_id: str) -> Mapping[str, str]:
        """The right source file, path to text. Raises TaskError for a task that is not of this set."""
        row = self._row(task_id)
        return {SOURCE_PATH: row["prompt"] + row["canonical_solution"]}

    def close(self) -> None:
        """End the pool that this set made for itself, if it did. Safe to call twice."""
        self._lease.close()
        self._grader = None

    def _row(self, task_id: str) -> Row:
        if task_id not in self._private:
            raise TaskError(f"task {task_id!r} is not of this set; its tasks are {VERSION}/0 to {len(self) - 1}")
        return self._private[task_id]


def visible_tests(entry_point: str, example_test: str) -> str:
    """The text of the visible test file: one test per assert of the row's example test.

    Six rows have no example test and one has text that does not parse in its place; they get a single test that the
    function is there.
    """
    header = f"from {_MODULE} import {entry_point}\n"
    tests = [f"    {assertion}" for assertion in _assertions(example_test)] or [f"    assert callable({entry_point})"]
    return header + "".join(f"\n\ndef test_{number}():\n{test}\n" for number, test in enumerate(tests, start=1))


def _assertions(example_test: str) -> list[str]:
    try:
        tree = ast.parse(example_test)
    except SyntaxError:
        return []
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return [ast.get_source_segment(example_test, node) or ast.unparse(node) for node in found]


def _task(row: Row) -> Task:
    name = row["entry_point"]
    user = (
        f"The function `{name}` in `{SOURCE_PATH}` has a bug; `{TEST_PATH}` has example tests. "
        "Repair the program so that it does what it documents."
    )
    return Task(
        id=f"{VERSION}/{row['task_id'].rpartition('/')[2]}",
        prompt=(Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=user)),
        tools=BugFixEnvironment.tool_specs(),
        files={
            SOURCE_PATH: row["prompt"] + row["buggy_solution"],
            TEST_PATH: visible_tests(name, row["example_test"]),
        },
        metadata={"kind": row["bug_type"], "main_path": SOURCE_PATH, "failing_test": TEST_PATH},
        family="humanevalfix",
        split="test",
    )


def _load(source: str | Path) -> tuple[Row, ...]:
    rows = _from_hub() if str(source) == HUB_NAME else _from_file(Path(source))
    for number, row in enumerate(rows, start=1):
        missing = [name for name in _FIELDS if name not in row]
        if missing:
            raise TaskError(f"{source}: row {number} has no field {missing[0]!r}; it needs {', '.join(_FIELDS)}")
    return rows


def _from_file(path: Path) -> tuple[Row, ...]:
    if not path.is_file():
        raise TaskError(f"no file {str(path)!r}; give the path of a HumanEvalFix JSONL file, or {HUB_NAME!r}")
    try:
        return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip())
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}: not JSON, one row a line: {error}") from error


def _from_hub() -> tuple[Row, ...]:
    try:
        datasets = importlib.import_module("datasets")  # optional: only the hub needs it
    except ImportError as error:
        message = f"loading {HUB_NAME!r} needs the package `datasets`: install it, or give the path of a JSONL file"
        raise TaskError(message) from error
    return tuple(datasets.load_dataset(HUB_NAME, "python", split="test"))
