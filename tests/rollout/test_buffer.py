"""The bookkeeping of groups: one end for each attempt, whatever order things happen in."""

import json

import pytest

from agentrl.errors import StoreError, TrainerError
from agentrl.rollout.buffer import Buffer
from agentrl.rollout.outstanding import End
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape, plan_group
from agentrl.types import Fault
from tests.rollout.simulated import TASKS, Tasks, trace

LOST = Fault(boundary="sandbox", message="lost")


class Table:
    """A buffer with the plans of its groups at hand. One group a step, and K = 1."""

    def __init__(self, *, bound=1, order="dispatch", **shape):
        self.shape = GroupShape(**({"attempts": 2} | shape))
        self.buffer = Buffer(Pacing(groups_per_step=1, max_staleness=bound, steps=99), self.shape, order=order)
        self.buffer.begin(0, 0)
        self.plans = []

    def dispatch(self, **options):
        place = len(self.plans)
        self.plans.append(plan_group(TASKS, place, shape=self.shape, name="rl", place=place, seed=0))
        return self.buffer.dispatch(self.plans[-1], **options)

    def trace(self, ticket, versions=None, **options):
        plan = self.plans[ticket.group]
        versions = (ticket.version,) if versions is None else versions
        return trace(plan.task, plan.identity(ticket.attempt), versions, **options)

    def end(self, *tickets, **options):
        for ticket in tickets:
            self.buffer.end(ticket, self.trace(ticket, **options))

    def ends(self):
        return [(*one.ticket[:3], str(one.end)) for one in self.buffer.pop_ended()]


def attempts(groups):
    return [[one.attempt for one in group.traces] for group in groups]


def test_a_group_is_whole_when_its_last_attempt_ends():
    table = Table()
    first, second = table.dispatch()
    table.end(second)
    assert table.buffer.take() is None
    assert table.buffer.num_complete == 0
    table.end(first)
    assert attempts(table.buffer.take()) == [[0, 1]]
    assert table.ends() == [(0, 1, 0, "consumed"), (0, 0, 0, "consumed")]
    assert table.buffer.num_out == 0


def test_a_group_is_taken_once_and_its_step_takes_no_more():
    table = Table()
    for ticket in (*table.dispatch(), *table.dispatch()):
        table.end(ticket)
    assert len(table.buffer.take()) == 1
    assert table.buffer.take() == []
    table.buffer.want(1)  # a refill
    assert [group.id for group in table.buffer.take()] == ["rl-1"]


def test_a_second_answer_is_refused_and_counted():
    table = Table()
    first, second = table.dispatch()
    assert table.buffer.end(first, table.trace(first))
    assert not table.buffer.end(first, table.trace(first, reward=9.0))
    table.end(second)
    assert [one.reward for one in table.buffer.take()[0].traces] == [1.0, 1.0]
    assert not table.buffer.end(second, table.trace(second))
    assert table.buffer.refused == 2
    assert len(table.ends()) == 2


def test_an_answer_of_a_trial_that_was_given_up_is_refused():
    table = Table()
    first, second = table.dispatch()
    retried = table.buffer.again(first, table.trace(first, error=LOST))
    assert (retried.attempt, retried.trial) == (0, 1)
    table.end(first, second)
    assert table.buffer.take() is None
    table.end(retried)
    assert len(table.buffer.take()) == 1
    assert table.buffer.refused == 1
    assert sorted(table.ends()) == [(0, 0, 0, "failed"), (0, 0, 1, "consumed"), (0, 1, 0, "consumed")]


def test_age_counts_until_the_group_is_taken():
    """Sampled at version 0 and complete at step 0: step 1 may take it, and step 2 may not."""
    for step, taken in ((1, True), (2, False)):
        table = Table()
        table.end(*table.dispatch())
        table.buffer.begin(step, step)
        assert bool(table.buffer.take()) == taken
        assert {end for *_, end in table.ends()} == {"consumed" if taken else "stale"}


def test_the_oldest_token_of_the_group_decides():
    """Dispatched at version 1 but with a token of version 0, such as one of a conversation that was continued."""
    table = Table()
    table.buffer.begin(1, 1)
    first, second = table.dispatch()
    table.end(first, versions=[1, 1])
    table.end(second, versions=[1, 0, 1])
    table.buffer.begin(2, 2)
    assert table.buffer.take() is None
    assert [end for *_, end in table.ends()] == ["stale", "stale"]


def test_tokens_younger_than_the_dispatch_keep_a_group_in_time():
    table = Table()
    first, second = table.dispatch()
    table.buffer.begin(1, 1)
    table.end(first, second, versions=[1])
    table.buffer.begin(2, 2)
    assert len(table.buffer.take()) == 1


def test_an_attempt_without_tokens_is_as_old_as_its_dispatch():
    table = Table()
    table.end(*table.dispatch(), versions=[])
    table.buffer.begin(2, 2)
    assert [end for *_, end in table.ends()] == ["stale", "stale"]


def test_a_stale_group_goes_whole_and_its_attempts_in_flight_are_given_up():
    table = Table(order="first_come")
    first, second = table.dispatch()
    table.end(first)
    table.buffer.begin(2, 2)
    assert table.buffer.pop_given_up() == [second]
    assert [(one.ticket, one.end, one.trace is None) for one in table.buffer.pop_ended()] == [
        (first, End.STALE, False),
        (second, End.STALE, True),
    ]
    assert table.buffer.room == 2


