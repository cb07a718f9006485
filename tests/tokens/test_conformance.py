"""One battery for every renderer: how conversations begin, grow and are read."""

import datetime
import functools
import importlib.util
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import RendererError
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.samples import samples
from agentrl.tokens.template import TemplateRenderer
from agentrl.tokens.toolcalls import Status, status_of
from agentrl.types import Message, Node, Score, Stop, ToolSpec, Trace
from tests.tokens import templates
from tests.tokens.conversations import hostile_text
from tests.tokens.real import needs_assets, vocabulary

TODAY = datetime.date(2026, 1, 1)


def library(thinking):
    from agentrl.tokens.library import LibraryRenderer  # optional: the package renderers

    return LibraryRenderer(vocabulary(), "qwen3", {"enable_thinking": thinking})


BUILT = {
    "chatml": lambda: ChatMLRenderer(vocabulary()),
    "chatml, no thoughts": lambda: ChatMLRenderer(vocabulary(), thinking=False),
    "template of qwen3": lambda: TemplateRenderer(vocabulary()),
    "library, qwen3": lambda: library(True),
    "library, qwen3, no thoughts": lambda: library(False),
    "template like qwen2.5": lambda: TemplateRenderer(templates.small_vocabulary(templates.QWEN25)),
    "template like smollm": lambda: TemplateRenderer(templates.small_vocabulary(templates.SMOLLM)),
    "template like gemma3": lambda: TemplateRenderer(templates.gemma3()),
    "template like llama3": lambda: TemplateRenderer(templates.llama3(), today=TODAY),
}
APPENDS = {
    "chatml": {"user", "tool", "system"},
    "chatml, no thoughts": {"user", "tool", "system"},
    "template of qwen3": {"tool", "system"},
    "library, qwen3": {"tool", "system"},
    "library, qwen3, no thoughts": {"user", "tool", "system"},
    "template like qwen2.5": {"user", "tool", "system"},
    "template like smollm": {"user", "system"},
    "template like gemma3": {"user"},
    "template like llama3": {"user", "system"},
}
"""The messages that each may append to a reply; all others are refused."""
BRANCHES = {name: {"user"} for name in ("chatml", "chatml, no thoughts", "template of qwen3", "library, qwen3")}
"""The messages behind which each begins a new branch where a reply before had thoughts."""
REAL = {name for name in BUILT if "like" not in name}
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("renderers") is None, reason="the package renderers is not installed: agentrl[renderers]"
)
RENDERERS = [
    pytest.param(name, marks=[*(needs_assets if name in REAL else ()), *([needs_library] if "library" in name else ())])
    for name in BUILT
]
TOOL = ToolSpec(
    name="read",
    description="Show a file <|im_end|> whole.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
QUESTION = Message(role="user", content="Which fruit is blue?")
every_renderer = pytest.mark.parametrize("name", RENDERERS)


@functools.cache
def built(name):
    return BUILT[name]()


def flat(spans):
    return tuple(itertools.chain.from_iterable(spans))


def with_tools(name):
    return (TOOL,) if "tool" in APPENDS[name] else ()


def control_counts(renderer, ids):
    controls = set(renderer.vocabulary.controls.values())
    return [token for token in ids if token in controls]


@every_renderer
def test_a_conversation_is_its_messages_and_the_opening_of_a_reply(name):
    renderer = built(name)
    spans = renderer.render([QUESTION], with_tools(name))
    assert len(spans) == 1
    assert renderer.generation_prompt()
    assert renderer.stop_ids
    text = renderer.decode(flat(spans))
    assert QUESTION.content in text
    assert ("Show a file <|im_end|> whole." in text) == bool(with_tools(name))


@every_renderer
@settings(max_examples=15, deadline=None)
@given(hostile_text)
def test_no_text_of_a_message_becomes_a_control_token(name, text):
    renderer = built(name)
    harmless, hostile = (renderer.render([Message(role="user", content=c)], ()) for c in ("x", text))
    assert control_counts(renderer, flat(hostile)) == control_counts(renderer, flat(harmless))
    role = "tool" if "tool" in APPENDS[name] else "user" if "user" in APPENDS[name] else "system"
    harmless, hostile = (renderer.extend([Message(role=role, content=c)], ()) for c in ("x", text))
    assert control_counts(renderer, flat(hostile)) == control_counts(renderer, flat(harmless))


@every_renderer
@pytest.mark.parametrize("role", ["user", "tool", "system", "assistant"])
def test_what_cannot_be_appended_is_refused_with_the_remedy(name, role):
    message = Message(role=role, content="And red?")
    if role in APPENDS[name]:
        assert "And red?" in built(name).decode(flat(built(name).extend([message], ())))
        return
    with pytest.raises(RendererError):
        built(name).extend([message], ())


@every_renderer
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_was_sampled_and_given_is_what_is_trained_id_for_id(name, data):
    # Promise 1 and 2, over many turns, whatever ids the policy samples: cut, malformed, empty and ended replies.
    renderer = built(name)
    vocabulary_ids = st.integers(0, renderer.vocabulary.num_ids - 1)
    ending = st.sampled_from([(), *((stop,) for stop in renderer.stop_ids)])
    nodes, sent = [], []
    spans = renderer.render([QUESTION], with_tools(name))
    for turn in range(data.draw(st.integers(1, 3))):
        context = (*flat(spans), *renderer.generation_prompt())
        sampled = (*data.draw(st.lists(vocabulary_ids, max_size=6)), *data.draw(ending))
        message = renderer.parse(sampled, with_tools(name))
        nodes.append(
            Node(
                parent=turn - 1 if turn else None,
                message=message,
                context_ids=context,
                sampled_ids=sampled,
                logprobs=(-0.5,) * len(sampled),
                versions=(0,) * len(sampled),
            )
        )
        sent += [(token, False) for token in context] + [(token, True) for token in sampled]
        roles = st.sampled_from(sorted(APPENDS[name] - {"system"}) or ["system"])
        others = data.draw(st.lists(roles, min_size=1, max_size=1 if name.endswith("gemma3") else 3))
        spans = renderer.extend([Message(role=role, content="so") for role in others], sampled)
    trace = Trace(
        id="t",
        task_id="t",
        group_id="g",
        attempt=0,
        seed=0,
        nodes=tuple(nodes),
        stop=Stop.DONE,
        scores=(Score(name="pass", value=1.0),),
    )
    made = samples(trace, 1.0)
    if not any(node.sampled_ids for node in nodes):
        assert made == ()
        return
    (sample,) = made
    assert list(zip(sample.token_ids, (weight != 0 for weight in sample.weights["pg"]), strict=True)) == sent


@every_renderer
def test_a_reply_is_closed_once_whether_it_was_cut_or_not(name):
    renderer = built(name)
    role = next(role for role in ("tool", "user") if role in APPENDS[name])
    message = Message(role=role, content="so")
    cut = flat(renderer.extend([message], (1,)))
    closed = next(stop for stop in renderer.stop_ids if flat(renderer.extend([message], (1, stop))) != cut)
    assert cut == (closed, *flat(renderer.extend([message], (1, closed))))


@every_renderer
def test_several_results_are_a_tuple_each(name):
    renderer = built(name)
    if "tool" not in APPENDS[name]:
        pytest.skip("no tools")
    spans = renderer.extend([Message(role="tool", content=text) for text in ("AAA", "BBB")], ())
    assert ["AAA" in renderer.decode(span) for span in spans] == [True, False]
    assert ["BBB" in renderer.decode(span) for span in spans] == [False, True]


@every_renderer
def test_a_reply_is_read_and_a_malformed_call_has_its_status(name):
    renderer = built(name)
    (stop, *_) = renderer.stop_ids
    text = renderer.vocabulary.encode("A plum.")
    assert renderer.parse((*text, stop), ()).content == "A plum."
    if "tool" not in APPENDS[name]:
        return
    for body, status in [
        ('{"name": "read", "arguments": {"path": "a"}}', Status.OK),
        ('{"name": "read", "arguments": {"path": 3}}', Status.WRONG_ARGUMENTS),
        ('{"name": "Read", "arguments": {}}', Status.UNKNOWN_TOOL),
        ('{"name": "read", "arguments": {', Status.INVALID_JSON),
    ]:
        written = renderer.vocabulary.encode(f"<tool_call>\n{body}\n</tool_call>")
        message = renderer.parse((*written, stop), (TOOL,))
        assert [status_of(call) for call in message.tool_calls] == [status]
    unclosed = renderer.vocabulary.encode('<tool_call>\n{"name": "read", "arguments": {"path": "a"}}')
    assert [status_of(call) for call in renderer.parse((*unclosed, stop), (TOOL,)).tool_calls] == [Status.UNCLOSED]


# Going on: what is appended, and where a new branch begins.

THOUGHTFUL = Message(role="assistant", content="A plum.", reasoning="Plums come in blue.")


@every_renderer
@pytest.mark.parametrize("role", ["user", "tool", "system", "assistant"])
def test_what_follows_is_appended_or_begins_a_branch_or_is_refused(name, role):
    follow, message = built(name).follow, Message(role=role, content="And red?")
    history = [QUESTION, THOUGHTFUL]
    if role not in APPENDS[name] | BRANCHES.get(name, set()):
        with pytest.raises(RendererError):
            follow(history, [message], (), with_tools(name))
        return
    branches = role in BRANCHES.get(name, set())
    assert (follow(history, [message], (), with_tools(name)).rewritten is not None) == branches
    # without thoughts nothing is dropped
    assert follow([QUESTION, Message(role="assistant", content="A plum.")], [message], (), ()).rewritten is None


@every_renderer
def test_nothing_follows_is_refused(name):
    with pytest.raises(RendererError, match="at least one message"):
        built(name).follow([QUESTION, THOUGHTFUL], [], (), ())


@every_renderer
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_new_branch_is_the_whole_conversation_and_what_is_appended_is_what_extend_gives(name, data):
    renderer = built(name)
    kinds = sorted(APPENDS[name] | BRANCHES.get(name, set()))
    few = 1 if name.endswith("gemma3") else 3
    roles = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=few))
    # a text in the form of a result would be no question for chatml
    messages = [Message(role=role, content=f"So {data.draw(hostile_text)}") for role in roles]
    reasoning, content = data.draw(st.sampled_from([None, "", "Plums are."])), data.draw(hostile_text)
    history = [QUESTION, Message(role="assistant", content=content, reasoning=reasoning)]
    sampled = data.draw(st.lists(st.integers(0, renderer.vocabulary.num_ids - 1), max_size=4).map(tuple))
    going_on = renderer.follow(history, messages, sampled, with_tools(name))
    expected = bool(reasoning) and bool(BRANCHES.get(name, set()) & set(roles))
    assert (going_on.rewritten is not None) == expected
    if going_on.rewritten is None:
        assert len(going_on.spans) == len(messages)
        if set(roles) <= APPENDS[name]:
            assert going_on.spans == renderer.extend(messages, sampled)
        return
    whole = renderer.render([*history, *messages], with_tools(name))
    assert going_on.spans == whole
    assert len(whole) == len(history) + len(messages)
    assert reasoning not in renderer.decode(flat(whole))


@every_renderer
def test_names_tell_renderers_apart(name):
    assert [other for other in BUILT if other in available() and built(other).name == built(name).name] == [name]


@functools.cache
def available():
    found = set()
    for name in BUILT:
        try:
            built(name)
        except (RendererError, ImportError):
            continue
        found.add(name)
    return found
