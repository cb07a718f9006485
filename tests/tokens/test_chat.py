"""Conversations as servers and data sets write them. (Most of it stands in `test_cases.py`.)"""

import pytest
from hypothesis import given, settings

from agentrl.errors import RendererError
from agentrl.tokens.chat import message_to_chat, messages_from_chat, tool_to_chat
from agentrl.types import Message, ToolCall, ToolSpec
from tests.tokens import conversations


@settings(max_examples=60, deadline=None)
@given(conversations.messages(conversations.plain_text))
def test_what_is_written_is_read_back(messages):
    # No thoughts and empty thoughts are one thing in this form.
    found = messages_from_chat([message_to_chat(message) for message in messages])
    assert [(m.role, m.content, m.reasoning or None, m.tool_calls) for m in found] == [
        (m.role, m.content, m.reasoning or None, m.tool_calls) for m in messages
    ]


def test_a_malformed_reply_is_its_text():
    call = ToolCall(name="", problem="unclosed: x")
    chat = message_to_chat(Message(role="assistant", content="<tool_call>{", tool_calls=(call,)))
    assert chat == {"role": "assistant", "content": "<tool_call>{", "reasoning_content": ""}


def test_ids_of_calls_and_results_are_kept():
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": {"cmd": "ls"}}}
    chat = [
        {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a", "tool_call_id": "c1"},
    ]
    assert [message_to_chat(message) for message in messages_from_chat(chat)] == chat


def test_results_without_ids_stay_where_they_are():
    chat = [
        {"role": "assistant", "tool_calls": [{"name": "a", "arguments": None}, {"name": "b", "arguments": " "}]},
        {"role": "tool", "content": "1", "name": "a"},
        {"role": "tool", "content": "2"},
    ]
    assert [message.content for message in messages_from_chat(chat)] == ["", "1", "2"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "developer", "content": "x"}, "message 0: the role is 'developer'; use one of system, user"),
        ({"content": "x"}, "message 0: the role is None"),
        ({"role": "user", "content": 3}, "the content must be a text or a list of text parts, not 3"),
        ({"role": "user", "content": {"text": "x"}}, "the content must be a text or a list"),
        ({"role": "user", "content": [{"type": "audio"}]}, "a part of the content is 'audio'"),
        ({"role": "user", "content": "x", "audio": {"id": 1}}, "a message has no place for 'audio'"),
        ({"role": "user", "content": "x", "reasoning": "y"}, "only the assistant has thoughts and calls, not 'user'"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "a tool call has no name"),
        (
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]},
            "call 'f': the arguments must be a JSON object, not [1]",
        ),
        (
            {"role": "tool", "content": "x", "tool_call_id": "c9"},
            "the result of call 'c9', where no call waits for one",
        ),
    ],
)
def test_what_a_message_cannot_hold_is_refused_by_name(message, told):
    with pytest.raises(RendererError) as caught:
        messages_from_chat([message])
    assert told in str(caught.value)


def test_a_tool_in_the_form_of_servers():
    spec = ToolSpec(name="f", description="d", parameters={"type": "object"})
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert tool_to_chat(spec) == {"type": "function", "function": function}
