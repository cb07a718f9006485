"""The library's renderer of Qwen3 against ours: the same ids, and each difference with its reason."""

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("renderers", reason="the package renderers is not installed: agentrl[renderers]")

from agentrl.errors import RendererError
from agentrl.tokens.chat import message_to_chat
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.library import LibraryRenderer
from agentrl.tokens.toolcalls import Status, status_of
from agentrl.types import Message, ToolCall, ToolSpec
from tests.tokens import conversations
from tests.tokens.real import needs_assets, transformers_tokenizer, vocabulary

pytestmark = needs_assets
END, END_OF_TEXT = 151645, 151643
READ = ToolSpec(name="read", description="", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
GOOD = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'


def ours(thinking=True):
    return ChatMLRenderer(vocabulary(), thinking=thinking)


def library(thinking=True):
    return LibraryRenderer(vocabulary(), "qwen3", {"enable_thinking": thinking})


LIBRARY = {thinking: library(thinking) for thinking in (True, False)} if not needs_assets[1].args[0] else {}


def template_ids(messages):
    chat = [message_to_chat(message) for message in messages]
    return transformers_tokenizer().apply_chat_template(chat)["input_ids"]


def flat(spans):
    return [token for span in spans for token in span]


def differs(message):
    """Where the two differ, each with a test of its own: a reply that begins with space, and a user's text in the form
    of a tool's result."""
    if message.role == "assistant":
        return message.content[:1].isspace()
    return message.role == "user" and message.content.startswith("<tool_response>")


@settings(max_examples=40, deadline=None)
@given(conversations.messages(conversations.hostile_text), conversations.specs(conversations.hostile_text))
def test_both_write_every_conversation_alike(messages, tools):
    assume(not any(map(differs, messages)))
    assert flat(LIBRARY[True].render(messages, tools)) == flat(ours().render(messages, tools))
    assert LIBRARY[True].generation_prompt() == ours().generation_prompt()
    assert LIBRARY[True].stop_ids == ours().stop_ids


def test_the_library_encodes_the_head_of_a_turn_of_the_assistant_apart_and_the_template_does_not():
    # "assistant\n" + "\nb": one piece for both newlines (271) in the template, two in the library.
    messages = [Message(role="assistant", content="\nb"), Message(role="user", content="c")]
    theirs, mine = (flat(r.render(messages, [])) for r in (LIBRARY[True], ours()))
    assert (theirs[:5], mine[:4]) == ([151644, 77091, 198, 198, 65], [151644, 77091, 271, 65])
    assert theirs[5:] == mine[4:]
    assert mine == list(template_ids(messages))


def test_a_users_text_in_the_form_of_a_result_is_a_question_for_the_library_only():
    # The template looks at the text and takes it for no question, so thoughts before it stay; so do we. The library
    # sees markers that are parted, as all text that it gets from us.
    history = [Message(role="user", content="a"), Message(role="assistant", content="b", reasoning="t")]
    messages = [*history, Message(role="user", content="<tool_response>\nx\n</tool_response>")]
    theirs, mine = (flat(r.render(messages, [])) for r in (LIBRARY[True], ours()))
    assert (151667 in theirs, 151667 in mine, 151667 in template_ids(messages)) == (False, True, True)


def test_with_thinking_off_the_library_puts_empty_thoughts_into_history_and_the_template_does_not():
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    theirs, mine = (flat(r.render(messages, [])) for r in (LIBRARY[False], ours(False)))
    empty = [151667, 271, 151668, 271]
    place = theirs.index(151667)
    assert theirs[:place] + theirs[place + len(empty) :] == mine
    # Both keep them where they were part of what the policy saw.
    for renderer in (LIBRARY[False], ours(False)):
        assert list(renderer.generation_prompt()[-4:]) == empty


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.builds(Message, role=st.sampled_from(["tool", "system"]), content=conversations.hostile_text),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(0, 151642), max_size=5),
    st.booleans(),
)
def test_both_append_alike(messages, sampled, ended):
    sampled = (*sampled, END) if ended else tuple(sampled)
    assert flat(LIBRARY[True].extend(messages, sampled)) == flat(ours().extend(messages, sampled))


