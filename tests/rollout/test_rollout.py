"""Attempts never raise: what breaks is a fault with its boundary, and everybody else goes on."""

import asyncio

import pytest

from agentrl.engine.local import LocalEngine
from agentrl.engine.scripted import ScriptedSession
from agentrl.errors import ScorerError, TaskError
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.rollout.group import rollout
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.tokens.tiny import TinyRenderer, decode
from agentrl.types import Message, Observation, Score, Stop, Task, ToolCall

RENDERER = TinyRenderer()
HARNESS = ToolLoop(RENDERER, Limits(turns=3, reply=6, context=64, call_s=1.0))
TASKS = [Task(id=f"toy/{n}", prompt=(Message(role="user", content=f"fix test_{n}"),)) for n in (1, 2, 3)]
IDENTITY = AttemptId(group_id="run-0", attempt=2, seed=5)


class Toy(ToolEnvironment):
    """Breaks where it is told to."""

    def __init__(self, task, broken=None, error=RuntimeError):
        super().__init__(task)
        self.broken, self.error, self.closed = broken, error, 0
        self._at("open")

    def _at(self, place):
        if place == self.broken:
            raise self.error(f"broken in {place}")

    @tool
    def read(self) -> str:
        """Look."""
        self._at("tool")
        return "ok"

    @tool
    def submit(self) -> Observation:
        """End."""
        return Observation(content="submitted", done=True)

    async def score(self, trace):
        self._at("score")
        return (Score(name="turns", value=float(trace.num_turns)),)

    async def close(self):
        self.closed += 1
        self._at("close")


class ToySet:
    """Environments by number of the task."""

    id = "toy"

    def __init__(self, broken=None, error=RuntimeError, only=None):
        self.broken, self.error, self.only = broken, error, only
        self.made = []

    def __len__(self):
        return len(TASKS)

    def __getitem__(self, index):
        return TASKS[index]

    def environment(self, task):
        broken = self.broken if self.only in (None, task.id) else None
        self.made.append(Toy(task, broken, self.error))
        return self.made[-1]


def script():
    yield ToolCall(name="read")
    yield ToolCall(name="submit")


class Watched(ScriptedSession):
    """Counts how often it was closed."""

    closed = 0

    async def close(self):
        self.closed += 1
        await super().close()


def scripted(lines=script):
    return Watched(lines(), RENDERER.write_call, decode)


def play(task_set, session, **options):
    return asyncio.run(asyncio.wait_for(attempt(task_set, TASKS[0], HARNESS, session, IDENTITY, **options), 10.0))


def test_an_attempt_that_goes_well():
    task_set, session = ToySet(), scripted()
    trace = play(task_set, session)
    assert (trace.id, trace.group_id, trace.attempt, trace.seed) == ("run-0-2", "run-0", 2, 5)
    assert (trace.task_id, trace.stop, trace.error, trace.reward) == ("toy/1", Stop.DONE, None, 2.0)
    assert len(trace.nodes) == 5
    assert set(trace.seconds) == {"sampling", "tools", "scoring"}
    assert trace.metadata == {"harness": HARNESS.fingerprint}
    assert (task_set.made[0].closed, session.closed) == (1, 1)


@pytest.mark.parametrize(
    ("broken", "error", "boundary"),
    [
        ("open", RuntimeError, "environment"),
        ("open", TaskError, "task"),
        ("tool", RuntimeError, "environment"),
        ("score", RuntimeError, "scorer"),
        ("score", ScorerError, "scorer"),
        ("close", RuntimeError, "environment"),
    ],
)
def test_whatever_breaks_in_an_environment_is_a_fault_and_no_reward(broken, error, boundary):
    task_set, session = ToySet(broken, error), scripted()
    trace = play(task_set, session)
    assert (trace.stop, trace.error.boundary, trace.reward) == (Stop.ERROR, boundary, None)
    assert f"broken in {broken}" in trace.error.message
    assert session.closed == 1
    assert [environment.closed for environment in task_set.made] == ([] if broken == "open" else [1])
    assert bool(trace.nodes) == (broken != "open")


def test_the_first_failure_is_the_one_that_is_told():
    class Doubly(ToySet):
        def environment(self, task):
            environment = super().environment(task)
            environment.broken = "tool"

            async def close():
                raise RuntimeError("broken in close")

            environment.close = close
            return environment

    assert "broken in tool" in play(Doubly(), scripted()).error.message


def short_script():
    yield ToolCall(name="read")


def raising_script():
    yield ToolCall(name="read")
    raise KeyError("bug")


@pytest.mark.parametrize("lines", [short_script, raising_script])
def test_a_sampler_that_breaks_is_a_fault_of_the_sampler(lines):
    trace = play(ToySet(), scripted(lines))
    assert (trace.stop, trace.error.boundary, trace.reward) == (Stop.ERROR, "sampler", None)
    assert [node.message.role for node in trace.nodes] == ["user", "assistant", "tool"]


