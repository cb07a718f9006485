"""The loop of a run is what its configuration says, and what contradicts itself is refused by name."""

import asyncio
import dataclasses

import pytest

from agentrl.config import TrainConfig, apply_overrides
from agentrl.errors import ConfigError
from agentrl.evals.evaluate import evaluate
from agentrl.harness.compaction import Compaction
from agentrl.harness.configured import configured_loop
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.harness.prompts import SystemPrompts
from agentrl.rollout.group import rollout
from agentrl.tokens.tiny import IDS, TinyRenderer
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Message, Stop, Task
from tests.harness.parts import PROMPT, Recorder, World

BASE = TrainConfig(recipe="example")
BAD, SUBMIT = (IDS["passed"], IDS["<end>"]), (IDS["submit"], IDS["<end>"])


class PlainRenderer(TinyRenderer):
    """It can say everything: each message is the ids of its letters."""

    def render(self, messages, tools):
        return tuple(tuple(map(ord, message.content)) for message in messages)

    def extend(self, messages, sampled_ids):
        return self.render(messages, ())


def with_model(**overrides):
    """A configuration of a model with words of its own."""
    named = {"model.name": "some/model", "model.context": "4096", "tasks.max_reply": "64"}
    return apply_overrides(BASE, named | {f"harness.{key}": value for key, value in overrides.items()})


def test_a_configuration_without_the_section_is_the_loop_as_it_was():
    loop = configured_loop(TinyRenderer(), BASE)
    assert loop.limits == Limits(turns=6, reply=20, context=256)
    assert (loop.malformed, loop.compaction, loop.prompts) == (MalformedPolicy(), Compaction(), SystemPrompts())


def test_every_setting_reaches_the_loop():
    config = with_model(
        system_prompt="Be brief.",
        reserve="7",
        call_s="1.5",
        tool_s="2.5",
        total_s="3.5",
        compaction="summarize",
        fill="0.25",
        summary="99",
        malformed="penalise",
        malformed_penalty="0.125",
    )
    loop = configured_loop(PlainRenderer(), config)
    assert loop.limits == Limits(turns=6, reply=64, context=4096, reserve=7, call_s=1.5, tool_s=2.5, total_s=3.5)
    assert loop.compaction == Compaction(kind="summarize", fill=0.25, summary=99)
    assert loop.malformed == MalformedPolicy(penalty=0.125)
    assert loop.prompts == SystemPrompts(every="Be brief.")
    assert configured_loop(PlainRenderer(), with_model(malformed="end")).malformed == MalformedPolicy(end=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"malformed": "penalise"}, "malformed penalise with malformed_penalty 0"),
        ({"malformed_penalty": "0.5"}, r"malformed_penalty 0\.5 with malformed answer"),
        ({"reserve": "65"}, r"harness\.reserve 65: a reply has at most 64 tokens"),
        ({"reserve": "0"}, r"harness\.reserve = 0 is not allowed"),
        ({"total_s": "0"}, r"harness\.total_s"),
        ({"compaction": "forget"}, r"harness\.compaction = 'forget' is not allowed"),
    ],
)
def test_what_contradicts_itself_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        with_model(**overrides)


@pytest.mark.parametrize(("key", "value"), [("system_prompt", "Be brief."), ("compaction", "drop_results")])
def test_tiny_agent_has_no_words_for_messages_of_the_harness(key, value):
    with pytest.raises(ConfigError, match=rf"harness\.{key} '{value}': TinyAgent has no words"):
        apply_overrides(BASE, {f"harness.{key}": value})


@pytest.mark.parametrize(
    ("own", "prompt", "expected"),
    [
        ((), "", ()),
        ((), "Be brief.", (Message(role="system", content="Be brief."),)),
        ((Message(role="system", content="Be long."),), "", (Message(role="system", content="Be long."),)),
        ((Message(role="system", content="Be long."),), "Be brief.", (Message(role="system", content="Be brief."),)),
    ],
)
def test_a_system_prompt_stands_first_in_place_of_the_tasks_own(own, prompt, expected):
    loop = ToolLoop(PlainRenderer(), Limits(context=100), system_prompt=prompt)
    task = Task(id="t", prompt=(*own, *PROMPT))
    transcript, session = Transcript(), Recorder([SUBMIT])
    asyncio.run(loop.run(task, World(), session, transcript))
    assert tuple(node.message for node in transcript.nodes[: len(expected) + 1]) == (*expected, *PROMPT)
    text = "".join(message.content for message in (*expected, *PROMPT))
    assert session.asked[0].held[:-1] == tuple(map(ord, text))


