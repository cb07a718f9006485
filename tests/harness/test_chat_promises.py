"""Over random attempts in messages: what was sent is what the trace says, limits hold, and nothing is lost."""

from collections import Counter

import pytest

pytest.importorskip("httpx")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.harness.compaction import Compaction
from agentrl.types import Stop
from tests.engine.chat_server import call, said
from tests.harness.test_chat_compaction import num_tokens, play, submit


@st.composite
def attempts(draw):
    """How a policy plays: it reads, now and then twice in one reply, and sums up when it is asked to."""
    kind = draw(st.sampled_from(["none", "drop_results", "summarize"]))
    compaction = Compaction(
        kind=kind,
        fill=draw(st.sampled_from([0.5, 1.0])),
        summary=50,
        marker="gone!!",
        request="sum up",
        go_on="go on",
    )
    letters = draw(st.lists(st.integers(20, 150), min_size=12, max_size=12))
    return {
        "compaction": compaction,
        "results": ["x" * (3 * number) for number in letters],
        "num_reads": draw(st.lists(st.integers(1, 2), min_size=6, max_size=6)),
        "num_words": draw(st.integers(0, 60)),
        "context": draw(st.integers(150, 900)),
        "reply": draw(st.sampled_from([20, 200])),
        "window": draw(st.none() | st.integers(90, 900)),
        "counted": draw(st.booleans()),
    }


class Player:
    """Answers with the next of its replies, and with a summary where that is asked for."""

    def __init__(self, num_reads, num_words):
        self.left = [said(None, [call("read", "{}", f"{n}-{one}") for one in range(n)]) for n in num_reads]
        self.left.append(submit())
        self.summary = said("s" * num_words)

    def pop(self, body):
        return self.summary if body["messages"][-1]["content"] == "sum up" else self.left.pop(0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(how=attempts())
def test_what_was_sent_is_what_the_trace_says_and_limits_hold(how):
    player = Player(how.pop("num_reads"), how.pop("num_words"))
    trace, server, _ = play(player=player, **how)  # compares what was sent with the branches of the trace
    assert trace.error is None
    assert trace.stop in (Stop.DONE, Stop.CONTEXT_FULL)
    # the server counts as the estimate does, so that the limit holds exactly, counted or not
    for body in server.requests:
        assert num_tokens(body["messages"]) + body["max_tokens"] <= how["context"]
    assert len(server.requests) <= 20
    notes, nodes = trace.metadata, trace.nodes
    begun = [branch["node"] for branch in notes.get("branches", ())]
    assert [n for n, node in enumerate(nodes) if n and node.parent != n - 1] == begun
    assert how["compaction"].kind != "none" or not begun
    # every result that a tool gave stands on the trace as it was, or was withheld and is noted
    kept = [node.message.content for node in trace.events]
    kept += [text for one in notes.get("withheld", ()) for text in one["messages"]]
    calls = [one.name for node in trace.events for one in node.message.tool_calls]
    assert Counter(how["results"][: calls.count("read")]) <= Counter(kept)
    if trace.stop is Stop.CONTEXT_FULL:
        assert notes["cuts"][-1]["stop"] == "context_full"
