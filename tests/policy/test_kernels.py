"""Each hand-written backward pass against numbers, and against what autograd composes."""

import pytest
import torch
from torch.autograd import gradcheck

from agentrl.policy.kernels import pad_rows, rms_norm, rotate, squared_relu, unpad_rows


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


# Flat rows 0 1 2 3 stand at padded rows 0 1 3 5; padded rows 2 and 4 are empty and repeat row 0.
INDEX = torch.tensor([0, 1, 0, 2, 0, 3])
ROW = torch.tensor([0, 1, 3, 5])
EMPTY = torch.tensor([2, 4])


def test_rms_norm_has_the_gradient_of_its_formula():
    x, weight = normal(5, 6), normal(6, seed=1)
    assert gradcheck(rms_norm, (x, weight))
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight), expected)
    out = normal(5, 6, seed=2).detach()
    theirs = torch.autograd.grad(expected, (x, weight), out)
    torch.testing.assert_close(torch.autograd.grad(rms_norm(x, weight), (x, weight), out), theirs)


def test_rms_norm_by_hand():
    # mean of squares of (3, 4) is 12.5, its root 3.5355
    normed = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]))
    assert normed[0].tolist() == pytest.approx([3 / 12.5**0.5, 2 * 4 / 12.5**0.5])


def test_squared_relu_has_the_gradient_of_its_formula():
    x = normal(4, 5)
    assert gradcheck(squared_relu, (x,))
    assert squared_relu(torch.tensor([-2.0, 0.0, 3.0])).tolist() == [0.0, 0.0, 9.0]
    (at_zero,) = torch.autograd.grad(squared_relu(y := torch.zeros(1, requires_grad=True)), y)
    assert at_zero.item() == 0.0


def test_rotate_turns_each_pair_by_its_angle():
    x = normal(3, 2, 4)
    angle = torch.tensor([[0.3, -1.2]], dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angle), angle)
    assert gradcheck(lambda x: rotate(x, turn), (x,))
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), -1)
    torch.testing.assert_close(rotate(x, turn), turned.flatten(-2))


def test_padding_and_unpadding_are_each_others_inverse_with_exact_gradients():
    flat = normal(4, 3)
    back = unpad_rows(pad_rows(flat, INDEX, ROW), INDEX, ROW, EMPTY)
    assert torch.equal(back, flat)
    assert gradcheck(lambda x: unpad_rows(pad_rows(x, INDEX, ROW), INDEX, ROW, EMPTY), (flat,))


def test_nothing_flows_through_padding():
    padded = normal(6, 3)
    out = unpad_rows(padded, INDEX, ROW, EMPTY)
    assert gradcheck(lambda x: unpad_rows(x, INDEX, ROW, EMPTY), (padded,))
    (grad,) = torch.autograd.grad(out, padded, torch.full_like(out, 7.0))
    assert grad[EMPTY].eq(0.0).all()
    assert grad[ROW].eq(7.0).all()
    flat = normal(4, 3)
    poisoned = torch.ones(6, 3, dtype=torch.float64)
    poisoned[EMPTY] = float("nan")
    (grad,) = torch.autograd.grad(pad_rows(flat, INDEX, ROW), flat, poisoned)
    assert grad.eq(1.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_computed_without_gradients_is_the_same(dtype):
    x, weight = normal(9, 32, dtype=dtype), normal(32, seed=1, dtype=dtype)
    with torch.inference_mode():
        sampled = rms_norm(x, weight), squared_relu(x)
    torch.testing.assert_close((rms_norm(x, weight), squared_relu(x)), sampled, rtol=2e-6, atol=1e-7)
