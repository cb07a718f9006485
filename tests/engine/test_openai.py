"""A policy behind a chat endpoint: what is sent, what is read, what is sent again, and what ends in an error."""

import asyncio
import json

import pytest

from agentrl.engine.openai import Endpoint, OpenAIPolicy
from agentrl.errors import ConfigError, SamplerError
from agentrl.types import Message, ToolSpec
from tests.engine.chat_server import Answer, ChatServer, call, said

pytest.importorskip("httpx")
ASK = (Message(role="user", content="two and two?"),)
ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}, "required": []})


async def replies(policy, *turns, tools=(), max_tokens=7):
    """One conversation, message by message."""
    session = policy.session(3)
    try:
        return [await session.reply(messages, tools, max_tokens=max_tokens) for messages in turns]
    finally:
        await session.close()


def ask(answer, *, turns=(ASK,), tools=(), **options):
    """The replies of a server that answers each request by ``answer(number, body)``, and the server."""
    with ChatServer(answer) as server:
        return asyncio.run(replies(OpenAIPolicy(server.endpoint(**options)), *turns, tools=tools)), server


def test_a_request_says_what_was_asked_for():
    (reply,), server = ask(lambda n, body: said("four"), tools=(ADD,), temperature=0.5, api_key="k")
    (body,) = server.requests
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("small", 7, 0.5)
    assert body["messages"] == [{"role": "user", "content": "two and two?"}]
    assert body["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": dict(ADD.parameters)}}
    ]
    assert server.tokens == ["Bearer k"]
    assert (reply.message.content, reply.finish, reply.served_by) == ("four", "stop", "small-1")
    assert reply.usage == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_what_was_not_asked_for_is_not_sent():
    _, server = ask(lambda n, body: said("four"))
    assert set(server.requests[0]) == {"model", "messages", "max_tokens", "seed"}
    assert server.tokens == [None]


def test_the_conversation_grows_by_the_reply_word_for_word():
    odd = '{"a":1,   "b": 2}'
    results = (Message(role="tool", content="3", tool_call_id="c1"),)
    answers = [said(None, [call("add", odd)]), said("three")]
    _, server = ask(lambda n, body: answers[n], turns=(ASK, results), tools=(ADD,))
    asked, replied, result = server.requests[1]["messages"]
    assert asked["role"] == "user"
    assert replied["tool_calls"][0]["function"]["arguments"] == odd
    assert result == {"role": "tool", "content": "3", "tool_call_id": "c1"}


# case P06: messages without a content key
@pytest.mark.parametrize(
    ("message", "content", "reasoning"),
    [
        ({"reasoning_content": "hm"}, "", "hm"),
        ({"content": None}, "", None),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", None),
        ({}, "", None),
        ({"content": "x", "reasoning": "y"}, "x", "y"),
    ],
)
def test_replies_of_every_form_are_read(message, content, reasoning):
    body = {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}
    (reply,), _ = ask(lambda n, sent: Answer(body))
    assert (reply.message.content, reply.message.reasoning) == (content, reasoning)
    assert reply.usage == {}  # not counted there: unknown, and not 0


def test_content_of_another_kind_is_an_error():
    with pytest.raises(SamplerError, match="neither text nor parts of text"):
        ask(lambda n, body: said([{"type": "image_url", "image_url": "x"}]))


@pytest.mark.parametrize(
    ("arguments", "problem"), [("{a: 1}", "not JSON"), ("[1]", "no JSON object"), ('"x"', "no JSON object")]
)
def test_a_malformed_call_carries_its_problem(arguments, problem):
    (reply,), _ = ask(lambda n, body: said(None, [call("add", arguments, None)]), tools=(ADD,))
    (found,) = reply.message.tool_calls
    assert problem in found.problem
    assert found.id == "call_0_0"  # the server gave none


def test_a_failed_request_is_sent_again_as_it_was_under_one_key():
    bad = [
        Answer({"error": "busy"}, 429, {"retry-after": "0.01"}),
        Answer({"error": "down"}, 503),
        Answer(cut=True),
        Answer("<html>"),
        Answer({"choices": []}),
        said("four"),
    ]
    (reply,), server = ask(lambda n, body: bad[n])
    assert reply.message.content == "four"
    assert reply.retries == 5
    assert len({json.dumps(body, sort_keys=True) for body in server.requests}) == 1
    assert len(server.keys) == 6
    assert len(set(server.keys)) == 1


