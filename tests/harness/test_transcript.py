"""A tree of messages tells each thing once, and is stored and read back exactly."""

import asyncio
import json
from dataclasses import replace

import pytest

from agentrl.errors import SamplerError
from agentrl.harness.compaction import Compaction
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.harness.transcript import in_time
from agentrl.records import trace_from_json, trace_to_json
from agentrl.rewards.hacking import signs_of_hacking
from agentrl.tokens.tiny import IDS, TinyRenderer
from agentrl.tokens.toolcalls import Status, count_statuses
from agentrl.types import Message, Node, Stop, ToolCall, Trace
from tests.harness.parts import TASK, Recorder, World, trace_of

READ, SUBMIT = (IDS["read"], IDS["<end>"]), (IDS["submit"], IDS["<end>"])


def compacted():
    """Three reads and a submit, with a branch from which two results were dropped."""
    transcript = Transcript()
    dropping = Compaction(kind="drop_results", fill=1.0, marker="ok")
    loop = ToolLoop(TinyRenderer(), Limits(turns=9, context=34), compaction=dropping)
    world = World(["failed f(1) == 2"] * 3)
    asyncio.run(loop.run(TASK, world, Recorder([READ, READ, READ, SUBMIT]), transcript))
    return trace_of(transcript)


def test_replies_and_calls_are_counted_once_although_a_branch_tells_them_again():
    trace = compacted()
    assert sum(node.message.role == "assistant" for node in trace.nodes) == 6
    assert trace.num_turns == 4
    assert count_statuses(trace) == {Status.OK: 4}
    assert [node.message.role for node in trace.events] == ["user", *["assistant", "tool"] * 4]


def test_a_tree_with_copies_and_notes_is_stored_and_read_back():
    trace = compacted()
    assert any(node.copied for node in trace.nodes)
    written = json.loads(json.dumps(trace_to_json(trace)))
    assert trace_from_json(written) == trace
    assert [node.get("copied") for node in written["nodes"]] == [node.copied or None for node in trace.nodes]


def test_a_call_that_failed_is_not_taken_for_one_that_succeeded_when_its_answer_was_dropped():
    edit = Message(role="assistant", tool_calls=(ToolCall(name="edit", arguments={"path": "test_a.py"}),))
    refused, marker = Message(role="tool", content="error: not this file"), Message(role="tool", content="[removed]")
    told = [(edit, False), (refused, False), (edit, True), (marker, True)]

    def signs(copies):
        nodes = tuple(Node(parent=None, message=message, copied=copied and copies) for message, copied in told)
        trace = Trace(id="t", task_id="t", group_id="g", attempt=0, seed=0, nodes=nodes, stop=Stop.DONE)
        return signs_of_hacking(trace, lambda path: path.startswith("test_"), changing={"edit": "path"}).touched

    assert signs(copies=True) == ()
    assert signs(copies=False) == ("test_a.py",)  # the negative control


def test_an_attempt_that_is_over_waits_for_nothing():
    async def never():
        await asyncio.sleep(60.0)

    transcript = Transcript()
    assert asyncio.run(in_time(never(), replace(transcript, started=transcript.started - 5.0), 4.0)) is None


def test_a_cancelled_attempt_is_cancelled_and_not_timed_out():
    async def cancelled():
        transcript = Transcript()
        task = asyncio.ensure_future(in_time(asyncio.sleep(60.0), transcript, 30.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return transcript

    assert asyncio.run(cancelled()).stop is None


def test_a_failure_keeps_its_kind():
    async def fails(error):
        raise error

    for error, message in ((SamplerError("lost"), "^lost$"), (KeyError("x"), "the sampler raised KeyError")):
        with pytest.raises(SamplerError, match=message):
            asyncio.run(in_time(fails(error), Transcript(), 5.0))
