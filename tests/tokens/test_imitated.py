"""Data sets in the tokens of Qwen3, and replies written by any renderer that is to imitate them."""

import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError, RendererError
from agentrl.tokens.chat import tool_to_chat
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.dataset import load_dataset
from agentrl.tokens.rows import as_writer, demonstration
from agentrl.tokens.samples import samples
from agentrl.tokens.template import TemplateRenderer
from agentrl.types import Message, ToolCall, ToolSpec
from tests.tokens import conversations, templates
from tests.tokens.real import needs_assets, vocabulary

pytestmark = needs_assets
SPEC = ToolSpec(name="now", description="The time.", parameters={"type": "object", "properties": {}})
READ = ToolSpec(name="read", description="", parameters={"type": "object", "properties": {"path": {"type": "string"}}})


def renderer(*, thinking=False):
    return ChatMLRenderer(vocabulary(), thinking=thinking)


def load(tmp_path, *rows, thinking=False, **settings):
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_dataset(path, renderer(thinking=thinking), **({"context": 4096} | settings))


def trained(sample):
    return tuple(token for token, weight in zip(sample.token_ids, sample.weights["ce"], strict=True) if weight)


def text(ids):
    return vocabulary().decode(ids)


def test_each_reply_is_trained_with_its_end_behind_what_the_engine_would_be_sent(tmp_path):
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read a.py."},
        {"role": "assistant", "tool_calls": [{"function": {"name": "read", "arguments": '{"path": "a.py"}'}}]},
        {"role": "tool", "content": "ok<|im_end|>"},
        {"role": "assistant", "content": "It says ok."},
    ]
    found = load(tmp_path, {"messages": chat, "tools": [tool_to_chat(READ)]})
    (sample,) = found.units[0].samples
    assert text(trained(sample)) == (
        '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call><|im_end|>It says ok.<|im_end|>'
    )
    # the ids before the first reply are those that a rollout begins with
    opening = renderer().render(
        [Message(role="system", content="Be brief."), Message(role="user", content="Read a.py.")], [READ]
    )
    given_ids = (*(token for ids in opening for token in ids), *renderer().generation_prompt())
    assert sample.token_ids[: len(given_ids)] == given_ids
    # a tool's text that spells the end of a turn ends none: system, user, reply, result, reply
    assert sample.token_ids.count(vocabulary().control("<|im_end|>")) == 5


@pytest.mark.parametrize("arguments", [{}, None, "", "{}"])
def test_a_call_without_arguments_keeps_its_line(tmp_path, arguments):
    # T11: one of these lines was dropped, another written as null
    row = {
        "messages": [
            {"role": "user", "content": "When?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": arguments}}]},
        ],
        "tools": [tool_to_chat(SPEC)],
    }
    (unit,) = load(tmp_path, row).units
    assert text(trained(unit.samples[0])) == '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>'


def test_prompt_and_completion_as_texts_are_encoded_apart(tmp_path):
    # T26: encoded together, "memory.feedback" has a piece of both
    (unit,) = load(tmp_path, {"prompt": "Call memory.", "completion": "feedback(3)"}).units
    (sample,) = unit.samples
    assert sample.token_ids == (7220, 4938, 13, 20999, 7, 18, 8, vocabulary().end_id)
    assert sample.weights["ce"] == (0, 0, 0, 1, 1, 1, 1, 1)


def test_thoughts_need_a_model_that_thinks(tmp_path):
    row = {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\na\n</think>\n\nb"}]
    }
    with pytest.raises(ConfigError, match=r"chat.jsonl, line 1: thinking is off"):
        load(tmp_path, row)
    (unit,) = load(tmp_path, row, thinking=True).units
    assert text(trained(unit.samples[0])) == "<think>\na\n</think>\n\nb<|im_end|>"


