"""Denominators: one step gives one value, however it is cut."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.objectives import ppo_clip
from agentrl.algorithms.reduce import constant, token_mean
from agentrl.errors import TrainerError

REDUCTIONS = {
    "token_mean": lambda loss, weight, step_weight: token_mean(loss, weight, step_weight),
    "constant": lambda loss, weight, _: constant(loss, weight, 5, 8),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def test_token_mean_on_exact_numbers():
    # Weights 1, 0, 1 of a step with 4 trained tokens: (2 + 6) / 4.
    assert token_mean(tensor([2, 100, 6]), tensor([1, 0, 1]), 4.0).item() == 2.0
    # A weight of 0.5 halves both the token's loss and its share of the total: (0.5*2 + 1*6) / 1.5.
    assert token_mean(tensor([2, 6]), tensor([0.5, 1]), 1.5).item() == pytest.approx(14 / 3)


def test_constant_on_exact_numbers():
    # (2 + 6) / (2 sequences * 10 tokens), whatever the number of tokens that were trained.
    assert constant(tensor([2, 100, 6]), tensor([1, 0, 1]), 2, 10).item() == pytest.approx(0.4)


@pytest.mark.parametrize("total", [0.0, -1.0, math.nan, math.inf])
def test_a_step_without_a_trained_token_is_refused_and_never_nan(total):
    with pytest.raises(TrainerError, match="at least one trained token"):
        token_mean(tensor([1.0]), tensor([0.0]), total)


def test_a_constant_of_zero_is_refused():
    with pytest.raises(TrainerError, match="max_tokens 0"):
        constant(tensor([1.0]), tensor([1.0]), 1, 0)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e9])
@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
def test_the_loss_at_weight_zero_is_not_read(reduction, poison):
    clean, poisoned = (tensor([0.3, x, 0.7]).requires_grad_() for x in (0.0, poison))
    weight = tensor([1, 0, 1])
    losses = [reduction(loss, weight, 2.0) for loss in (clean, poisoned)]
    gradients = [torch.autograd.grad(loss, x)[0] for loss, x in zip(losses, (clean, poisoned), strict=True)]
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(gradients[0], gradients[1])


def test_a_nan_that_is_trained_is_not_hidden():
    assert token_mean(tensor([math.nan, 1]), tensor([1, 1]), 2.0).isnan()


def step(seed, num_tokens, dtype):
    """Logits of one free parameter per token, and what the objective needs beside them."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(4, num_tokens, generator=generator, dtype=torch.float64).to(dtype)
    weight = (draws[3] > -0.5).to(dtype)
    weight[0] = 1.0
    return draws[0] - 2, draws[1] * 0.3, draws[2], weight


def loss_and_gradient(pieces, values, reduction):
    """Accumulate over pieces, each a list of token positions, as a trainer does."""
    logprobs, shift, advantages, weight = values
    parameter = logprobs.clone().requires_grad_()
    total = torch.zeros((), dtype=logprobs.dtype)
    for piece in pieces:
        old = (logprobs - shift)[piece]
        surrogate = ppo_clip(parameter[piece], old, advantages[piece], weight[piece] != 0, clip_low=0.2, clip_high=0.2)
        loss = reduction(surrogate.loss_T, weight[piece], weight.sum().item())
        loss.backward()
        total += loss.detach()
    return total, parameter.grad


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**31), num_tokens=st.integers(2, 40))
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
def test_any_order_and_any_split_give_the_same_loss_and_gradient(reduction, dtype, data, seed, num_tokens):
    values = step(seed, num_tokens, dtype)
    order = data.draw(st.permutations(range(num_tokens)))
    cuts = sorted(data.draw(st.sets(st.integers(1, num_tokens - 1))))
    pieces = [list(order[a:b]) for a, b in pairwise([0, *cuts, num_tokens])]
    whole = loss_and_gradient([list(range(num_tokens))], values, reduction)
    parts = loss_and_gradient(pieces, values, reduction)
    # Losses of both signs may cancel, so the loss is compared in units of the largest term.
    scale = max(1.0, values[2].abs().max().item())
    assert parts[0].item() == pytest.approx(whole[0].item(), rel=TOLERANCE[dtype], abs=TOLERANCE[dtype] * scale)
    torch.testing.assert_close(parts[1], whole[1], rtol=TOLERANCE[dtype], atol=0.0)


def test_the_same_check_catches_a_mean_within_each_piece():
    # Negative control: tokens of the smaller piece weigh more when each piece is divided by its own count.
    values = step(0, 9, torch.float64)

    def own_mean(loss, weight, _):
        return token_mean(loss, weight, weight.sum().item()) / 2

    whole = loss_and_gradient([list(range(9))], values, REDUCTIONS["token_mean"])
    parts = loss_and_gradient([[0, 1], list(range(2, 9))], values, own_mean)
    assert abs(parts[0] - whole[0]) > 1e-3
