"""One parser of tool calls: what each malformed reply is called, and what the model is told about it."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.tokens.toolcalls import (
    CLOSE,
    MAX_CALLS,
    OPEN,
    MalformedPolicy,
    Status,
    count_statuses,
    read_reply,
    split_reasoning,
    status_of,
    write_call,
)
from agentrl.types import Message, Node, Stop, ToolCall, ToolSpec, Trace


def spec(name, required=(), **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSpec(name=name, description="", parameters=parameters)


TOOLS = [
    spec("read", ["path"], path={"type": "string"}),
    spec("edit", ["path", "line"], path={"type": "string"}, line={"type": "integer"}),
    spec("now"),
]


def call(body):
    return f"{OPEN}\n{body}\n{CLOSE}"


GOOD = call('{"name": "read", "arguments": {"path": "a"}}')
READ_A = ToolCall(name="read", arguments={"path": "a"})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("done", "done", ()),
        (GOOD, "", (READ_A,)),
        (f"I look.\n{GOOD}", "I look.", (READ_A,)),
        (f"I look.\n\n{GOOD}\n", "I look.\n", (READ_A,)),
        (f"{GOOD}\n{GOOD}", "", (READ_A, READ_A)),
        (f"{GOOD}{GOOD}", "", (READ_A, READ_A)),
        (f'{OPEN}{{"arguments": {{"path": "a"}}, "name": "read"}}{CLOSE}', "", (READ_A,)),
        (call('{"name": "now"}'), "", (ToolCall(name="now"),)),
        ("", "", ()),
        (f"no call ends with {CLOSE}", f"no call ends with {CLOSE}", ()),
    ],
)
def test_well_formed_replies(text, content, calls):
    assert read_reply(text, TOOLS) == (None, content, calls)


def test_a_closing_marker_inside_of_a_text_closes_nothing():
    # T07: a search for the next marker cuts the call in two, and it vanishes.
    text = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "echo </tool_call> done"}}\n</tool_call>'
    (found,) = read_reply(text, [spec("bash", ["cmd"], cmd={"type": "string"})]).calls
    assert found == ToolCall(name="bash", arguments={"cmd": "echo </tool_call> done"})
    opened = call('{"name": "read", "arguments": {"path": "<tool_call>"}}')
    assert read_reply(opened, TOOLS).calls == (ToolCall(name="read", arguments={"path": "<tool_call>"}),)


@pytest.mark.parametrize(
    ("text", "status", "name", "told"),
    [
        (
            call('{"name": "read", "arguments": {"path": "a"}'),
            "invalid_json",
            "",
            "Expecting ',' delimiter at line 3 column 1",
        ),
        (call("read a"), "invalid_json", "", "Expecting value at line 2 column 1"),
        (call(""), "invalid_json", "", "Expecting value"),
        (call('{"name": "read", "arguments": {"path": NaN}}'), "invalid_json", "", "NaN is no JSON number"),
        (call('{"name": "read", "arguments": {"path": 1e999}}'), "invalid_json", "", "the number 1e999 is too large"),
        (
            call('{"name": "read", "arguments": {"path": "a", "path": "b"}}'),
            "invalid_json",
            "",
            "the key 'path' stands twice",
        ),
        (call('{"name": "read", "arguments": {"path": "\\ud800"}}'), "invalid_json", "", "half of a surrogate pair"),
        (call('{"name": "read"} please'), "invalid_json", "", "'please' stands behind the object"),
        (call("[" * 100_000), "invalid_json", "", "nested too deeply"),
        (call('{"name": "read", "arguments": {"path": ' + "9" * 5000 + "}}"), "invalid_json", "", "digits"),
        (call('["read", "a"]'), "not_a_call", "", "a call is an object, not ['read', 'a']"),
        (call('{"tool": "read"}'), "not_a_call", "", "a call has no key 'tool'"),
        (call('{"name": "read", "parameters": {}}'), "not_a_call", "read", "a call has no key 'parameters'"),
        (call('{"name": 3, "arguments": {}}'), "not_a_call", "", "the name must be a text, not 3"),
        (call('{"name": "read", "arguments": "a"}'), "not_a_call", "read", "the arguments must be an object, not 'a'"),
        (GOOD.removesuffix(CLOSE), "unclosed", "read", "the call has no </tool_call>; write <tool_call>"),
        (f'{OPEN}\n{{"name": "read"', "unclosed", "", "has no </tool_call>"),
        (OPEN, "unclosed", "", "has no </tool_call>"),
        (
            call('{"name": "Read", "arguments": {}}'),
            "unknown_tool",
            "Read",
            "there is no tool 'Read'; the tools are read, edit, now",
        ),
        (
            call('{"name": "read", "arguments": {}}'),
            "wrong_arguments",
            "read",
            "the argument path is missing (a string)",
        ),
        (call('{"name": "read"}'), "wrong_arguments", "read", "the argument path is missing"),
        (
            call('{"name": "now", "arguments": {"zone": 1}}'),
            "wrong_arguments",
            "now",
            "there is no argument zone; it takes none",
        ),
        (
            call('{"name": "edit", "arguments": {"path": "a", "line": "3"}}'),
            "wrong_arguments",
            "edit",
            "line must be an integer, not '3'",
        ),
        (
            call('{"name": "edit", "arguments": {"path": "a", "line": true}}'),
            "wrong_arguments",
            "edit",
            "line must be an integer, not True",
        ),
        (f"{GOOD}\nIt says:", "text_after", "read", "nothing may follow </tool_call>, and 'It says:' does"),
    ],
)
def test_each_malformed_call_says_how_to_mend_it(text, status, name, told):
    reply = read_reply(text, TOOLS)
    (found,) = reply.calls
    assert status_of(found) == Status(status)
    assert found.name == name
    assert told in found.problem
    assert reply.content == text  # as it was written, so that it can be shown again


def test_of_several_calls_each_has_its_own_status():
    text = "\n".join([GOOD, call('{"name": "Read"}'), call("{"), GOOD.removesuffix(CLOSE)])
    statuses = [status_of(found) for found in read_reply(text, TOOLS).calls]
    assert statuses == ["ok", "unknown_tool", "invalid_json", "unclosed"]
    # An unclosed call does not swallow the next one, be it JSON or not.
    for broken in (GOOD.removesuffix(CLOSE), f'{OPEN}\n{{"name": "re'):
        assert [status_of(found) for found in read_reply(f"{broken}\n{GOOD}", TOOLS).calls] == ["unclosed", "ok"]
    assert [status_of(found) for found in read_reply(f"{GOOD}\nand\n{GOOD}", TOOLS).calls] == ["text_after", "ok"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nA1\n</think>\n\nR1", ("A1", "R1", True)),
        ("<think>\n\n</think>\n\nR1", ("", "R1", True)),
        ("\n<think>A</think>R", ("A", "R", True)),
        ("<think>\nA1", ("A1", "", False)),
        ("The tag </think> closes thoughts.", (None, "The tag </think> closes thoughts.", True)),
        ("see <think>a</think>", (None, "see <think>a</think>", True)),
    ],
)
def test_thoughts_are_taken_from_the_beginning_only(text, expected):
    # T40, T41: a text that mentions a marker loses nothing.
    assert split_reasoning(text) == expected


@pytest.mark.parametrize("text", [f"<think>\nI call\n{GOOD}", f"<think>\n{GOOD}\n</think>\n\n", f"<think>{GOOD}"])
def test_a_call_inside_the_reasoning_is_not_carried_out_and_not_taken_for_an_answer(text):
    (found,) = read_reply(text, TOOLS).calls
    assert (status_of(found), found.name) == (Status.IN_REASONING, "read")
    assert "close it with </think> and write the call after that" in found.problem


@pytest.mark.parametrize(("after", "calls"), [(GOOD, (READ_A,)), ("It is a.", ())])
def test_a_call_that_was_only_thought_about_is_a_thought_when_something_follows(after, calls):
    reply = read_reply(f"<think>\n{call('{}')}\n</think>\n\n{after}", TOOLS)
    assert (reply.reasoning, reply.calls) == (call("{}"), calls)


@pytest.mark.parametrize("arguments", [{}, {"path": "a"}, {"path": "naïve </tool_call> \n \"'"}])
def test_a_written_call_is_read_back(arguments):
    tool = spec("any", path={"type": "string"})
    (found,) = read_reply(write_call(ToolCall(name="any", arguments=arguments)), [tool]).calls
    assert found == ToolCall(name="any", arguments=arguments)


pieces = st.sampled_from(
    [OPEN, CLOSE, "<think>", "</think>", '{"name": "read", "arguments": {"path": "a"}}', "{", "}", '"', "\n", "x"]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=30), st.lists(pieces, max_size=10).map("".join)))
def test_no_reply_breaks_the_parser_or_loses_text(text):
    reply = read_reply(text, TOOLS)
    for found in reply.calls:
        assert (found.problem is None) == (status_of(found) == Status.OK)
    if OPEN not in text and "<think>" not in text:
        assert reply == (None, text, ())
    if reply.reasoning is None and any(found.problem for found in reply.calls):
        assert reply.content == text


def test_the_message_to_the_model_is_short_however_long_its_mistake_was():
    for text in (
        call('"' + "x" * 10_000 + '"'),
        GOOD + "x" * 10_000,
        call('{"name": "edit", "arguments": {"path": [' + "1," * 9999 + "1]}}"),
    ):
        (found,) = read_reply(text, TOOLS).calls
        assert len(found.problem) < 250


def test_calls_without_end_are_read_up_to_a_limit():
    for text in (OPEN * 30_000, GOOD * 1000, f"{OPEN}{{" * 10_000):
        found = read_reply(text, TOOLS).calls
        assert len(found) == MAX_CALLS + 1
        assert found[-1].problem == "not_a_call: a reply makes at most 64 calls; wait for results"
    assert all(call.problem is None for call in read_reply(GOOD * MAX_CALLS, TOOLS).calls)


def test_statuses_of_an_attempt_are_counted():
    calls = (
        READ_A,
        ToolCall(name="Read", problem="unknown_tool: there is no tool 'Read'"),
        ToolCall(name="x", problem="cut"),
    )
    node = Node(parent=None, message=Message(role="assistant", tool_calls=calls))
    trace = Trace(id="t", task_id="t", group_id="g", attempt=0, seed=0, nodes=(node, node), stop=Stop.DONE)
    assert count_statuses(trace) == {"ok": 2, "unknown_tool": 2, "not_a_call": 2}


def test_a_policy_concerns_what_is_malformed_and_not_spared():
    unknown = ToolCall(name="x", problem="unknown_tool: y")
    assert MalformedPolicy().concerns(unknown)
    assert not MalformedPolicy(spared=frozenset({Status.UNKNOWN_TOOL})).concerns(unknown)
    assert not MalformedPolicy(end=True).concerns(READ_A)


@pytest.mark.parametrize("penalty", [-0.1, math.nan, math.inf])
def test_a_penalty_that_is_none_is_refused(penalty):
    with pytest.raises(ConfigError, match="write what it costs, 0 or more"):
        MalformedPolicy(penalty=penalty)


def test_messages_are_plain_json():
    (found,) = read_reply(GOOD, TOOLS).calls
    assert json.loads(json.dumps(dict(found.arguments))) == {"path": "a"}