def test_a_question_after_a_reply_with_thinking_is_a_new_branch_for_the_library_always_and_for_us_only_with_thoughts():
    question = Message(role="user", content="c")
    with pytest.raises(RendererError, match="start a new branch"):
        LIBRARY[True].extend([question], (END,))
    history = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    assert ours().rewritten(history, [question]) is None
    assert ours().rewritten([history[0], dataclasses.replace(history[1], reasoning="t")], [question]) is not None
    assert flat(LIBRARY[False].extend([question], (END,))) == flat(ours(False).extend([question], (END,)))


def parsed(text):
    ids = (*vocabulary().encode(text), END)
    return LIBRARY[True].parse(ids, [READ]), ours().parse(ids, [READ])


@pytest.mark.parametrize(
    "text",
    [
        "done",
        GOOD,
        f"I look.\n{GOOD}",
        f"{GOOD}\n{GOOD}",
        f"<think>\nhm\n</think>\n\n{GOOD}",
        f"<think>\n{GOOD}\n</think>\n\nno",
    ],
)
def test_both_read_well_formed_replies_alike(text):
    theirs, mine = parsed(text)
    assert theirs == mine


@pytest.mark.parametrize(
    ("text", "theirs", "mine"),
    [
        # A closing marker inside of an argument: found by id there, read as JSON here.
        (
            '<tool_call>\n{"name": "read", "arguments": {"path": "</tool_call>"}}\n</tool_call>',
            ["invalid_json"],
            ["ok"],
        ),
        # A call in thoughts that were never closed: carried out there, answered with an error here.
        (f"<think>\nhm\n{GOOD}", ["ok"], ["in_reasoning"]),
        # Nothing behind thoughts that hold a call: an empty answer there.
        (f"<think>\n{GOOD}\n</think>\n\n", [], ["in_reasoning"]),
        # Text behind a call: lost there.
        (f"{GOOD}\nIt says:", ["ok"], ["text_after"]),
        # The same key twice: the last one counts there.
        (
            '<tool_call>\n{"name": "read", "arguments": {"path": "a", "path": "b"}}\n</tool_call>',
            ["ok"],
            ["invalid_json"],
        ),
        # Markers that the policy spelt in ordinary pieces: a call for a server, which reads text, and for us.
        ("spelt", [], ["ok"]),
    ],
)
def test_where_the_parsers_differ(text, theirs, mine):
    if text == "spelt":
        ids = (*vocabulary().text_ids(GOOD), END)
        found = LIBRARY[True].parse(ids, [READ]), ours().parse(ids, [READ])
    else:
        found = parsed(text)
    assert [[status_of(call) for call in message.tool_calls] for message in found] == [theirs, mine]


def test_empty_thoughts_are_none_for_the_library():
    theirs, mine = parsed("<think>\n\n</think>\n\ndone")
    assert (theirs.reasoning, mine.reasoning) == (None, "")


def test_a_reply_that_ended_with_the_text_gets_an_end_of_turn_from_both():
    more = [Message(role="tool", content="x")]
    assert flat(LIBRARY[True].extend(more, (END_OF_TEXT,))) == flat(ours().extend(more, (END_OF_TEXT,)))


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("qwen9", {}, "no renderer 'qwen9'; it has .*, qwen3, "),
        ("auto", {}, "no renderer 'auto'"),
        ("qwen3", {"volume": 1}, "no renderer 'qwen3' with {'volume': 1}"),
        ("llama-3", {}, "'llama-3' cannot use this vocabulary"),
    ],
)
def test_a_family_that_does_not_fit_is_refused(family, options, message):
    with pytest.raises(RendererError, match=message):
        LibraryRenderer(vocabulary(), family, options)


def test_statuses_are_ours():
    (call,) = (
        LIBRARY[True]
        .parse((*vocabulary().encode('<tool_call>\n{"arguments": {}}\n</tool_call>'), END), [READ])
        .tool_calls
    )
    assert status_of(call) == Status.NOT_A_CALL
    assert isinstance(call, ToolCall)
