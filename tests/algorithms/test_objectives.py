"""Every objective against a loop of its own, finite differences, poison behind the mask and the exact gradient."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.advantages import group_mean
from agentrl.algorithms.objectives import cross_entropy, ppo_clip, reinforce, value_loss
from agentrl.errors import ConfigError, TrainerError


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def loop_reinforce(x, old, advantage):
    return -advantage * x


def loop_ppo_clip(x, old, advantage):
    ratio = math.exp(x - old)
    clipped = min(max(ratio, 0.8), 1.3)
    return -min(ratio * advantage, clipped * advantage)


def loop_cross_entropy(x, old, advantage):
    return -x


def loop_value_loss(x, old, advantage):
    return (x - advantage) ** 2


def call_reinforce(x, old, advantages, mask):
    return reinforce(x, old, advantages, mask).loss_T


def call_ppo_clip(x, old, advantages, mask):
    return ppo_clip(x, old, advantages, mask, clip_low=0.2, clip_high=0.3).loss_T


def call_cross_entropy(x, old, advantages, mask):
    return cross_entropy(x, mask)


def call_value_loss(x, old, advantages, mask):
    return value_loss(x, advantages, mask)


BATTERY = {
    "reinforce": (call_reinforce, loop_reinforce),
    "ppo_clip": (call_ppo_clip, loop_ppo_clip),
    "cross_entropy": (call_cross_entropy, loop_cross_entropy),
    "value_loss": (call_value_loss, loop_value_loss),
}
every_objective = pytest.mark.parametrize(("objective", "loop"), BATTERY.values(), ids=BATTERY)
POLICY = {"reinforce": reinforce, "ppo_clip": partial(ppo_clip, clip_low=0.2, clip_high=0.3)}

NUMBER = st.floats(min_value=-3, max_value=3)
TOKEN = st.tuples(NUMBER, NUMBER, NUMBER, st.booleans())
TOKENS = st.lists(TOKEN, min_size=1, max_size=12)
POISON = [math.nan, math.inf, -math.inf, 1e9, -1e9]


def columns(tokens):
    x, old, advantages, mask = zip(*tokens, strict=True)
    return tensor(x), tensor(old), tensor(advantages), torch.tensor(mask)


@every_objective
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS)
def test_agrees_with_a_loop_over_single_tokens(objective, loop, tokens):
    expected = [loop(x, old, advantage) if mask else 0.0 for x, old, advantage, mask in tokens]
    assert objective(*columns(tokens)).tolist() == pytest.approx(expected, abs=1e-9)


@every_objective
@settings(max_examples=40, deadline=None)
@given(tokens=TOKENS)
def test_gradient_agrees_with_finite_differences(objective, loop, tokens):
    # A step across the corner of the clip has no derivative to agree with.
    tokens = [t for t in tokens if min(abs(math.exp(t[0] - t[1]) - edge) for edge in (0.8, 1.3)) > 1e-3] or [
        (0, 0, 1, True)
    ]
    x, old, advantages, mask = columns(tokens)
    x.requires_grad_()
    objective(x, old, advantages, mask).sum().backward()
    step = 1e-6
    expected = [
        (loop(x + step, old, advantage) - loop(x - step, old, advantage)) / (2 * step) if mask else 0.0
        for x, old, advantage, mask in tokens
    ]
    assert x.grad.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@every_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("poison", POISON)
def test_what_stands_behind_the_mask_changes_nothing_to_the_bit(objective, loop, dtype, poison):
    mask = torch.tensor([True, False, True, False])

    def run(hidden):
        rows = [tensor([a, hidden, b, hidden], dtype) for a, b in ((-0.4, -1.1), (-0.5, -0.7), (1.5, -0.5))]
        rows[0].requires_grad_()
        loss = objective(*rows, mask).sum()
        return loss.detach(), torch.autograd.grad(loss, rows[0])[0]

    for clean, poisoned in zip(run(0.0), run(poison), strict=True):
        assert torch.equal(clean, poisoned)
        assert torch.isfinite(poisoned).all()
    assert run(poison)[1][~mask].tolist() == [0.0, 0.0]


def test_multiplying_by_the_mask_would_fail_that_check():
    # Negative control: 0 * NaN is NaN, and where() after exp leaves 0 * inf in the gradient.
    logprobs = tensor([0.0, 1e9]).requires_grad_()
    loss = torch.where(torch.tensor([True, False]), logprobs.exp(), 0.0).sum()
    assert math.isfinite(loss.item())
    assert torch.autograd.grad(loss, logprobs)[0].isnan().tolist() == [False, True]


@every_objective
def test_nan_at_a_trained_token_comes_out_as_nan(objective, loop):
    mask = torch.tensor([True, True])
    assert objective(tensor([math.nan, -1]), tensor([-1, -1]), tensor([1, 1]), mask).isnan().tolist() == [True, False]


def test_clip_statistics_on_exact_numbers():
    # Ratios 2, .5, 2, .5, 1, 2 with credit +, -, -, +, +, 0: only moves along the credit are clipped.
    ratios = [2.0, 0.5, 2.0, 0.5, 1.0, 2.0]
    advantages = [1.0, -1.0, -1.0, 1.0, 1.0, 0.0]
    logprobs = (tensor(ratios).log() - 1).requires_grad_()
    result = ppo_clip(
        logprobs, tensor([-1.0] * 6), tensor(advantages), torch.ones(6).bool(), clip_low=0.2, clip_high=0.3
    )
    assert result.clipped_T.tolist() == [True, True, False, False, False, False]
    assert result.ratio_T.tolist() == pytest.approx(ratios)
    # -min(2, 1.3), +max(.5, .8), +2, -.5, -1, 0
    assert result.loss_T.tolist() == pytest.approx([-1.3, 0.8, 2.0, -0.5, -1.0, 0.0])
    result.loss_T.sum().backward()
    # d loss = -A rho where the clip does not act
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.0, 2.0, -0.5, -1.0, 0.0])
    assert not result.ratio_T.requires_grad


def test_a_ratio_that_overflows_behind_the_clip_has_no_gradient():
    logprobs = tensor([900.0, -0.5]).requires_grad_()
    result = ppo_clip(
        logprobs, tensor([-1.0, -0.5]), tensor([1.0, 1.0]), torch.ones(2).bool(), clip_low=0.2, clip_high=0.2
    )
    result.loss_T.sum().backward()
    assert result.loss_T.tolist() == pytest.approx([-1.2, -1.0])
    assert logprobs.grad.tolist() == [0.0, -1.0]


@settings(deadline=None)
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8))
def test_at_ratio_one_the_clipped_surrogate_has_the_gradient_of_reinforce(tokens):
    old, advantages = (tensor(column) for column in zip(*tokens, strict=True))
    mask = torch.ones(len(tokens), dtype=torch.bool)
    gradients = []
    for objective in POLICY.values():
        logprobs = old.clone().requires_grad_()
        result = objective(logprobs, old, advantages, mask)
        gradients.append(torch.autograd.grad(result.loss_T.sum(), logprobs)[0])
        assert result.ratio_T.tolist() == [1.0] * len(tokens)
        assert not result.clipped_T.any()
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("objective", POLICY.values(), ids=POLICY)
def test_credit_and_the_old_policy_are_constants(objective):
    tensors = [tensor([-1.0, -2.0]).requires_grad_() for _ in range(3)]
    objective(*tensors, torch.ones(2).bool()).loss_T.sum().backward()
    assert tensors[0].grad is not None
    assert tensors[1].grad is None
    assert tensors[2].grad is None


class Enumerable:
    """Two tokens over three symbols: 9 sequences, each with a reward, small enough to list."""

    sequences = tuple(itertools.product(range(3), repeat=2))
    rewards = tensor([0.0, 1.0, 0.5, 0.0, 0.0, 2.0, 1.0, -1.0, 0.3])

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.first = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
        self.second = torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_()

    def logprobs(self, sequence):
        one, two = sequence
        return torch.stack([self.first.log_softmax(-1)[one], self.second[one].log_softmax(-1)[two]])

    def probabilities(self):
        return torch.stack([self.logprobs(sequence).sum().exp() for sequence in self.sequences])

    def gradient(self, scalar):
        return torch.cat([grad.flatten() for grad in torch.autograd.grad(scalar, (self.first, self.second))])

    def exact(self):
        """Gradient of the expected reward, by differentiating the sum over all sequences."""
        return self.gradient(self.probabilities() @ self.rewards)

    def estimate(self, objective, index, credit):
        """Gradient of one sampled sequence's objective."""
        logprobs = self.logprobs(self.sequences[index])
        mask = torch.ones(2, dtype=torch.bool)
        return self.gradient(
            objective(logprobs, logprobs.detach(), torch.full((2,), credit, dtype=torch.float64), mask).loss_T.sum()
        )


