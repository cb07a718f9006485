"""Each limit has a stop of its own and leaves a note; time of ours that runs out is a fault, the policy's is a stop."""

import asyncio
import time

import pytest

from agentrl.algorithms.outcomes import outcome
from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError, EnvironmentFault, SamplerError
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import IDS, TinyRenderer
from agentrl.types import Completion, Observation, Stop
from tests.harness.parts import TASK, Recorder, World, trace_of

READ, SUBMIT = (IDS["read"], IDS["<end>"]), (IDS["submit"], IDS["<end>"])


class Slow(World):
    """Its tool takes a while."""

    def __init__(self, *pauses):
        super().__init__()
        self.pauses = list(pauses)

    async def call(self, call):
        await asyncio.sleep(self.pauses.pop(0))
        return await super().call(call)


def play(*replies, world=None, session=None, started=None, **limits):
    transcript = Transcript() if started is None else Transcript(started=started)
    session = session or Recorder(list(replies))
    loop = ToolLoop(TinyRenderer(), Limits(**limits))
    asyncio.run(asyncio.wait_for(loop.run(TASK, world or World(), session, transcript), 20.0))
    return transcript, session


@pytest.mark.parametrize(
    ("limits", "replies", "cut"),
    [
        ({"turns": 1}, [READ], {"stop": "max_turns", "what": "attempt", "turns": 1}),
        ({"reply": 1}, [READ], {"stop": "max_tokens", "what": "reply", "tokens": 1}),
        ({"context": 6}, [READ], {"stop": "context_full", "what": "reply", "tokens": 1}),
        # prompt 4, opening 1, reply 2, result 3, and one for the next opening
        ({"context": 11}, [READ], {"stop": "context_full", "what": "conversation", "tokens": 11, "context": 11}),
        # the same, and two are left of three
        (
            {"reserve": 3, "context": 13},
            [READ],
            {"stop": "context_full", "what": "conversation", "tokens": 11, "context": 13},
        ),
        ({"tool_s": 1e-9}, [READ], {"stop": "tool_time", "what": "attempt", "calls_left": 0, "tool_s": 1e-9}),
    ],
)  # fmt: skip
def test_what_was_cut_and_why_is_noted(limits, replies, cut):
    transcript, session = play(*replies, **limits)
    assert transcript.notes == {"cuts": [cut]}
    assert transcript.stop == Stop(cut["stop"])
    assert session.replies == []
    trace = trace_of(transcript)
    assert outcome(trace).truncated
    assert sum(sum(sample.weights["pg"]) for sample in samples(trace, 1.0)) == trace.num_sampled


def test_an_attempt_that_ends_by_itself_has_no_notes():
    transcript, _ = play(READ, SUBMIT)
    assert (transcript.stop, transcript.notes) == (Stop.DONE, {})
    assert not outcome(trace_of(transcript)).truncated


def test_a_reply_is_asked_for_when_just_enough_is_left():
    # prompt 4 and opening 1 leave 3 of 8.
    _, session = play(SUBMIT, reserve=3, context=8)
    assert session.asked[0].max_tokens == 3
    transcript, _ = play(reserve=4, context=8)
    assert transcript.stop == Stop.CONTEXT_FULL


def test_a_call_that_runs_is_not_torn_by_a_budget_and_the_rest_is_not_begun():
    transcript, session = play(READ, READ, world=Slow(0.05, 0.0), tool_s=0.04)
    assert transcript.stop == Stop.TOOL_TIME
    assert transcript.nodes[-1].message.content == "ok"  # the call that ran too long gave its answer
    assert len(session.replies) == 1


def test_a_budget_is_the_sum_over_all_calls():
    transcript = Transcript()

    class Counting(World):
        async def call(self, call):
            transcript.seconds["tools"] += 100.0  # as if it had taken so long
            return await super().call(call)

    loop = ToolLoop(TinyRenderer(), Limits(tool_s=150.0))
    asyncio.run(loop.run(TASK, Counting(), Recorder([READ] * 4), transcript))
    assert transcript.stop == Stop.TOOL_TIME
    assert [node.message.role for node in transcript.nodes].count("tool") == 2


def test_a_tool_that_hangs_is_a_fault_even_where_it_would_use_up_a_budget():
    with pytest.raises(EnvironmentFault, match="no answer within"):
        play(READ, world=Slow(5.0), call_s=0.05, tool_s=0.01, total_s=0.01)


class Silent(Recorder):
    """A sampler that never replies."""

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        await asyncio.sleep(60.0)


def test_the_whole_attempt_ends_while_it_waits_for_the_sampler():
    transcript, _ = play(session=Silent([]), total_s=0.05)
    assert transcript.stop == Stop.TIMEOUT
    assert transcript.notes == {"cuts": [{"stop": "timeout", "what": "reply", "total_s": 0.05}]}
    assert [node.sampled_ids for node in transcript.nodes] == [()]


def test_the_whole_attempt_is_counted_from_its_beginning_and_not_from_the_first_reply():
    early = time.monotonic() - 100.0
    transcript, _ = play(session=Silent([]), started=early, total_s=100.0)
    assert transcript.stop == Stop.TIMEOUT


