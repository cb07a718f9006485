"""Runs in simulated time: whatever attempts take and however they end, the bound holds and everything is accounted for.

The checks look at the tokens that were trained and at the tickets that were dispatched, and know nothing of the buffer.
"""

import asyncio
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.buffer import Buffer
from agentrl.rollout.outstanding import End
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape
from tests.rollout.simulated import Deadlock, Fates, Run, simulate

FATES = st.builds(
    Fates,
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.01, 0.3, 3.0]),
    broken=st.sampled_from([0.0, 0.2]),
    raising=st.sampled_from([0.0, 0.2]),
    hanging=st.sampled_from([0.0, 0.1]),
    stubborn=st.sampled_from([0.0, 0.1]),
    tail=st.sampled_from([0.7, 1.5]),
)


@st.composite
def runs(draw, **fixed):
    bound = draw(st.integers(0, 3))
    settings = {
        "pacing": Pacing(
            groups_per_step=draw(st.integers(1, 3)),
            max_staleness=bound,
            steps=draw(st.integers(1, 7)),
            publish_every=draw(st.integers(1, bound + 1)),
        ),
        "shape": GroupShape(
            attempts=draw(st.integers(1, 3)), greedy=draw(st.booleans()), extra=draw(st.sampled_from([0, 0, 2]))
        ),
        "order": draw(st.sampled_from(["dispatch", "overtake", "first_come"])),
        "at_publication": draw(st.sampled_from(["continue", "wait"])),
        "repeatable": draw(st.booleans()),
        "publish_s": draw(st.sampled_from([0.0, 0.0, 3.0])),
        "fates": draw(FATES),
    }
    return Run(**(settings | fixed))


def check(run):
    """What every run must keep."""
    bound, per_step = run.pacing.max_staleness, run.pacing.groups_per_step
    assert [len(groups) for groups in run.steps] == [per_step] * run.pacing.steps, "each step has its groups"
    assert max(run.ages(), default=0) <= bound, "no token is too old when it is trained"
    assert min(run.ages(), default=0) >= 0
    for groups in run.steps:
        for group in groups:
            assert len(group.traces) == run.shape.attempts, "groups are whole"
            assert (group.greedy is not None) == run.shape.greedy
    ids = [one.id for groups in run.steps for group in groups for one in group.traces]
    assert len(set(ids)) == len(ids), "nothing is used twice"
    assert run.dispatched == Counter(one.ticket for one in run.ended), "each attempt has exactly one end"
    assert set(run.dispatched.values()) == {1}
    assert run.ends(End.CONSUMED) == per_step * run.pacing.steps * (run.shape.attempts + run.shape.greedy)
    assert not run.generation.buffer.num_out, "nothing is left"
    assert run.most_out <= (bound + 1) * per_step, "generation does not run further ahead"


@settings(max_examples=60, deadline=None)
@given(runs())
def test_every_run_keeps_its_bound_and_accounts_for_every_attempt(run):
    check(run.simulate())


@settings(max_examples=40, deadline=None)
@given(runs().filter(lambda run: run.order != "first_come"))
def test_pacing_leaves_nothing_to_drop(run):
    run.simulate()
    assert run.ends(End.STALE) == 0
    planned = [run.plan(number).id for number in range(len(run.consumed))]
    assert sorted(run.consumed) == sorted(planned), "exactly what was drawn is trained"
    if run.order == "dispatch":
        assert run.consumed == planned


@settings(max_examples=8, deadline=None)
@given(runs())
def test_the_same_seed_gives_the_same_run(run):
    again = Run(**{name: getattr(run, name) for name in run.__dataclass_fields__})
    run.simulate()
    again.simulate()
    assert (run.log, run.steps, run.ended) == (again.log, again.steps, again.ended)


