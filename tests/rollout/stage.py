"""One generation in simulated time, whose attempts a test writes."""

import asyncio

from agentrl.rollout.buffer import Buffer
from agentrl.rollout.generation import Generation
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape, plan_group
from tests.rollout.simulated import TASKS, doing, simulate, trace

STEADY = Pacing(groups_per_step=1, max_staleness=1, steps=4)


class Stage:
    """A generation of groups of two attempts, whose play a test writes."""

    version = 0

    def __init__(self, play, *, pacing=STEADY, shape=GroupShape(attempts=2), **options):  # noqa: B008
        self.play, self.shape = play, shape
        self.notes, self.started = [], []
        self.generation = Generation(
            Buffer(pacing, shape),
            plan=self.plan,
            play=self.open,
            sampler=self,
            note=self.notes.append,
            **({"deadline_s": 10.0, "grace_s": 1.0} | options),
        )

    def plan(self, number):
        return plan_group(TASKS, number % len(TASKS), shape=self.shape, name="rl", place=number, seed=0)

    def open(self, task, identity, greedy):
        """Opened at once; what `play` gives is played."""
        self.started.append(identity.trace_id)
        return self.play(self, task, identity, self.started.count(identity.trace_id) - 1)

    def run(self, steps=1, learn_s=1.0):
        """The groups of so many steps, and the time when each was taken."""

        async def run():
            taken = []
            async with self.generation:
                self.generation.begin(0)
                for step in range(steps):
                    taken.append((await self.generation.take(), asyncio.get_running_loop().time()))
                    await asyncio.sleep(learn_s)
                    await self.generation.publish(doing(setattr, self, "version", step + 1))
                    self.generation.begin(step + 1)
            return taken

        return simulate(run())


def well(seconds, **options):
    async def play(stage, task, identity, trial):
        await asyncio.sleep(seconds)
        return trace(task, identity, [stage.version], **options)

    return play


def errors(taken):
    return [one.error for groups, _ in taken for group in groups for one in group.traces]