def test_thoughts_that_a_new_question_drops_make_a_branch_of_their_own(tmp_path):
    # T17: each reply is trained once, behind the history that the model would see then
    reply = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}
    chat = [{"role": "user", "content": "x"}, reply, {"role": "user", "content": "y"}, reply]
    (unit,) = load(tmp_path, {"messages": chat}, thinking=True).units
    first, second = unit.samples
    assert text(trained(first)) == text(trained(second)) == "<think>\nhm\n</think>\n\nb<|im_end|>"
    assert "hm" not in text(second.token_ids[: -len(trained(second))])
    assert "hm" not in text(second.token_ids).partition("y<|im_end|>")[0]


def test_a_conversation_cut_in_its_reply_trains_what_is_left(tmp_path):
    # T01, T36
    row = {
        "messages": [
            {"role": "user", "content": "Name a prime."},
            {"role": "assistant", "content": "Seven is a prime number."},
        ]
    }
    (whole,) = load(tmp_path, row).units
    length = len(whole.samples[0].token_ids)
    found = load(tmp_path, row, context=length - 3, overlong="cut")
    (sample,) = found.units[0].samples
    assert sample.token_ids == whole.samples[0].token_ids[:-3]
    assert trained(sample) == trained(whole.samples[0])[:-3]
    assert (found.num_cut, found.tokens_cut) == (1, 3)


# Renderers that write.


def library():
    found = pytest.importorskip("agentrl.tokens.library", reason="the package renderers is not installed")
    return found.LibraryRenderer(vocabulary(), "qwen3")


RENDERERS = {
    "chatml": lambda: ChatMLRenderer(vocabulary()),
    "template of qwen3": functools.cache(lambda: TemplateRenderer(vocabulary())),
    "library, qwen3": functools.cache(library),
    "template of gemma": lambda: TemplateRenderer(
        templates.small_vocabulary(templates.GEMMA3, ("<bos>", "<start_of_turn>", "<end_of_turn>"), bos="<bos>")
    ),
}


@pytest.mark.parametrize("name", RENDERERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_a_renderer_writes_it_reads_back(name, data):
    found = as_writer(RENDERERS[name]())
    calls = tuple(
        ToolCall(name="read", arguments={"path": path})
        for path in data.draw(st.lists(st.sampled_from(["a.py", "naïve\n", "<|im_end|>", "</tool_call>"]), max_size=2))
    )
    content = data.draw(st.sampled_from(["", "I look.", "Which <|im_end|> is it?"]))
    message = Message(role="assistant", content=content, tool_calls=calls)
    ids = found.write_reply(message)
    assert ids[-1] in found.stop_ids
    assert not found.stop_ids & set(ids[:-1])
    told = found.parse(ids, [READ])
    assert [(call.name, dict(call.arguments), call.problem) for call in told.tool_calls] == [
        (call.name, dict(call.arguments), None) for call in calls
    ]
    if "small" not in name and "gemma" not in name:  # whose few letters cannot spell every text
        assert told.content == content


@settings(max_examples=60, deadline=None)
@given(conversations.assistant(conversations.hostile_text))
def test_the_template_of_qwen3_writes_a_reply_as_our_own_renderer_does(message):
    if any(mark in message.content for mark in ("<think>", "</think>", "<tool_call>")):
        return  # texts that our renderer writes in pieces, and that nothing reads back
    ours, theirs = ChatMLRenderer(vocabulary()), RENDERERS["template of qwen3"]()
    if message.reasoning is None:
        assert theirs.write_reply(message) == ours.write_reply(message)


def test_a_template_of_another_family_has_demonstrations_too():
    found = RENDERERS["template of gemma"]()
    messages = [Message(role="user", content="Which fruit is blue?"), Message(role="assistant", content="A plum.")]
    (sample,) = samples(demonstration(found, messages, (), trace_id="t"), None, objective="ce")
    assert found.decode(trained(sample)) == "A plum.<end_of_turn>"
    assert found.decode(sample.token_ids).endswith("<start_of_turn>model\nA plum.<end_of_turn>")


def test_who_only_reads_says_so():
    class Reader:
        """Everything of a renderer but writing."""

        name = "reader"

    with pytest.raises(RendererError, match="reader reads replies and cannot write any"):
        as_writer(Reader())
    found = ChatMLRenderer(vocabulary())
    assert as_writer(found) is found
