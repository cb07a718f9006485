"""Attempts that are played ahead: when they start and end, who waits for whom, and what a choice favours."""

import asyncio
import random

import pytest

from agentrl.rollout.bias import Bias
from agentrl.rollout.outstanding import End
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape
from tests.rollout.simulated import Fates, Run, doing, simulate, trace
from tests.rollout.stage import Stage, well


def test_groups_that_are_dispatched_together_are_opened_before_any_goes_on():
    log = []

    async def play(stage, task, identity, trial):
        log.append(len(stage.started))
        return trace(task, identity, [0])

    Stage(play).run()
    assert log[:4] == [4, 4, 4, 4]  # two groups of two


@pytest.mark.parametrize(
    ("at_publication", "times"),
    [
        # both groups begin at 0 and end at 3; step 0 learns until 4, and what is dispatched then is there at 7
        ("continue", [3.0, 4.0, 7.0]),
        ("wait", [3.0, 4.0, 7.0]),
    ],
)
def test_generation_runs_while_the_trainer_learns(at_publication, times):
    assert [time for _, time in Stage(well(3.0), at_publication=at_publication).run(3)] == times


@pytest.mark.parametrize(("seconds", "waits"), [(2.0, 0.0), (2.5, 0.5)])
def test_an_attempt_within_the_time_of_k_steps_is_waited_for_by_nobody(seconds, waits):
    """K = 2 and steps of 1 s: the first step waits for its groups, and no other one where they take 2 s.

    Where they take 2.5 s, group 3 is dispatched at 3.5 and there at 6.0, and step 3 is ready for it at 5.5.
    """
    stage = Stage(well(seconds), pacing=Pacing(groups_per_step=1, max_staleness=2, steps=9))
    assert [time for _, time in stage.run(4)] == [seconds, seconds + 1, seconds + 2, seconds + 3 + waits]
    assert stage.generation.seconds_waiting == seconds + waits


def test_a_publication_waits_for_the_attempts_in_flight_where_that_is_the_policy():
    """K = 2, and the trainer learns 1 s: the groups of step 2 take 5 s, those before them 0 s."""

    async def play(stage, task, identity, trial):
        before = stage.version
        await asyncio.sleep(5.0 if identity.group_id == "rl-2" else 0.0)
        return trace(task, identity, [before, stage.version])

    pacing = Pacing(groups_per_step=1, max_staleness=2, steps=4)
    stage = Stage(play, pacing=pacing, at_publication="continue")
    taken = stage.run(3)
    assert [time for _, time in taken] == [0.0, 1.0, 5.0]  # dispatched at 0
    assert taken[2][0][0].traces[0].nodes[0].versions == (0, 2)
    assert stage.generation.seconds_waiting == 3.0  # from 2 to 5

    stage = Stage(play, pacing=pacing, at_publication="wait")
    taken = stage.run(3)
    assert [time for _, time in taken] == [0.0, 5.0, 6.0]  # version 1 waits until 5
    assert taken[2][0][0].traces[0].nodes[0].versions == (0, 0)
    assert stage.generation.seconds_waiting == 4.0  # from 1 to 5


def test_the_time_in_which_attempts_are_in_flight_is_told():
    """Attempts of 3 s, steps of 1 s, K = 1: in flight until 3, and from 4, when a group is dispatched, to 7."""
    stage = Stage(well(3.0))
    busy = []

    async def run():
        async with stage.generation as generation:
            generation.begin(0)
            busy.append(generation.seconds_busy)
            await asyncio.sleep(2.0)
            busy.append(generation.seconds_busy)
            await generation.take()
            busy.append(generation.seconds_busy)
            await asyncio.sleep(1.0)
            await generation.publish(doing(setattr, stage, "version", 1))
            generation.begin(1)
            await asyncio.sleep(5.0)
            busy.append(generation.seconds_busy)

    simulate(run())
    assert busy == [0.0, 2.0, 3.0, 6.0]


