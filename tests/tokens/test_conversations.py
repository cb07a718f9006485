"""Lines of data sets in the usual forms, and what each that is none is told."""

import json

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens.chat import tool_to_chat
from agentrl.tokens.conversations import Conversation, TextPair, read_conversation, tool_from_chat
from agentrl.types import Message, ToolCall, ToolSpec

NAME = "chat.jsonl, line 3"
QUESTION = {"role": "user", "content": "2 + 2?"}
REPLY = {"role": "assistant", "content": "4"}
SPEC = ToolSpec(
    name="run", description="Run it.", parameters={"type": "object", "properties": {"cmd": {"type": "string"}}}
)
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "ls"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a.py"}


def read(row):
    return read_conversation(row, NAME)


def chat(*messages, **fields):
    return {"messages": list(messages), **fields}


def test_messages_with_tools():
    found = read(chat(QUESTION, CALLING, RESULT, REPLY, tools=[tool_to_chat(SPEC)], id=7, source="x"))
    assert found == Conversation(
        name=NAME,
        messages=(
            Message(role="user", content="2 + 2?"),
            Message(role="assistant", tool_calls=(ToolCall(name="run", arguments={"cmd": "ls"}, id="c1"),)),
            Message(role="tool", content="a.py", tool_call_id="c1"),
            Message(role="assistant", content="4"),
        ),
        tools=(SPEC,),
        trained=(True, True),
    )


@pytest.mark.parametrize("form", [tool_to_chat, lambda spec: tool_to_chat(spec)["function"]])
@pytest.mark.parametrize("wrap", [lambda tools: tools, json.dumps])
def test_tools_in_each_spelling(form, wrap):
    assert read(chat(QUESTION, REPLY, tools=wrap([form(SPEC)]))).tools == (SPEC,)
    for nothing in (None, [], "", "[]", " "):
        assert read(chat(QUESTION, REPLY, tools=nothing)).tools == ()
    assert tool_from_chat({"name": "now"}, NAME).parameters == {"type": "object", "properties": {}}


def test_prompt_and_completion_as_texts_and_as_messages():
    assert read({"prompt": "2 + 2 =", "completion": " 4"}) == TextPair(name=NAME, prompt="2 + 2 =", completion=" 4")
    told = read({"prompt": [QUESTION, REPLY, QUESTION], "completion": [REPLY]})
    assert told.trained == (False, True)  # the first reply belongs to the prompt
    assert [message.role for message in told.messages] == ["user", "assistant"] * 2


