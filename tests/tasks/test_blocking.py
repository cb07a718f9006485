"""Tools that block do not hold up the others, and a deadline ends the wait for them."""

import asyncio
import threading
import time

import pytest

from agentrl.errors import EnvironmentFault
from agentrl.harness.answers import Answerer
from agentrl.harness.limits import Limits
from agentrl.harness.transcript import Transcript
from agentrl.tasks.blocking import abandoned, blocking
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Message, Task, ToolCall

TASK = Task(id="t", prompt=(Message(role="user", content="go"),))


class Slow(ToolEnvironment):
    """Tools that wait for an event, that sleep, that fail."""

    parallel_tools = frozenset(("wait", "sleep"))

    def __init__(self):
        super().__init__(TASK)
        self.event = threading.Event()

    @tool
    @blocking
    def wait(self) -> str:
        """Wait for ever, but for the test."""
        self.event.wait()
        return "late"

    @tool
    @blocking
    def sleep(self, seconds: float) -> str:
        """Sleep."""
        time.sleep(seconds)
        return "slept"

    @tool
    @blocking
    def fail(self) -> str:
        """Break."""
        raise KeyError("x")


def answer(world, *calls, call_s=5.0):
    transcript = Transcript()
    answerer = Answerer(world, Limits(call_s=call_s), MalformedPolicy(), transcript)
    asyncio.run(answerer.answer(Message(role="assistant", tool_calls=calls)))
    return [message.content for message in transcript.unsent]


def test_a_blocking_tool_has_the_schema_and_the_answer_of_any_other():
    assert [spec.name for spec in Slow.tool_specs()] == ["wait", "sleep", "fail"]
    assert Slow.tool_specs()[1].parameters["properties"] == {"seconds": {"type": "number"}}
    assert answer(Slow(), ToolCall(name="sleep", arguments={"seconds": 0.0})) == ["slept"]
    with pytest.raises(EnvironmentFault, match="tool 'fail' raised KeyError: 'x'"):
        answer(Slow(), ToolCall(name="fail"))


def test_the_wait_ends_at_the_deadline_and_the_thread_is_named():
    # EO-S03: leaving the executor waited for the thread, for ever if it never ended.
    world = Slow()
    for _ in range(3):
        with pytest.raises(EnvironmentFault, match=r"'wait' gave no answer within 0\.05 s"):
            answer(world, ToolCall(name="wait"), call_s=0.05)
    assert abandoned() == {"wait": 3}
    assert answer(world, ToolCall(name="sleep", arguments={"seconds": 0.0})) == ["slept"]
    world.event.set()
    for thread in threading.enumerate():
        if thread.name == "wait":
            thread.join(60.0)
    assert abandoned() == {}


def test_blocking_calls_of_one_reply_run_at_the_same_time():
    world = Slow()

    async def release():
        await asyncio.sleep(0.05)
        world.event.set()

    async def both():
        transcript = Transcript()
        answerer = Answerer(world, Limits(call_s=5.0), MalformedPolicy(), transcript)
        calls = (ToolCall(name="wait"), ToolCall(name="sleep", arguments={"seconds": 0.0}))
        await asyncio.gather(answerer.answer(Message(role="assistant", tool_calls=calls)), release())
        return [message.content for message in transcript.unsent]

    assert asyncio.run(both()) == ["late", "slept"]
