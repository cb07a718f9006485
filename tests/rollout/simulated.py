"""An event loop whose time is simulated, a player of attempts with chosen latencies, and a run on both."""

import asyncio
import random
import selectors
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from agentrl.rollout.buffer import Buffer
from agentrl.rollout.generation import Generation
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape, plan_group
from agentrl.types import Fault, Message, Node, Score, Stop, Task, Trace


class Deadlock(Exception):
    """Nothing is ready, no timer is set, and somebody waits."""


class _Jumping(selectors.SelectSelector):
    """Waits for a timer by setting the clock to it."""

    now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise Deadlock
        self.now += timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Time passes only when everybody waits for it, and then at once."""

    def __init__(self):
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self):
        return self.jumping.now


def simulate(coroutine):
    """The result of a coroutine in simulated time.

    Raises:
        Deadlock: it waits for something that never comes.
    """
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(coroutine)


def doing(act, *values):
    """A publication that does this at once."""

    async def publish():
        act(*values)

    return publish


class Tasks:
    """A task set of two families."""

    id = "tasks"

    def __init__(self, size=7):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        family = "odd" if index % 2 else "even"
        return Task(id=f"t/{index}", prompt=(Message(role="user", content=str(index)),), family=family)


def trace(task, identity, versions, *, reward=1.0, error=None):
    """An attempt that sampled one token of each of these versions."""
    node = Node(
        parent=None,
        message=Message(role="assistant"),
        sampled_ids=(1,) * len(versions),
        logprobs=(-0.5,) * len(versions),
        versions=tuple(versions),
    )
    return Trace(
        id=identity.trace_id,
        task_id=task.id,
        group_id=identity.group_id,
        attempt=identity.attempt,
        seed=identity.seed,
        nodes=(node,),
        stop=Stop.ERROR if error else Stop.DONE,
        scores=(Score(name="s", value=reward),),
        error=error,
    )


TASKS = Tasks()


@dataclass
class Fates:
    """How the attempts of a run go: seconds between their tokens, and what becomes of them, by a seed."""

    seed: int = 0
    tokens: int = 3
    scale: float = 1.0
    broken: float = 0.0
    raising: float = 0.0
    hanging: float = 0.0
    stubborn: float = 0.0
    tail: float = 1.0

    def seconds(self, identity, trial):
        """Between tokens: most short, some long."""
        draw = random.Random(f"{self.seed}/{identity.trace_id}/{trial}")
        return self.scale * draw.paretovariate(self.tail) * draw.random()

    def kind(self, identity, trial):
        """Well, or how not."""
        draw = random.Random(f"{self.seed}/{identity.trace_id}/{trial}/kind").random()
        for name in ("broken", "raising", "hanging", "stubborn"):
            draw -= getattr(self, name)
            if draw < 0:
                return name
        return "well"


@dataclass
class World:
    """A sampler with versions, and attempts that sample from it. Keeps what it sees."""

    fates: Fates
    version: int = 0
    opened: Counter = field(default_factory=Counter)

    def play(self, task, identity, greedy):
        """As a `Play`."""
        trial = self.opened[identity.trace_id]
        self.opened[identity.trace_id] += 1
        return self._sample(task, identity, trial)

    async def _sample(self, task, identity, trial):
        kind, seconds = self.fates.kind(identity, trial), self.fates.seconds(identity, trial)
        versions = []
        for _ in range(self.fates.tokens):
            versions.append(self.version)
            await asyncio.sleep(seconds)
            if kind == "raising":
                raise RuntimeError("broken")
            while kind == "hanging":
                await asyncio.sleep(1e4)
            if kind == "stubborn":
                try:
                    await asyncio.sleep(1e4)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.5)
        error = Fault(boundary="sandbox", message="lost") if kind == "broken" else None
        return trace(task, identity, versions, error=error)


@dataclass
class Run:
    """A run: its settings, and what came of it."""

    pacing: Pacing = Pacing(groups_per_step=2, max_staleness=1, steps=8)  # noqa: RUF009
    shape: GroupShape = GroupShape(attempts=2)  # noqa: RUF009
    order: str = "dispatch"
    at_publication: str = "continue"
    repeatable: bool = False
    deadline_s: float = 200.0
    learn_s: float = 1.0
    publish_s: float = 0.0
    fates: Fates = field(default_factory=Fates)
    make_buffer: type = Buffer
    kill_at: int | None = None
    """The step behind whose publication the run is killed and resumed from its state."""

    def __post_init__(self):
        self.steps, self.ended, self.notes, self.log = [], [], [], []
        self.dispatched = Counter()
        self.in_flight_while_learning = []
        self.most_out = 0

    def plan(self, number):
        step, place = divmod(number, self.pacing.groups_per_step)
        return plan_group(TASKS, number % len(TASKS), shape=self.shape, name=f"rl-{step + 1}", place=place, seed=3)

    def new_buffer(self):
        """The buffer, which keeps a list of what it dispatched."""
        dispatched = self.dispatched

        class Watched(self.make_buffer):
            def dispatch(self, plan, *, reserved=False):
                tickets = super().dispatch(plan, reserved=reserved)
                dispatched.update(tickets)
                return tickets

            def again(self, ticket, answer):
                ticket = super().again(ticket, answer)
                dispatched[ticket] += 1
                return ticket

            def reopen(self):
                tickets = super().reopen()
                dispatched.update(tickets)
                return tickets

        return Watched(self.pacing, self.shape, order=self.order)

    def simulate(self):
        """Play it. Returns itself."""
        simulate(self.play())
        return self

    async def play(self):
        state, step = None, 0
        while step < self.pacing.steps:
            buffer = self.new_buffer()
            if state is not None:
                buffer.restore(state, TASKS)
            state, step = await self._play_from(step, buffer)

    async def _play_from(self, first, buffer):
        self.world = World(self.fates, version=first - first % self.pacing.publish_every)
        async with Generation(
            buffer,
            plan=self.plan,
            play=self.world.play,
            sampler=self.world,
            at_publication=self.at_publication,
            deadline_s=self.deadline_s,
            repeatable=self.repeatable,
            note=self.notes.append,
        ) as generation:
            self.generation = generation
            generation.begin(first)
            self.most_out = max(self.most_out, buffer.num_out)
            for step in range(first, self.pacing.steps):
                groups = await generation.take()
                self.steps.append(groups)
                self.log.append((asyncio.get_running_loop().time(), [group.id for group in groups]))
                self.in_flight_while_learning.append(len(buffer.in_flight))
                await asyncio.sleep(self.learn_s)
                await generation.publish(partial(self._publish, step + 1))
                if self.kill_at == step:
                    self.kill_at = None
                    self.ended += buffer.pop_ended()
                    return buffer.state(), step + 1
                generation.begin(step + 1)
                self.most_out = max(self.most_out, buffer.num_out)
                self.ended += buffer.pop_ended()
        self.ended += buffer.pop_ended()
        return None, self.pacing.steps

    async def _publish(self, version):
        if version % self.pacing.publish_every == 0:
            if self.publish_s:
                await asyncio.sleep(self.publish_s)
            self.world.version = version

    # What came of it.

    @property
    def consumed(self):
        """Ids of the groups that were trained."""
        return [group.id for groups in self.steps for group in groups]

    def ends(self, *which):
        """How many attempts had one of these ends."""
        return sum(one.end in which for one in self.ended)

    def ages(self):
        """Of all tokens that were trained."""
        return [
            step - version
            for step, groups in enumerate(self.steps)
            for group in groups
            for one in group.traces
            for node in one.nodes
            for version in node.versions
        ]
