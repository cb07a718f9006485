"""Where the time of an asynchronous step goes."""

from __future__ import annotations

import asyncio

from agentrl.loops.context import RunContext
from agentrl.loops.sampling import prefilled_since
from agentrl.rollout.generation import Generation


class StepClock:
    """One step of the trainer, beside which sampler and tools work: what they take overlaps with what it takes."""

    def __init__(self, run: RunContext, generation: Generation) -> None:
        self.run, self.generation = run, generation
        self.stats = run.engine.stats
        self.sampling, self.prefilled = self.stats.seconds, self.stats.prefilled
        self.waited = generation.seconds_waiting
        self.began = self.took = self.now()
        self.busy = self.overlap = 0.0

    def now(self) -> float:
        """Seconds on the event loop's clock."""
        return asyncio.get_running_loop().time()

    def taken(self) -> None:
        """The trainer has its groups."""
        self.took, self.busy = self.now(), self.generation.seconds_busy

    def learnt(self) -> None:
        """The trainer has learnt from them."""
        self.overlap = self.generation.seconds_busy - self.busy

    def row(self) -> dict[str, float | None]:
        """As metrics, at the end of the step."""
        ended = self.now()
        return {
            "tokens_prefilled": prefilled_since(self.stats, self.prefilled),
            "seconds_step": ended - self.began,
            "seconds_sampling": self.stats.seconds - self.sampling,
            "seconds_training": ended - self.took,
            "seconds_waiting": self.generation.seconds_waiting - self.waited,
            "seconds_overlap": self.overlap,
            "overlap": self.overlap / (ended - self.began),
            "resident_mib": self.run.resident_mib(),
        }