@settings(max_examples=15, deadline=None)
@given(runs(order="dispatch", at_publication="wait", repeatable=False), st.integers(0, 10**6))
def test_in_order_of_dispatch_with_publications_that_wait_no_clock_decides(run, other):
    """Two runs whose attempts take other times train the same tokens of the same versions at the same steps."""
    shape = GroupShape(attempts=run.shape.attempts, greedy=run.shape.greedy)
    common = {"pacing": run.pacing, "shape": shape, "at_publication": "wait", "deadline_s": 1e12}
    first = Run(**common, fates=Fates(seed=run.fates.seed))
    second = Run(**common, fates=Fates(seed=other, scale=9.0), learn_s=5.0)
    assert first.simulate().steps == second.simulate().steps
    assert first.dispatched == second.dispatched


@settings(max_examples=20, deadline=None)
@given(runs())
def test_a_publication_that_waits_makes_attempts_of_one_version(run):
    run.at_publication = "wait"
    run.simulate()
    for groups in run.steps:
        for one in [one for group in groups for one in group.traces]:
            assert len({version for node in one.nodes for version in node.versions}) <= 1


def test_a_bound_above_zero_overlaps():
    assert sum(Run(fates=Fates(scale=1.0)).simulate().in_flight_while_learning) > 0


def test_a_publication_that_does_not_wait_makes_attempts_of_several():
    run = Run(fates=Fates(scale=1.0)).simulate()
    several = [len(set(one.nodes[0].versions)) > 1 for groups in run.steps for group in groups for one in group.traces]
    assert any(several)


@settings(max_examples=20, deadline=None)
@given(runs(pacing=Pacing(groups_per_step=2, max_staleness=0, steps=5)))
def test_a_bound_of_zero_alternates(run):
    """While the trainer learns nothing is dispatched, and of what it trains nothing is old."""
    run.simulate()
    assert set(run.ages()) <= {0}
    assert all(one.ticket.version == one.step for one in run.ended)
    assert run.in_flight_while_learning == [0] * 5


@settings(max_examples=40, deadline=None)
@given(runs(), st.integers(0, 5))
def test_a_run_that_is_killed_and_resumed_trains_the_same_attempts(run, kill_at):
    """In order of dispatch each step trains the same; in any order nothing is lost or trained twice."""
    killed = Run(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"kill_at": kill_at})
    run.simulate()
    killed.simulate()
    assert max(killed.ages(), default=0) <= run.pacing.max_staleness
    assert killed.most_out <= (run.pacing.max_staleness + 1) * run.pacing.groups_per_step
    assert len(set(killed.consumed)) == len(killed.consumed) == len(run.consumed)
    if run.order == "dispatch":
        assert killed.consumed == run.consumed
    if run.order != "first_come":
        assert set(killed.consumed) == set(run.consumed)
    if run.shape.extra == 0 and run.order == "dispatch":
        assert trained(killed) == trained(run)


def trained(run):
    return [
        (one.task_id, one.id, one.attempt, one.seed) for groups in run.steps for group in groups for one in group.traces
    ]


# Buffers with a fault, each of which fails a check that the right one passes.


class NeverOld(Pacing):
    """The age is counted at dispatch, where it is 0."""

    def last_step(self, version):
        return 10**9

    def room(self, **where):
        return Pacing(groups_per_step=self.groups_per_step, max_staleness=self.max_staleness, steps=self.steps).room(
            **where
        )


class Unpaced(Pacing):
    """More is dispatched than can be consumed within the bound."""

    def room(self, *, step, version, need, out):
        return super().room(step=step, version=version, need=need, out=out - 4)


class ForgetsTheQueue(Buffer):
    """The age is counted when a group is complete, and what waits for the trainer afterwards does not grow older."""

    def _drop_stale(self):
        waiting = {number: group for number, group in self._groups.items() if group.completed is not None}
        self._groups = {number: group for number, group in self._groups.items() if number not in waiting}
        super()._drop_stale()
        self._groups |= waiting

    def _consume(self, group):
        made = group.group(self.shape)
        self._remove(group, End.CONSUMED, in_flight=End.CANCELLED)
        return made


