"""Bins of steps, and which evaluations belong to the curve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.evals.report.curve import MOST_BINS, bins, learning_curve


@given(st.lists(st.floats(0, 1), min_size=2, max_size=300))
def test_every_step_is_in_one_bin(rewards):
    found = bins(np.array(rewards))
    assert [one.first for one in found[1:]] == [one.last + 1 for one in found[:-1]]
    assert (found[0].first, found[-1].last) == (1, len(rewards))
    assert len(found) <= MOST_BINS
    assert all(one.last > one.first for one in found)
    assert all(0 <= one.interval.low <= one.interval.mean <= one.interval.high <= 1 for one in found)


def row(phase, step, **values):
    return {"phase": phase, "step": step, **values}


def held_out(step, rate):
    return row("eval", step, pass_rate=rate, pass_rate_low=rate - 0.1, pass_rate_high=rate + 0.1)


def test_the_evaluations_in_between_are_points_and_those_at_the_ends_are_not():
    rows = [
        row("warm_start", 1, loss=1.0),
        held_out(0, 0.3),
        *(row("rl", n, reward=r) for n, r in ((1, 0.5), (2, None), (3, 0.7), (4, 0.9), (5, 0.5))),
        held_out(2, 0.5),
        held_out(5, 0.8),
    ]
    found = learning_curve(rows, 5)
    assert found.rewards.tolist() == [0.5, 0.7, 0.9, 0.5]
    assert found.skipped == 1
    assert [(one.step, one.mean, one.low) for one in found.points] == [(2, 0.5, 0.4)]
    assert [one.mean for one in found.bins] == pytest.approx([0.6, 0.7])


def test_rewards_of_any_size_have_intervals_where_they_differ():
    first, second = bins(np.array([3.0, 3.0, 4.0, 6.0]))
    assert first.interval is None
    assert second.interval.mean == 5.0
    assert bins(np.array([1.0])) == ()
