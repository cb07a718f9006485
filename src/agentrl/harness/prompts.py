"""System prompts: one for all tasks, or one for each task set by its name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.types import Message, Task

_VERSION = re.compile(r"-v\d+$")


def set_of(task: Task) -> str:
    """The name of a task's set, which its id begins with: ``math`` of ``math-v1/sums-1a2b3c4d/0``."""
    return _VERSION.sub("", task.id.partition("/")[0])


@dataclass(frozen=True, kw_only=True)
class SystemPrompts:
    """What takes the place of a task's own system message, or stands before a task without one.

    The prompt of a task is looked up by the set that its id names, so training, evaluation and demonstrations cannot
    come to different ones.

    Attributes:
        every: for the sets that are not named; empty leaves tasks as they are.
        by_set: for one set each, by its name; empty text leaves the tasks of that set as they are.
    """

    every: str = ""
    by_set: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Equal texts, equal prompts; empty where every task is left as it is."""
        if self.by_set:
            return f"/systems-{_digest(json.dumps([self.every, dict(self.by_set)], sort_keys=True))}"
        return f"/system-{_digest(self.every)}" if self.every else ""

    def opening(self, task: Task) -> Sequence[Message]:
        """The opening messages of a task."""
        prompt = self.by_set.get(set_of(task), self.every)
        if not prompt:
            return task.prompt
        own = task.prompt[1:] if task.prompt[:1] and task.prompt[0].role == "system" else task.prompt
        return (Message(role="system", content=prompt), *own)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
