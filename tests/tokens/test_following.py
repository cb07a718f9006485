"""How conversations go on with a chat template that writes history anew behind some messages."""

import asyncio
import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import RendererError
from agentrl.harness.compaction import Compaction
from agentrl.harness.conversation import Rewriter, Writer
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.rows import demonstration
from agentrl.tokens.samples import samples
from agentrl.tokens.template import TemplateRenderer
from agentrl.types import Message, Stop, Task
from tests.harness.parts import Recorder, World, trace_of
from tests.tokens import conversations, templates
from tests.tokens.real import needs_assets, vocabulary

DROPS = templates.THINKING
CONTROLS = (*templates.CHATML, "<tool_call>", "</tool_call>", "<think>", "</think>")
QUESTION, NEXT = (Message(role="user", content=text) for text in ("Which fruit is blue?", "And red?"))
PLAIN = Message(role="assistant", content="A plum.")
THOUGHTFUL = Message(role="assistant", content="A plum.", reasoning="Plums come in blue.")
RESULT = Message(role="tool", content="ok")


def template(text):
    return TemplateRenderer(templates.small_vocabulary(text, CONTROLS))


def flat(spans):
    return tuple(itertools.chain.from_iterable(spans))


def test_thoughts_that_a_template_drops_begin_a_branch():
    found = template(DROPS)
    assert found.proof.rewrites == {"user": False}
    with pytest.raises(RendererError, match="thoughts are dropped from a reply when a user message follows it"):
        found.extend([NEXT], ())
    sampled = found.vocabulary.text_ids("A plum.")
    reason, spans = found.follow([QUESTION, THOUGHTFUL], [NEXT], sampled, ())
    assert reason == "thoughts are dropped from a reply when a user message follows it"
    assert [found.decode(span) for span in spans] == [
        "<|im_start|>user\nWhich fruit is blue?<|im_end|>\n",
        "<|im_start|>assistant\nA plum.<|im_end|>\n",
        "<|im_start|>user\nAnd red?<|im_end|>\n",
    ]
    reason, (span,) = found.follow([QUESTION, PLAIN], [NEXT], sampled, ())
    assert (reason, found.decode(span)) == (None, "<|im_end|>\n<|im_start|>user\nAnd red?<|im_end|>\n")
    reason, _ = found.follow([QUESTION, THOUGHTFUL], [RESULT], sampled, ())
    assert reason is None
    assert isinstance(found, Rewriter)


def test_who_keeps_thoughts_only_appends():
    found = template(DROPS.replace(" and loop.index0 > ns.last", ""))
    assert (found.proof.refused, found.proof.rewrites) == ({}, {})
    assert found.follow([QUESTION, THOUGHTFUL], [NEXT], (), ()) == (None, found.extend([NEXT], ()))


def test_a_template_that_always_writes_anew_behind_a_question_begins_a_branch_each_time():
    # The last question is marked; results are appended.
    found = template(DROPS.replace("{{ m.role }}\n", "{{ m.role }}{{ ' now' if loop.index0 == ns.last }}\n"))
    assert found.proof.rewrites == {"user": True}
    reason, spans = found.follow([QUESTION, PLAIN], [NEXT], (), ())
    assert reason == "what stands before a reply is written otherwise when a user message follows it"
    assert [found.decode(span) for span in spans] == [
        "<|im_start|>user\nWhich fruit is blue?<|im_end|>\n",
        "<|im_start|>assistant\nA plum.<|im_end|>\n",
        "<|im_start|>user now\nAnd red?<|im_end|>\n",
    ]
    assert flat(spans) == flat(found.render([QUESTION, PLAIN, NEXT], ()))


def changed(*pairs):
    """The template that drops thoughts, with each text replaced by another."""
    found = DROPS
    for before, after in pairs:
        assert before in found
        found = found.replace(before, after)
    return found


