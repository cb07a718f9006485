"""Attempts that hang, break, lie or are given up: each is named, counted, and ends; the run goes on or says why not."""

import asyncio

import pytest

from agentrl.errors import ConfigError, SamplerError, TrainerError
from agentrl.rollout.buffer import Buffer
from agentrl.rollout.outstanding import End
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupShape, is_repeatable
from agentrl.types import Fault
from tests.rollout.simulated import TASKS, Tasks, simulate, trace
from tests.rollout.stage import Stage, errors, well

LOST = Fault(boundary="sandbox", message="lost")


async def hang():
    await asyncio.sleep(1e6)


def hanging(number):
    async def play(stage, task, identity, trial):
        if identity.trace_id == number:
            await hang()
        await asyncio.sleep(1.0)
        return trace(task, identity, [stage.version])

    return play


def test_an_attempt_that_hangs_is_named_and_stands_in_its_group_without_a_reward():
    stage = Stage(hanging("rl-0-1"))
    taken = stage.run(2)
    assert [time for _, time in taken] == [10.0, 11.0]
    lost = taken[0][0][0].traces[1]
    assert (lost.reward, lost.error.boundary, lost.id, lost.seed) == (
        None,
        "environment",
        "rl-0-1",
        stage.plan(0).seeds[1],
    )
    assert "attempt rl-0-1 at task 't/0' gave no answer within 10 s; it waits in hanging" in lost.error.message
    assert "play > hang > sleep (tasks.py" in lost.error.message
    assert lost.error.message in stage.notes


def test_an_attempt_that_does_not_end_when_it_is_told_is_named_as_stuck_and_its_answer_refused():
    async def play(stage, task, identity, trial):
        version = stage.version
        try:
            await asyncio.sleep(1e6 if identity.trace_id == "rl-0-1" else 1.0)
        except asyncio.CancelledError:
            await asyncio.sleep(3.0)
        return trace(task, identity, [version])

    stage = Stage(play)
    taken = stage.run(4)
    assert [error and error.boundary for error in errors(taken)] == [None, "environment"] + [None] * 6
    assert stage.generation.stuck == ["attempt rl-0-1 at task 't/0'"]
    assert any("rl-0-1 at task 't/0' is stuck: given up 1 s ago, it still waits in" in note for note in stage.notes)
    assert stage.generation.buffer.refused == 1


@pytest.mark.parametrize(
    ("repeatable", "breaks", "played", "faults"),
    [(True, 1, 2, 0), (True, 2, 2, 1), (False, 1, 1, 1)],
)
def test_an_attempt_is_played_again_once_and_only_where_that_is_safe(repeatable, breaks, played, faults):
    async def play(stage, task, identity, trial):
        await asyncio.sleep(1.0)
        broken = identity.trace_id == "rl-0-1" and trial < breaks
        return trace(task, identity, [0], error=LOST if broken else None)

    stage = Stage(play, repeatable=repeatable)
    taken = stage.run()
    assert stage.started.count("rl-0-1") == played
    assert [error for error in errors(taken) if error] == [LOST] * faults
    ended = [one for one in stage.generation.buffer.pop_ended() if one.ticket[:2] == (0, 1)]
    assert [(one.ticket.trial, one.end) for one in ended][:1] == [(0, End.FAILED if repeatable else End.CONSUMED)]


def test_an_attempt_that_raises_or_cannot_begin_is_a_fault_with_its_boundary():
    def play(stage, task, identity, trial):
        if identity.trace_id == "rl-0-0":
            raise SamplerError("nobody listens")
        return raising(task)

    async def raising(task):
        raise KeyError("bug")

    found = errors(Stage(play).run())
    assert [(error.boundary, error.message) for error in found] == [
        ("sampler", "nobody listens"),
        ("environment", "the attempt raised KeyError: 'bug'"),
    ]


