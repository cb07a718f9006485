"""Promises 1 to 3 over random trees of turns, with the real tokenizer: what was sent and sampled is what is trained.

A tree grows as agents make it: replies with one call, several, none, a malformed one, thoughts, nothing at all, or cut;
results and questions behind them; branches where the template drops thoughts, where sub-agents continue one reply, and
where a summary starts the conversation anew. Each sampled token has a version of its own, by which it is recognised.
"""

import functools
import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import SamplerError, ScorerError, TrainerError
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.samples import samples
from agentrl.tokens.template import TemplateRenderer
from agentrl.types import Completion, Message, Node, Score, Stop, ToolSpec, Trace
from tests.tokens.conversations import hostile_text
from tests.tokens.real import needs_assets, vocabulary

pytestmark = needs_assets
TOOL = ToolSpec(name="read", description="", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
GOOD = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
RENDERERS = {
    "chatml": lambda: ChatMLRenderer(vocabulary()),
    "chatml, no thoughts": lambda: ChatMLRenderer(vocabulary(), thinking=False),
    "template": functools.cache(lambda: TemplateRenderer(vocabulary())),
}
REPLIES = st.sampled_from(
    [
        GOOD,
        f"I look.\n{GOOD}\n{GOOD}",
        f"<think>\nhm\n</think>\n\n{GOOD}",
        "<think>\nhm\n</think>\n\ndone",
        "<think>\nnever closed",
        "done",
        "",
        '<tool_call>\n{"name": "read", "arguments": {\n</tool_call>',
        '<tool_call>\n{"name": "write", "arguments": {}}',
        f"{GOOD} and then",
    ]
)


class Tree:
    """A trace that grows, and for each node the ids that an engine has been sent and has sampled up to it."""

    def __init__(self, renderer):
        self.renderer = renderer
        self.nodes, self.streams, self.histories = [], [], []

    def add(self, parent, message, context_ids, sampled_ids=()):
        sampled = sum(len(node.sampled_ids) for node in self.nodes)
        self.nodes.append(
            Node(
                parent=parent,
                message=message,
                context_ids=tuple(context_ids),
                sampled_ids=tuple(sampled_ids),
                logprobs=tuple(-0.5 - 0.001 * i for i in range(len(sampled_ids))),
                versions=tuple(range(sampled, sampled + len(sampled_ids))),
            )
        )
        before = self.streams[parent] if parent is not None else ()
        self.streams.append((*before, *context_ids, *sampled_ids))
        self.histories.append((*(self.histories[parent] if parent is not None else ()), message))
        return len(self.nodes) - 1

    def append(self, parent, messages, spans):
        for message, ids in zip(messages, spans, strict=True):
            parent = self.add(parent, message, ids)
        return parent

    def reply(self, parent, ids):
        return self.add(parent, self.renderer.parse(ids, (TOOL,)), self.renderer.generation_prompt(), ids)

    def begin(self, messages):
        return self.append(None, messages, self.renderer.render(messages, (TOOL,)))

    def follow(self, node, messages):
        going_on = self.renderer.follow(self.histories[node], messages, self.nodes[node].sampled_ids, (TOOL,))
        if going_on.rewritten is None:
            return self.append(node, messages, going_on.spans)
        return self.append(None, [*self.histories[node], *messages], going_on.spans)

    def trace(self, **changes):
        fields = {"id": "t1", "task_id": "t", "group_id": "g", "attempt": 0, "seed": 0, "stop": Stop.DONE}
        fields |= {"nodes": tuple(self.nodes), "scores": (Score(name="pass", value=1.0),)}
        return Trace(**(fields | changes))


@st.composite
def trees(draw):
    tree = Tree(RENDERERS[draw(st.sampled_from(sorted(RENDERERS)))]())
    replies = []
    for _ in range(draw(st.integers(1, 6))):
        kind = (
            draw(st.sampled_from(["results", "results", "question", "sub-agent", "summary"])) if replies else "summary"
        )
        node = draw(st.sampled_from(replies)) if kind == "sub-agent" else replies[-1] if replies else None
        if kind == "summary":
            place = tree.begin([Message(role="user", content=draw(hostile_text))])
        else:
            role = "user" if kind == "question" else "tool"
            count = draw(st.integers(1, 3))
            place = tree.follow(node, [Message(role=role, content=draw(hostile_text)) for _ in range(count)])
        ids = (*vocabulary().encode(draw(REPLIES)), 151645)
        replies.append(tree.reply(place, ids[: draw(st.integers(0, len(ids)))] if draw(st.booleans()) else ids))
    return tree


@settings(max_examples=60, deadline=None)
@given(trees())
def test_every_sampled_token_is_trained_once_in_the_context_in_which_it_was_sampled(tree):
    made = samples(tree.trace(), 0.25)
    of_version = {
        version: (
            node.sampled_ids[place],
            node.logprobs[place],
            tree.streams[index][: len(tree.streams[index]) - len(node.sampled_ids) + place],
        )
        for index, node in enumerate(tree.nodes)
        for place, version in enumerate(node.versions)
    }
    seen = Counter()
    for sample in made:
        rows = zip(
            sample.token_ids, sample.weights["pg"], sample.logprobs, sample.versions, sample.advantages, strict=True
        )
        for place, (token, weight, logprob, version, advantage) in enumerate(rows):
            if weight == 0.0:
                assert (logprob, version, advantage) == (None, None, 0.0)
                continue
            seen[version] += 1
            assert (weight, advantage) == (1.0, 0.25)
            assert (token, logprob, sample.token_ids[:place]) == of_version[version]
    assert seen == Counter(of_version.keys())


@settings(max_examples=30, deadline=None)
@given(trees())
def test_each_sample_is_what_one_engine_session_saw(tree):
    leaves = [branch[-1] for branch in tree.trace().branches()]
    streams = iter([tree.streams[leaf] for leaf in leaves])
    assert all(any(sample.token_ids == stream for stream in streams) for sample in samples(tree.trace(), 1.0))


BAD_NUMBERS = [math.nan, 0.5, -math.inf, math.inf, None, 1]


@settings(max_examples=40, deadline=None)
@given(trees(), st.data())
def test_no_number_is_made_up(tree, data):
    # Promise 3: one bad number anywhere refuses the trace by name, whatever its shape.
    sampled = [index for index, node in enumerate(tree.nodes) if node.sampled_ids]
    if not sampled:
        return
    index = data.draw(st.sampled_from(sampled))
    node = tree.nodes[index]
    place = data.draw(st.integers(0, len(node.logprobs) - 1))
    wrong = data.draw(st.sampled_from(BAD_NUMBERS))
    poisoned = replace(node, logprobs=(*node.logprobs[:place], wrong, *node.logprobs[place + 1 :]))
    shorter = replace(node, logprobs=node.logprobs[:-1])
    for changed, message in (
        (poisoned, f"logprob {wrong}"),
        (shorter, "logprobs and"),
        (replace(node, versions=()), "0 versions"),
    ):
        nodes = (*tree.nodes[:index], changed, *tree.nodes[index + 1 :])
        with pytest.raises(TrainerError, match=f"trace 't1', node {index}: .*{message}"):
            samples(tree.trace(nodes=nodes), 1.0)


@pytest.mark.parametrize("wrong", BAD_NUMBERS)
def test_a_completion_with_a_bad_number_is_refused_before_there_is_a_trace(wrong):
    with pytest.raises(SamplerError, match="logprob"):
        Completion(token_ids=(1,), logprobs=(wrong,), versions=(0,), finish_reason="stop")


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(wrong):
    with pytest.raises(ScorerError, match="is not finite"):
        Score(name="pass", value=wrong)


def test_the_trees_have_every_shape():
    # The negative control: the properties above would hold in silence if no tree forked, was cut or was malformed.
    found = Counter()

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(trees())
    def collect(tree):
        trace = tree.trace()
        found["branches"] += len(trace.branches()) > 1
        found["shared"] += len(Counter(itertools.chain(*trace.branches()))) < sum(map(len, trace.branches()))
        found["empty"] += any(node.message.role == "assistant" and not node.sampled_ids for node in tree.nodes)
        found["cut"] += any(node.sampled_ids and node.sampled_ids[-1] != 151645 for node in tree.nodes)
        calls = [call for node in tree.nodes for call in node.message.tool_calls]
        found["malformed"] += any(call.problem for call in calls)
        found["several"] += any(len(node.message.tool_calls) > 1 for node in tree.nodes)
        found["stripped"] += any("hm" in tree.renderer.decode(tree.streams[a]) for a in range(len(tree.nodes)))

    collect()
    assert all(
        found[kind] > 3 for kind in ("branches", "shared", "empty", "cut", "malformed", "several", "stripped")
    ), found
