"""The loop for messages: the same turns and limits as the loop for tokens, and traces that cannot be trained."""

import asyncio

import pytest

from agentrl.engine.openai import OpenAIPolicy
from agentrl.evals.attempts import attempt_of
from agentrl.evals.baselines import player
from agentrl.harness.chat import ChatLoop
from agentrl.harness.chat_session import Conversations
from agentrl.harness.loop import Limits
from agentrl.records import trace_from_json, trace_to_json
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tokens.samples import samples
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Stop
from tests.engine.chat_server import Answer, ChatServer, call, said
from tests.evals.world import Lines

pytest.importorskip("httpx")
WRITE = call("edit", '{"line": 2, "text": "right 0"}', "c1")
ANSWER = MalformedPolicy()
SUBMIT = call("submit", "{}", "c2")


def play(*answers, malformed=ANSWER, measures=False, **limits):
    """One attempt at a small repair, with what the server was sent."""
    world = Lines(2)
    with ChatServer(lambda n, body: answers[n]) as server:
        policy = OpenAIPolicy(server.endpoint(retries=0))
        loop = ChatLoop(Limits(**{"turns": 4, "reply": 100, "context": 1000, **limits}), malformed)
        loop = loop.for_evaluation() if measures else loop
        identity = AttemptId(group_id="g", attempt=0, seed=1)
        trace = asyncio.run(attempt(world, world[0], loop, policy.session(1), identity))
    return trace, server


def test_calls_are_carried_out_and_answered():
    trace, server = play(said(None, [WRITE]), said("done", [SUBMIT]))
    assert (trace.stop, trace.reward) == (Stop.DONE, 1.0)
    assert [node.message.role for node in trace.nodes] == ["user", "assistant", "tool", "assistant", "tool"]
    assert server.requests[1]["messages"][-1] == {"role": "tool", "content": "ok", "tool_call_id": "c1"}
    assert {tool["function"]["name"] for tool in server.requests[0]["tools"]} == {"edit", "submit"}


def test_its_trace_has_no_tokens_and_makes_no_training_sample():
    trace, _ = play(said(None, [WRITE, SUBMIT]))
    assert all(not (node.context_ids or node.sampled_ids or node.logprobs or node.versions) for node in trace.nodes)
    assert samples(trace, 1.0) == ()
    assert samples(trace, None, objective="ce") == ()
    assert trace_from_json(trace_to_json(trace)) == trace


def test_tokens_are_what_the_endpoint_counted():
    trace, _ = play(said(None, [WRITE], usage=(10, 5)), said(None, [SUBMIT], usage=(30, 2)))
    assert trace.metadata["usage"] == {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47}
    assert attempt_of(trace, "m").tokens == 7.0
    assert trace.metadata["served_by"] == ["small-1"]


def test_a_count_that_one_reply_lacks_is_unknown():
    trace, _ = play(said(None, [WRITE], usage=(10, 5)), said(None, [SUBMIT], usage=None))
    assert attempt_of(trace, "m").tokens is None


@pytest.mark.parametrize(
    ("malformed", "stop", "reward"),
    [
        (MalformedPolicy(), Stop.DONE, 1.0),
        (MalformedPolicy(end=True), Stop.MALFORMED, 0.0),
        (MalformedPolicy(penalty=0.25), Stop.DONE, 0.75),
    ],
)
def test_malformed_calls_are_answered_end_or_cost_as_in_the_loop_for_tokens(malformed, stop, reward):
    answers = (said(None, [call("edit", "{line", "c0")]), said(None, [WRITE]), said(None, [SUBMIT]))
    trace, server = play(*answers, malformed=malformed)
    assert (trace.stop, trace.reward) == (stop, reward)
    assert len(server.requests) == (1 if malformed.end else 3)
    measured, _ = play(*answers, malformed=malformed, measures=True)
    assert measured.stop is stop
    assert "malformed_calls" not in [score.name for score in measured.scores]


def test_a_malformed_call_is_answered_with_what_is_wrong():
    trace, server = play(said(None, [call("edit", "{line", "c1")]), said(None, [SUBMIT]))
    assert "not JSON" in server.requests[1]["messages"][-1]["content"]
    assert trace.reward == 0.0


@pytest.mark.parametrize(
    ("answers", "limits", "stop"),
    [
        ([said("I give up")], {}, Stop.DONE),
        ([said("I th", finish="length")], {}, Stop.MAX_TOKENS),
        ([said(None, [WRITE])], {"turns": 1}, Stop.MAX_TURNS),
        ([said(None, [WRITE], usage=(390, 20))], {"context": 410}, Stop.CONTEXT_FULL),
        ([Answer({"error": {"code": "context_length_exceeded"}}, 400)], {}, Stop.CONTEXT_FULL),
    ],
)
def test_limits_end_an_attempt_and_it_is_scored(answers, limits, stop):
    trace, server = play(*answers, **limits)
    assert trace.stop is stop
    assert trace.error is None
    assert trace.reward is not None
    assert len(server.requests) == len(answers)


def test_an_endpoint_that_fails_leaves_the_attempt_unscored():
    trace, _ = play(said(None, [WRITE]), Answer("down", 500))
    assert trace.reward is None
    assert trace.error.boundary == "sampler"
    assert trace.error.message.endswith("status 500: down")
    assert [node.message.role for node in trace.nodes] == ["user", "assistant", "tool"]


def test_tokens_are_not_taken_for_messages():
    world = Lines(2)
    session = player("submit", world)(world[0], 0)
    identity = AttemptId(group_id="g", attempt=0, seed=1)
    trace = asyncio.run(attempt(world, world[0], ChatLoop(Limits()), session, identity))
    assert "play it with ToolLoop" in trace.error.message


def test_other_limits_are_another_agent():
    assert ChatLoop(Limits(turns=2)).fingerprint != ChatLoop(Limits(turns=3)).fingerprint
    assert ChatLoop(Limits()).fingerprint.startswith("chat-loop-v2/Limits(")


def test_each_beginning_has_draws_of_its_own_and_what_began_is_closed():
    opened, closed = [], []

    class Session:
        def __init__(self, seed):
            self.seed = seed
            opened.append(seed)

        async def close(self):
            closed.append(self.seed)

    async def begin_twice(seed):
        conversations = Conversations(Session, seed)
        await conversations.restart()
        await conversations.restart()
        await conversations.close()

    asyncio.run(begin_twice(7))
    assert opened[0] == 7
    assert len(set(opened)) == 3
    assert closed == opened
    again = list(opened)
    asyncio.run(begin_twice(7))
    assert opened[3:] == again


def test_a_system_prompt_of_the_set_is_sent():
    world = Lines(2)
    with ChatServer(lambda n, body: said(None, [SUBMIT])) as server:
        loop = ChatLoop(Limits(context=1000), system_prompts={"lines": "Mind the line."})
        session = OpenAIPolicy(server.endpoint()).session(0)
        asyncio.run(attempt(world, world[0], loop, session, AttemptId(group_id="g", attempt=0, seed=1)))
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "Mind the line."}
