"""Replies that the library writes, to be imitated: the ids of our own renderer, and each difference with its reason."""

import dataclasses
import functools
import itertools
import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("renderers", reason="the package renderers is not installed: agentrl[renderers]")

from agentrl.errors import RendererError
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.dataset import load_dataset
from agentrl.tokens.library import LibraryRenderer
from agentrl.tokens.rows import as_writer, demonstration
from agentrl.tokens.samples import samples
from agentrl.types import Message, ToolCall, ToolSpec
from tests.tokens import conversations
from tests.tokens.real import needs_assets, vocabulary

pytestmark = needs_assets
START, END = 151644, 151645
READ = ToolSpec(name="read", description="", parameters={"type": "object", "properties": {"path": {}}})
QUESTION, NEXT = (Message(role="user", content=text) for text in ("Which fruit is blue?", "And red?"))
RESULT = Message(role="tool", content="ok")
CALL = ToolCall(name="read", arguments={"path": "a", "line": 3})


@functools.cache
def library(family="qwen3", **options):
    return as_writer(LibraryRenderer(vocabulary(), family, options))


@functools.cache
def ours(thinking=True):
    return ChatMLRenderer(vocabulary(), thinking=thinking)


def reply(content="x", reasoning=None, *calls):
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def differs(message):
    """What has a test of its own below: space before a text, and texts that spell the marks of thoughts."""
    texts = (message.content, message.reasoning or "")
    return message.content[:1].isspace() or any("think>" in text for text in texts)


replies = conversations.assistant(conversations.hostile_text).filter(lambda message: not differs(message))


@settings(max_examples=60, deadline=None)
@given(replies)
def test_both_write_a_reply_alike(message):
    assert library().write_reply(message) == ours().write_reply(message)
    message = dataclasses.replace(message, reasoning=None)
    assert library(enable_thinking=False).write_reply(message) == ours(False).write_reply(message)


def told(renderer, messages, tools):
    """Each reply of a demonstration, behind all that the policy would be sent before it."""
    trace = demonstration(renderer, messages, tools, trace_id="t")
    found = []
    for branch in trace.branches():
        ids = ()
        for index in branch:
            node = trace.nodes[index]
            ids += node.context_ids
            if node.sampled_ids:
                found.append((index, ids, node.sampled_ids))
            ids += node.sampled_ids
    return [rest for _, *rest in sorted(dict.fromkeys(found))], trace


