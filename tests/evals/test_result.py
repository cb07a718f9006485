"""What an evaluation came to: intervals where there can be one, counts of what happened, costs."""

import dataclasses

import pytest

from agentrl.evals.result import mean_interval, summarize, table_of
from agentrl.types import Fault, Message, Node, Score, Stop, ToolCall, Trace


def trace(task, number, score, **fields):
    calls = (ToolCall(name="go"), ToolCall(name="", problem="no call"))
    node = Node(
        parent=None,
        message=Message(role="assistant", tool_calls=calls),
        sampled_ids=(1, 2, 3),
        logprobs=(-1.0,) * 3,
        versions=(0,) * 3,
    )
    scores = (Score(name="hidden", value=score),)
    given = {"nodes": (node,), "stop": Stop.DONE, "scores": scores, "group_id": "g", "seed": 0, **fields}
    return Trace(id=f"{task}-{number}", task_id=task, attempt=number, **given)


def test_scores_of_zero_and_one_have_pass_rates():
    traces = [trace(f"t{t}", k, float(k < t)) for t in range(4) for k in range(3)]
    found = summarize(table_of("a", traces), traces)
    assert {name: one["mean"] for name, one in found["scores"].items()} == pytest.approx(
        {"mean": 0.5, "pass@3": 0.75, "pass^3": 0.25}  # passes 0, 1, 2, 3 of 3
    )
    assert (found["tasks"], found["clusters"], found["attempts"], found["stops"]) == (4, 4, 12, {"done": 12})
    assert (found["calls"], found["calls_malformed"], found["tokens_per_attempt"]) == (24, 12, 3.0)


def test_partial_rewards_have_a_mean_alone_and_may_leave_the_unit_interval():
    traces = [trace(f"t{t}", 0, value) for t, value in enumerate((-0.5, 0.25, 1.0))]
    table = table_of("a", traces)
    assert set(summarize(table, traces)["scores"]) == {"mean"}
    assert mean_interval(table).mean == pytest.approx(0.25)
    assert mean_interval(table).low < -0.5  # not cut to [0, 1]


def test_no_interval_is_made_up():
    one = [trace("t", 0, 1.0)]
    assert mean_interval(table_of("a", one)) is None
    assert summarize(table_of("a", one), one)["scores"] == {}
    same = [trace(f"t{t}", 0, -0.5) for t in range(4)]
    assert mean_interval(table_of("a", same)) is None
    equal = [trace(f"t{t}", 0, 1.0) for t in range(4)]
    assert mean_interval(table_of("a", equal)).low < 1.0  # four of four are not certainty


def test_faults_are_counted_by_their_boundary():
    traces = [trace(f"t{t}", 0, 1.0) for t in range(3)]
    fault = Fault(boundary="sandbox", message="gone")
    traces.append(dataclasses.replace(traces[0], task_id="t3", scores=(), error=fault, stop=Stop.ERROR))
    found = summarize(table_of("a", traces), traces)
    assert (found["faults"], found["counts"]["unscored"], found["bounds"]["low"]) == ({"sandbox": 1}, 1, 0.75)
