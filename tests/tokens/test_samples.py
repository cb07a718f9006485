"""Masks: exactly the sampled tokens, each once, whatever the shape of the trace."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import TrainerError
from agentrl.tokens.samples import samples
from agentrl.types import Fault, Message, Node, Score, Stop, Trace

STOP_ID = 9


def given_node(parent, context, role="tool"):
    return Node(parent=parent, message=Message(role=role), context_ids=tuple(context))


def sampled_node(parent, context, sampled, version=0):
    return Node(
        parent=parent,
        message=Message(role="assistant"),
        context_ids=tuple(context),
        sampled_ids=tuple(sampled),
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(sampled))),
        versions=(version,) * len(sampled),
    )


def make_trace(nodes, **changes):
    trace = Trace(
        id="t1",
        task_id="task",
        group_id="g1",
        attempt=0,
        seed=0,
        nodes=tuple(nodes),
        stop=Stop.DONE,
        scores=(Score(name="pass", value=1.0),),
    )
    return replace(trace, **changes)


TWO_TURNS = make_trace(
    [
        given_node(None, [1, 2], role="user"),
        sampled_node(0, [3], [4, STOP_ID]),
        given_node(1, [5, 6]),
        sampled_node(2, [3], [7, STOP_ID], version=1),
    ]
)


def test_two_turns_token_by_token():
    (sample,) = samples(TWO_TURNS, 0.5)
    # prompt 1 2, header 3, reply 4 9, tool result 5 6, header 3, reply 7 9
    assert sample.token_ids == (1, 2, 3, 4, 9, 5, 6, 3, 7, 9)
    assert sample.weights == {"pg": (0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0)}
    assert sample.logprobs == (None, None, None, -0.1, -0.2, None, None, None, -0.1, -0.2)
    assert sample.advantages == (0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.5, 0.5)
    assert sample.versions == (None, None, None, 0, 0, None, None, None, 1, 1)
    assert (sample.trace_id, sample.group_id) == ("t1", "g1")


def test_a_token_before_a_fork_is_trained_in_the_first_branch_only():
    # 0 ─ 1 ─┬─ 2      two sub-agents continue the reply of node 1
    #        └─ 3
    trace = make_trace(
        [given_node(None, [1]), sampled_node(0, [], [4]), sampled_node(1, [5], [6]), sampled_node(1, [7], [8])]
    )
    first, second = samples(trace, -1.0)
    assert (first.token_ids, first.weights["pg"]) == ((1, 4, 5, 6), (0.0, 1.0, 0.0, 1.0))
    assert (second.token_ids, second.weights["pg"]) == ((1, 4, 7, 8), (0.0, 0.0, 0.0, 1.0))
    # In the second branch the shared token is context in every list.
    assert second.logprobs == (None, None, None, -0.1)
    assert second.advantages == (0.0, 0.0, 0.0, -1.0)
    assert second.versions == (None, None, None, 0)


def test_a_branch_without_a_trained_token_of_its_own_is_left_out():
    trace = make_trace(
        [given_node(None, [1]), sampled_node(0, [], [4]), given_node(1, [5]), given_node(1, [6])],
    )
    (sample,) = samples(trace, 1.0)
    assert sample.token_ids == (1, 4, 5)


def test_two_roots_give_two_samples():
    # After compaction the conversation starts again from a summary.
    trace = make_trace(
        [given_node(None, [1]), sampled_node(0, [], [4]), given_node(None, [2]), sampled_node(2, [], [5])]
    )
    assert [sample.token_ids for sample in samples(trace, 1.0)] == [(1, 4), (2, 5)]


@pytest.mark.parametrize("nodes", [[], [given_node(None, [1])], [given_node(None, [1]), sampled_node(0, [2], [])]])
def test_nothing_sampled_gives_no_sample(nodes):
    assert samples(make_trace(nodes), 1.0) == ()


@pytest.mark.parametrize(
    ("advantage", "changes"),
    [
        (None, {}),
        (0.5, {"scores": ()}),
        (0.5, {"scores": (Score(name="pass", value=None),)}),
        (0.5, {"error": Fault(boundary="sandbox", message="lost")}),
    ],
)
def test_an_unscored_attempt_is_not_trained(advantage, changes):
    assert samples(replace(TWO_TURNS, **changes), advantage) == ()


def test_a_credit_of_zero_is_a_credit():
    (sample,) = samples(TWO_TURNS, 0.0)
    assert sum(sample.weights["pg"]) == 4.0


def test_a_truncated_attempt_keeps_its_tokens():
    # The reply was cut before a stop token: what was sampled is trained, nothing is put at its end.
    trace = make_trace([given_node(None, [1]), sampled_node(0, [], [4, 5])], stop=Stop.MAX_TOKENS)
    (sample,) = samples(trace, -0.5)
    assert (sample.token_ids, sample.weights["pg"]) == ((1, 4, 5), (0.0, 1.0, 1.0))


def test_demonstrations_need_no_score_and_take_no_credit():
    (sample,) = samples(replace(TWO_TURNS, scores=()), None, objective="ce")
    assert sample.weights == {"ce": (0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0)}
    assert sample.advantages == (0.0,) * 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": (-0.1,)}, "2 sampled ids, 1 logprobs"),
        ({"versions": (0, 0, 0)}, "3 versions"),
        ({"logprobs": (-0.1, math.nan)}, "logprob nan at sampled position 1"),
        ({"logprobs": (-0.1, 0.3)}, "logprob 0.3"),
        ({"logprobs": (-0.1, None)}, "logprob None"),
        ({"parent": 1}, "node 1 continues node 1"),
        ({"parent": -1}, "does not precede it"),
    ],
)
@pytest.mark.parametrize("objective", ["pg", "ce"])
def test_a_broken_trace_is_refused_by_name(changes, message, objective):
    nodes = list(TWO_TURNS.nodes)
    nodes[1] = replace(nodes[1], **changes)
    with pytest.raises(TrainerError, match=rf"trace 't1'.*{message}|trace 't1': {message}"):
        samples(replace(TWO_TURNS, nodes=tuple(nodes)), 0.5, objective=objective)


def test_a_broken_trace_is_refused_although_it_would_not_be_trained():
    broken = replace(TWO_TURNS.nodes[1], versions=())
    with pytest.raises(TrainerError, match="trace 't1'"):
        samples(make_trace([TWO_TURNS.nodes[0], broken]), None)


CUT = replace(
    TWO_TURNS,
    nodes=(
        *TWO_TURNS.nodes[:1],
        replace(TWO_TURNS.nodes[1], support=((4, 8), (2, STOP_ID))),
        *TWO_TURNS.nodes[2:],
    ),
)
"""The first reply was drawn with top-k 2, the second without."""


def test_what_a_token_was_drawn_from_goes_along_with_it():
    (sample,) = samples(CUT, 0.5)
    # prompt 1 2, header 3, reply 4 9, tool result 5 6, header 3, reply 7 9
    assert sample.support == (None, None, None, (4, 8), (2, 9), None, None, None, None, None)
    assert samples(TWO_TURNS, 0.5)[0].support == ()
    assert samples(CUT, 0.5, imitate=True)[0].support == sample.support
    # The likelihood of a demonstration is over the whole vocabulary.
    assert samples(CUT, None, objective="ce")[0].support == ()


@pytest.mark.parametrize(
    ("support", "message"),
    [(((4, 8),), "2 sampled ids and 1 supports"), (((5, 8), (STOP_ID,)), "token 4 at sampled position 0 is not among")],
)
def test_a_support_that_a_token_was_not_drawn_from_is_refused_by_the_name_of_the_trace(support, message):
    nodes = [TWO_TURNS.nodes[0], replace(TWO_TURNS.nodes[1], support=support)]
    with pytest.raises(TrainerError, match=f"trace 't1', node 1: {message}"):
        samples(make_trace(nodes), 0.5)


@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_a_credit_that_is_no_number_is_refused_by_name(advantage):
    with pytest.raises(TrainerError, match="trace 't1': advantage"):
        samples(TWO_TURNS, advantage)


@st.composite
def traces(draw):
    """Random trees of turns: forks, several roots, empty replies, truncation. Every token id is unique."""
    nodes, next_id = [], 0
    for index in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from([None, *range(index)])) if index else None
        num_context, num_sampled = draw(st.integers(0, 3)), draw(st.sampled_from([0, 0, 1, 2, 4]))
        context = range(next_id, next_id + num_context)
        sampled = range(next_id + num_context, next_id + num_context + num_sampled)
        next_id = sampled.stop
        node = sampled_node(parent, context, sampled, version=draw(st.integers(0, 3)))
        cut = draw(st.booleans())
        nodes.append(replace(node, support=tuple((token, token + 1) for token in sampled) if cut else ()))
    return make_trace(nodes, stop=draw(st.sampled_from(list(Stop))))


@settings(deadline=None)
@given(traces())
def test_exactly_the_sampled_tokens_are_trained_each_once(trace):
    made = samples(trace, 0.25)
    trained = Counter(
        token
        for sample in made
        for token, weight in zip(sample.token_ids, sample.weights["pg"], strict=True)
        if weight != 0.0
    )
    assert trained == Counter(token for node in trace.nodes for token in node.sampled_ids)
    assert sum(sum(sample.weights["pg"]) for sample in made) == trace.num_sampled


@settings(deadline=None)
@given(traces())
def test_each_sample_is_one_branch_id_for_id(trace):
    branches = [
        tuple(token for i in branch for token in trace.nodes[i].context_ids + trace.nodes[i].sampled_ids)
        for branch in trace.branches()
    ]
    rest = iter(branches)  # the samples are branches in their order; branches that differ by nothing look alike
    assert all(any(sample.token_ids == branch for branch in rest) for sample in samples(trace, 0.25))


@settings(deadline=None)
@given(traces())
def test_every_list_agrees_with_the_mask_and_the_node(trace):
    source = {
        token: (logprob, version, support)
        for node in trace.nodes
        for token, logprob, version, support in zip(
            node.sampled_ids, node.logprobs, node.versions, node.support or [None] * len(node.sampled_ids), strict=True
        )
    }
    for sample in samples(trace, 0.25):
        supports = sample.support or (None,) * len(sample.token_ids)
        columns = (sample.weights["pg"], sample.logprobs, sample.versions, supports, sample.advantages)
        for token, weight, *found in zip(sample.token_ids, *columns, strict=True):
            assert tuple(found) == ((*source[token], 0.25) if weight else (None, None, None, 0.0))


@settings(deadline=None)
@given(traces())
def test_demonstrations_train_the_same_tokens(trace):
    pg, ce = samples(trace, 1.0), samples(trace, None, objective="ce")
    assert [s.weights["pg"] for s in pg] == [s.weights["ce"] for s in ce]
    assert [s.token_ids for s in pg] == [s.token_ids for s in ce]


def test_each_turn_has_the_credit_of_its_own():
    (sample,) = samples(TWO_TURNS, (0.5, -2.0))
    # prompt 1 2, header 3, reply 4 9, tool result 5 6, header 3, reply 7 9
    assert sample.advantages == (0, 0, 0, 0.5, 0.5, 0, 0, 0, -2.0, -2.0)
    assert samples(TWO_TURNS, (1.0, 1.0)) == samples(TWO_TURNS, 1.0)


@pytest.mark.parametrize("credit", [(0.5,), (0.5, 0.5, 0.5), ()])
def test_there_is_one_credit_a_turn(credit):
    with pytest.raises(TrainerError, match=rf"'t1': {len(credit)} advantages for 2 turns"):
        samples(TWO_TURNS, credit)


def test_credit_of_a_turn_that_is_not_finite_is_refused():
    with pytest.raises(TrainerError, match="advantage nan is not finite"):
        samples(TWO_TURNS, (0.5, math.nan))


def test_what_is_imitated_has_the_same_tokens_for_both_objectives():
    (sample,) = samples(TWO_TURNS, 0.5, imitate=True)
    assert sample.weights["ce"] == sample.weights["pg"] == samples(TWO_TURNS, 0.5)[0].weights["pg"]
    assert set(samples(TWO_TURNS, 0.5)[0].weights) == {"pg"}