def test_extra_attempts_the_first_to_end_make_the_group():
    table = Table(extra=2)
    tickets = table.dispatch()
    table.end(tickets[3], tickets[1])
    assert table.buffer.pop_given_up() == [tickets[0], tickets[2]]
    assert attempts(table.buffer.take()) == [[1, 3]]
    assert table.ends() == [
        (0, 0, 0, "cancelled"),
        (0, 2, 0, "cancelled"),
        (0, 3, 0, "consumed"),
        (0, 1, 0, "consumed"),
    ]


def test_extra_attempts_stand_in_for_broken_ones():
    table = Table(extra=2)
    tickets = table.dispatch()
    table.end(tickets[0], error=LOST)
    table.end(tickets[1])
    assert table.buffer.take() is None
    table.end(tickets[2])
    assert attempts(table.buffer.take()) == [[1, 2]]
    assert table.ends()[:2] == [(0, 0, 0, "surplus"), (0, 3, 0, "cancelled")]


def test_where_all_but_one_break_the_group_is_filled_with_broken_ones():
    table = Table(extra=1)
    tickets = table.dispatch()
    table.end(tickets[0], tickets[1], error=LOST)
    table.end(tickets[2])
    group = table.buffer.take()[0]
    assert [(one.attempt, one.reward) for one in group.traces] == [(0, None), (2, 1.0)]
    assert table.ends()[0] == (0, 1, 0, "surplus")


def test_the_greedy_attempt_is_waited_for_and_stands_beside_the_others():
    table = Table(greedy=True, extra=1)
    tickets = table.dispatch()
    assert [ticket.attempt for ticket in tickets] == [0, 1, 2, 3]
    table.end(tickets[0], tickets[3])
    assert table.buffer.take() is None
    table.end(tickets[2])
    group = table.buffer.take()[0]
    assert ([one.attempt for one in group.traces], group.greedy.attempt) == ([0, 3], 2)


def test_groups_for_one_step_take_no_place_in_the_stream():
    table = Table(bound=0)
    table.end(*table.dispatch())
    table.buffer.take()
    tickets = table.dispatch(reserved=True)
    assert (table.buffer.room, table.buffer.next_number) == (0, 1)
    assert table.buffer.take_reserved() is None
    table.end(*tickets)
    assert [group.id for group in table.buffer.take_reserved()] == ["rl-1"]
    assert table.buffer.take_reserved() == []


@pytest.mark.parametrize(("step", "version"), [(0, 1), (2, 3), (1, 0)])
def test_neither_steps_nor_versions_go_back_or_ahead(step, version):
    table = Table()
    table.buffer.begin(1, 1)
    with pytest.raises(TrainerError, match=f"step {step} with version {version} after step 1 with version 1"):
        table.buffer.begin(step, version)


def test_at_the_end_of_a_run_everything_has_its_end():
    table = Table()
    table.end(*table.dispatch())
    table.dispatch()
    table.buffer.close()
    assert [end for *_, end in table.ends()] == ["surplus", "surplus", "cancelled", "cancelled"]
    assert (table.buffer.num_out, table.buffer.in_flight) == (0, [])


def test_a_buffer_goes_on_from_its_state():
    table = Table(bound=2, extra=1)
    table.buffer.begin(1, 1)
    complete, half, _ = table.dispatch(), table.dispatch(), table.dispatch()
    table.end(complete[2], complete[0])
    table.end(half[1], error=LOST)
    retried = table.buffer.again(half[0], table.trace(half[0], error=LOST))
    assert len(table.buffer.in_flight) == 2 + 3
    state = json.loads(json.dumps(table.buffer.state()))

    again = Table(bound=2, extra=1)
    again.plans = table.plans
    again.buffer.restore(state, TASKS)
    again.buffer.begin(2, 2)
    assert again.buffer.state() == state
    tickets = again.buffer.reopen()
    assert tickets == again.buffer.in_flight
    assert [(t.group, t.attempt, t.trial, t.version) for t in tickets] == [
        (1, 2, 0, 2),
        (1, 0, 1, 2),  # once it was tried again, which is not forgotten
        (2, 0, 0, 2),
        (2, 1, 0, 2),
        (2, 2, 0, 2),
    ]
    assert (again.buffer.next_number, again.buffer.room) == (3, 0)
    assert [group.traces for group in again.buffer.take()] == [group.traces for group in table.buffer.take()]
    assert not again.buffer.end(retried, again.trace(retried)), "nobody waits for what was before the restart"
    again.end(*tickets)
    assert len(again.dispatch()) == 3
    assert again.buffer.in_flight[0].group == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(schema=9), "schema 9; this version reads schema 1"),
        (lambda state: state.pop("groups"), "cannot be read: KeyError"),
        (lambda state: state["groups"][0].pop("open"), "cannot be read: KeyError"),
        (lambda state: state["groups"][0]["plan"].update(index=400), "has None at index 400"),
        (lambda state: state["groups"][0]["plan"]["seeds"].append(1), "begun with 3 attempts and the run now has 2"),
    ],
)
def test_a_state_that_is_not_of_this_run_is_refused(change, message):
    table = Table()
    table.dispatch()
    state = table.buffer.state()
    change(state)
    with pytest.raises(StoreError, match=message):
        Table().buffer.restore(state, TASKS)


def test_another_task_set_is_refused():
    class Others(Tasks):
        def __getitem__(self, index):
            return super().__getitem__(index + 1)

    table = Table()
    table.dispatch()
    with pytest.raises(StoreError, match="begun at task 't/0', and 'tasks' has 't/1' at index 0"):
        Table().buffer.restore(table.buffer.state(), Others())