def test_each_turn_has_a_key_of_its_own():
    _, server = ask(lambda n, body: said(str(n)), turns=(ASK, ASK))
    assert len(set(server.keys)) == 2


def test_two_conversations_with_one_seed_share_no_key():
    async def twice(policy):
        return [await replies(policy, ASK) for _ in range(2)]

    with ChatServer(lambda n, body: said("x")) as server:
        asyncio.run(twice(OpenAIPolicy(server.endpoint())))
    assert server.requests[0] == server.requests[1]
    assert server.keys[0] != server.keys[1]


def test_an_answer_that_comes_too_late_is_not_taken_as_well():
    answers = [Answer(said("late").body, wait_s=1.5), said("four")]
    (reply,), server = ask(lambda n, body: answers[n], request_s=0.75)
    assert (reply.message.content, reply.retries, len(server.requests)) == ("four", 1, 2)


def test_what_a_retry_cannot_mend_is_an_error_at_once():
    with ChatServer(lambda n, body: Answer({"error": {"message": "no such model"}}, 404)) as server:
        with pytest.raises(SamplerError, match=r"status 404: .*no such model"):
            asyncio.run(replies(OpenAIPolicy(server.endpoint()), ASK))
        assert len(server.requests) == 1


def test_retries_end():
    with ChatServer(lambda n, body: Answer("busy", 503)) as server:
        with pytest.raises(SamplerError, match=r"status 503: busy \(3 tries\)"):
            asyncio.run(replies(OpenAIPolicy(server.endpoint(retries=2)), ASK))
        assert len(server.requests) == 3


def test_a_turn_ends_at_its_deadline():
    with (
        ChatServer(lambda n, body: Answer("busy", 503)) as server,
        pytest.raises(SamplerError, match=r"no reply within 0.3 s, retries included"),
    ):
        asyncio.run(replies(OpenAIPolicy(server.endpoint(retries=1000, backoff_s=0.05, turn_s=0.3)), ASK))


def test_nobody_there_is_an_error_that_names_the_address():
    endpoint = Endpoint(model="m", base_url="http://127.0.0.1:9/v1", retries=1, backoff_s=0.01)
    with pytest.raises(SamplerError, match=r"127\.0\.0\.1:9/v1: ConnectError"):
        asyncio.run(replies(OpenAIPolicy(endpoint), ASK))


def test_a_conversation_that_does_not_fit_is_no_error():
    full = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    (reply,), _ = ask(lambda n, body: Answer(full, 400))
    assert reply.finish == "context"


def test_as_many_requests_run_at_once_as_are_allowed():
    async def many(policy):
        return await asyncio.gather(*(replies(policy, ASK) for _ in range(12)))

    with ChatServer(lambda n, body: Answer(said("x").body, wait_s=0.05)) as server:
        found = asyncio.run(many(OpenAIPolicy(server.endpoint(concurrency=3))))
        assert len(found) == len(server.requests) == 12
        assert server.most == 3
        assert max(reply.waited_s for (reply,) in found) > 0.05  # case P08: the wait for a place is seen


def test_a_policy_serves_one_event_loop_after_another():
    with ChatServer(lambda n, body: said("x")) as server:
        policy = OpenAIPolicy(server.endpoint())
        for _ in range(2):
            asyncio.run(replies(policy, ASK))
        assert policy._client is None


def test_it_gives_no_tokens():
    session = OpenAIPolicy(Endpoint(model="m")).session(0)
    with pytest.raises(SamplerError, match="cannot be trained"):
        asyncio.run(session.sample([1], max_tokens=1, stop_ids=frozenset()))


def test_bad_endpoints_are_named():
    with pytest.raises(ConfigError, match="base URL 'localhost:8000'"):
        Endpoint(model="m", base_url="localhost:8000")
    with pytest.raises(ConfigError, match="no model is named"):
        Endpoint(model="")
    with pytest.raises(ConfigError, match="concurrency is 1 or more"):
        Endpoint(model="m", concurrency=0)
    assert "secret" not in repr(Endpoint(model="m", api_key="secret"))


def test_openais_own_service_names_the_limit_its_way():
    assert Endpoint(model="m").limit_name == "max_completion_tokens"
    assert Endpoint(model="m", base_url="http://localhost:1/v1").limit_name == "max_tokens"
