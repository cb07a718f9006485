"""Environments with a shell for the tests: one loop, backend and judge for each name, a fresh box for each test."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from agentrl.rewards.grading import PoolGrader
from agentrl.rewards.judge import HiddenSuite
from agentrl.sandbox import Pool
from agentrl.sandbox.pooled import PooledBackend
from agentrl.tasks.shell import ShellEnvironment, ShellLimits
from agentrl.types import Observation, Task, ToolCall
from tests.sandbox.backends import backends, open_backend

EVERY_BACKEND = pytest.mark.parametrize("world", [name for name, _ in backends()], indirect=True)
"""Give a test, or a module of tests, the world of each backend."""
ONE_BACKEND = pytest.mark.parametrize("world", ["zygote"], indirect=True)
"""For what does not hang on the walls."""


def needs_walls(world):
    """Skip where an attack would be one on this machine."""
    if world.name == "subprocess":
        pytest.skip("the backend subprocess has no walls")


FILES = {"program.py": "def double(n):\n    return n + n\n", "test_program.py": "from program import double\n"}
HIDDEN = HiddenSuite(
    files={"test_hidden.py": "from program import double\n\n\ndef test_it():\n    assert double(4) == 8\n"},
    modules=("program",),
)


class World:
    """A pool and a judge that tests share, and a loop that goes on from one test to the next."""

    def __init__(self, name):
        self.name = name
        self.pool = Pool(open_backend(name))
        self.backend = PooledBackend(self.pool)
        self.judge = PoolGrader(self.pool)
        self.runner = asyncio.Runner()

    def play(self, scenario, files=FILES, *, hidden=HIDDEN, **limits):
        """What a coroutine function makes of an attempt, whose environment and tools it is given."""

        async def go():
            async with self.attempt(files, hidden=hidden, **limits) as tools:
                return await scenario(tools)

        return self.runner.run(go())

    @contextlib.asynccontextmanager
    async def attempt(self, files=FILES, *, hidden=HIDDEN, call_s=10.0, output_chars=10_000, on_hack="nothing", **box):
        given = ShellLimits(call_s=call_s, output_chars=output_chars)
        given = replace(given, box=replace(given.box, **box))
        task = Task(id="shell-test/7", prompt=(), files=files)
        environment = ShellEnvironment(
            task, self.backend, grader=self.judge, hidden=hidden, limits=given, on_hack=on_hack
        )
        try:
            yield Tools(environment)
        finally:
            await environment.close()

    def close(self):
        self.pool.close()
        self.runner.close()


class Tools:
    """Calls the tools of an environment as the harness does."""

    def __init__(self, environment):
        self.environment = environment

    async def shell(self, command, timeout=None):
        more = {} if timeout is None else {"timeout": timeout}
        return (await self.observe("shell", command=command, **more)).content

    async def edit(self, path, old, new):
        return (await self.observe("edit", path=path, old=old, new=new)).content

    async def observe(self, name, **arguments) -> Observation:
        return await self.environment.call(ToolCall(name=name, arguments=arguments))

    async def scores(self):
        return {score.name: score.value for score in await self.environment.score(None)}
