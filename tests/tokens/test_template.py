"""Chat templates of Hugging Face: what is proved before one is used, and what is refused."""

import datetime
import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentrl.errors import RendererError
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.template import TemplateRenderer
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import Message, ToolCall, ToolSpec
from tests.tokens import conversations, templates
from tests.tokens.real import needs_assets, vocabulary

TODAY = datetime.date(2026, 1, 1)
TOOL = ToolSpec(name="read", description="Read.", parameters={"type": "object", "properties": {}})
MADE = {
    "smollm": lambda: TemplateRenderer(templates.small_vocabulary(templates.SMOLLM)),
    "qwen2.5": lambda: TemplateRenderer(templates.small_vocabulary(templates.QWEN25)),
    "gemma3": lambda: TemplateRenderer(templates.gemma3()),
    "llama3": lambda: TemplateRenderer(templates.llama3(), today=TODAY),
}


def flat(spans):
    return tuple(itertools.chain.from_iterable(spans))


def user(text):
    return Message(role="user", content=text)


def assistant(text):
    return Message(role="assistant", content=text)


@pytest.mark.parametrize(
    ("name", "prompt", "stops"),
    [
        ("smollm", "<|im_start|>assistant\n", {"<|im_end|>"}),
        ("qwen2.5", "<|im_start|>assistant\n", {"<|im_end|>"}),
        ("gemma3", "<start_of_turn>model\n", {"<end_of_turn>", "<eos>"}),
        ("llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n", {"<|eot_id|>"}),
    ],
)
def test_where_a_reply_begins_and_ends_is_found(name, prompt, stops):
    renderer = MADE[name]()
    assert renderer.decode(renderer.generation_prompt()) == prompt
    assert {renderer.decode((stop,)) for stop in renderer.stop_ids} == stops


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=20, deadline=None)
@given(st.lists(conversations.hostile_text, min_size=3, max_size=3), st.booleans())
def test_a_grown_conversation_has_the_ids_of_the_whole_one(name, texts, cut):
    # What was appended behind a reply is what the template writes there, whatever the reply was.
    renderer = MADE[name]()
    opening, answer, following = user(texts[0]), texts[1].strip() or "x", user(texts[2])
    reply = (*renderer.vocabulary.text_ids(answer), *(() if cut else (renderer.proof.stop_id,)))
    grown = flat(renderer.render([opening], ())) + renderer.generation_prompt() + reply
    grown += flat(renderer.extend([following], reply))
    whole = flat(renderer.render([opening, assistant(answer), following], ()))
    assert renderer.decode(grown) == renderer.decode(whole)
    if answer[0].isalnum():  # otherwise the head of the turn and the reply may share a piece in the whole
        assert grown == whole


def test_a_system_text_within_a_users_turn_stands_in_that_messages_ids():
    renderer = MADE["gemma3"]()
    spans = renderer.render([Message(role="system", content="Be brief."), user("Hi.")], ())
    assert renderer.decode(flat(spans)) == "<bos><start_of_turn>user\nBe brief.\n\nHi.<end_of_turn>\n"
    assert len(spans) == 2


def test_results_in_a_row_share_a_turn_and_have_a_tuple_each():
    renderer = MADE["qwen2.5"]()
    first, second = renderer.extend(
        [Message(role="tool", content=text) for text in ("A", "B")], (renderer.proof.stop_id,)
    )
    assert renderer.decode(first) == "\n<|im_start|>user\n<tool_response>\nA\n</tool_response>"
    assert renderer.decode(second) == "\n<tool_response>\nB\n</tool_response><|im_end|>\n"


def test_the_day_is_fixed_or_refused():
    with pytest.raises(RendererError, match=r"prints the day; fix it for all runs: today=datetime\.date"):
        TemplateRenderer(templates.llama3())
    one, other = (TemplateRenderer(templates.llama3(), today=day) for day in (TODAY, datetime.date(2026, 1, 2)))
    assert "Today Date: 01 Jan 2026" in one.decode(flat(one.render([user("x")], ())))
    assert one.name != other.name


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template; a base model needs one"),
        ("", "has no chat template"),
        ([{"name": "rag", "template": "x"}], "none of the chat templates rag is the default"),
        (templates.NUMBERED, "nothing can be appended to a reply: what stands before a reply is written otherwise"),
        (templates.NUMBERED_TURNS, "what stands before a reply is written otherwise when a user message follows"),
        (templates.UNENDED, "no control token ends a reply"),
        (templates.UNOPENED, "opens replies in no way"),
        (
            templates.SMOLLM.replace(
                "{% if add_generation_prompt %}", "{% if add_generation_prompt %}{{ messages | length }}"
            ),
            "opens replies in 3 ways",
        ),
        (templates.SMOLLM.replace("{{ m.content }}", "{{ m.content[:4] }}"), "no control token ends a reply|otherwise"),
        ("{{ messages[7].content }}", "refuses a conversation of user"),
        ("{% for m in messages %}", "refuses a conversation of user"),
    ],
)
def test_a_template_that_is_not_sound_is_refused_when_it_is_loaded(template, message):
    with pytest.raises(RendererError, match=message):
        TemplateRenderer(templates.small_vocabulary(template))