STALE = "m.reasoning_content and loop.index0 < ns.last"
"""Thoughts before the last question."""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        # such a reply is left out
        (
            changed(("{{ m.content }}\n{%- for", f"{{{{ m.content if not ({STALE}) }}}}\n{{%- for")),
            "leaves 'A plum.' out",
        ),
        # the reply behind them is opened in another way
        (
            changed(
                ("<|im_start|>assistant\n", "<|im_start|>assistant{{ ' again' if ns.stale }}\n"),
                ("namespace(last=-1)", "namespace(last=-1, stale=false)"),
                (
                    "{%- if m.role == 'tool'",
                    f"{{%- if {STALE} %}}{{% set ns.stale = true %}}{{% endif %}}{{%- if m.role == 'tool'",
                ),
            ),
            "the next reply is opened in another way",
        ),
        # they are an error
        (
            changed(
                (
                    "{%- if m.role == 'tool'",
                    f"{{%- if {STALE} %}}{{{{ raise_exception('old') }}}}{{% endif %}}{{%- if m.role == 'tool'",
                )
            ),
            "user: old",
        ),
        # they change what follows the replies behind them
        (
            changed(
                ("namespace(last=-1)", "namespace(last=-1, stale='')"),
                (
                    "{%- if m.role == 'tool'",
                    f"{{%- if {STALE} %}}{{% set ns.stale = ' late' %}}{{% endif %}}{{%- if m.role == 'tool'",
                ),
                ("<|im_start|>tool\n", "<|im_start|>tool{{ ns.stale }}\n"),
            ),
            "depends on the reply",
        ),
    ],
    ids=["left out", "opened otherwise", "an error", "other results"],
)
def test_where_no_sound_branch_can_begin_the_message_stays_refused(text, fault):
    assert template(DROPS).proof.rewrites == {"user": False}  # without the change it can
    found = template(text)
    assert found.proof.rewrites == {}
    for history in ([QUESTION, PLAIN], [QUESTION, THOUGHTFUL]):
        with pytest.raises(RendererError, match=f"a user message cannot be appended: .*{fault}.*; use "):
            found.follow(history, [NEXT], (), ())
    assert found.follow([QUESTION, THOUGHTFUL], [RESULT], (), ()).rewritten is None


def test_a_system_message_that_a_template_lifts_to_the_front_is_no_message_to_append():
    # The ids before the reply would not be those that the policy saw.
    lifts = DROPS.replace("and loop.index0 > ns.last", "").replace(
        "{%- if m.role == 'tool'", "{%- if m.role == 'system' %}{% elif m.role == 'tool'"
    )
    lifts = (
        "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
        + lifts
    )
    found = template(lifts)
    system = Message(role="system", content="Be brief.")
    assert "Be brief." in found.decode(flat(found.render([system, QUESTION], ())))
    with pytest.raises(RendererError, match="what stands before a reply is written otherwise when a system message"):
        found.extend([system], ())
    # It may begin a branch.
    reason, spans = found.follow([QUESTION, PLAIN], [system], (), ())
    assert reason is not None
    assert found.decode(flat(spans)).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")


# The template of Qwen3, beside our own renderer.


@functools.cache
def qwen3():
    return TemplateRenderer(vocabulary())


