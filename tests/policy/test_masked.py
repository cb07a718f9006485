"""Attention with masks against the fused one and against each sequence alone, values and gradients."""

import pytest
import torch

from agentrl.policy.masked import Masks, masked_attention
from agentrl.policy.packed import GroupSpan, Run, packed_attention

# A prefix of 5 with continuations of 3, 3 and 2 tokens, and a group of one sample, 4 tokens, that shares nothing.
GROUPS = (
    GroupSpan(start=0, continues=5, stop=13, runs=(Run(start=5, rows=2, length=3), Run(start=11, rows=1, length=2))),
    GroupSpan(start=13, continues=13, stop=17, runs=(Run(start=13, rows=1, length=4),)),
)
PREFIX = [0, 1, 2, 3, 4]
SEQUENCES = ([*PREFIX, 5, 6, 7], [*PREFIX, 8, 9, 10], [*PREFIX, 11, 12], [13, 14, 15, 16])
SCALE = 0.3
CPU = torch.device("cpu")
WINDOWS = pytest.mark.parametrize("window", [None, 1, 2, 3, 5, 6, 7, 8, 100])


def inputs(dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, 17, 4, generator=draw, dtype=dtype).requires_grad_() for _ in range(3)]


def masked(x, window=None):
    return masked_attention(*x, GROUPS, SCALE, masks=Masks(CPU), window=window)


def plain(q, k, v, window):
    """Each sequence alone; the shared prefix is taken from the last of them."""
    out = torch.zeros_like(q)
    for flat in SEQUENCES:
        back = torch.arange(len(flat))[:, None] - torch.arange(len(flat))
        unseen = (back < 0) | (back >= (window or len(flat)))
        scores = (q[:, flat] @ k[:, flat].transpose(1, 2) * SCALE).masked_fill(unseen, -torch.inf)
        out = out.index_copy(1, torch.tensor(flat), scores.softmax(-1) @ v[:, flat])
    return out


def gradients(out, x):
    factors = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.autograd.grad(out, x, factors.to(out.dtype))


@WINDOWS
def test_values_and_gradients_are_those_of_each_sequence_alone(window):
    x = inputs()
    ours, theirs = masked(x, window), plain(*x, window)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-11, atol=1e-11)


def test_values_and_gradients_are_those_of_the_fused_attention():
    x = inputs()
    ours, fused = masked(x), packed_attention(*x, GROUPS, SCALE)
    torch.testing.assert_close(ours, fused, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(ours, x), gradients(fused, x), rtol=1e-11, atol=1e-11)
    assert not torch.allclose(masked(x, 7), fused)  # of 8 tokens


def test_half_precision_keeps_its_type_and_is_near_the_fused_one():
    x = inputs(torch.bfloat16)
    ours, fused = masked(x), packed_attention(*x, GROUPS, SCALE)
    assert ours.dtype == torch.bfloat16
    exact = plain(*(y.double() for y in x), None)
    for found in (ours, fused):
        torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.02)
    torch.testing.assert_close(gradients(ours, x), gradients(fused, x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("window", [None, 3])
def test_a_neighbour_changes_nothing_to_the_bit(window):
    x = [y.detach() for y in inputs()]
    out = masked(x, window)
    others = [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    for value in (1e9, float("nan")):
        again = masked([y.index_fill(1, torch.tensor([5, 6, 7]), value) for y in x], window)
        assert torch.equal(again[:, others], out[:, others])
        assert not torch.equal(again[:, [5, 6, 7]], out[:, [5, 6, 7]])


def test_what_lies_before_the_window_changes_nothing():
    x = [y.detach() for y in inputs()]
    moved = [x[0], *(y.index_fill(1, torch.tensor([0, 1]), 0.5) for y in x[1:])]
    before, after = masked(x, 3), masked(moved, 3)
    unseen = [4, *range(5, 17)]  # token 4 sees 2, 3 and itself
    assert torch.equal(before[:, unseen], after[:, unseen])
    assert not torch.equal(before[:, 3], after[:, 3])  # it sees 1


def test_a_mask_is_made_once_and_none_where_plain_attention_sees_the_same():
    masks = Masks(CPU)
    assert masks.see(4, 0, None) is masks.see(4, 0, 4) is None
    assert masks.see(2, 3, None).tolist() == [[True] * 4 + [False], [True] * 5]
    assert masks.see(2, 3, 2).tolist() == [[False, False, True, True, False], [False, False, False, True, True]]
    assert masks.see(2, 3, 2) is masks.see(2, 3, 2)
