"""The agent loop: each limit has its stop, bad calls are answered, and the trace is what the sampler saw."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.local import LocalEngine
from agentrl.errors import EnvironmentFault, RendererError, SamplerError
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.tokens.tiny import IDS, TinyRenderer
from agentrl.types import Completion, Message, Observation, Stop, Task

RENDERER = TinyRenderer()
TASK = Task(id="t", prompt=(Message(role="user", content="fix test_1"),))
PROMPT = ("<user>", "fix", "test_1", "<end>")


def ids(*words):
    return tuple(IDS[word] for word in words)


class Toy(ToolEnvironment):
    """Four tools with the names that TinyAgent knows."""

    @tool
    def read(self) -> str:
        """Show a line."""
        return "1|return a"

    @tool
    async def test(self) -> str:
        """Take too long."""
        await asyncio.sleep(5.0)
        return "passed"

    @tool
    def edit(self, line: int, text: str) -> str:
        """Break."""
        raise {1: ValueError(f"bad {text}"), 2: EnvironmentFault("lost")}[line]

    @tool
    def submit(self) -> Observation:
        """End."""
        return Observation(content="submitted", done=True)


class Recorder:
    """A session that answers with the next of some replies (or asks another session) and records what passes."""

    def __init__(self, replies=(), session=None):
        self.replies = list(replies)
        self.session = session
        self.stream = []
        self.max_tokens = []

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        self.stream.extend(context_ids)
        self.max_tokens.append(max_tokens)
        if self.session is not None:
            completion = await self.session.sample(context_ids, max_tokens=max_tokens, stop_ids=stop_ids)
        else:
            said = ids(*self.replies.pop(0))
            reason = "stop" if said[-1] in stop_ids and len(said) <= max_tokens else "length"
            said = said[:max_tokens]
            completion = Completion(
                token_ids=said, logprobs=(-0.5,) * len(said), versions=(7,) * len(said), finish_reason=reason
            )
        self.stream.extend(completion.token_ids)
        return completion

    async def close(self):
        if self.session is not None:
            await self.session.close()


def play(*replies, session=None, limits=None):
    """Returns the transcript and the session."""
    recorder = session or Recorder(replies)
    transcript = Transcript()
    loop = ToolLoop(RENDERER, limits or Limits())
    asyncio.run(asyncio.wait_for(loop.run(TASK, Toy(TASK), recorder, transcript), 10.0))
    return transcript, recorder


def recorded(transcript):
    return [token for node in transcript.nodes for token in (*node.context_ids, *node.sampled_ids)]


READ, SUBMIT = ("read", "<end>"), ("submit", "<end>")


def test_a_conversation_node_by_node():
    transcript, session = play(READ, SUBMIT)
    prompt, reply, answer, last, end = transcript.nodes
    assert [node.parent for node in transcript.nodes] == [None, 0, 1, 2, 3]
    assert [node.message.role for node in transcript.nodes] == ["user", "assistant", "tool", "assistant", "tool"]
    assert prompt.context_ids == ids(*PROMPT)
    assert (reply.context_ids, reply.sampled_ids) == (ids("<assistant>"), ids(*READ))
    assert (reply.logprobs, reply.versions) == ((-0.5, -0.5), (7, 7))
    assert answer.context_ids == ids("<tool>", "L1", "return", "a", "<end>")
    assert last.sampled_ids == ids(*SUBMIT)
    # The answer to the last call is kept for people; the policy never saw it.
    assert (end.message.content, end.context_ids, end.sampled_ids) == ("submitted", (), ())
    assert transcript.stop == Stop.DONE
    assert transcript.num_tokens == len(session.stream) == 4 + 1 + 2 + 5 + 1 + 2


@pytest.mark.parametrize(
    ("replies", "limits", "stop"),
    [
        ([READ, SUBMIT], Limits(), Stop.DONE),
        ([READ, READ], Limits(turns=2), Stop.MAX_TURNS),
        ([READ, SUBMIT], Limits(turns=2), Stop.DONE),
        ([("edit", "L1", "a", "+", "b", "<end>")], Limits(reply=3), Stop.MAX_TOKENS),
        # prompt 4, opening 1: 2 tokens are left for `edit L1`, less than a reply may have
        ([("edit", "L1", "a", "<end>")], Limits(context=7), Stop.CONTEXT_FULL),
        # 4 + 1 + 2, then the observation of 5 leaves no room in 12 for the opening
        ([READ], Limits(context=12), Stop.CONTEXT_FULL),
        ([], Limits(context=4), Stop.CONTEXT_FULL),
        ([], Limits(turns=0), Stop.MAX_TURNS),
    ],
)
def test_each_limit_has_its_own_stop(replies, limits, stop):
    transcript, session = play(*replies, limits=limits)
    assert transcript.stop == stop
    assert session.replies == []
    assert recorded(transcript) == session.stream
    assert len(session.stream) <= limits.context
    assert transcript.nodes[0].message == TASK.prompt[0]  # shown to people even when it was too long to send


def test_a_reply_has_the_room_that_is_left():
    _, session = play(READ, READ, limits=Limits(turns=2, reply=6, context=16))
    # first min(6, 16 - 4 - 1); then 4 + 1 + 2 + 5 = 12 are used and one opens the turn
    assert session.max_tokens == [6, 3]


@pytest.mark.parametrize(
    "malformed",
    [("<end>",), ("passed", "<end>"), ("edit", "a", "<end>"), ("edit", "L1", "<end>"), ("submit", "a", "<end>")],
)
def test_a_malformed_call_is_answered_and_the_attempt_goes_on(malformed):
    transcript, _ = play(malformed, SUBMIT)
    answer = transcript.nodes[2]
    assert answer.message.content.startswith("error: ")
    assert answer.context_ids == ids("<tool>", "error", "<end>")
    assert transcript.stop == Stop.DONE


def test_a_tool_that_never_answers_is_named():
    with pytest.raises(EnvironmentFault, match=r"tool 'test' gave no answer within 0\.05 s"):
        play(("test", "<end>"), limits=Limits(call_s=0.05))


@pytest.mark.parametrize(("line", "message"), [("L1", "tool 'edit' raised ValueError: bad a"), ("L2", "^lost$")])
def test_a_tool_that_breaks_is_the_environments_fault(line, message):
    with pytest.raises(EnvironmentFault, match=message):
        play(("edit", line, "a", "<end>"))


def test_a_sampler_that_breaks_is_the_samplers_fault():
    with pytest.raises(SamplerError, match="the sampler raised IndexError"):
        play()


def test_what_happened_before_a_failure_is_kept():
    transcript = Transcript()
    loop = ToolLoop(RENDERER, Limits())
    with pytest.raises(EnvironmentFault):
        asyncio.run(loop.run(TASK, Toy(TASK), Recorder([READ, ("edit", "L1", "a", "<end>")]), transcript))
    assert [node.message.role for node in transcript.nodes] == ["user", "assistant", "tool", "assistant"]
    assert transcript.stop is None


def test_an_observation_outside_of_the_language_is_the_renderers_fault():
    class Foreign(Toy):
        @tool
        def read(self) -> str:
            """Say what no tiny vocabulary has."""
            return "zebra"

    with pytest.raises(RendererError, match="zebra"):
        asyncio.run(ToolLoop(RENDERER, Limits()).run(TASK, Foreign(TASK), Recorder([READ]), Transcript()))


word = st.sampled_from(["read", "edit", "L1", "L2", "a", "return", "passed", "<arg>", "<end>", "<nl>"])
reply = st.lists(word, min_size=1, max_size=4).filter(lambda words: words[:2] not in (["edit", "L1"], ["edit", "L2"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(reply, min_size=9, max_size=9), st.integers(5, 60), st.integers(1, 5))
def test_the_trace_is_what_was_sent_and_sampled_id_for_id(replies, context, reply_limit):
    transcript, session = play(*replies, limits=Limits(turns=8, context=context, reply=reply_limit))
    assert recorded(transcript) == session.stream
    assert transcript.num_tokens == len(session.stream) <= context


def test_a_real_engine_is_recorded_id_for_id():
    shape = TransformerShape(vocab_size=RENDERER.vocab_size, layers=1, width=16, heads=2, mlp_width=16, context=128)
    engine = LocalEngine(TinyTransformer(shape, seed=0))
    session = Recorder(session=engine.session(5))
    transcript, _ = play(session=session, limits=Limits(turns=4, reply=8, context=64))
    assert recorded(transcript) == session.stream
    assert any(node.sampled_ids for node in transcript.nodes)


def test_two_harnesses_are_the_same_agent_when_their_limits_are():
    same, other = ToolLoop(RENDERER, Limits()), ToolLoop(RENDERER, Limits(turns=3))
    assert same.fingerprint == ToolLoop(TinyRenderer(), Limits()).fingerprint != other.fingerprint
