"""Per-token numbers are ratios with clustered intervals, and what is to be retained is told from its trace."""

import numpy as np
import pytest

from agentrl.evals.report.drift import Reading, drift, is_faultless, ratio_interval
from agentrl.types import Message, Node, Stop, ToolCall, Trace


def reading(step, kind, unit, tokens, divergence, loss, loss_base):
    return Reading(
        step=step, kind=kind, unit=unit, tokens=tokens, divergence=divergence, loss=loss, loss_base=loss_base
    )


def test_numbers_are_sums_over_tokens():
    found = drift(
        [
            reading(5, "own", "a", 2, 1.0, 0.0, 0.0),
            reading(5, "own", "b", 6, 1.0, 0.0, 0.0),
            reading(5, "retained", "a", 4, 0.0, 3.0, 1.0),
            reading(5, "retained", "b", 4, 0.0, 2.0, 2.0),
            reading(3, "own", "a", 1, 0.5, 0.0, 0.0),
            reading(3, "own", "b", 1, 0.25, 0.0, 0.0),
        ]
    )
    assert [one.step for one in found] == [3, 5]
    # (1 + 1) / (2 + 6) = 0.25 nats a token; (2 + 0) / (4 + 4) = 0.25
    assert (found[1].divergence.mean, found[1].forgetting.mean) == (pytest.approx(0.25), pytest.approx(0.25))
    assert found[1].unlearning is None
    assert found[0].divergence.mean == pytest.approx(0.375)
    assert found[0].forgetting is None


def test_the_interval_of_a_ratio_covers_it():
    covered = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(5, 40, 60).astype(float)
        rates = np.repeat(rng.gamma(8.0, 0.025, 20), 3)  # three traces of each task, mean rate 0.2
        found = ratio_interval(rng.poisson(rates * sizes).astype(float), sizes, np.repeat(np.arange(20), 3))
        covered.append(found.low <= 0.2 <= found.high)
    assert np.mean(covered) > 0.92


def test_traces_that_say_the_same_show_no_spread():
    assert ratio_interval(np.zeros(3), np.array([1.0, 2.0, 3.0]), np.arange(3)) is None
    assert drift([reading(1, "own", "a", 3, 0.1, 0.0, 0.0)])[0].divergence is None  # one unit


def trace(*turns):
    """Calls with their answers."""
    nodes = []
    for name, answer in turns:
        nodes.append(Node(parent=None, message=Message(role="assistant", tool_calls=(ToolCall(name=name),))))
        nodes.append(Node(parent=None, message=Message(role="tool", content=answer)))
    return Trace(id="t", task_id="t", group_id="g", attempt=0, seed=0, nodes=tuple(nodes), stop=Stop.DONE)


@pytest.mark.parametrize(
    ("turns", "faultless"),
    [
        ((("edit", "ok"), ("test", "passed"), ("submit", "submitted")), True),
        ((("edit", "ok"), ("test", "failed test_1"), ("submit", "submitted")), False),
        ((("edit", "ok"), ("submit", "submitted")), False),
        ((("edit", "ok"), ("test", "passed"), ("edit", "ok"), ("submit", "submitted")), False),
        ((("edit", "ok"), ("test", "failed"), ("edit", "ok"), ("test", "passed"), ("submit", "")), False),
        ((), False),
    ],
)
def test_one_edit_that_passes_is_without_a_fault(turns, faultless):
    assert is_faultless(trace(*turns)) is faultless
