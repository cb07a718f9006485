"""How many groups may be dispatched, and which a step takes: exact numbers, and what holds of all."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.rollout.buffer import Buffer
from agentrl.rollout.order import Candidate, Wanted, dispatch, first_come, overtake
from agentrl.rollout.outstanding import End
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape, plan_group
from tests.rollout.simulated import TASKS, trace

PACING = Pacing(groups_per_step=3, max_staleness=2, steps=10)


@pytest.mark.parametrize(
    ("where", "room"),
    [
        ({"step": 0, "version": 0, "need": 3, "out": 0}, 9),  # 3 for step 0, 3 each for steps 1 and 2
        ({"step": 0, "version": 0, "need": 3, "out": 8}, 1),
        ({"step": 0, "version": 0, "need": 0, "out": 6}, 0),  # step 0 learns: steps 1 and 2 take the 6 that are out
        ({"step": 1, "version": 1, "need": 3, "out": 6}, 3),  # published: what is new may be taken by step 3
        ({"step": 1, "version": 0, "need": 3, "out": 0}, 6),  # the sampler lags: steps 1 and 2
        ({"step": 3, "version": 0, "need": 3, "out": 0}, 0),  # what it samples is too old at once
        ({"step": 8, "version": 8, "need": 3, "out": 0}, 6),  # steps 8 and 9 are the last
        ({"step": 10, "version": 10, "need": 3, "out": 0}, 0),
        ({"step": 0, "version": 0, "need": 3, "out": 20}, 0),
    ],
)
def test_room(where, room):
    assert PACING.room(**where) == room


def test_a_bound_of_zero_has_room_for_the_step_alone():
    pacing = Pacing(groups_per_step=4, max_staleness=0, steps=10)
    assert pacing.room(step=2, version=2, need=4, out=0) == 4
    assert pacing.room(step=2, version=2, need=4, out=4) == 0
    assert pacing.room(step=2, version=2, need=0, out=0) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_staleness": 0, "publish_every": 2}, "set max_staleness to 1 or more, or publish_every to 1 or less"),
        ({"max_staleness": 1, "publish_every": 4}, "3 steps old; set max_staleness to 3 or more"),
        ({"max_staleness": -1}, "max_staleness -1"),
        ({"max_staleness": 0, "groups_per_step": 0}, "groups_per_step 0"),
    ],
)
def test_a_bound_that_cannot_be_met_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Pacing(**({"groups_per_step": 3, "steps": 5} | settings))


@pytest.mark.parametrize(
    ("attempts", "extra"),
    [(0, 0), (2, -1)],
)
def test_a_group_that_cannot_be_is_refused(attempts, extra):
    with pytest.raises(ConfigError, match="write at least 1 and at least 0"):
        GroupShape(attempts=attempts, extra=extra)


# Which groups a step takes. The columns of a candidate: number, last step, place in the order of completion.

A, B, C, D = (0, 5, 2), (1, 5, None), (2, 6, 0), (3, 6, 1)


def take(order, candidates, need=2, step=4):
    return order([Candidate(*one) for one in candidates], Wanted(step, need, 2))


def test_in_order_of_dispatch_a_late_group_is_waited_for():
    assert take(dispatch, [A, B, C, D]) is None
    assert take(dispatch, [A, C, B, D], need=1) == [0]
    assert take(dispatch, [D, C, A]) == [0, 2]
    assert take(dispatch, [A]) is None


def test_first_come_takes_the_oldest_that_are_there():
    assert take(first_come, [A, B, C, D]) == [0, 2]
    assert take(first_come, [B, C, D]) == [2, 3]
    assert take(first_come, [B, C]) is None


def test_overtaking_goes_as_far_as_nobody_is_late():
    # groups 0 and 1 may be taken at step 5 as well, and two are taken there: both may be passed over at step 4
    assert take(overtake, [A, B, C, D]) == [2, 3]
    # three groups have step 5 as their last: one of them must be taken now, and the complete one can
    E = (4, 5, None)
    assert take(overtake, [A, B, C, D, E]) == [0, 2]
    # four have: two must be taken now, and one of them alone is complete
    assert take(overtake, [A, B, C, D, E, (5, 5, None)]) is None
    # at its last step a group is waited for
    assert take(overtake, [A, B, C, D], step=5) is None
    assert take(overtake, [A, C, D], step=5) == [0, 2]


@given(st.data())
def test_overtaking_never_leaves_more_than_later_steps_can_take(data):
    """Where all could be taken in time before, all can be afterwards."""
    per_step, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    lasts, room = [], per_step * steps
    for number in range(data.draw(st.integers(per_step, room))):  # the n-th in order of urgency fits into step n // G
        lasts.append(data.draw(st.integers(number // per_step, steps - 1)))
    ready = data.draw(st.lists(st.booleans(), min_size=len(lasts), max_size=len(lasts)))
    candidates = [
        Candidate(n, last, n if done else None) for n, (last, done) in enumerate(zip(lasts, ready, strict=True))
    ]
    chosen = overtake(candidates, Wanted(0, per_step, per_step))
    if all(ready):
        assert chosen is not None
    if chosen is None:
        return
    assert len(set(chosen)) == per_step
    assert all(ready[number] for number in chosen)
    left = [one for one in candidates if one.number not in chosen]
    for step in range(steps):
        assert sum(one.last_step <= step for one in left) <= step * per_step


@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 10**6))
def test_first_come_drops_nothing_that_is_complete_by_its_turn(per_step, bound, seed):
    """Group n has its turn at step n // G. Each is complete by then, in any order, and none is dropped."""
    draw, shape = random.Random(seed), GroupShape(attempts=1)
    buffer = Buffer(Pacing(groups_per_step=per_step, max_staleness=bound, steps=8), shape, order="first_come")
    due = []
    for step in range(8):
        buffer.begin(step, step)
        while buffer.room:
            number = buffer.next_number
            plan = plan_group(TASKS, 0, shape=shape, name="rl", place=number, seed=0)
            due.append((draw.randint(step, number // per_step), buffer.dispatch(plan)[0], plan, step))
        for one in draw.sample(due, len(due)):
            if one[0] <= step:
                due.remove(one)
                buffer.end(one[1], trace(one[2].task, one[2].identity(0), [one[3]]))
        assert len(buffer.take()) == per_step
    assert {one.end for one in buffer.pop_ended()} == {End.CONSUMED}
    assert not buffer.num_out