@needs_assets[0]
@needs_assets[1]
class TestQwen3:
    def test_the_template_writes_a_branch_that_we_write_too(self):
        # T17, by the template itself
        by_template, ours = qwen3(), ChatMLRenderer(vocabulary())
        history = [QUESTION, THOUGHTFUL]
        sampled = ours.write_reply(THOUGHTFUL)
        theirs, mine = (found.follow(history, [NEXT], sampled, ()) for found in (by_template, ours))
        assert theirs.spans == mine.spans
        assert None not in (theirs.rewritten, mine.rewritten)

    @settings(max_examples=40, deadline=None)
    @given(
        conversations.messages(conversations.plain_text),
        conversations.assistant(conversations.plain_text),
        st.lists(
            st.builds(Message, role=st.sampled_from(["user", "tool", "system"]), content=conversations.plain_text),
            min_size=1,
            max_size=3,
        ),
        conversations.specs(conversations.plain_text),
        st.lists(st.integers(0, 151668), max_size=4).map(tuple),
    )
    def test_both_go_on_alike(self, history, reply, more, tools, sampled):
        by_template, ours = qwen3(), ChatMLRenderer(vocabulary())
        theirs, mine = (found.follow([*history, reply], more, sampled, tools) for found in (by_template, ours))
        assert (theirs.rewritten is None) == (mine.rewritten is None)
        assert flat(theirs.spans) == flat(mine.spans)
        assert len(theirs.spans) == len(mine.spans)

    @pytest.mark.parametrize(
        "text",
        [
            '<tool_call>\n{"name": "read", "arguments": {}\n</tool_call>',
            "<think>\nhm\n</think>\n\n<tool_call>{</tool_call>",
            "<think>\n<tool_call>{}</tool_call> <tool_response>",
        ],
    )
    def test_a_malformed_reply_is_written_with_the_marks_that_the_policy_wrote(self, text):
        # In a branch that begins anew it is shown what it wrote, not the same spelt in ordinary pieces.
        by_template, ours = qwen3(), ChatMLRenderer(vocabulary())
        message = ours.parse((*vocabulary().encode(text), 151645), ())
        assert any(call.problem for call in message.tool_calls)
        assert by_template.write_reply(message) == ours.write_reply(message)
        history = [QUESTION, message, RESULT, THOUGHTFUL]
        theirs, mine = (found.follow(history, [NEXT], (), ()) for found in (by_template, ours))
        assert theirs.spans == mine.spans
        shown = vocabulary().control("<tool_call>") in flat(theirs.spans)
        assert shown == ("<tool_call>" in message.content)  # it may stand in thoughts, which are dropped

    def test_the_policy_sums_up_and_goes_on_from_its_summary(self):
        # A summary with thoughts; the question behind it drops them. It is trained where it was sampled.
        one, other = (summed_up(found) for found in (qwen3(), ChatMLRenderer(vocabulary())))
        assert one.stop == Stop.DONE
        first, second = samples(one, 1.0)
        text = vocabulary().decode(second.token_ids)
        assert text.endswith(
            "<|im_start|>assistant\nI read a.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n"
            f"<|im_start|>assistant\n{SUBMIT}<|im_end|>"
        )
        assert (
            vocabulary()
            .decode(first.token_ids)
            .endswith(f"Sum up.<|im_end|>\n<|im_start|>assistant\n{SUMMARY}<|im_end|>")
        )
        summary = vocabulary().encode(SUMMARY)
        assert first.weights["pg"][-len(summary) - 1 :] == (1.0,) * (len(summary) + 1)
        assert [(s.token_ids, s.weights) for s in samples(other, 1.0)] == [
            (s.token_ids, s.weights) for s in (first, second)
        ]

    def test_the_policy_sums_up_with_the_library_too(self):
        found = pytest.importorskip("agentrl.tokens.library", reason="the package renderers is not installed")
        one, other = (
            summed_up(r) for r in (found.LibraryRenderer(vocabulary(), "qwen3"), ChatMLRenderer(vocabulary()))
        )
        assert [s.weights for s in samples(one, 1.0)] == [s.weights for s in samples(other, 1.0)]
        assert [s.token_ids for s in samples(one, 1.0)] == [s.token_ids for s in samples(other, 1.0)]

    def test_a_demonstration_of_several_questions_has_a_branch_for_each(self):
        messages = [QUESTION, THOUGHTFUL, NEXT, THOUGHTFUL]
        by_template, ours = (
            samples(demonstration(found, messages, (), trace_id="t"), None, objective="ce")
            for found in (qwen3(), ChatMLRenderer(vocabulary()))
        )
        assert by_template == ours
        assert len(ours) == 2


READ = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'
SUMMARY = "<think>\nhm\n</think>\n\nI read a."


def summed_up(found):
    """An attempt in a context that has room for a result and a summary, and for no more."""
    task = Task(id="t", prompt=(QUESTION,))
    replies = [(*found.vocabulary.encode(text), 151645) for text in (READ, SUMMARY, SUBMIT)]
    whole = Recorder([replies[0], replies[2]])
    results = ["line\n" * 60]
    asyncio.run(ToolLoop(found, Limits(context=4000, reply=400)).run(task, World(results), whole, Transcript()))
    room = len(whole.asked[-1].held) + 60
    compaction = Compaction(kind="summarize", summary=40, request="Sum up.", go_on="Go on.")
    compaction.check(Writer(renderer=found, tools=World.tool_specs()), room)
    loop = ToolLoop(found, Limits(context=room, reply=400), compaction=compaction)
    transcript = Transcript()
    asyncio.run(loop.run(task, World(results), Recorder(replies), transcript))
    return trace_of(transcript)


def test_a_template_without_thoughts_sums_up_too():
    # A user's messages are only appended.
    found = template(templates.QWEN25)
    Compaction(kind="summarize", summary=40).check(Writer(renderer=found, tools=World.tool_specs()), 2000)


def test_a_template_that_takes_no_results_sums_up_where_there_are_no_tools():
    writer = Writer(renderer=TemplateRenderer(templates.gemma3()), tools=())
    Compaction(kind="summarize", summary=40).check(writer, 2000)
    with_tools = Writer(renderer=writer.renderer, tools=World.tool_specs())
    with pytest.raises(RendererError, match=r"the template does not show tools; use LibraryRenderer .* to none"):
        Compaction(kind="summarize", summary=40).check(with_tools, 2000)