def test_the_form_of_sharegpt():
    turns = [
        {"from": "human", "value": "2 + 2?"},
        {"from": "function_call", "value": '{"name": "run", "arguments": {"cmd": "ls"}}'},
        {"from": "observation", "value": "a.py"},
        {"from": "gpt", "value": "4", "weight": 0},
    ]
    found = read({"system": "Be brief.", "conversations": turns, "tools": json.dumps([tool_to_chat(SPEC)])})
    assert [message.role for message in found.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert found.messages[2].tool_calls == (ToolCall(name="run", arguments={"cmd": "ls"}),)
    assert (found.messages[0].content, found.trained) == ("Be brief.", (True, False))


@pytest.mark.parametrize(
    ("switches", "trained"),
    [
        ({}, True),
        ({"weight": 1}, True),
        ({"weight": 0}, False),
        ({"weight": 0.0}, False),
        ({"train": False}, False),
        ({"loss": False}, False),
        ({"train": True, "weight": 0}, False),
        ({"train": None}, True),
    ],
)
def test_a_reply_can_be_left_out_of_the_training(switches, trained):
    assert read(chat(QUESTION, REPLY | switches, QUESTION, REPLY)).trained == (trained, True)


def test_calls_that_stand_in_the_text_become_calls():
    # else the marker of a call would be written in ordinary pieces, which the model has never seen there
    text = 'I look.\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
    for tools in ([], [tool_to_chat(SPEC)]):
        found = read(
            chat(QUESTION, {"role": "assistant", "content": text}, {"role": "tool", "content": "a"}, tools=tools)
        )
        assert found.messages[1] == Message(
            role="assistant", content="I look.", tool_calls=(ToolCall(name="run", arguments={"cmd": "ls"}),)
        )
    with pytest.raises(ConfigError, match=r"messages\[1\].content has <tool_call> and no call that can be read"):
        read(chat(QUESTION, {"role": "assistant", "content": "<tool_call> opens a call."}))


def test_conversations_that_begin_alike_are_about_the_same():
    one = read(chat(QUESTION, REPLY))
    assert one.opening == read(chat(QUESTION, {"role": "assistant", "content": "5"})).opening
    assert one.opening != read(chat({"role": "user", "content": "3 + 3?"}, REPLY)).opening
    assert one.opening != read(chat(QUESTION, REPLY, tools=[tool_to_chat(SPEC)])).opening


def call(**fields):
    return {"role": "assistant", "tool_calls": [fields]}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([QUESTION], r'a line is an object, not \[.*; write one of \{"messages": \[...\]\}'),
        ({"text": "hello"}, "no conversation, but only text; write one of"),
        ({}, "no conversation, but only nothing"),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, "but a prompt without a completion; write one of"),
        ({"messages": []}, "messages: the list is empty; a conversation is a question and its reply"),
        (chat(QUESTION, {"role": "assistant", "content": None}), "neither content nor tool_calls, and would teach"),
        ({"messages": "hello"}, "messages: write a list of messages, not 'hello'"),
        (chat("hello"), r'messages\[0\]: a message is \{"role": ..., "content": ...\}, not \'hello\''),
        (chat({"role": "bot", "content": "x"}, REPLY), "message 0: the role is 'bot'; use one of system, user, assist"),
        (chat({"role": "user", "text": "x"}, REPLY), "message 0: a message has no place for 'text'"),
        (chat({"role": "user", "content": {"a": 1}}, REPLY), "message 0: the content must be a text or a list"),
        (chat(QUESTION), "nothing to train, since there is no reply of the assistant; add one, or remove the line"),
        (chat(QUESTION, REPLY | {"weight": 0}), "nothing to train, since every reply has weight 0"),
        (chat(QUESTION, REPLY | {"weight": 0.5}), r"messages\[1\].weight is 0.5; write 1 \(or true\) to train"),
        (chat(QUESTION, REPLY | {"train": "no"}), r"messages\[1\].train is 'no'; write 1 \(or true\)"),
        (chat(QUESTION | {"weight": 1}, REPLY), r"messages\[0\].weight: only replies of the assistant are trained"),
        (
            chat(QUESTION, CALLING | {"tool_calls": "run"}),
            r"messages\[1\].tool_calls: write a list of calls, not 'run'",
        ),
        (chat(QUESTION, CALLING | {"tool_calls": ["run"]}), r"tool_calls\[0\]: a call is .*, not 'run'"),
        (
            chat(QUESTION, call(name="run", args={})),
            r"tool_calls\[0\]: a call has no field 'args', which would be lost",
        ),
        (
            chat(QUESTION, call(function={"name": "run", "arguments": {}, "strict": True})),
            r"messages\[1\].tool_calls\[0\]: a call has no field 'function.strict', which would be lost",
        ),
        (chat(QUESTION, call(function={"arguments": {}})), "message 1: a tool call has no name"),
        (chat(QUESTION, call(name="run", arguments="{")), "message 1, call 'run': the arguments are no JSON"),
        (
            chat(QUESTION, {"role": "tool", "content": "x"}, REPLY),
            r"messages\[1\]: the result of a tool without a call",
        ),
        (
            chat(QUESTION, CALLING, RESULT, RESULT | {"tool_call_id": None}),
            r"messages\[3\]: the result of a tool without",
        ),
        (
            chat(QUESTION, CALLING, RESULT | {"tool_call_id": "c9"}),
            "is the result of call 'c9', where that of 'c1' is due",
        ),
        (
            chat(QUESTION, call(name="walk"), tools=[tool_to_chat(SPEC)]),
            "a reply calls 'walk', and the tools are run; add it to tools",
        ),
        (chat(QUESTION, REPLY, tools={"name": "run"}), "tools: write a list of tools, not"),
        (chat(QUESTION, REPLY, tools="run"), "tools: the text is no JSON"),
        (chat(QUESTION, REPLY, tools=["run"]), r"tools\[0\]: a tool is .*, not 'run'"),
        (chat(QUESTION, REPLY, tools=[{"name": "run", "inputs": {}}]), r"tools\[0\]: a tool has no field 'inputs'"),
        (chat(QUESTION, REPLY, tools=[{"name": "run", "parameters": "x"}]), r"tools\[0\].parameters: write a JSON"),
        (chat(QUESTION, REPLY, tools=[{"name": "run"}] * 2), "tools: there are two tools 'run'"),
        ({"prompt": "x", "completion": ""}, "completion: the text is empty"),
        ({"prompt": "x", "completion": [REPLY]}, "prompt and completion are both texts or both lists of messages"),
        ({"prompt": [QUESTION], "completion": []}, "completion: the list is empty"),
        ({"conversations": [{"role": "user"}]}, r'conversations\[0\]: a turn is \{"from": ..., "value": ...\}'),
        ({"conversations": [{"from": "bot", "value": "x"}]}, r"conversations\[0\]: it is from 'bot'; use one of human"),
        (
            {"conversations": [{"from": "function_call", "value": "{"}]},
            r"conversations\[0\], value: the text is no JSON",
        ),
    ],
)
def test_what_is_no_conversation_is_told_where_and_what_to_write(row, told):
    with pytest.raises(ConfigError, match=f"^{NAME}.*{told}"):
        read(row)