def test_time_that_is_over_behind_a_call_ends_the_attempt():
    transcript, session = Transcript(), Recorder([READ, READ])

    class Late(World):
        async def call(self, call):
            transcript.started -= 1000.0  # as if it had taken so long
            return await super().call(call)

    asyncio.run(ToolLoop(TinyRenderer(), Limits(total_s=100.0)).run(TASK, Late(), session, transcript))
    assert transcript.notes["cuts"] == [{"stop": "timeout", "what": "attempt", "calls_left": 0, "total_s": 100.0}]
    assert len(session.replies) == 1


def test_a_timeout_of_the_samplers_own_is_the_samplers_fault():
    class Failing(Recorder):
        async def sample(self, context_ids, *, max_tokens, stop_ids):
            raise TimeoutError("connection")

    with pytest.raises(SamplerError, match="the sampler raised TimeoutError: connection"):
        play(session=Failing([]), total_s=10.0)


def test_a_reply_that_the_sampler_gave_up_is_its_fault_and_is_kept():
    class Aborting(Recorder):
        async def sample(self, context_ids, *, max_tokens, stop_ids):
            return Completion(token_ids=(5,), logprobs=(-1.0,), versions=(0,), finish_reason="abort")

    transcript = Transcript()
    with pytest.raises(SamplerError, match="gave up a reply behind 1 tokens"):
        asyncio.run(ToolLoop(TinyRenderer(), Limits()).run(TASK, World(), Aborting([]), transcript))
    assert transcript.nodes[-1].sampled_ids == (5,)


@pytest.mark.parametrize("changes", [{"reserve": 0}, {"call_s": 0.0}, {"tool_s": -1.0}, {"total_s": float("nan")}])
def test_limits_that_make_no_sense_are_refused(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Limits(**changes)


# With the engine, whose rounds begin when every open conversation waits.


class Waiting(World):
    """A world whose calls wait for an event, and which sets another when it is closed."""

    def __init__(self, waits_for, closing):
        super().__init__()
        self.waits_for, self.closing = waits_for, closing

    async def call(self, call):
        if self.waits_for is not None:
            await self.waits_for.wait()
        return Observation(content="ok")

    async def close(self):
        self.closing.set()


class Brief(TinyRenderer):
    """Every id ends a reply, so that an untrained policy gives one at all."""

    @property
    def stop_ids(self):
        return frozenset(range(self.vocab_size))


class Worlds:
    """A set of given worlds."""

    id = "worlds"

    def __init__(self, worlds):
        self.worlds = list(worlds)

    def environment(self, task):
        return self.worlds.pop(0)


def engine():
    shape = TransformerShape(
        vocab_size=TinyRenderer().vocab_size, layers=1, width=16, heads=2, mlp_width=16, context=256
    )
    return LocalEngine(TinyTransformer(shape, seed=0))


def attempts(waits, limits):
    """Attempts with one engine, side by side, each with limits of its own.

    Args:
        waits: for each, the number of the attempt whose end its calls wait for, or None.
        limits: of each.
    """

    async def all_of_them():
        closed = [asyncio.Event() for _ in waits]
        worlds = Worlds(
            Waiting(None if other is None else closed[other], own) for other, own in zip(waits, closed, strict=True)
        )
        sessions = [sampler.session(seed) for seed in range(len(waits))]
        names = [AttemptId(group_id="g", attempt=number, seed=number) for number in range(len(waits))]
        loops = [ToolLoop(Brief(), one) for one in limits]
        return await asyncio.gather(
            *(
                attempt(worlds, TASK, loop, session, name)
                for loop, session, name in zip(loops, sessions, names, strict=True)
            )
        )

    sampler = engine()
    traces = asyncio.run(asyncio.wait_for(all_of_them(), 60.0))
    sampler.publish(1)  # refused while a conversation is open
    return traces


def test_an_attempt_that_waits_for_a_slow_neighbour_leaves_the_engine_when_its_time_is_over():
    # The engine has no deadline: the first waits for the second, whose tool goes on until the first has ended.
    hasty, patient = Limits(turns=2, total_s=1.0), Limits(turns=2)
    first, second = attempts([None, 0], [hasty, patient])
    assert (first.error, first.stop, first.reward, first.num_turns) == (None, Stop.TIMEOUT, 1.0, 1)
    assert (second.error, second.stop, second.num_turns) == (None, Stop.MAX_TURNS, 2)


def test_an_attempt_that_hangs_in_a_tool_does_not_block_the_others():
    stuck, other = Limits(turns=2, call_s=0.2), Limits(turns=2)
    first, second = attempts([0, None], [stuck, other])
    assert (first.stop, first.error.boundary, first.reward) == (Stop.ERROR, "environment", None)
    assert (second.error, second.stop) == (None, Stop.MAX_TURNS)


@pytest.mark.parametrize(
    ("limits", "written"),
    [
        (Limits(), "Limits(turns=8, reply=32, context=256, call_s=30.0)"),
        (Limits(turns=5, tool_s=1.0), "Limits(turns=5, reply=32, context=256, call_s=30.0, tool_s=1.0)"),
        (Limits(reserve=2, total_s=9.0), "Limits(turns=8, reply=32, context=256, reserve=2, call_s=30.0, total_s=9.0)"),
    ],
)
def test_a_limit_that_is_not_at_its_default_is_part_of_what_makes_an_agent(limits, written):
    assert ToolLoop(TinyRenderer(), limits).fingerprint == f"tool-loop-v1/TinyRenderer/{written}"