@pytest.mark.parametrize(
    ("answer", "boundary", "message"),
    [
        (lambda stage, task, identity: None, "environment", "answered with NoneType, not a Trace"),
        (lambda stage, task, identity: trace(TASKS[3], identity, [0]), "environment", "'t/0') answered with that of"),
        (
            lambda stage, task, identity: trace(task, stage.plan(0).identity(1 - identity.attempt), [0]),
            "environment",
            "answered with that of",
        ),
    ],
)
def test_an_answer_that_cannot_be_one_is_not_believed(answer, boundary, message):
    async def play(stage, task, identity, trial):
        return answer(stage, task, identity)

    for error in errors(Stage(play).run()):
        assert error.boundary == boundary
        assert message in error.message


@pytest.mark.parametrize(("lag", "found"), [(-1, "version 0"), (1, "version 2")])
def test_a_sampler_that_missed_a_publication_or_runs_ahead_of_it_stops_the_run(lag, found):
    """Once version 1 is out; else what such a sampler gives would be dropped as too old for ever."""

    async def play(stage, task, identity, trial):
        version = stage.version
        await asyncio.sleep(0.1)
        return trace(task, identity, [version + lag if version else 0])

    with pytest.raises(
        SamplerError, match=f"dispatched at version 1 and has a token of {found}, where 1 is the newest"
    ):
        Stage(play).run(4)


def test_an_attempt_that_cancels_itself_is_a_fault():
    async def play(stage, task, identity, trial):
        raise asyncio.CancelledError

    assert [error.message for error in errors(Stage(play).run())] == [
        "attempt rl-0-0 at task 't/0' cancelled itself",
        "attempt rl-0-1 at task 't/0' cancelled itself",
    ]


def test_what_is_given_up_is_told_so_and_cleans_up():
    closed = []

    async def play(stage, task, identity, trial):
        try:
            await asyncio.sleep(1.0 + identity.attempt)
            return trace(task, identity, [0])
        finally:
            closed.append(identity.trace_id)

    stage = Stage(play, shape=GroupShape(attempts=2, extra=1))
    stage.run()
    assert sorted(closed) == sorted(stage.started)
    assert len(closed) == 9  # groups 0 and 1, and the one that is dispatched when version 1 is out


def test_what_is_given_up_before_its_first_step_cleans_up_too():
    closed = []

    async def play(stage, task, identity, trial):
        try:
            await asyncio.sleep(1.0)
        finally:
            closed.append(identity.trace_id)

    async def run():
        stage = Stage(play)
        async with stage.generation as generation:
            generation.begin(0)
        return stage

    stage = simulate(run())
    assert sorted(closed) == sorted(stage.started) == ["rl-0-0", "rl-0-1", "rl-1-0", "rl-1-1"]
    assert [one.end for one in stage.generation.buffer.pop_ended()] == [End.CANCELLED] * 4


def test_a_task_set_says_whether_its_attempts_may_be_played_again():
    class Says(Tasks):
        def __init__(self, said):
            super().__init__()
            self.repeatable = said

    assert (is_repeatable(Tasks()), is_repeatable(Says(True)), is_repeatable(Says(False))) == (False, True, False)
    with pytest.raises(ConfigError, match="repeatable of 'tasks' is 'yes'; write True or False"):
        is_repeatable(Says("yes"))


def test_an_error_of_ours_reaches_the_trainer():
    class Broken(Buffer):
        def end(self, ticket, answer):
            raise ZeroDivisionError("a bug")

    stage = Stage(well(1.0))
    stage.generation.buffer.__class__ = Broken
    with pytest.raises(ZeroDivisionError, match="a bug"):
        stage.run()


def test_a_step_that_nothing_can_come_for_says_why():
    async def run():
        stage = Stage(well(1.0), pacing=Pacing(groups_per_step=1, max_staleness=0, steps=9))
        async with stage.generation as generation:
            generation.begin(0)
            await generation.take()
            generation.begin(1)  # and nothing was published
            await generation.take()

    with pytest.raises(TrainerError, match="step 1 waits for 1 groups and none can come: version 0 is the newest"):
        simulate(run())


@pytest.mark.parametrize("times", [{"deadline_s": 0.0}, {"deadline_s": float("inf")}, {"grace_s": -1.0}])
def test_times_must_be_finite(times):
    with pytest.raises(ConfigError, match="write finite seconds above 0"):
        Stage(well(1.0), **times)