def test_a_system_prompt_is_part_of_what_makes_an_agent():
    loops = [ToolLoop(PlainRenderer(), Limits(), system_prompt=prompt) for prompt in ("", "a", "b")]
    assert len({loop.fingerprint for loop in loops}) == 3


class Worlds:
    """A set of tasks that anybody solves who submits."""

    id = "worlds"

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return Task(id=f"t{index}", prompt=PROMPT)

    def environment(self, task):
        return World()


class Sampler:
    """Opens sessions that make two malformed calls and submit."""

    version = 0

    def session(self, seed, *, greedy=False):
        return Once([BAD, BAD, SUBMIT])


class Once(Recorder):
    """All tokens are of one version."""

    async def sample(self, context_ids, *, max_tokens, stop_ids):
        completion = await super().sample(context_ids, max_tokens=max_tokens, stop_ids=stop_ids)
        return dataclasses.replace(completion, versions=(0,) * len(completion.token_ids))


def test_an_evaluation_plays_the_same_agent_and_measures_what_the_environment_says():
    # 1 - 2 * 0.75 is no share of anything: without this an evaluation of such a run could not be scored.
    loop = ToolLoop(TinyRenderer(), Limits(context=64), MalformedPolicy(penalty=0.75))
    found = asyncio.run(evaluate(Worlds(), harness=loop, sampler=Sampler(), attempts=1, seed=0, name="e"))
    assert found.outcomes == {f"t{index}": (1.0,) for index in range(3)}
    trace = found.traces[0]
    assert trace.metadata["harness"] == loop.fingerprint
    assert [score.name for score in trace.scores] == ["pass"]  # what costs nothing is no metric of it
    transcript = Transcript(num_malformed=2)
    assert [(score.value, score.weight) for score in loop.penalties(transcript)] == [(-1.5, 1.0)]
    assert loop.for_evaluation().penalties(transcript) == ()


@pytest.mark.parametrize(
    ("settings", "stop", "replies", "reward"),
    [
        ({"malformed": "answer"}, Stop.DONE, 3, 1.0),
        ({"malformed": "end"}, Stop.MALFORMED, 1, 1.0),
        ({"malformed": "end", "malformed_penalty": "0.25"}, Stop.MALFORMED, 1, 0.75),
        ({"malformed": "penalise", "malformed_penalty": "0.25"}, Stop.DONE, 3, 0.5),  # 1 - 2 * 0.25
    ],
)
def test_malformed_calls_are_treated_alike_in_training_and_evaluation(settings, stop, replies, reward):
    config = apply_overrides(BASE, {f"harness.{key}": value for key, value in settings.items()})
    loop, worlds = configured_loop(TinyRenderer(), config), Worlds()
    tasks = [worlds[index] for index in range(3)]
    training = asyncio.run(rollout(worlds, tasks, harness=loop, sampler=Sampler(), attempts=1, seed=0, name="t"))
    trained = [trace for group in training for trace in group.traces]
    evaluated = asyncio.run(evaluate(worlds, harness=loop, sampler=Sampler(), attempts=1, seed=0, name="e")).traces
    for one, other in zip(trained, evaluated, strict=True):
        assert one.nodes == other.nodes  # what was sent, sampled and answered, to the last id
        assert (one.stop, one.num_turns) == (other.stop, other.num_turns) == (stop, replies)
        assert one.metadata["harness"] == other.metadata["harness"]
        assert one.metadata.get("cuts") == other.metadata.get("cuts")
        # a penalty is of training alone: what the environment says is all that is measured
        assert (one.reward, other.reward) == (reward, 1.0)
        assert one.scores[: len(other.scores)] == other.scores
        assert [score.name for score in one.scores[len(other.scores) :]] == ["malformed_calls"] * (reward < 1.0)
