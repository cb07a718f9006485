"""A script in the policy's place."""

import asyncio

import pytest

from agentrl.engine.scripted import ScriptedSession
from agentrl.errors import SamplerError
from agentrl.tokens.tiny import TinyRenderer, decode, encode
from agentrl.types import ToolCall

RENDERER = TinyRenderer()


def session(script):
    return ScriptedSession(script, RENDERER.write_call, decode)


def say(scripted, text="ok", max_tokens=10):
    return asyncio.run(scripted.sample(encode(text), max_tokens=max_tokens, stop_ids=RENDERER.stop_ids))


def script(heard):
    heard.append((yield ToolCall(name="test")))
    heard.append((yield ToolCall(name="edit", arguments={"line": 2, "text": "return a"})))
    yield ToolCall(name="submit")


def test_the_script_is_told_what_was_observed_and_its_calls_are_written_as_tokens():
    heard = []
    scripted = session(script(heard))
    first = say(scripted, "fix test_1")
    assert first.token_ids == RENDERER.write_call(ToolCall(name="test"))
    assert (first.logprobs, first.versions, first.finish_reason) == ((0.0, 0.0), (0, 0), "stop")
    assert say(scripted, "failed f(1) == 2 expected 3").token_ids[-1] in RENDERER.stop_ids
    assert say(scripted, "ok").token_ids == RENDERER.write_call(ToolCall(name="submit"))
    assert heard == ["failed f(1) == 2 expected 3", "ok"]


def test_a_script_that_ended_is_an_error_and_not_a_reply():
    scripted = session(script([]))
    for _ in range(3):
        say(scripted)
    with pytest.raises(SamplerError, match="the script ended"):
        say(scripted)


def test_a_call_that_does_not_fit_is_an_error():
    scripted = session(script([]))
    say(scripted)
    with pytest.raises(SamplerError, match="'edit' has 5 tokens; only 4 fit"):
        say(scripted, max_tokens=4)


def test_close_ends_the_script_and_may_be_called_twice():
    ended = []

    def watched():
        try:
            yield ToolCall(name="test")
        finally:
            ended.append(True)

    scripted = session(watched())
    say(scripted)
    asyncio.run(scripted.close())
    asyncio.run(scripted.close())
    assert ended == [True]
    with pytest.raises(SamplerError):
        say(scripted)


def test_a_rewind_forgets_what_was_said_and_the_script_goes_on():
    scripted = session(script(heard := []))
    say(scripted, "fix test_1")  # two ids, and the call has two
    asyncio.run(scripted.rewind(3))
    say(scripted, "ok")
    assert heard == ["ok"]
    with pytest.raises(SamplerError, match="has 9 tokens; it cannot keep 10"):
        asyncio.run(scripted.rewind(10))