def test_groups_for_a_step_alone_are_played_while_the_trainer_waits():
    async def run():
        stage = Stage(well(2.0), pacing=Pacing(groups_per_step=1, max_staleness=0, steps=2))
        async with stage.generation as generation:
            generation.begin(0)
            first = await generation.take()
            more = await generation.play_now([stage.plan(5), stage.plan(6)])
            stage.version = 1
            generation.begin(1)
            second = await generation.take()
        time = asyncio.get_running_loop().time()
        return [group.id for group in first + more + second], time, stage.generation.buffer.pop_ended()

    ids, time, ended = simulate(run())
    assert (ids, time) == (["rl-0", "rl-5", "rl-6", "rl-1"], 6.0)
    assert [one.end for one in ended] == [End.CONSUMED] * 8


def test_a_step_may_take_more_of_the_stream():
    async def run():
        stage = Stage(well(2.0))
        async with stage.generation as generation:
            generation.begin(0)
            return [group.id for group in [*await generation.take(), *await generation.take(2)]]

    assert simulate(run()) == ["rl-0", "rl-1", "rl-2"]


def test_a_bound_that_attempts_outlast_is_said_and_paced():
    """Attempts of 5 s, steps of 1 s, K = 1: the run waits and says so, once."""
    stage = Stage(well(5.0))
    taken = stage.run(4)
    assert [time for _, time in taken] == [5.0, 6.0, 11.0, 12.0]
    assert stage.notes == [
        "attempt rl-2-0 at task 't/2' took 5.0 s and the trainer learns 1.0 s in a step: with max_staleness 1 the "
        "trainer waits for it. A larger one hides slow tools; where sampling is slow, it does not"
    ]
    quick = Stage(well(0.9))
    quick.run(4)
    assert quick.notes == []


def test_taking_the_first_to_end_favours_what_is_short():
    """The seconds of an attempt are uniform in (0, 1), and it is right when they are above 1/2.

    Of 8 draws the 4 smallest have a mean of (1 + 2 + 3 + 4) / 9 / 4 = 5/18, where a draw has 1/2. When N of 8 are below
    1/2, max(0, 4 - N) of those are above it: (4 * 1 + 3 * 8 + 2 * 28 + 1 * 56) / 256 / 4 = 0.137 of them, not 1/2.
    """

    async def play(stage, task, identity, trial):
        seconds = random.Random(identity.seed).random()
        await asyncio.sleep(seconds)
        return trace(task, identity, [0] * round(1000 * seconds), reward=float(seconds > 0.5))

    found = {}
    for extra in (0, 4):
        shape = GroupShape(attempts=4, extra=extra)
        stage = Stage(play, pacing=Pacing(groups_per_step=200, max_staleness=0, steps=1), shape=shape)
        stage.run()
        kept = Bias.of(stage.generation.buffer.pop_ended())
        found[extra] = kept.kept.length.mean / 1000, kept.kept.reward.mean, kept.dropped.unseen
    assert found[0] == (pytest.approx(1 / 2, abs=0.03), pytest.approx(1 / 2, abs=0.05), 0)
    assert found[4] == (pytest.approx(5 / 18, abs=0.03), pytest.approx(0.137, abs=0.05), 800)


def test_first_come_trains_less_of_the_slow_family_and_in_order_of_dispatch_as_much():
    """Tasks of the odd family take 20 times as long, and are a third of those that are drawn."""

    class Slow(Fates):
        def seconds(self, identity, trial):
            return 2.0 if int(identity.group_id.split("-")[-1]) == 1 else 0.1

    shares = {}
    for order in ("dispatch", "first_come"):
        pacing = Pacing(groups_per_step=3, max_staleness=1, steps=40)
        run = Run(pacing=pacing, order=order, fates=Slow(), learn_s=1.0).simulate()
        slow = [name.endswith("-1") for name in run.consumed]
        shares[order] = sum(slow) / len(slow)
    assert shares["dispatch"] == pytest.approx(1 / 3)
    assert shares["first_come"] < 0.1