def test_the_default_among_several_templates_is_taken():
    named = [{"name": "rag", "template": "x"}, {"name": "default", "template": templates.SMOLLM}]
    assert TemplateRenderer(templates.small_vocabulary(named)).name == MADE["smollm"]().name


def test_a_refusal_names_what_to_use_instead():
    with pytest.raises(RendererError, match=r"use LibraryRenderer .*:FAMILY; pip install 'agentrl\[renderers\]'\)"):
        TemplateRenderer(templates.small_vocabulary(templates.NUMBERED))


def test_what_depends_on_a_reply_is_refused():
    # Behind a long reply the template writes a remark.
    remark = templates.SMOLLM.replace(
        "<|im_end|>\n{% endfor %}",
        "<|im_end|>{{ ' long' if m.content | length > 10 and m.role == 'assistant' }}\n{% endfor %}",
    )
    with pytest.raises(RendererError, match="what follows a reply before a user message depends on the reply"):
        TemplateRenderer(templates.small_vocabulary(remark))


def test_tools_that_a_template_does_not_show_or_writes_in_another_form_are_refused():
    for name, reason in (("smollm", "does not show tools"), ("llama3", "not write calls in the form that our parser")):
        with pytest.raises(RendererError, match=reason):
            MADE[name]().render([user("x")], (TOOL,))
        with pytest.raises(RendererError, match=reason):
            MADE[name]().extend([Message(role="tool", content="x")], ())


def test_a_role_that_must_alternate_is_refused_by_the_template():
    with pytest.raises(RendererError, match="refuses a conversation of user, user: Roles must alternate"):
        MADE["gemma3"]().render([user("a"), user("b")], ())


def spaced_tokenizer():
    """One that writes a space before a text, at the beginning only."""
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(["▁", *"abcdefghijklmnopqrstuvwxyzWSA.,<>23\n"])}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in templates.CHATML])
    return Vocabulary(tokenizer, {"chat_template": templates.SMOLLM, "eos_token": "<|im_end|>"})


def test_a_tokenizer_that_writes_pieces_by_their_place_is_refused():
    with pytest.raises(RendererError, match="writes text beside a control token in a way of its own"):
        TemplateRenderer(spaced_tokenizer())


@functools.cache
def qwen3():
    return TemplateRenderer(vocabulary())


class TestQwen3:
    pytestmark = needs_assets

    def test_it_may_append_results_but_no_questions(self):
        renderer = qwen3()
        assert renderer.proof.refused == {"user": "thoughts are dropped from a reply when a user message follows it"}
        with pytest.raises(
            RendererError, match=r"thoughts are dropped .* use ChatMLRenderer \(.*\), which keeps what was sampled"
        ):
            renderer.extend([user("x")], ())

    def test_with_thinking_off_the_template_takes_back_what_opened_the_reply(self):
        with pytest.raises(RendererError, match=r"use ChatMLRenderer \(.*\), which keeps what was sampled"):
            TemplateRenderer(vocabulary(), options={"enable_thinking": False})

    @settings(max_examples=30, deadline=None)
    @given(
        conversations.messages(conversations.plain_text),
        conversations.specs(conversations.plain_text),
        st.lists(
            st.builds(Message, role=st.sampled_from(["tool", "system"]), content=conversations.hostile_text),
            min_size=1,
            max_size=3,
        ),
        st.lists(st.integers(0, 151668), max_size=4).map(tuple),
    )
    def test_it_agrees_with_our_own_renderer(self, messages, tools, more, sampled):
        by_template, ours = qwen3(), ChatMLRenderer(vocabulary())
        assert flat(by_template.render(messages, tools)) == flat(ours.render(messages, tools))
        assert by_template.extend(more, sampled) == ours.extend(more, sampled)
        assert by_template.generation_prompt() == ours.generation_prompt()
        assert by_template.parse(sampled, tools) == ours.parse(sampled, tools)

    def test_a_malformed_reply_is_shown_again_as_it_was_written(self):
        broken = Message(
            role="assistant", content="<tool_call>{", tool_calls=(ToolCall(name="", problem="unclosed: x"),)
        )
        renderer = TemplateRenderer(vocabulary())
        assert "<tool_call>{<|im_end|>" in renderer.decode(flat(renderer.render([user("x"), broken, user("y")], ())))
