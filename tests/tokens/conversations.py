"""Random conversations for renderers: every shape that a chat template can express, and texts that are hard."""

from hypothesis import strategies as st

from agentrl.tokens import vocabulary
from agentrl.types import Message, ToolCall, ToolSpec

CONTROLS = ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CONTROLS += ("<tool_response>", "</tool_response>")
BARRIER = "\ue000"
"""A character of private use that no generated text has; `test_chatml.py` parts the spelling of a control with it."""

plain_text = st.one_of(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters=BARRIER + vocabulary.BARRIER + "<"), max_size=12
    ),
    st.sampled_from(
        ["", "\n", "\n\n", " ", "\t x", "a\n", "\n a", "naïve – 你好 👩‍👩‍👧", "e\u0301", "assistant\n", "{}", "0.0"]
    ),
)
hostile_text = st.lists(st.one_of(plain_text, st.sampled_from(CONTROLS)), max_size=4).map("".join)
names = st.sampled_from(["read", "edit", "naïve"])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 10**6), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(plain_text, inner, max_size=2)),
    max_leaves=3,
)


def specs(text):
    properties = st.dictionaries(st.sampled_from(["path", "line", "text"]), st.just({"type": "string"}), max_size=2)
    parameters = properties.map(lambda found: {"type": "object", "properties": found, "required": list(found)})
    return st.lists(st.builds(ToolSpec, name=names, description=text, parameters=parameters), max_size=2)


def calls(text):
    arguments = st.dictionaries(st.sampled_from(["path", "text"]), st.one_of(text, json_values), max_size=2)
    return st.lists(st.builds(ToolCall, name=names, arguments=arguments), max_size=3).map(tuple)


def assistant(text):
    thoughts = st.one_of(st.none(), text)
    return st.builds(Message, role=st.just("assistant"), content=text, reasoning=thoughts, tool_calls=calls(text))


def messages(text):
    others = st.builds(Message, role=st.sampled_from(["user", "user", "tool", "tool", "system"]), content=text)
    return st.lists(st.one_of(others, assistant(text)), min_size=1, max_size=7)
