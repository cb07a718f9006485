"""The halves of a layer against the plain formulas, and their gradients against autograd and finite differences."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import linear, silu

from agentrl.policy import ops
from agentrl.policy.ops import Affine, Norm, Turn, finish, kernels, project

pytestmark = pytest.mark.skipif(kernels(torch.float32) is None, reason="no C compiler on this machine")

M, D, F, HEADS, KEYS, E = 7, 6, 5, 3, 1, 4
EPS = 1e-3
DTYPES = pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
BIASES = pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])


def draw(*shape, dtype):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def affine(out, into, dtype, bias):
    return Affine(draw(out, into, dtype=dtype), draw(out, dtype=dtype) if bias else None)


def turn(dtype):
    """Angles of two pairs at seven positions, not in order."""
    angle = torch.tensor([[3.0], [0.0], [1.0], [2.0], [9.0], [4.0], [5.0]], dtype=dtype) * torch.tensor([1.0, 0.1])
    return Turn(*(torch.cat((part, part), 1).to(dtype) for part in (angle.cos(), angle.sin())))


def first_half(dtype, bias, heads):
    torch.manual_seed(0)
    x, norm = draw(M, D, dtype=dtype), Norm(draw(D, dtype=dtype), EPS)
    qkv = [affine(number * E, D, dtype, bias) for number in (HEADS, KEYS, KEYS)]
    norms = (Norm(draw(E, dtype=dtype), EPS), Norm(draw(E, dtype=dtype), 2 * EPS)) if heads else None
    weights = [x, norm.weight, *(part for one in qkv for part in one if part is not None)]
    return (x, norm, qkv, norms, turn(dtype)), weights + ([one.weight for one in norms] if norms else [])


def second_half(dtype, bias):
    torch.manual_seed(1)
    x, attended = draw(M, D, dtype=dtype), draw(M, HEADS * E, dtype=dtype)
    norm = Norm(draw(D, dtype=dtype), EPS)
    out, down = affine(D, HEADS * E, dtype, bias), affine(D, F, dtype, bias)
    gate, up = affine(F, D, dtype, bias), affine(F, D, dtype, bias)
    parts = [part for one in (out, gate, up, down) for part in one if part is not None]
    return (x, attended, out, norm, gate, up, down), [x, attended, norm.weight, *parts]


def plain_norm(x, norm):
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)


def plain_turn(x, where):
    low, high = x.chunk(2, -1)
    return x * where.cos_ME[:, None] + torch.cat((-high, low), -1) * where.sin_ME[:, None]


def plain_project(x, norm, qkv, norms, where):
    q, k, v = (linear(plain_norm(x, norm), *one).view(M, -1, E) for one in qkv)
    if norms:
        q, k = plain_norm(q, norms[0]), plain_norm(k, norms[1])
    return plain_turn(q, where), plain_turn(k, where), v


def plain_finish(x, attended, out, norm, gate, up, down):
    x = x + linear(attended, *out)
    h = plain_norm(x, norm)
    return x + linear(silu(linear(h, *gate)) * linear(h, *up), *down)


def assert_same(ours, theirs, weights, near):
    factors = [torch.randn_like(part) for part in theirs]
    mine, other = (torch.autograd.grad(found, weights, factors) for found in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=near, atol=near)
    torch.testing.assert_close(mine, other, rtol=30 * near, atol=30 * near)


@DTYPES
@BIASES
@pytest.mark.parametrize("heads", [False, True], ids=["no head norms", "head norms"])
def test_the_first_half_is_that_of_the_formulas(dtype, near, bias, heads):
    given, weights = first_half(dtype, bias, heads)
    assert_same(project(*given), plain_project(*given), weights, near)


@DTYPES
@BIASES
def test_the_second_half_is_that_of_the_formulas(dtype, near, bias):
    given, weights = second_half(dtype, bias)
    assert_same((finish(*given),), (plain_finish(*given),), weights, near)


def test_the_gradients_are_those_of_finite_differences():
    given, weights = first_half(torch.float64, True, True)
    assert gradcheck(lambda *_: project(*given), weights)
    given, weights = second_half(torch.float64, True)
    assert gradcheck(lambda *_: finish(*given), weights)


def test_a_wrong_formula_would_be_seen():
    given, weights = second_half(torch.float64, False)
    (x, attended, out, norm, gate, up, down) = given
    other = plain_finish(x, attended, out, Norm(norm.weight, 2 * EPS), gate, up, down)
    with pytest.raises(AssertionError):
        assert_same((finish(*given),), (other,), weights, 1e-12)


def test_frozen_weights_get_no_gradient_and_the_others_the_same():
    given, weights = second_half(torch.float64, True)
    whole = torch.autograd.grad(finish(*given).sum(), weights)
    gate = given[4]
    gate.weight.requires_grad_(False)
    rest = [(weight, grad) for weight, grad in zip(weights, whole, strict=True) if weight is not gate.weight]
    again = torch.autograd.grad(finish(*given).sum(), [weight for weight, _ in rest])
    torch.testing.assert_close(again, tuple(grad for _, grad in rest), rtol=0, atol=0)


def test_gradients_that_lie_apart_in_memory_are_read_where_they_are():
    given, weights = first_half(torch.float64, False, True)
    found = project(*given)
    together = torch.autograd.grad(found, weights, [torch.ones_like(part) for part in found], retain_graph=True)
    apart = [torch.ones(part.shape[1], M, E, dtype=torch.float64).transpose(0, 1) for part in found]
    torch.testing.assert_close(torch.autograd.grad(found, weights, apart), together)


@pytest.mark.parametrize("number", [-200.0, -90.0, -1.0, 0.0, 1.0, 90.0, 200.0])
def test_gates_far_from_zero_are_those_of_the_formula(number):
    both = torch.tensor([[number, 2.0]])
    found = torch.empty(1, 1)
    kernels(torch.float32).gate(1, 1, both.data_ptr(), found.data_ptr())
    torch.testing.assert_close(found, silu(torch.tensor([[number]])) * 2, rtol=1e-6, atol=1e-35)


def test_what_is_no_number_stays_none():
    both, found = torch.tensor([[torch.nan, 2.0]]), torch.empty(1, 1)
    kernels(torch.float32).gate(1, 1, both.data_ptr(), found.data_ptr())
    assert found.isnan().all()


def test_other_types_have_no_functions():
    assert ops.kernels(torch.bfloat16) is None
