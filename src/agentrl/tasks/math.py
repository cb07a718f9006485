"""Questions in mathematics from a file, answered in one reply; equality of answers by math-verify.

A row has a question (``question`` or ``problem``) and an answer (``answer`` or ``solution``): the answer itself, or a
text that marks it as GSM8K (``#### 42``) or MATH (``\\boxed{42}``) do.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.errors import TaskError
from agentrl.rewards.match import RULES, Rule, extract
from agentrl.rewards.verifier import Verifier
from agentrl.tasks.answering import AnswerEnvironment
from agentrl.types import Message, Task

VERSION = "math-v1"
SYSTEM_PROMPT = (
    "Solve the problem. Think as long as you need, and then give the final answer, and nothing else, in \\boxed{}."
)
QUESTIONS, ANSWERS = ("question", "problem"), ("answer", "solution")

Row = Mapping[str, Any]


class MathTasks:
    """The rows of one file as tasks.

    Ids are ``math-v1/STEM-DIGEST/ROW``, with a digest of the file, so that rows of two files are never mixed up.

    Args:
        source: a file of JSON lines (.jsonl) or Parquet (.parquet, which needs the package ``pyarrow``).
        num_tasks: the first so many rows; None for all.
        rule: how a reply marks its answer; see `rewards.match.extract`.
        verifier: compares answers. None makes one, which `close` ends.

    Raises:
        TaskError: no such file, or fewer rows; a row without a question or an answer; an unknown rule.
    """

    def __init__(
        self,
        source: str | Path,
        num_tasks: int | None = None,
        *,
        rule: Rule = "any",
        verifier: Verifier | None = None,
    ) -> None:
        if rule not in RULES:
            raise TaskError(f"unknown rule {rule!r}; write {', '.join(RULES)}")
        path = Path(source)
        rows = _rows(path)
        if num_tasks is not None and not 1 <= num_tasks <= len(rows):
            raise TaskError(f"num_tasks is {num_tasks}; {path} has {len(rows)} rows")
        self.id = f"{VERSION}/{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
        self._rule: Rule = rule
        parsed = [_parsed(path, number, row) for number, row in enumerate(rows[:num_tasks])]
        self._tasks = tuple(self._task(number, question) for number, (question, _) in enumerate(parsed))
        self._gold = {task.id: gold for task, (_, gold) in zip(self._tasks, parsed, strict=True)}
        self._own = verifier is None
        self._verifier = verifier or Verifier()

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def environment(self, task: Task) -> AnswerEnvironment:
        """A fresh environment for one attempt at ``task``. Raises TaskError for a task that is not of this set."""
        if task.id not in self._gold:
            raise TaskError(f"task {task.id!r} is not of this set; its tasks are {self[0].id} to {self[-1].id}")
        verify = partial(self._verify, task.id)
        return AnswerEnvironment(task, verify=verify, rule=self._rule, threshold=1.0, control=self._gold[task.id])

    def right_reply(self, task_id: str) -> str:
        """A reply that gives the file's own answer, marked as the rule asks for."""
        gold = self._gold[task_id]
        marked = {"tag": f"<answer>{gold}</answer>", "hash": f"#### {gold}"}
        return marked.get(self._rule, f"\\boxed{{{gold}}}")

    def unreadable(self) -> list[str]:
        """Ids of the tasks whose right answer cannot be read as mathematics; attempts at them stay unscored."""
        return [task.id for task in self._tasks if not self._verifiable(self._gold[task.id])]

    def close(self) -> None:
        """End the processes that this set made for itself. Safe to call twice."""
        if self._own:
            self._verifier.close()

    def _verifiable(self, gold: str) -> bool:
        return bool(self._verifier.ask_now("readable", {"text": gold})["readable"])

    async def _verify(self, task_id: str, answer: str) -> dict[str, Any]:
        return await self._verifier.ask("math", {"gold": self._gold[task_id], "answer": answer})

    def _task(self, number: int, question: str) -> Task:
        prompt = (Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=question))
        return Task(id=f"{self.id}/{number}", prompt=prompt, family="math", split="test")


def _parsed(path: Path, number: int, row: Row) -> tuple[str, str]:
    """The question and the right answer of a row."""
    question, answer = (_field(path, number, row, names) for names in (QUESTIONS, ANSWERS))
    return question, extract(answer) or answer.strip()


def _field(path: Path, number: int, row: Row, names: Sequence[str]) -> str:
    found = next((row[name] for name in names if row.get(name) not in (None, "")), None)
    if found is None or isinstance(found, dict | list | bool):
        raise TaskError(f"{path}: row {number + 1} has no {' or '.join(names)} that is text or a number")
    return str(found)


def _rows(path: Path) -> list[Row]:
    if not path.is_file():
        raise TaskError(f"no file {str(path)!r}; give the path of a file of questions and answers, .jsonl or .parquet")
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except ValueError as error:
        raise TaskError(f"{path}: not JSON, one row a line: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise TaskError(f"{path}: write one JSON object a line, with a question and an answer")
    return rows


def _parquet(path: Path) -> list[Row]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # optional: only this kind of file needs it
    except ImportError as error:
        raise TaskError(f"{path}: Parquet needs the package pyarrow; install it, or write JSON lines") from error
    try:
        return list(parquet.read_table(path).to_pylist())
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: no Parquet file that can be read ({error})") from error
