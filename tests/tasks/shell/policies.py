"""What lets a script play an attempt through the ordinary harness: a renderer that writes every message as JSON."""

from __future__ import annotations

import asyncio
import json

from agentrl.engine.scripted import ScriptedSession
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.types import Message, ToolCall

END, OPEN = 256, 257
LIMITS = Limits(turns=12, reply=4_000, context=100_000, call_s=60.0)


def ids(text):
    """One token a byte, and one that ends it."""
    return (*text.encode(), END)


def text(token_ids):
    """The last message among some tokens."""
    last = bytes(256 if token > OPEN else token if token < END else 0 for token in token_ids).rstrip(b"\0")
    return last.rpartition(b"\0")[2].decode()


class JsonRenderer:
    """Messages as JSON, one token a byte."""

    name = "json-bytes"
    stop_ids = frozenset({END})

    def render(self, messages, tools):
        return tuple(ids(message.content) for message in messages)

    def extend(self, messages, sampled_ids):
        return tuple(ids(message.content) for message in messages)

    def generation_prompt(self):
        return (OPEN,)

    def parse(self, sampled_ids, tools):
        return Message(role="assistant", tool_calls=(ToolCall(**json.loads(text(sampled_ids))),))

    def decode(self, token_ids):
        return text(token_ids)


def write(call):
    """A call as tokens."""
    return ids(json.dumps({"name": call.name, "arguments": dict(call.arguments)}))


def script(*calls):
    """The same calls whatever is answered; then the work is handed in."""
    for call in calls:
        _answer = yield call
    yield ToolCall(name="submit")


def shell(command):
    return ToolCall(name="shell", arguments={"command": command})


def edit(path, old, new):
    return ToolCall(name="edit", arguments={"path": path, "old": old, "new": new})


async def played(task_set, *calls):
    """The trace of an attempt at the set's first task."""
    session = ScriptedSession(script(*calls), write, text)
    identity = AttemptId(group_id="g", attempt=0, seed=1)
    async with asyncio.timeout(120):
        return await attempt(task_set, task_set[0], ToolLoop(JsonRenderer(), LIMITS), session, identity)


def answers(trace):
    """What the tools said."""
    return [node.message.content for node in trace.nodes if node.message.role == "tool"]