class Forgets(Buffer):
    """Attempts of a group that is dropped have no end."""

    def _drop_stale(self):
        ended = list(self._ended)
        super()._drop_stale()
        self._ended = ended


SLOW = Fates(scale=2.0, tail=0.7)
STEADY = {"groups_per_step": 2, "max_staleness": 1, "steps": 12}


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        (
            {"pacing": NeverOld(**STEADY), "order": "first_come", "fates": SLOW},
            {"pacing": Pacing(**STEADY), "order": "first_come", "fates": SLOW},
            "too old",
        ),
        (
            {"pacing": Unpaced(**STEADY), "make_buffer": ForgetsTheQueue, "fates": Fates(scale=0.01)},
            {"pacing": Pacing(**STEADY), "fates": Fates(scale=0.01)},
            "too old",
        ),
        (
            {"pacing": Unpaced(**STEADY), "fates": Fates(scale=0.01)},
            {"pacing": Pacing(**STEADY), "fates": Fates(scale=0.01)},
            "further ahead",
        ),
        (
            {"pacing": Pacing(**STEADY), "order": "first_come", "fates": SLOW, "make_buffer": Forgets},
            {"pacing": Pacing(**STEADY), "order": "first_come", "fates": SLOW},
            "exactly one end",
        ),
    ],
)
def test_the_checks_find_a_buffer_that_is_wrong(wrong, right, message):
    with pytest.raises(AssertionError, match=message):
        check(Run(**wrong).simulate())
    check(Run(**right).simulate())


def test_a_slow_attempt_ends_under_its_own_version_and_its_group_is_dropped_and_counted():
    """K = 1, dispatched at version 0, and alone slow: step 1 is the last that may take it, and does not wait."""

    class One(Fates):
        def seconds(self, identity, trial):
            return 3.0 if identity.trace_id == "rl-1-0-0" else 0.1

    run = Run(pacing=Pacing(groups_per_step=1, max_staleness=1, steps=5), order="first_come", fates=One()).simulate()
    check(run)
    assert "rl-1-0" not in run.consumed
    stale = [one for one in run.ended if one.end is End.STALE]
    assert [(one.step, one.plan.id, one.ticket.attempt, one.trace is None) for one in stale] == [
        (2, "rl-1-0", 1, False),
        (2, "rl-1-0", 0, True),
    ]


def test_without_pacing_groups_are_dropped():
    quick = Fates(scale=0.01)
    unpaced = Run(pacing=Unpaced(**STEADY), fates=quick).simulate()
    assert unpaced.ends(End.STALE) > 0
    assert max(unpaced.ages()) == 1
    assert Run(pacing=Pacing(**STEADY), fates=quick).simulate().ends(End.STALE) == 0


def test_first_come_drops_what_is_slow_and_the_others_do_not():
    found = {order: Run(pacing=Pacing(**STEADY), order=order, fates=SLOW).simulate() for order in ORDERS}
    assert {order: run.ends(End.STALE) > 0 for order, run in found.items()} == {
        "dispatch": False,
        "overtake": False,
        "first_come": True,
    }
    ended_at = {order: run.log[-1][0] for order, run in found.items()}
    assert ended_at["first_come"] < ended_at["overtake"] <= ended_at["dispatch"]


ORDERS = ("dispatch", "overtake", "first_come")


def test_a_wait_that_nothing_ends_is_a_deadlock_in_simulated_time():
    async def forever():
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        simulate(forever())


def test_the_state_is_plain_data():
    run = Run(kill_at=3)
    states = []

    class Kept(Buffer):
        def restore(self, state, task_set):
            states.append(json.loads(json.dumps(state)))
            super().restore(states[-1], task_set)

    run.make_buffer = Kept
    run.simulate()
    assert states[0]["groups"]
    assert run.consumed == Run().simulate().consumed
