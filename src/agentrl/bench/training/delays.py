"""Tools that take their time: delays from a heavy tail, the same for whoever plays the same attempt."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Self

from agentrl.engine.random import derive_seed
from agentrl.harness.loop import ToolLoop, Transcript
from agentrl.protocols import Environment, Session
from agentrl.types import Observation, Score, Task, ToolCall, ToolSpec, Trace

MEDIAN_S, LATE_S = 0.05, 1.0
"""Half of the calls, and 95 of 100, are answered within these times."""
LONGEST_S = 10.0
"""Where the tail is cut, well below the deadline of a call."""
_Z95 = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""
SIGMA = math.log(LATE_S / MEDIAN_S) / _Z95


def delay_s(seed: int, call: int) -> float:
    """Seconds that a call takes beyond its work: lognormal.

    Args:
        seed: of the attempt, which is drawn from that of the run, the step, the task and the attempt.
        call: its number in the attempt, from 0.
    """
    draw = random.Random(derive_seed(seed, "delay", call)).gauss(math.log(MEDIAN_S), SIGMA)
    return min(LONGEST_S, math.exp(draw))


class SlowTools:
    """An environment whose tools answer late."""

    def __init__(self, inner: Environment, seed: int) -> None:
        self._inner, self._seed, self._calls = inner, seed, 0

    def tools(self) -> Sequence[ToolSpec]:
        """Those of the environment."""
        return self._inner.tools()

    async def call(self, call: ToolCall) -> Observation:
        """Wait, and carry out a call."""
        number, self._calls = self._calls, self._calls + 1
        await asyncio.sleep(delay_s(self._seed, number))
        return await self._inner.call(call)

    def state(self) -> str | None:
        """That of the environment."""
        return self._inner.state()

    async def score(self, trace: Trace) -> Sequence[Score]:
        """By the environment."""
        return await self._inner.score(trace)

    async def close(self) -> None:
        """The environment."""
        await self._inner.close()


class SlowLoop(ToolLoop):
    """The agent loop over slow tools. Evaluation has quick ones: what is measured there is the policy."""

    @classmethod
    def of(cls, loop: ToolLoop) -> Self:
        """The same agent as another loop."""
        return cls(
            loop.renderer,
            loop.limits,
            loop.malformed,
            compaction=loop.compaction,
            system_prompt=loop.prompts.every,
            system_prompts=loop.prompts.by_set,
        )

    async def run(self, task: Task, environment: Environment, session: Session, transcript: Transcript) -> None:
        """Play one attempt; see `ToolLoop.run`."""
        seed = getattr(session, "seed", None)
        assert isinstance(seed, int), "a session of the engine in this process has a seed"
        world = environment if self.measures else SlowTools(environment, seed)
        await super().run(task, world, session, transcript)
