"""Demonstrations as traces. (The faults that others had stand in `test_cases.py`.)"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import RendererError
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.rows import cut, demonstration
from agentrl.tokens.samples import samples
from agentrl.types import Message, Sample
from tests.tokens import conversations
from tests.tokens.real import needs_assets, vocabulary

pytestmark = needs_assets


def user(text):
    return Message(role="user", content=text)


def assistant(text):
    return Message(role="assistant", content=text)


def build(messages, *, thinking=True):
    return demonstration(ChatMLRenderer(vocabulary(), thinking=thinking), messages, (), trace_id="row 3")


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([user("x")], "conversation 'row 3' has no reply of the assistant"),
        ([], "has no reply"),
        ([assistant("x")], "begins with a reply of the assistant"),
        ([user("x"), assistant("y"), assistant("z")], "two replies of the assistant in a row \\('y'\\); join them"),
    ],
)
def test_what_is_no_demonstration_is_refused_by_name(messages, told):
    with pytest.raises(RendererError, match=told):
        build(messages)


def test_thoughts_are_refused_where_the_policy_has_none():
    with pytest.raises(RendererError, match="thinking is off"):
        build([user("x"), Message(role="assistant", content="y", reasoning="z")], thinking=False)


@st.composite
def dialogues(draw):
    messages = [user(draw(conversations.hostile_text))]
    for _ in range(draw(st.integers(1, 4))):
        messages.append(draw(conversations.assistant(conversations.hostile_text)))
        role = draw(st.sampled_from(["user", "tool"]))
        messages += [
            Message(role=role, content=draw(conversations.hostile_text)) for _ in range(draw(st.integers(1, 2)))
        ]
    return messages


@settings(max_examples=40, deadline=None)
@given(dialogues())
def test_each_reply_is_trained_once_behind_the_prompt_that_the_policy_would_get(messages):
    renderer = ChatMLRenderer(vocabulary())
    made = samples(build(messages), None, objective="ce")
    replies = [message for message in messages if message.role == "assistant"]
    trained = [
        token for sample in made for token, weight in zip(sample.token_ids, sample.weights["ce"], strict=True) if weight
    ]
    assert trained == [token for reply in replies for token in renderer.write_reply(reply)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 14), st.sampled_from(["left", "right"]), st.data())
def test_a_cut_keeps_what_it_keeps_and_counts_the_rest(length, width, side, data):
    mask = tuple(data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=length, max_size=length)))
    ids = tuple(range(length))
    sample = Sample(token_ids=ids, weights={"ce": mask}, logprobs=mask, advantages=mask, trace_id="t", group_id="g")
    found = cut(sample, width, side=side)
    kept = ids[:width] if side == "right" else ids[-width:]
    trained = [token for token in kept if mask[token]]
    assert found.num_cut == length - len(kept)
    assert found.num_trained_cut == sum(map(int, mask)) - len(trained)
    if not trained:
        assert found.sample is None
        return
    assert found.sample.token_ids == kept
    assert [token for token, weight in zip(kept, found.sample.weights["ce"], strict=True) if weight] == trained
