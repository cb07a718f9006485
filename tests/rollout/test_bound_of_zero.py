"""Generation with the real engine and the real agent loop: a bound of zero is the synchronous run."""

import asyncio

import pytest

from agentrl.engine.local import LocalEngine
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.rollout.attempt import attempt
from agentrl.rollout.buffer import Buffer
from agentrl.rollout.generation import Generation
from agentrl.rollout.group import rollout
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape, plan_group
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.tokens.tiny import TinyRenderer
from agentrl.types import Message, Observation, Score, Task
from tests.rollout.simulated import doing

RENDERER = TinyRenderer()
HARNESS = ToolLoop(RENDERER, Limits(turns=3, reply=6, context=64, call_s=5.0))


class Toy(ToolEnvironment):
    """Looks and ends."""

    @tool
    def read(self) -> str:
        """Look."""
        return "ok"

    @tool
    def submit(self) -> Observation:
        """End."""
        return Observation(content="submitted", done=True)

    async def score(self, attempted):
        return (Score(name="turns", value=float(attempted.num_turns)),)


class ToySet:
    """Four tasks."""

    id = "toy"

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Task(id=f"toy/{index}", prompt=(Message(role="user", content=f"fix test_{index + 1}"),))

    def environment(self, task):
        return Toy(task)


def make_engine():
    shape = TransformerShape(vocab_size=RENDERER.vocab_size, layers=1, width=16, heads=2, mlp_width=16, context=96)
    return LocalEngine(TinyTransformer(shape, seed=0))


def bare(groups):
    return [
        (group.id, group.task, [(one.id, one.seed, one.nodes, one.scores, one.stop) for one in traces])
        for group in groups
        for traces in [(*group.traces, *([group.greedy] if group.greedy else ()))]
    ]


@pytest.mark.parametrize("greedy", [False, True])
def test_with_a_bound_of_zero_the_groups_are_those_of_a_synchronous_run(greedy):
    """Two steps with a publication between them: every token, log-probability and version."""
    tasks, shape = ToySet(), GroupShape(attempts=3, greedy=greedy)
    engine, expected = make_engine(), []
    for step in range(2):
        engine.publish(step)
        played = rollout(
            tasks,
            [tasks[2 * step], tasks[2 * step + 1]],
            harness=HARNESS,
            sampler=engine,
            attempts=3,
            seed=1,
            name=f"rl-{step + 1}",
            greedy=greedy,
        )
        expected += asyncio.run(played)

    engine = make_engine()

    def plan(number):
        step, place = divmod(number, 2)
        return plan_group(tasks, number, shape=shape, name=f"rl-{step + 1}", place=place, seed=1)

    def play(task, identity, is_greedy):
        return attempt(tasks, task, HARNESS, engine.session(identity.seed, greedy=is_greedy), identity)

    async def run():
        found = []
        buffer = Buffer(Pacing(groups_per_step=2, max_staleness=0, steps=2), shape)
        async with Generation(buffer, plan=plan, play=play, sampler=engine, note=print, deadline_s=60.0) as generation:
            generation.begin(0)
            for step in range(2):
                found += await generation.take()
                await generation.publish(doing(engine.publish, step + 1))
                generation.begin(step + 1)
        return found

    assert bare(asyncio.run(run())) == bare(expected)
