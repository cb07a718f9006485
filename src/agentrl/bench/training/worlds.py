"""The tasks that both trainers get: one reply to a text of digits, and repairs with four tools in a sandbox."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.protocols import Renderer
from agentrl.sandbox.pool import Pool
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tasks.environment import ToolEnvironment
from agentrl.types import Message, Observation, Score, Task, ToolCall, ToolSpec, Trace


def share_of_even(ids: Sequence[int]) -> float:
    """The reward of a single turn: the share of even ids among those that were sampled."""
    return sum(index % 2 == 0 for index in ids) / max(1, len(ids))


class _Answer(ToolEnvironment):
    """No tools; the reply is the attempt."""

    async def score(self, trace: Trace) -> Sequence[Score]:
        """The share of even ids."""
        ids = [index for node in trace.nodes for index in node.sampled_ids]
        return (Score(name="even", value=share_of_even(ids)),)


class Digits:
    """Prompts of random digits, each of exactly so many tokens as it is rendered.

    Args:
        count: of tasks.
        length: of a prompt in tokens, with the marks around it.
        renderer: writes them.
    """

    id = "digits-v1"

    def __init__(self, count: int, length: int, renderer: Renderer) -> None:
        around = num_tokens(renderer, (Message(role="user", content=""),), ())
        draw = random.Random(0)
        texts = ["".join(draw.choices("0123456789", k=length - around)) for _ in range(count)]
        self._tasks = [
            Task(id=f"{self.id}/{index}", prompt=(Message(role="user", content=text),))
            for index, text in enumerate(texts)
        ]

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def environment(self, task: Task) -> ToolEnvironment:
        """An attempt's world."""
        return _Answer(task)


def num_tokens(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    """Of a prompt, with what opens the reply."""
    return sum(map(len, renderer.render(messages, tools))) + len(renderer.generation_prompt())


class Repairs:
    """Repairs of the level ``small``, rewarded by a draw, so that every group has a signal whatever the policy does.

    The hidden tests are run all the same.

    Args:
        count: of tasks.
        pool: where programs run.
        schemas: how the tools are told to the model; the environment's own when empty.
    """

    id = "repairs-v1"

    def __init__(self, count: int, pool: Pool, schemas: Sequence[Mapping[str, Any]] = ()) -> None:
        self._tasks = BugFix("small", num_tasks=count, pool=pool, reward="random", report="short")
        self.specs = tuple(ToolSpec(**schema["function"]) for schema in schemas)

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def environment(self, task: Task) -> _Told:
        """An attempt's world."""
        return _Told(self._tasks.environment(task), self.specs)


class _Told:
    """An environment whose tools are told in given words."""

    def __init__(self, inner: ToolEnvironment, specs: Sequence[ToolSpec]) -> None:
        self._inner, self._specs = inner, specs

    def tools(self) -> Sequence[ToolSpec]:
        return self._specs or self._inner.tools()

    async def call(self, call: ToolCall) -> Observation:
        return await self._inner.call(call)

    def state(self) -> str | None:
        return None

    async def score(self, trace: Trace) -> Sequence[Score]:
        return await self._inner.score(trace)

    async def close(self) -> None:
        await self._inner.close()
