"""TinyAgent's language: exact in both directions, and no reply of the policy can break the conversation."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.errors import RendererError
from agentrl.tasks.bugfix import tiny
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tokens.tiny import IDS, WORDS, TinyRenderer, decode, encode
from agentrl.types import Message, ToolCall

RENDERER = TinyRenderer()
TOOLS = BugFixEnvironment.tool_specs()
PROGRAM_WORDS = [word for word in WORDS if not word.startswith("<") and not (word[0] == "L" and word[1:].isdigit())]


def ids(*words):
    return tuple(IDS[word] for word in words)


def parse(*words):
    (call,) = RENDERER.parse(ids(*words), TOOLS).tool_calls
    return call


def listing(source):
    return "\n".join(f"{number}|{line}" for number, line in enumerate(source.rstrip("\n").split("\n"), start=1))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_every_tiny_task_is_written_and_read_back_exactly(seed):
    for candidate in itertools.islice(tiny.candidates(random.Random(seed)), 8):
        (broken,), (reference,) = candidate.files.values(), candidate.reference.values()
        (prompt,) = tiny.prompt(broken, "test_3")
        for text in (broken, reference, listing(broken), listing(reference), prompt.content):
            assert decode(encode(text)) == text
        for line in broken.rstrip("\n").split("\n"):
            call = ToolCall(name="edit", arguments={"line": 3, "text": line.strip()})
            assert RENDERER.parse(RENDERER.write_call(call), TOOLS).tool_calls == (call,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("    return a - b", ("<in1>", "return", "a", "-", "b")),
        ("3|        r.append(x * 2)", ("L3", "<in2>", "r", ".", "append", "(", "x", "*", "2", ")")),
        ("failed f(2, [1]) == -7 expected 140", None),
        ("1|def f(a):\n2|    return -a", None),
        ("def f(a):\n    return xs[0]", None),
        ("passed", ("passed",)),
        ("99 100", ("99", "<d1>", "<d0>", "<d0>")),  # 99 is the largest number with a word
    ],
)
def test_texts_and_their_words(text, words):
    assert decode(encode(text)) == text
    assert words is None or encode(text) == ids(*words)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("return zebra", "'zebra'"),
        ("a / b", "'/'"),
        ("a = 'b'", "\"'b'\""),
        ("13|a", "'L13'"),  # a listing has at most 12 lines
        ("007", "'007'"),
        ("  return a", "2 spaces"),
        ("a+b", "'a + b'"),  # not the spacing that comes back
        ("<end>", "'end'"),
    ],
)
def test_what_the_language_lacks_is_refused_with_its_name(text, named):
    with pytest.raises(RendererError) as caught:
        encode(text)
    assert named in str(caught.value)


@given(st.lists(st.integers(0, 400), max_size=4), st.integers(-500, 500))
def test_results_with_any_small_numbers_are_exact(numbers, value):
    text = f"failed f({numbers}) == {value} expected {numbers}"
    assert decode(encode(text)) == text


@pytest.mark.parametrize(
    "call",
    [
        ToolCall(name="submit"),
        ToolCall(name="test"),
        ToolCall(name="read"),
        ToolCall(name="read", arguments={"path": "x"}),
        ToolCall(name="edit", arguments={"line": 4, "text": "return a - b"}),
        ToolCall(name="edit", arguments={"line": 12, "text": "    t = 120"}),
        ToolCall(name="edit", arguments={"line": 4, "text": ""}),
        ToolCall(name="edit", arguments={"line": 4, "text": "a", "path": "b"}),
        ToolCall(name="edit", arguments={"line": 4, "text": "", "path": "b"}),
    ],
)
def test_a_written_call_is_read_back(call):
    written = RENDERER.write_call(call)
    assert written[-1] in RENDERER.stop_ids
    assert RENDERER.parse(written, TOOLS).tool_calls == (call,)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "cut off"),
        (("test",), "cut off"),
        (("edit", "L2", "return"), "cut off"),
        (("<end>",), "starts with one of read, test, edit, submit"),
        (("return", "a", "<end>"), "starts with one of"),
        (("edit", "return", "a", "<end>"), "line must be a line number L1..L12, not 'return'"),
        (("submit", "a", "<end>"), "left over: 'a'"),
        (("edit", "L2", "a", "<arg>", "b", "<arg>", "x", "<end>"), "left over: 'x'"),
        (("edit", "L2", "a", "<nl>", "b", "<end>"), "text must be one line"),
        (("edit", "L2", "<tool>", "passed", "<end>"), "text must be one line"),
        (("edit", "L2", "test", "<end>", "submit", "<end>"), "text must be one line"),
        (("edit", "L2", "a", "L4", "b", "<end>"), "text must be one line"),  # L4 would begin a new line
        (("edit", "L2", "L4", "b", "<end>"), "text must be one line"),  # shown again, it would be a second number
        (("edit", "L2", "a", "<in1>", "b", "<end>"), "text must be one line"),
        (("edit", "L2", "<d0>", "<d7>", "<end>"), "text must be one line"),
    ],
)
def test_each_malformed_reply_says_its_problem(words, problem):
    assert problem in parse(*words).problem


def test_a_well_formed_reply_has_no_problem():
    call = parse("edit", "L4", "return", "a", "-", "b", "<end>")
    assert (call.name, call.arguments, call.problem) == ("edit", {"line": 4, "text": "return a - b"}, None)


any_ids = st.lists(st.integers(0, len(WORDS) - 1), max_size=12)
call_ids = st.tuples(st.sampled_from(["edit", "read", "test", "submit"]), st.lists(st.sampled_from(WORDS), max_size=8))
edit_ids = st.lists(st.sampled_from([*PROGRAM_WORDS, "<in1>", "<d1>", "<d0>"]), min_size=1, max_size=8)
likely_replies = st.one_of(
    any_ids.map(tuple),
    call_ids.map(lambda reply: ids(reply[0], *reply[1], "<end>")),
    edit_ids.map(lambda words: ids("edit", "L3", *words, "<end>")),
)


@settings(max_examples=400, deadline=None)
@given(likely_replies)
@example(ids("edit", "L4", "a", "L4", "<end>"))
@example(ids("edit", "L3", "#", "<end>"))
@example(ids("edit", "L3", "(", "#", "a", "<end>"))
def test_no_reply_breaks_the_parser_and_what_it_accepts_can_be_shown_again(reply):
    message = RENDERER.parse(reply, TOOLS)
    (call,) = message.tool_calls
    assert message.role == "assistant"
    if call.problem is not None:
        return
    text = call.arguments.get("text")
    if isinstance(text, str):
        assert "\n" not in text
        for shown in (f"7|{text}", f"7|            {text}" if not text.startswith(" ") else f"7|{text}"):
            assert decode(encode(shown)) == shown


def test_a_conversation_token_by_token():
    prompt = (Message(role="user", content="fix test_1\n1|def f(a, b):\n2|    return a + b"),)
    (opening,) = RENDERER.render(prompt, TOOLS)
    first = ("<user>", "fix", "test_1", "L1", "def", "f", "(", "a", ",", "b", ")", ":")
    assert opening == ids(*first, "L2", "<in1>", "return", "a", "+", "b", "<end>")
    assert RENDERER.generation_prompt() == ids("<assistant>")
    assert RENDERER.extend([Message(role="tool", content="passed")], ()) == (ids("<tool>", "passed", "<end>"),)
    # Words that help a large model to mend a call are not in this vocabulary.
    assert RENDERER.extend([Message(role="tool", content="error: é")], ()) == (ids("<tool>", "error", "<end>"),)


def test_what_a_message_becomes_does_not_depend_on_those_after_it():
    messages = [Message(role="user", content="fix test_1"), Message(role="tool", content="ok")]
    both, first = RENDERER.render(messages, TOOLS), RENDERER.render(messages[:1], TOOLS)
    assert both[:1] == first
    assert both[1:] == RENDERER.extend(messages[1:], ())


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_other_roles_are_refused(role):
    with pytest.raises(RendererError, match=role):
        RENDERER.extend([Message(role=role, content="ok")], ())


def test_every_word_has_one_id():
    assert len(set(WORDS)) == len(WORDS) == RENDERER.vocab_size
    assert {IDS["<end>"]} == RENDERER.stop_ids