def test_a_demonstration_may_go_unscored():
    trace = play(ToySet("score"), scripted(), score=False)
    assert (trace.stop, trace.error, trace.scores, trace.reward) == (Stop.DONE, None, (), None)


def make_engine():
    shape = TransformerShape(vocab_size=RENDERER.vocab_size, layers=1, width=16, heads=2, mlp_width=16, context=96)
    return LocalEngine(TinyTransformer(shape, seed=0))


def roll(task_set, tasks=TASKS, **options):
    settings = {"harness": HARNESS, "sampler": make_engine(), "attempts": 3, "seed": 1, "name": "step-0"} | options
    return asyncio.run(asyncio.wait_for(rollout(task_set, tasks, **settings), 20.0))


def sampled(group):
    return [[node.sampled_ids for node in trace.nodes] for trace in group.traces]


def test_groups_come_back_in_the_order_of_their_tasks():
    groups = roll(ToySet())
    assert [group.task for group in groups] == TASKS
    assert [group.id for group in groups] == ["step-0-0", "step-0-1", "step-0-2"]
    for group in groups:
        assert [trace.attempt for trace in group.traces] == [0, 1, 2]
        assert {trace.group_id for trace in group.traces} == {group.id}
        assert {trace.task_id for trace in group.traces} == {group.task.id}
    traces = [trace for group in groups for trace in group.traces]
    assert len({trace.id for trace in traces}) == len({trace.seed for trace in traces}) == 9


def test_the_same_seed_plays_the_same_attempts_and_another_does_not():
    first, again, other, later = roll(ToySet()), roll(ToySet()), roll(ToySet(), seed=2), roll(ToySet(), name="step-1")
    assert [sampled(group) for group in first] == [sampled(group) for group in again]
    for changed in (other, later):
        assert [sampled(group) for group in changed] != [sampled(group) for group in first]
    assert len({str(attempt) for attempt in sampled(first[0])}) == 3


@pytest.mark.parametrize("broken", ["open", "tool", "score", "close"])
def test_one_broken_task_does_not_hold_up_the_others(broken):
    groups = roll(ToySet(broken, only="toy/2"), harness=ToolLoop(RENDERER, Limits(turns=2, reply=6, context=64)))
    good = [trace for group in (groups[0], groups[2]) for trace in group.traces]
    assert all(trace.error is None and trace.reward is not None for trace in good)
    if broken != "tool":  # the untrained policy may never call the tool
        assert all(trace.error is not None and trace.reward is None for trace in groups[1].traces)


def test_afterwards_nothing_is_open():
    engine = make_engine()
    roll(ToySet("open", only="toy/3"), sampler=engine)
    engine.publish(1)  # refused while conversations are open
    assert engine.version == 1


def test_a_greedy_attempt_stands_beside_the_others_and_changes_none_of_them():
    plain, with_greedy = roll(ToySet()), roll(ToySet(), greedy=True)
    assert [sampled(group) for group in plain] == [sampled(group) for group in with_greedy]
    assert [group.greedy for group in plain] == [None] * 3
    assert [group.greedy.attempt for group in with_greedy] == [3] * 3
    other_seed = roll(ToySet(), greedy=True, seed=2)
    assert [group.greedy.nodes for group in with_greedy] == [group.greedy.nodes for group in other_seed]
    assert sampled(with_greedy[0]) != sampled(other_seed[0])


def test_states_are_kept_where_the_environment_names_them():
    class Named(Toy):
        def state(self):
            return self.task.id

    class NamedSet(ToySet):
        def environment(self, task):
            return Named(task)

    assert all("states" not in trace.metadata for group in roll(ToySet()) for trace in group.traces)
    for group in roll(NamedSet()):
        for trace in group.traces:
            assert trace.metadata["states"] == [group.task.id] * trace.num_turns


def test_an_attempt_that_is_cancelled_closes_its_conversation_and_its_environment():
    closed = []

    class Waiting(Toy):
        async def call(self, call):
            await asyncio.sleep(3600.0)

        async def close(self):
            closed.append(self.task.id)

    class WaitingSet(ToySet):
        def environment(self, task):
            return Waiting(task)

    async def scenario():
        tasks, session = WaitingSet(), ScriptedSession(script(), RENDERER.write_call, decode)
        playing = asyncio.ensure_future(attempt(tasks, tasks[0], HARNESS, session, IDENTITY))
        await asyncio.sleep(0.1)
        assert not closed
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert session.script.gi_frame is None  # ended

    asyncio.run(scenario())
    assert closed == ["toy/1"]