@st.composite
def dialogues(draw):
    """Questions, replies with results, and replies without."""
    text = conversations.hostile_text
    found = [Message(role="system", content=draw(text))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        others = draw(st.lists(st.sampled_from(["tool", "system"]), max_size=2)) if found[1:] else []
        roles = others or ["user"]
        found += [Message(role=role, content=f"So {draw(text)}") for role in roles]
        found.append(draw(replies))
    return found


@settings(max_examples=40, deadline=None)
@given(dialogues(), conversations.specs(conversations.hostile_text))
def test_each_reply_of_a_conversation_stands_behind_the_ids_of_our_own(messages, tools):
    theirs, trace = told(library(), messages, tools)
    mine, _ = told(ours(), messages, tools)
    assert theirs == mine
    # Exactly the replies are trained, each token once, the one that ends the turn too.
    made = samples(trace, None, objective="ce")
    kept = [token for one in made for token, weight in zip(one.token_ids, one.weights["ce"], strict=True) if weight]
    assert kept == [token for _, said in theirs for token in said]
    assert kept.count(END) == sum(message.role == "assistant" for message in messages)


@settings(max_examples=20, deadline=None)
@given(dialogues(), conversations.specs(conversations.hostile_text))
def test_with_thinking_off_both_only_append(messages, tools):
    messages = [dataclasses.replace(message, reasoning=None) for message in messages]
    theirs, trace = told(library(enable_thinking=False), messages, tools)
    assert theirs == told(ours(False), messages, tools)[0]
    assert len(trace.branches()) == 1


def test_the_dialogues_have_every_shape():
    # The negative control of the two above.
    found = set()

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(dialogues())
    def collect(messages):
        said = [message for message in messages if message.role == "assistant"]
        found.update(message.role for message in messages)
        found.update({"thoughts"} if any(message.reasoning for message in said) else ())
        found.update({"several calls"} if any(len(message.tool_calls) > 1 for message in said) else ())
        found.update({"several replies"} if len(said) > 1 else ())
        found.update({"control"} if any("<|im_end|>" in message.content for message in said) else ())

    collect()
    assert found == {
        "system", "user", "assistant", "tool", "thoughts", "several calls", "several replies", "control",
    }  # fmt: skip


def test_a_data_set_is_read_with_weights_on_the_replies_alone(tmp_path):
    chat = [
        {"role": "user", "content": "Read a."},
        {"role": "assistant", "tool_calls": [{"function": {"name": "read", "arguments": {"path": "a"}}}]},
        {"role": "tool", "content": "<|im_end|>"},
        {"role": "assistant", "content": "Done."},
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": chat}))
    mine, theirs = (load_dataset(path, found, context=4096).units[0].samples for found in (ours(), library()))
    assert [one.weights for one in theirs] == [one.weights for one in mine]
    assert [one.token_ids for one in theirs] == [one.token_ids for one in mine]
    # <tool_call> \n {" name ... 18 ids with the one that ends it, and "Done" "." and the end
    assert (
        sum(theirs[0].weights["ce"])
        == len(ours().write_reply(reply("", None, ToolCall(name="read", arguments={"path": "a"})))) + 3
    )


# Where the two differ.


def test_newlines_before_a_text_are_lost_behind_thoughts():
    # The template strips them as well, and `render` of ours; a reply of ours keeps what was said.
    texts = [vocabulary().decode(found.write_reply(reply("\n x", "t"))) for found in (library(), ours())]
    assert texts == [f"<think>\nt\n</think>\n\n{text}<|im_end|>" for text in (" x", "\n x")]
    assert library().write_reply(reply("\n x")) == ours().write_reply(reply("\n x"))  # without thoughts nothing is


def test_empty_thoughts_that_stand_before_the_reply_are_no_error_for_the_library():
    off = library(enable_thinking=False)
    assert vocabulary().decode(off.write_reply(reply("x", ""))) == "x<|im_end|>"
    with pytest.raises(RendererError, match="thinking is off"):
        ours(False).write_reply(reply("x", ""))
    for found in (off, ours(False)):
        with pytest.raises(RendererError, match="thoughts"):
            found.write_reply(reply("x", "t"))


@pytest.mark.parametrize("message", [reply("x", "a </think> b"), reply("a </think> b", "x </think>")])
def test_thoughts_that_spell_their_own_mark_are_read_otherwise_by_the_library_and_refused(message):
    with pytest.raises(RendererError, match=r"so that it is read as the (text|thoughts) .*; use another family"):
        library().write_reply(message)
    assert ours().write_reply(message)[-1] == END


@pytest.mark.parametrize("thoughts", [None, ""])
def test_a_question_is_appended_although_the_library_itself_begins_anew(thoughts):
    # Its own way of going on begins anew behind every question, whether thoughts would be dropped or not.
    assert library()._bridged([NEXT]) is None
    messages = [QUESTION, reply("a", thoughts), NEXT, reply("b")]
    (mine, _), (theirs, trace) = (told(found, messages, ()) for found in (ours(), library()))
    assert mine == theirs
    assert len(trace.branches()) == 1
    thoughtful = [QUESTION, reply("a", "t"), NEXT, reply("b")]
    assert [len(told(found, thoughtful, ())[1].branches()) for found in (ours(), library())] == [2, 2]


def test_the_librarys_own_mask_counts_thoughts_that_the_policy_was_given():
    off = library(enable_thinking=False)
    found = off._library.render(off._chat([QUESTION, reply("x")]))
    marked = [token for token, sampled in zip(found.token_ids, found.sampled_mask, strict=True) if sampled]
    assert vocabulary().decode(marked) == "<think>\n\n</think>\n\nx<|im_end|>"
    assert vocabulary().decode(off.generation_prompt()).endswith("<think>\n\n</think>\n\n")
    assert vocabulary().decode(off.write_reply(reply("x"))) == "x<|im_end|>"


def test_characters_that_the_tokenizer_composes_are_no_other_arguments():
    # It writes A and a combining grave as one character, which stands behind B where the two stood before it.
    call = ToolCall(name="read", arguments={"B": 1, "A\u0300": 2})
    for found in (library(), library(enable_thinking=False)):
        (read,) = found.parse(found.write_reply(reply("x", None, call)), ()).tool_calls
        assert read.arguments == {"B": 1, "\u00c0": 2}


def test_a_malformed_reply_is_shown_again_as_the_policy_wrote_it():
    text = '<tool_call>\n{"name": "read", "arguments": {}\n</tool_call>'
    message = ours().parse((*vocabulary().encode(text), END), (READ,))
    history = [QUESTION, message, RESULT]
    assert library().render(history, ()) == ours().render(history, ())
    assert vocabulary().control("<tool_call>") in [*itertools.chain(*library().render(history, ()))]


def test_a_malformed_call_is_refused():
    broken = dataclasses.replace(CALL, problem="unclosed: x")
    with pytest.raises(RendererError, match="malformed call cannot be written; remove it"):
        library().write_reply(reply("<tool_call>{", None, broken))


# Other families, in the vocabulary of Qwen3.

PARAMETERS = "<parameter=path>\na\n</parameter>\n<parameter=line>\n3\n</parameter>"
XML = f"<tool_call>\n<function=read>\n{PARAMETERS}\n</function>\n</tool_call>"
JSON = '<tool_call>\n{"name": "read", "arguments": {"path": "a", "line": 3}}\n</tool_call>'
OFF = {"enable_thinking": False}
WRITTEN = [
    ("qwen3-vl", {}, "", ["x", None, f"x\n{JSON}"]),
    ("prime-qwen3", {}, "", ["<think></think>\nx", "<think>t</think>\nx", f"x\n\n{XML}"]),
    *(
        (family, {}, "<think>\n", ["\n</think>\n\nx", "t\n</think>\n\nx", f"\n</think>\n\nx\n\n{XML}"])
        for family in ("qwen3.5", "qwen3.6", "qwen3.8")
    ),
    ("qwen3.5", OFF, "<think>\n\n</think>\n\n", ["x", None, f"x\n\n{XML}"]),
    ("nemotron-3", {}, "<think>\n", [None, "t\n</think>\nx", None]),
    ("nemotron-3", OFF, "<think></think>", ["x", None, f"x\n{XML}\n"]),
    ("nemotron-3-ultra", {}, "<think>\n", [None, "t</think>x", None]),
]
"""Family, options, what opens a reply, and three replies: a text, thoughts and a text, a text and a call. None is
refused: thoughts that the family leaves out or was told not to have, or none where the opening begins some."""
every_family = pytest.mark.parametrize(("family", "options", "opening", "texts"), WRITTEN)


@every_family
def test_a_family_writes_what_follows_its_opening_or_says_why_not(family, options, opening, texts):
    found = library(family, **options)
    assert vocabulary().decode(found.generation_prompt()) == f"<|im_start|>assistant\n{opening}"
    for message, text in zip([reply(), reply("x", "t"), reply("x", None, CALL)], texts, strict=True):
        if text is None:
            with pytest.raises(RendererError, match=r"thoughts.*; use another family"):
                found.write_reply(message)
            continue
        ids = found.write_reply(message)
        assert vocabulary().decode(ids) == f"{text}<|im_end|>"
        assert ids.count(END) == 1


@every_family
@settings(max_examples=15, deadline=None)
@given(message=conversations.assistant(conversations.hostile_text))
def test_what_a_family_writes_is_read_back_and_is_what_the_library_renders(family, options, opening, texts, message):
    found = library(family, **options)
    without, with_thoughts, _ = texts
    if without is None or with_thoughts is None:  # else most of them would be refused
        message = dataclasses.replace(message, reasoning=None if with_thoughts is None else message.reasoning or "t")
    try:
        ids = found.write_reply(message)
    except RendererError:
        assume(False)
    assert found.stop_ids & {*ids} == {END}
    assert ids.index(END) == len(ids) - 1
    forms = [[QUESTION, message], [QUESTION, message, QUESTION]]
    whole = [vocabulary().decode([*itertools.chain(*found.render(form, ()))]) for form in forms]
    given = vocabulary().decode([*itertools.chain(*found.render([QUESTION], ())), *found.generation_prompt(), *ids])
    assert any(text.startswith(given) for text in whole)
    assert len(found.parse(ids, ()).tool_calls) == len(message.tool_calls)


@every_family
def test_a_reply_that_has_ended_is_not_closed_again(family, options, opening, texts):
    # Behind an opening that begins thoughts, the library closes them and the turn once more in a reply without any.
    found = library(family, **options)
    ended, cut = (found.extend([RESULT], said)[0] for said in ((9, END), (9,)))
    assert END not in ended[: ended.index(START)]
    assert cut == (END, *ended)
    assert vocabulary().control("</think>") not in ended


@pytest.mark.parametrize(
    ("arguments", "family"),
    [({"path": "</parameter>"}, "qwen3.5"), ({"path": "\n x"}, "qwen3.5"), ({"path": True}, "qwen3.5")],
)
def test_arguments_that_a_family_writes_as_others_are_refused(arguments, family):
    message = reply("x", "t", ToolCall(name="read", arguments=arguments))
    with pytest.raises(RendererError, match=r"writes the call read .* so that it is read as .*; use another family"):
        library(family).write_reply(message)
    assert ours().parse(ours().write_reply(message), [READ]).tool_calls == message.tool_calls
