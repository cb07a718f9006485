"""The data types refuse numbers that cannot be, and derive what must not disagree."""

import math
from dataclasses import FrozenInstanceError

import pytest

from agentrl.errors import SamplerError, ScorerError
from agentrl.types import Completion, Fault, Group, Message, Node, Sampling, Score, Stop, Task, Trace


def node(parent, role="assistant", sampled=()):
    zeros = (-0.5,) * len(sampled)
    return Node(
        parent=parent, message=Message(role=role), sampled_ids=sampled, logprobs=zeros, versions=(0,) * len(sampled)
    )


def trace(nodes=(), **changes):
    fields = {"id": "t", "task_id": "task", "group_id": "g", "attempt": 0, "seed": 0, "stop": Stop.DONE}
    return Trace(**(fields | {"nodes": tuple(nodes)} | changes))


def test_a_completion_keeps_what_was_sampled():
    completion = Completion(token_ids=(5, 2), logprobs=(-0.5, 0.0), versions=(3, 4), finish_reason="stop")
    assert (completion.token_ids, completion.versions) == ((5, 2), (3, 4))


@pytest.mark.parametrize("logprob", [0.1, math.nan, -math.inf, math.inf, None, -1])
def test_a_logprob_that_no_sampler_can_report_is_refused_with_its_position(logprob):
    with pytest.raises(SamplerError, match="at sampled position 1"):
        Completion(token_ids=(5, 2), logprobs=(-0.5, logprob), versions=(0, 0), finish_reason="stop")


@pytest.mark.parametrize(("logprobs", "versions"), [((-0.5,), (0, 0)), ((-0.5, -0.5), (0,)), ((), ())])
def test_lists_of_unequal_length_are_refused_and_never_cut(logprobs, versions):
    with pytest.raises(SamplerError, match="2 sampled ids"):
        Completion(token_ids=(5, 2), logprobs=logprobs, versions=versions, finish_reason="length")


def completion(support):
    return Completion(token_ids=(5, 2), logprobs=(-0.5, 0.0), versions=(0, 0), finish_reason="stop", support=support)


@pytest.mark.parametrize("support", [(), ((5,), (2,)), ((0, 5, 9), (1, 2))])
def test_a_token_is_one_of_those_that_could_be_drawn(support):
    assert completion(support).support == support


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (((5,),), "2 sampled ids and 1 supports"),
        (((5,), (2,), (3,)), "2 sampled ids and 3 supports"),
        (((5,), (1, 3)), "token 2 at sampled position 1 is not among the 2 ids"),
        (((5,), (0, 1)), "token 2 at sampled position 1 is not among"),
        (((5,), ()), "support at sampled position 1 is not a tuple of ids"),
        (((5, 1), (2,)), "support at sampled position 0 .* ascending order"),
        (((5, 5), (2,)), "each once"),
        (((-1, 5), (2,)), "ids >= 0"),
        (([5], (2,)), "is not a tuple"),
    ],
)
def test_a_support_that_no_sampler_can_have_drawn_from_is_refused(support, message):
    with pytest.raises(SamplerError, match=message):
        completion(support)


def test_nothing_is_truncated_unless_it_is_asked_for():
    assert Sampling() == Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    assert not Sampling(temperature=0.3).truncates
    assert all(Sampling(**rule).truncates for rule in ({"top_p": 0.99}, {"top_k": 1}, {"min_p": 0.001}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (0.0, -1.0, math.inf, math.nan)),
        *(("top_p", value) for value in (0.0, 1.01, -0.5, math.nan)),
        *(("top_k", value) for value in (-1, 2.5)),
        *(("min_p", value) for value in (-0.1, 1.5, math.nan)),
    ],
)
def test_a_distribution_that_cannot_be_sampled_is_refused_by_its_field_and_value(field, value):
    with pytest.raises(SamplerError, match=f"^{field} is {value}; it must be"):
        Sampling(**{field: value})


@pytest.mark.parametrize("field", [{"value": math.nan}, {"value": 1.0, "weight": math.inf}])
def test_a_score_that_is_no_number_is_refused(field):
    with pytest.raises(ScorerError, match="'pass'"):
        Score(name="pass", **field)


def test_the_reward_is_the_weighted_sum():
    scores = (Score(name="pass", value=1.0), Score(name="style", value=0.5, weight=0.2))
    assert trace(scores=scores).reward == pytest.approx(1.1)  # 1*1 + 0.2*0.5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scores": (Score(name="pass", value=None),)},
        {"scores": (Score(name="pass", value=1.0), Score(name="style", value=None, weight=0.1))},
        {"scores": (Score(name="pass", value=1.0),), "error": Fault(boundary="sandbox", message="lost")},
        {"scores": (Score(name="turns", value=3.0, weight=0.0),)},
    ],
)
def test_a_reward_that_is_not_known_is_none_and_not_zero(changes):
    assert trace(**changes).reward is None


def test_a_metric_cannot_make_the_reward_missing():
    scores = (Score(name="pass", value=0.0), Score(name="turns", value=None, weight=0.0))
    assert trace(scores=scores).reward == 0.0


def test_branches_run_from_the_root_to_each_leaf():
    # 0 ─ 1 ─┬─ 2        4 is a second root
    #        └─ 3
    forked = trace([node(None), node(0), node(1), node(1), node(None)])
    assert forked.branches() == ((0, 1, 2), (0, 1, 3), (4,))
    assert trace().branches() == ()


def test_counts_come_from_the_nodes():
    counted = trace([node(None, "user"), node(0, sampled=(1, 2)), node(1, "tool"), node(2, sampled=(3,))])
    assert (counted.num_sampled, counted.num_turns) == (3, 2)


def test_a_group_lists_its_rewards_in_order():
    scored = [trace(scores=(Score(name="pass", value=value),)) for value in (1.0, None, 0.0)]
    group = Group(id="g", task=Task(id="task-v1/1", prompt=()), traces=tuple(scored))
    assert group.rewards == (1.0, None, 0.0)


def test_data_is_frozen_and_keyword_only():
    with pytest.raises(FrozenInstanceError):
        trace().attempt = 3
    with pytest.raises(TypeError):
        Score("pass", 1.0)
