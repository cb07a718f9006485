"""Attention over shared prefixes against the plain one with a mask, values and gradients."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from agentrl.policy.packed import GroupSpan, Run, chosen_attention, chosen_groups, group_spans, packed_attention
from agentrl.train.packing import count, pack
from agentrl.types import Sample

# A prefix of 3 with continuations of 2, 2 and 3 tokens, and a group of one sample, 2 tokens, that shares nothing.
GROUPS = (
    GroupSpan(start=0, continues=3, stop=10, runs=(Run(start=3, rows=2, length=2), Run(start=7, rows=1, length=3))),
    GroupSpan(start=10, continues=10, stop=12, runs=(Run(start=10, rows=1, length=2),)),
)
SEQUENCES = ([0, 1, 2, 3, 4], [0, 1, 2, 5, 6], [0, 1, 2, 7, 8, 9], [10, 11])
SCALE = 0.3


def inputs(dtype=torch.float64, tokens=12):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, tokens, 4, generator=draw, dtype=dtype).requires_grad_() for _ in range(3)]


def plain(q, k, v):
    """Each sequence alone; what several sequences compute, the shared prefix, is taken from the last of them."""
    out = torch.zeros_like(q)
    for flat in SEQUENCES:
        later = torch.ones(len(flat), len(flat), dtype=torch.bool).triu(1)
        scores = (q[:, flat] @ k[:, flat].transpose(1, 2) * SCALE).masked_fill(later, -torch.inf)
        out = out.index_copy(1, torch.tensor(flat), scores.softmax(-1) @ v[:, flat])
    return out


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_values_and_gradients_are_those_of_each_sequence_alone(dtype, near):
    x = inputs(dtype)
    ours, theirs = packed_attention(*x, GROUPS, SCALE), plain(*x)
    torch.testing.assert_close(ours, theirs, rtol=near, atol=near)
    factors = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
    mine, other = (torch.autograd.grad(out, x, factors) for out in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=10 * near, atol=10 * near)


def test_the_gradient_is_that_of_finite_differences():
    assert gradcheck(lambda *x: packed_attention(*x, GROUPS, SCALE), inputs())


def test_half_precision_keeps_its_type():
    x = inputs(torch.bfloat16)
    out = packed_attention(*x, GROUPS, SCALE)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), plain(*(y.double() for y in x)), rtol=0.02, atol=0.02)


def test_a_neighbour_changes_nothing_to_the_bit():
    q, k, v = (x.detach() for x in inputs())
    out = packed_attention(q, k, v, GROUPS, SCALE)
    for poisoned, untouched in ((SEQUENCES[0][3:], [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]), ([10, 11], list(range(10)))):
        other = [x.index_fill(1, torch.tensor(poisoned), 1e9) for x in (q, k, v)]
        again = packed_attention(*other, GROUPS, SCALE)
        assert torch.equal(again[:, untouched], out[:, untouched])
        assert not torch.equal(again[:, poisoned], out[:, poisoned])
    prefix = packed_attention(*(x.index_fill(1, torch.tensor([1]), 0.5) for x in (q, k, v)), GROUPS, SCALE)
    assert (prefix[:, 3:10] != out[:, 3:10]).any(-1).all()  # all continuations see their prefix


def sample(ids, first_trained, group):
    trained = tuple(float(place >= first_trained) for place in range(len(ids)))
    return Sample(
        token_ids=tuple(ids),
        weights={"ce": trained},
        logprobs=(None,) * len(ids),
        advantages=(0.0,) * len(ids),
        trace_id=str(ids),
        group_id=group,
    )


def test_a_batch_lies_on_the_flat_axis_as_its_groups_say():
    first = [sample([1, 2, 3, *tail], 3, "a") for tail in ([4, 5], [6, 7], [8, 9, 10])]
    alone = [sample([5, 6], 1, "b"), sample([7, 6], 1, "b")]  # nothing in common
    batch = pack([first, alone], count([*first, *alone]))
    expected = GroupSpan(start=10, continues=10, stop=14, runs=(Run(start=10, rows=2, length=2),))
    assert group_spans(batch) == (GROUPS[0], expected)
    assert batch.token_ids_M.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5, 6, 7, 6]


# Some of the tokens.


def trained_at(ids, trained, group):
    weights = tuple(float(place in trained) for place in range(len(ids)))
    return replace(sample(ids, len(ids), group), weights={"ce": weights})


def chosen():
    """The groups above where few tokens are trained: after a shared prefix of 3 and without one."""
    first = [
        trained_at([1, 2, 3, 4, 5], (3,), "a"),  # predicted by the last of the prefix: no query of its own
        trained_at([1, 2, 3, 6, 7], (3, 4), "a"),  # by that, and by its first
        trained_at([1, 2, 3, 8, 9, 10], (4, 5), "a"),  # by its first and its second
    ]
    alone = [trained_at([5, 6], (1,), "b"), trained_at([7, 6], (1,), "b")]  # nothing in common
    return pack([first, alone], count([*first, *alone]))


def test_predictors_lie_where_the_groups_say():
    batch = chosen()
    # What follows the last trained token is cut: 1, 2 and 3 tokens behind the prefix of 3, then 2 and 2.
    assert batch.predictor_K.tolist() == [2, 2, 4, 6, 7, 9, 11]
    first, alone = chosen_groups(batch, group_spans(batch), torch.float64)
    assert (first.queries, first.prefix) == (slice(0, 5), slice(0, 3))
    assert [(row.queries, row.keys) for row in first.rows] == [
        (slice(1, 1), slice(3, 4)),
        (slice(2, 3), slice(4, 6)),
        (slice(3, 5), slice(6, 9)),
    ]
    assert (first.rows[2].mask[0, 0] == 0).tolist() == [[True, False, False], [True, True, False]]
    assert (alone.queries, alone.prefix) == (slice(5, 7), slice(9, 9))
    assert [row.queries for row in alone.rows] == [slice(5, 6), slice(6, 7)]


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_attention_at_the_predictors_is_that_of_all_tokens(dtype, near):
    batch = chosen()
    groups, at = group_spans(batch), batch.predictor_K
    x = inputs(dtype, len(batch.token_ids_M))
    ours = chosen_attention(x[0].index_select(1, at), *x[1:], chosen_groups(batch, groups, dtype), SCALE)
    theirs = packed_attention(*x, groups, SCALE).index_select(1, at)
    torch.testing.assert_close(ours, theirs, rtol=near, atol=near)
    factors = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    mine, other = (torch.autograd.grad(out, x, factors) for out in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=10 * near, atol=10 * near)


def test_the_gradient_at_the_predictors_is_that_of_finite_differences():
    batch = chosen()
    groups = chosen_groups(batch, group_spans(batch), torch.float64)
    q, k, v = inputs(tokens=len(batch.token_ids_M))
    q = q[:, : len(batch.predictor_K)].detach().requires_grad_()
    assert gradcheck(lambda *x: chosen_attention(*x, groups, SCALE), (q, k, v))
