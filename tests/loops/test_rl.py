"""What an attempt says of its training is what is done with it."""

import pytest

from agentrl.algorithms.presets import preset
from agentrl.loops.rl import credit
from agentrl.types import Group, Message, Node, Score, Stop, Task, Trace

NODE = Node(
    parent=None,
    message=Message(role="assistant"),
    context_ids=(5,),
    sampled_ids=(1, 0),
    logprobs=(-0.5, -2.0),
    versions=(3, 3),
)


def group(name, *rewards):
    traces = tuple(
        Trace(
            id=f"{name}-{number}",
            task_id="t",
            group_id=name,
            attempt=number,
            seed=0,
            nodes=(NODE,),
            stop=Stop.DONE,
            scores=(Score(name="hidden_tests", value=reward),),
            metadata={"harness": "h"},
        )
        for number, reward in enumerate(rewards)
    )
    return Group(id=name, task=Task(id="t", prompt=()), traces=traces)


GROUPS = (group("mixed", 1.0, 0.0, None), group("equal", 1.0, 1.0), group("lost", None, None))


def notes(credited):
    return {
        trace.id: {key: value for key, value in trace.metadata.items() if key != "harness"} for trace in credited.traces
    }


def test_attempts_say_whether_they_are_trained_and_why_not():
    found = credit(GROUPS, preset("dr_grpo"))
    # mixed: the mean of the scored is 1/2; equal: 1 - 1 = 0 throughout, which the filter leaves out
    assert notes(found) == {
        "mixed-0": {"objective": "pg", "advantage": 0.5},
        "mixed-1": {"objective": "pg", "advantage": -0.5},
        "mixed-2": {"left_out": "unscored", "advantage": None},
        "equal-0": {"left_out": "no_signal", "advantage": None},
        "equal-1": {"left_out": "no_signal", "advantage": None},
        "lost-0": {"left_out": "unscored", "advantage": None},
        "lost-1": {"left_out": "unscored", "advantage": None},
    }
    assert all(trace.metadata["harness"] == "h" for trace in found.traces)


def test_without_the_filter_equal_groups_are_trained_with_nothing():
    found = notes(credit(GROUPS, preset("reinforce")))
    assert found["equal-0"] == {"objective": "pg", "advantage": 0.0}


def test_with_a_critic_the_reward_is_not_passed_off_as_the_advantage_of_a_token():
    assert notes(credit(GROUPS, preset("ppo")))["mixed-0"] == {"objective": "pg", "advantage": None}


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "gspo", "reinforce_pp", "ppo"])
def test_exactly_the_attempts_that_say_so_are_trained(name):
    found = credit(GROUPS, preset(name))
    said = [trace.id for trace in found.traces if "objective" in trace.metadata]
    assert said == [sample.trace_id for sample in found.samples if any(sample.weights["pg"])]
