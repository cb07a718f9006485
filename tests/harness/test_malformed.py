"""What the harness does about malformed calls, the same in training and evaluation."""

import asyncio
import dataclasses

import pytest

from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.tokens.tiny import IDS, TinyRenderer
from agentrl.tokens.toolcalls import MalformedPolicy, Status
from agentrl.types import Completion, Message, Observation, Score, Stop, Task, ToolCall

TASK = Task(id="t", prompt=(Message(role="user", content="fix test_1"),))
READ, SUBMIT = "read <end>", "submit <end>"


class World(ToolEnvironment):
    """Counts what reaches it."""

    def __init__(self, task):
        super().__init__(task)
        self.calls = []

    async def call(self, call):
        self.calls.append(call)
        return await super().call(call)

    @tool
    def read(self) -> str:
        """Show a line."""
        return "passed"

    @tool
    def submit(self) -> Observation:
        """End."""
        return Observation(content="submitted", done=True)

    async def score(self, trace):
        return [Score(name="pass", value=1.0)]


class Worlds:
    """A task set of one."""

    id = "worlds"

    def environment(self, task):
        return World(task)


class Scripted:
    """A session that gives words as replies."""

    def __init__(self, *replies):
        self.replies = list(replies)

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        ids = tuple(IDS[word] for word in self.replies.pop(0).split())
        return Completion(token_ids=ids, logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids), finish_reason="stop")

    async def close(self):
        pass


class Several(TinyRenderer):
    """Reads one reply as the calls that a test gives."""

    def __init__(self, *calls):
        self.calls = calls
        self.extended = []

    def parse(self, sampled_ids, tools):
        return Message(role="assistant", tool_calls=self.calls)

    def extend(self, messages, sampled_ids):
        self.extended.append(([message.content for message in messages], tuple(sampled_ids)))
        return super().extend(messages, sampled_ids)


BAD = "passed <end>"


def run(policy, *replies, renderer=None):
    harness = ToolLoop(renderer or TinyRenderer(), Limits(context=64), policy)
    return asyncio.run(attempt(Worlds(), TASK, harness, Scripted(*replies), AttemptId(group_id="g", attempt=0, seed=0)))


@pytest.mark.parametrize(
    ("policy", "stop", "reward", "turns"),
    [
        (MalformedPolicy(), Stop.DONE, 1.0, 4),
        (MalformedPolicy(penalty=0.25), Stop.DONE, 0.5, 4),  # 1 - 2 * 0.25
        (MalformedPolicy(end=True), Stop.MALFORMED, 1.0, 2),
        (MalformedPolicy(end=True, penalty=0.25), Stop.MALFORMED, 0.75, 2),
        (MalformedPolicy(end=True, penalty=0.25, spared=frozenset(Status)), Stop.DONE, 1.0, 4),
    ],
)
def test_a_malformed_call_is_answered_or_ends_the_attempt_and_may_cost(policy, stop, reward, turns):
    trace = run(policy, READ, BAD, BAD, SUBMIT)
    assert (trace.stop, trace.reward, trace.num_turns) == (stop, reward, turns)
    assert trace.error is None


def test_a_penalty_is_a_score_that_says_what_it_is_for():
    (_, penalty) = run(MalformedPolicy(penalty=0.25), BAD, SUBMIT).scores
    assert (penalty.name, penalty.value, penalty.explanation) == ("malformed_calls", -0.25, "1 at -0.25 each")
    (_, none) = run(MalformedPolicy(penalty=0.25), SUBMIT).scores
    assert none.value == 0.0
    assert len(run(MalformedPolicy(), BAD, SUBMIT).scores) == 1


def test_a_call_that_ends_the_attempt_does_not_reach_the_world():
    good, bad = ToolCall(name="read"), ToolCall(name="read", problem="unclosed: x")
    for end, names in ((True, ["read"]), (False, ["read", "read", "submit"])):
        world, transcript = World(TASK), Transcript()
        harness = ToolLoop(Several(good, bad, ToolCall(name="submit")), Limits(context=64), MalformedPolicy(end=end))
        asyncio.run(harness.run(TASK, world, Scripted(READ), transcript))
        assert [call.name for call in world.calls] == names
        assert transcript.stop == (Stop.MALFORMED if end else Stop.DONE)


def test_the_results_of_a_reply_are_appended_together():
    renderer = Several(ToolCall(name="read"), ToolCall(name="read", problem="x"))
    trace = run(MalformedPolicy(), READ, READ, renderer=renderer)
    assert renderer.extended[0] == (["passed", "error: x"], (IDS["read"], IDS["<end>"]))
    first, second = trace.nodes[2:4]
    assert [first.message.content, second.message.content] == ["passed", "error: x"]
    assert second.context_ids == (IDS["<tool>"], IDS["error"], IDS["<end>"])


def test_the_policy_is_part_of_what_makes_two_agents_the_same():
    loops = [ToolLoop(TinyRenderer(), Limits(), policy) for policy in (MalformedPolicy(), MalformedPolicy(end=True))]
    assert loops[0].fingerprint == ToolLoop(TinyRenderer(), Limits()).fingerprint != loops[1].fingerprint
    assert dataclasses.replace(loops[1].malformed, end=False) == loops[0].malformed
