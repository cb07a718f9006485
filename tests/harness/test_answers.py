"""How replies are answered: several calls, at the same time or in their order, and users who speak."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import EnvironmentFault
from agentrl.harness.answers import Answerer
from agentrl.harness.limits import Limits
from agentrl.harness.transcript import Transcript
from agentrl.protocols import Environment, Talking
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Message, Observation, Stop, ToolCall
from tests.harness.parts import World


class Steps:
    """A world in which a call waits until as many others have ended as its argument says. It keeps an event log."""

    def __init__(self, parallel=()):
        self.parallel_tools = frozenset(parallel)
        self.log = []
        self.ended = 0

    def tools(self):
        return ()

    def state(self):
        return None

    async def call(self, call):
        self.log.append(f"+{call.id}")
        await asyncio.sleep(0)
        while self.ended < call.arguments.get("after", 0):
            await asyncio.sleep(0)
        self.ended += 1
        self.log.append(f"-{call.id}")
        if "fault" in call.arguments:
            raise call.arguments["fault"]
        return Observation(content=f"answer {call.id}", done=call.name == "submit")

    async def score(self, trace):
        return ()

    async def close(self):
        pass


def call(name, identity, problem=None, **arguments):
    return ToolCall(name=name, id=identity, arguments=arguments, problem=problem)


def answer(world, *calls, transcript=None, malformed=None, limits=None):
    transcript = transcript or Transcript()
    answerer = Answerer(world, limits or Limits(call_s=5.0), malformed or MalformedPolicy(), transcript)
    message = Message(role="assistant", content="said", tool_calls=calls)
    asyncio.run(asyncio.wait_for(answerer.answer(message), 20.0))
    return transcript


def results(transcript):
    return [(message.role, message.tool_call_id, message.content) for message in transcript.unsent]


A, B, C = call("read", "a", after=2), call("read", "b", after=0), call("read", "c", after=1)
ABC = [("tool", name, f"answer {name}") for name in "abc"]


def test_calls_run_in_their_order_when_nothing_is_said():
    world = Steps()
    transcript = answer(world, call("read", "a"), call("read", "b"), call("read", "c"))
    assert world.log == ["+a", "-a", "+b", "-b", "+c", "-c"]
    assert results(transcript) == ABC


def test_independent_calls_run_at_the_same_time_and_their_results_stand_in_the_order_of_the_calls():
    # a waits for b and c, so that this would never end one by one.
    world = Steps(parallel=["read"])
    transcript = answer(world, A, B, C)
    assert world.log[:3] == ["+a", "+b", "+c"]
    assert world.log[-1] == "-a"
    assert results(transcript) == ABC
    assert transcript.stop is None


def test_a_call_that_may_depend_on_others_waits_for_them_and_holds_up_the_next():
    world = Steps(parallel=["read"])
    answer(world, call("read", "a"), call("read", "b"), call("edit", "c"), call("read", "d"), call("read", "e"))
    assert world.log[4:6] == ["+c", "-c"]
    assert set(world.log[:4]) == {"+a", "-a", "+b", "-b"}
    assert world.log[6:8] == ["+d", "+e"]


@pytest.mark.parametrize("parallel", [(), ("read",)])
def test_one_that_fails_does_not_lose_the_others(parallel):
    world, transcript = Steps(parallel), Transcript()
    failing = call("read", "b", fault=ValueError("bad"))
    with pytest.raises(EnvironmentFault, match="tool 'read' raised ValueError: bad"):
        answer(world, call("read", "a"), failing, call("read", "c"), transcript=transcript)
    expected = [ABC[0], ABC[2]] if parallel else [ABC[0]]
    assert results(transcript) == expected


def test_of_two_that_fail_the_first_call_is_named():
    first, second = call("read", "a", after=1, fault=ValueError("slow")), call("read", "b", fault=ValueError("fast"))
    with pytest.raises(EnvironmentFault, match="slow"):
        answer(Steps(parallel=["read"]), first, second)


def test_each_of_several_calls_has_a_deadline_of_its_own():
    transcript = Transcript()
    never = call("read", "b", after=9)
    with pytest.raises(EnvironmentFault, match=r"tool 'read' gave no answer within 0\.2 s"):
        answer(
            Steps(["read"]),
            call("read", "a"),
            never,
            call("read", "c"),
            transcript=transcript,
            limits=Limits(call_s=0.2),
        )
    assert results(transcript) == [ABC[0], ABC[2]]


def test_a_timeout_that_a_tool_raises_itself_is_not_our_deadline():
    with pytest.raises(EnvironmentFault, match="tool 'read' raised TimeoutError: database"):
        answer(Steps(), call("read", "a", fault=TimeoutError("database")))


def test_a_call_that_ends_the_attempt_is_the_last():
    world = Steps()
    transcript = answer(world, call("submit", "a"), call("read", "b"))
    assert (transcript.stop, world.log) == (Stop.DONE, ["+a", "-a"])


def test_a_malformed_call_is_answered_in_its_place_or_ends_the_attempt():
    calls = [call("read", "a"), call("read", "b", problem="unclosed: x"), call("read", "c")]
    transcript = answer(Steps(["read"]), *calls)
    assert (results(transcript), transcript.num_malformed) == (ABC, 1)
    world = Steps(["read"])
    transcript = answer(world, *calls, malformed=MalformedPolicy(end=True))
    assert (transcript.stop, results(transcript), world.log) == (Stop.MALFORMED, [ABC[0]], ["+a", "-a"])
    assert transcript.notes["cuts"] == [{"stop": "malformed", "what": "calls", "calls_left": 2}]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["read", "edit"]), st.integers(0, 3), st.booleans()), min_size=1, max_size=5))
def test_the_same_calls_give_the_same_answers_whether_they_run_together_or_not(plan):
    # A faster neighbour, a malformed one, a tool that must run alone: only the time differs.
    calls = [
        call(name, str(place), problem="unclosed: x" if bad else None, speed=speed)
        for place, (name, speed, bad) in enumerate(plan)
    ]

    class Paced(Steps):
        async def call(self, call):
            for _ in range(call.arguments["speed"]):
                await asyncio.sleep(0)
            return await super().call(call)

    one, other = (answer(Paced(parallel), *calls) for parallel in ((), ("read",)))
    assert results(one) == results(other)
    assert one.num_malformed == other.num_malformed


def test_three_calls_are_three_executions_and_three_results():
    # EO-T08: only the last of three was carried out.
    world = Steps()
    transcript = answer(world, *(call("read", name) for name in "abc"))
    assert [event for event in world.log if event.startswith("+")] == ["+a", "+b", "+c"]
    assert results(transcript) == ABC


# Users.


def test_a_reply_without_calls_is_said_to_the_user():
    world = World(sentences=["and b?"])
    transcript = answer(world)
    assert world.heard == ["said"]
    assert (results(transcript), transcript.stop) == ([("user", None, "and b?")], None)
    transcript = answer(world)  # who has nothing more to say
    assert (results(transcript), transcript.stop) == ([], Stop.DONE)


def test_without_a_user_a_reply_without_calls_ends_the_attempt():
    world = Steps()
    assert not isinstance(world, Talking)
    assert isinstance(world, Environment)
    transcript = answer(world)
    assert (results(transcript), transcript.stop) == ([], Stop.DONE)


@pytest.mark.parametrize(("content", "kept"), [("thanks", [("user", None, "thanks")]), ("", [])])
def test_a_user_may_end_the_attempt_with_or_without_a_word(content, kept):
    class Leaving(World):
        async def respond(self, reply):
            return Observation(content=content, done=True)

    transcript = answer(Leaving())
    assert (results(transcript), transcript.stop) == (kept, Stop.DONE)


@pytest.mark.parametrize(
    ("failure", "message"),
    [(None, r"the user gave no answer within 0\.2 s"), (KeyError("x"), "the user raised KeyError")],
)
def test_a_user_who_breaks_is_the_environments_fault(failure, message):
    class Broken(World):
        async def respond(self, reply):
            if failure is not None:
                raise failure
            await asyncio.sleep(5.0)

    with pytest.raises(EnvironmentFault, match=message):
        answer(Broken(), limits=Limits(call_s=0.2))


def test_every_order_of_ending_gives_the_same_results():
    for order in itertools.permutations(range(3)):
        calls = [call("read", name, after=after) for name, after in zip("abc", order, strict=True)]
        assert results(answer(Steps(["read"]), *calls)) == ABC