@pytest.mark.parametrize("objective", POLICY.values(), ids=POLICY)
def test_the_expected_gradient_is_the_exact_policy_gradient(objective):
    problem = Enumerable()
    weights = problem.probabilities().tolist()
    expected = sum(p * problem.estimate(objective, i, problem.rewards[i].item()) for i, p in enumerate(weights))
    torch.testing.assert_close(-expected, problem.exact(), rtol=1e-12, atol=1e-12)


def test_a_baseline_of_the_group_scales_the_exact_gradient_by_its_size():
    # All 81 pairs of sequences. Each attempt is half of its own baseline: (G - 1) / G = 1/2 of the exact gradient.
    problem = Enumerable()
    weights, rewards = problem.probabilities().tolist(), problem.rewards.tolist()
    unit = [problem.estimate(reinforce, i, 1.0) for i in range(9)]
    total = torch.zeros(12, dtype=torch.float64)
    for i, j in itertools.product(range(9), repeat=2):
        credit = group_mean([rewards[i], rewards[j]])
        total += weights[i] * weights[j] * (credit[0] * unit[i] + credit[1] * unit[j]) / 2
    torch.testing.assert_close(-total, problem.exact() / 2, rtol=1e-12, atol=1e-12)


def test_a_loss_per_sequence_or_a_float_mask_is_refused():
    flat, mask = tensor([-1.0, -1.0]), torch.ones(2).bool()
    with pytest.raises(TrainerError, match=r"advantages_T has shape \(1,\)"):
        reinforce(flat, flat, tensor([1.0]), mask)
    with pytest.raises(TrainerError, match="one entry per token, flat"):
        cross_entropy(torch.zeros(2, 2), torch.ones(2, 2).bool())
    with pytest.raises(TrainerError, match="give booleans"):
        value_loss(flat, flat, torch.ones(2))


@pytest.mark.parametrize(
    ("low", "high", "name"), [(-0.1, 0.2, "clip_low"), (1.5, 0.2, "clip_low"), (0.2, -1, "clip_high")]
)
def test_an_impossible_clip_is_refused(low, high, name):
    one = tensor([-1.0])
    with pytest.raises(ConfigError, match=name):
        ppo_clip(one, one, one, torch.ones(1).bool(), clip_low=low, clip_high=high)
