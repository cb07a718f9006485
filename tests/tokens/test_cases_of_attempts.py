"""Faults of the agent loop that others had in public: calls, truncation, and what is trained of an attempt."""

import asyncio
import dataclasses

import pytest

from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.tokens.samples import samples
from agentrl.tokens.toolcalls import MalformedPolicy, Status, count_statuses
from agentrl.types import Completion, Message, Observation, Score, Stop, Task, Trace
from tests.tokens.case_parts import END, flat, renderer
from tests.tokens.real import needs_assets, vocabulary

pytestmark = needs_assets


class Views(ToolEnvironment):
    """Two tools and an end."""

    @tool
    def view(self, path: str) -> str:
        """Show a file."""
        return "a test" if path == "t.py" else "x " * 40

    @tool
    def edit(self, path: str) -> str:
        """Change a file."""
        return path

    @tool
    def submit(self) -> Observation:
        """End."""
        return Observation(content="submitted", done=True)


class Scripted:
    """A session that gives texts as replies, in the ids of the real tokenizer."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.stream = []

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        ids = (*vocabulary().encode(self.replies.pop(0)), END)
        kept = ids[:max_tokens]
        self.stream += [(token, False) for token in context_ids] + [(token, True) for token in kept]
        reason = "stop" if kept == ids else "length"
        return Completion(token_ids=kept, logprobs=(-0.5,) * len(kept), versions=(0,) * len(kept), finish_reason=reason)

    async def close(self):
        pass


def call(name, arguments="{}"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


VIEW, SUBMIT = call("view", '{"path": "t.py"}'), call("submit")
TASK = Task(id="t", prompt=(Message(role="user", content="List tests."),))


def play(*replies, limits=None, malformed=None, thinking=True, prompt=TASK.prompt):
    session, transcript = Scripted(*replies), Transcript()
    task = dataclasses.replace(TASK, prompt=prompt)
    limits = limits or Limits(context=2000, reply=200)
    loop = ToolLoop(renderer(thinking), limits, malformed or MalformedPolicy())
    asyncio.run(loop.run(task, Views(task), session, transcript))
    trace = Trace(
        id="t",
        task_id="t",
        group_id="g",
        attempt=0,
        seed=0,
        nodes=tuple(transcript.nodes),
        stop=transcript.stop,
        scores=(Score(name="pass", value=1.0), *loop.penalties(transcript)),
    )
    return trace, session


def trained_of(trace):
    (sample,) = samples(trace, 1.0)
    return list(zip(sample.token_ids, (weight != 0 for weight in sample.weights["pg"]), strict=True))


def test_a_call_of_an_unknown_tool_is_answered_with_the_tools_there_are():
    # T09
    trace, session = play(call("Read", '{"path": "t.py"}'), VIEW, SUBMIT)
    assert (trace.num_turns, trace.stop) == (3, Stop.DONE)
    assert count_statuses(trace) == {Status.UNKNOWN_TOOL: 1, Status.OK: 2}
    assert "the tools are view, edit, submit" in trace.nodes[2].message.content
    assert trained_of(trace) == session.stream


def test_a_long_result_ends_the_attempt_with_what_was_before():
    # T35
    opening = renderer().render(TASK.prompt, Views.tool_specs())
    room = len(flat(opening)) + 3 + len(vocabulary().encode(VIEW)) + 1 + 30
    trace, session = play(call("view", '{"path": "long"}'), SUBMIT, limits=Limits(context=room, reply=200))
    assert (trace.stop, len(session.replies)) == (Stop.CONTEXT_FULL, 1)
    assert trained_of(trace) == session.stream
    assert trace.nodes[-1].message.content == "x " * 40  # kept for people
    assert trace.nodes[-1].context_ids == ()


class Ending:
    """A session whose reply ends as a test says."""

    def __init__(self, ids, reason):
        self.completion = Completion(
            token_ids=ids, logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids), finish_reason=reason
        )

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        return self.completion


@pytest.mark.parametrize(
    ("last", "reason", "stop"), [(END, "stop", Stop.DONE), (151643, "stop", Stop.DONE), (13, "length", Stop.MAX_TOKENS)]
)
def test_a_reply_is_truncated_when_the_engine_says_so_and_not_by_its_last_id(last, reason, stop):
    # T22: a tokenizer whose end of sequence is 151643 calls the first of them cut.
    transcript = Transcript()
    loop = ToolLoop(renderer(), Limits(context=2000, reply=200))
    asyncio.run(loop.run(TASK, Views(TASK), Ending((59528, last), reason), transcript))
    assert transcript.stop == stop


@pytest.mark.parametrize("room", [7, 5, 4])
def test_a_reply_that_fills_the_context_is_truncated_although_it_is_shorter_than_its_limit(room):
    # T34: no reply reaches the limit of 8, and all of them were cut.
    used = len(flat(renderer().render(TASK.prompt, Views.tool_specs()))) + 3
    trace, _ = play("one two three four five six seven eight nine ten", limits=Limits(context=used + room, reply=8))
    assert (trace.stop, trace.num_sampled) == (Stop.CONTEXT_FULL, room)


@pytest.mark.parametrize("thinking", [True, False])
def test_training_and_evaluation_read_the_same_calls_and_stop_at_the_same_point(thinking):
    # Promise 13: one renderer and one loop; the same bytes are the same calls, whoever asks.
    replies = (VIEW + "\n" + call("edit", '{"path": "a"}'), "<tool_call>\n{", SUBMIT)
    one, other = (play(*replies, thinking=thinking)[0] for _ in range(2))
    assert one == other
    assert [[found.problem is None for found in node.message.tool_calls] for node in one.nodes if node.sampled_ids] == [
        [True, True],
        [False],
        [True],
    ]
