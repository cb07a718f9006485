"""The natural-gradient step: its linear algebra against numpy, its promises on policies that can be enumerated."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from agentrl.algorithms.kl import exact_forward
from agentrl.algorithms.trust_region import (
    TrustRegion,
    conjugate_gradients,
    fisher_product,
    natural_step,
    natural_step_of_module,
)
from agentrl.errors import ConfigError, TrainerError


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.integers(1, 12))
def test_conjugate_gradients_solve_as_numpy_does(seed, size):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(size, size))
    matrix, target = root @ root.T + np.eye(size), generator.normal(size=size)
    found = conjugate_gradients(
        lambda x: torch.from_numpy(matrix) @ x, torch.from_numpy(target), iterations=2 * size, tolerance=1e-24
    )
    np.testing.assert_allclose(found.numpy(), np.linalg.solve(matrix, target), rtol=1e-8, atol=1e-9)


def test_conjugate_gradients_on_exact_numbers():
    # A = diag(1, 3), b = (1, 1): first x = b (b'b / b'Ab) = (.5, .5); after two steps (1, 1/3).
    diagonal = tensor([1.0, 3.0])
    assert conjugate_gradients(lambda x: diagonal * x, tensor([1.0, 1.0]), iterations=1).tolist() == [0.5, 0.5]
    two = conjugate_gradients(lambda x: diagonal * x, tensor([1.0, 1.0]), iterations=2)
    assert two.tolist() == pytest.approx([1.0, 1 / 3])


def test_conjugate_gradients_stop_where_the_matrix_is_not_positive():
    assert conjugate_gradients(lambda x: -x, tensor([1.0]), iterations=5).tolist() == [0.0]
    assert conjugate_gradients(lambda x: x, tensor([0.0]), iterations=5).tolist() == [0.0]


# A softmax bandit: parameters are the logits.


def bandit_kl(old_logits):
    """Mean KL(old || new) of one state, in closed form of the logits."""
    old = old_logits.detach().log_softmax(-1)
    return lambda logits: (old.exp() * (old - logits.log_softmax(-1))).sum()


def bandit_loss(old_logits, rewards):
    """Minus the expected reward: the surrogate -E_old[rho A] over all actions."""
    return lambda logits: -(logits.softmax(-1) @ (rewards - old_logits.detach().softmax(-1) @ rewards))


@settings(max_examples=40, deadline=None)
@given(logits=st.lists(st.floats(-2, 2), min_size=2, max_size=6), seed=st.integers(0, 999))
def test_fisher_products_are_those_of_the_explicit_matrix(logits, seed):
    # F of a softmax policy in its logits: diag(p) - p p'.
    logits = tensor(logits)
    vector = torch.randn(len(logits), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = logits.softmax(-1)
    explicit = torch.diag(p) - torch.outer(p, p)
    found = fisher_product(bandit_kl(logits), logits, vector, damping=0.1)
    torch.testing.assert_close(found, explicit @ vector + 0.1 * vector, rtol=1e-10, atol=1e-12)


def test_the_fisher_matrix_is_the_mean_outer_product_of_scores():
    # The definition, E[grad log pi grad log pi'], with a hidden layer in between and two states.
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    start = torch.randn(3 * 4, generator=generator, dtype=torch.float64)

    def log_policy(flat):
        return (states @ flat.view(3, 4)).tanh().log_softmax(-1)

    old = log_policy(start)
    explicit = torch.zeros(12, 12, dtype=torch.float64)
    for state in range(2):
        for action in range(4):
            score = torch.autograd.functional.jacobian(lambda x, s=state, a=action: log_policy(x)[s, a], start)
            explicit += old[state, action].exp() * torch.outer(score, score) / 2

    def kl(flat):
        return (old.exp() * (old - log_policy(flat))).sum(-1).mean()

    columns = [fisher_product(kl, start, unit) for unit in torch.eye(12, dtype=torch.float64)]
    torch.testing.assert_close(torch.stack(columns), explicit, rtol=1e-10, atol=1e-12)


REWARDS = st.lists(st.floats(-1, 1), min_size=2, max_size=6, unique_by=lambda x: round(x, 2))


@settings(max_examples=60, deadline=None)
@given(rewards=REWARDS, seed=st.integers(0, 999), max_kl=st.sampled_from([1e-4, 1e-2, 0.3]))
def test_a_step_on_a_bandit_improves_within_the_bound(rewards, seed, max_kl):
    rewards = tensor(rewards)
    logits = torch.randn(len(rewards), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    step = natural_step(bandit_loss(logits, rewards), bandit_kl(logits), logits, TrustRegion(max_kl=max_kl))
    assert step.accepted
    assert 0 < step.kl <= max_kl
    assert step.improvement > 0
    gain = (step.parameters_D.softmax(-1) - logits.softmax(-1)) @ rewards
    assert gain.item() == pytest.approx(step.improvement, abs=1e-12)
    assert step.kl == pytest.approx(bandit_kl(logits)(step.parameters_D).item())


def test_the_first_try_is_the_quadratic_model_of_the_bound():
    # Two actions at p = 1/2, rewards 1 and 0: F = [[.25, -.25], [-.25, .25]], g = (-.25, .25).
    # F s = -g: s = (.5, -.5), s'Fs = -g's = .25, and sqrt(2 delta / .25) s = sqrt(2 delta) (1, -1).
    # The true KL there is log cosh(sqrt(2 delta)), a hair below delta.
    logits, delta = tensor([0.0, 0.0]), 1e-4
    region = TrustRegion(max_kl=delta, damping=0.0)
    step = natural_step(bandit_loss(logits, tensor([1.0, 0.0])), bandit_kl(logits), logits, region)
    assert step.num_tries == 1
    assert step.parameters_D.tolist() == pytest.approx([math.sqrt(2e-4), -math.sqrt(2e-4)], rel=1e-9)
    assert step.kl == pytest.approx(math.log(math.cosh(math.sqrt(2e-4))), rel=1e-6)


def test_the_step_does_not_depend_on_the_units_of_the_parameters():
    # Natural gradient: the same policy comes out when logits are 1, 10 and 0.1 times the parameters.
    logits, rewards = tensor([0.3, -0.2, 0.1]), tensor([1.0, 0.0, 0.5])
    region = TrustRegion(max_kl=0.01, damping=0.0)
    units = tensor([1.0, 10.0, 0.1])
    plain = natural_step(bandit_loss(logits, rewards), bandit_kl(logits), logits, region)
    kl, loss = bandit_kl(logits), bandit_loss(logits, rewards)
    scaled = natural_step(lambda x: loss(units * x), lambda x: kl(units * x), logits / units, region)
    one, other = plain.parameters_D.softmax(-1), (units * scaled.parameters_D).softmax(-1)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    # Negative control: the plain gradient step of the same length does depend on them.
    gradient = torch.autograd.functional.jacobian(lambda x: loss(units * x), logits / units)
    steepest = (units * (logits / units - 0.1 * gradient)).softmax(-1)
    unscaled = (logits - 0.1 * torch.autograd.functional.jacobian(loss, logits)).softmax(-1)
    assert (steepest - unscaled).abs().max() > 1e-2


def test_many_steps_find_the_best_action():
    logits, rewards = torch.zeros(4, dtype=torch.float64), tensor([0.0, 0.2, 1.0, 0.5])
    for _ in range(60):
        logits = natural_step(
            bandit_loss(logits, rewards), bandit_kl(logits), logits, TrustRegion(max_kl=0.05)
        ).parameters_D
    assert logits.softmax(-1)[2] > 0.95


def test_equal_rewards_refuse_the_step():
    logits = tensor([0.5, -0.5])
    step = natural_step(bandit_loss(logits, tensor([1.0, 1.0])), bandit_kl(logits), logits)
    assert (step.accepted, step.num_tries, step.kl, step.improvement) == (False, 0, 0.0, 0.0)
    assert torch.equal(step.parameters_D, logits)


def test_a_step_after_which_nothing_improves_is_refused():
    # |x| falls along its gradient only up to 1e-9 away; every try of the search overshoots.
    logits = tensor([1e-9, 0.0])
    step = natural_step(lambda x: x[0].abs(), bandit_kl(logits), logits, TrustRegion(max_kl=0.1))
    assert (step.accepted, step.num_tries) == (False, 10)
    assert torch.equal(step.parameters_D, logits)


def test_a_try_outside_the_domain_is_shortened_and_not_taken():
    # The loss is NaN beyond 0.05; the full step at KL 0.1 goes to about 0.6.
    logits = tensor([0.0, 0.0])

    def loss(x):
        return torch.where(x[0] > 0.05, math.nan, -x[0])

    step = natural_step(loss, bandit_kl(logits), logits, TrustRegion(max_kl=0.1))
    assert step.accepted
    assert step.num_tries > 1
    assert 0 < step.parameters_D[0] <= 0.05


def test_a_kl_that_grows_faster_than_its_curvature_says_is_shortened():
    # The bound is on the true KL: with a quartic term the quadratic model is far too long.
    logits = tensor([0.0])
    step = natural_step(lambda x: -x.sum(), lambda x: (x**2 / 2 + 1e4 * x**4).sum(), logits, TrustRegion(max_kl=0.01))
    assert step.accepted
    assert step.num_tries > 1
    assert step.kl <= 0.01


def test_numbers_that_allow_no_step_are_refused():
    logits = tensor([0.0, 0.0])
    with pytest.raises(TrainerError, match="the loss is nan"):
        natural_step(lambda x: x.sum() * math.nan, bandit_kl(logits), logits)
    with pytest.raises(TrainerError, match="gradient not finite"):
        natural_step(lambda x: x.sum().sqrt(), bandit_kl(logits), logits)
    with pytest.raises(TrainerError, match="should be 0; give KL"):
        natural_step(lambda x: x.sum(), bandit_kl(tensor([1.0, 0.0])), logits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_kl", 0.0),
        ("damping", -1.0),
        ("cg_iterations", 0),
        ("shrink", 1.0),
        ("max_tries", 0),
        ("min_improvement", 1.0),
        ("max_kl", math.nan),
    ],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        TrustRegion(**{name: value})


# Modules


class Policy(nn.Module):
    """A small network with a frozen layer and a weight used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 5)
        self.frozen = nn.Linear(5, 5)
        self.again = nn.Linear(5, 5)
        self.last = nn.Linear(5, 4)
        self.also_again = self.again
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, states):
        hidden = self.frozen(self.first(states).tanh()).tanh()
        return self.last(self.also_again(self.again(hidden).tanh()).tanh())


def test_a_module_takes_the_step_and_keeps_its_frozen_and_tied_weights():
    policy = Policy()
    states = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    actions, credit = torch.tensor([0, 1, 2, 3, 0, 1]), tensor([1.0, -1.0, 0.5, 0.2, -0.3, 0.7])
    old = policy(states).detach()
    old_logprobs = old.log_softmax(-1)[range(6), actions]
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}

    def loss(module):
        return -((module(states).log_softmax(-1)[range(6), actions] - old_logprobs).exp() * credit).mean()

    def mean_kl(module):
        # KL(old || new): the forward one, with the old policy as the reference.
        return exact_forward(module(states), old, torch.ones(6).bool()).mean()

    step = natural_step_of_module(policy, loss, mean_kl)
    assert step.accepted
    assert 0 < step.kl <= 0.01
    assert mean_kl(policy).item() == pytest.approx(step.kl, abs=1e-12)
    assert loss(policy).item() == pytest.approx(-credit.mean().item() - step.improvement, abs=1e-12)
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("frozen")
    assert policy.also_again.weight is policy.again.weight


def test_a_refused_step_leaves_the_module_as_it_was():
    policy = nn.Linear(2, 2).double()
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    step = natural_step_of_module(
        policy, lambda m: 0.0 * m.weight.sum(), lambda m: (m.weight - before[0]).square().sum()
    )
    assert not step.accepted
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), before, strict=True))


def test_a_module_without_trainable_parameters_is_refused():
    policy = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(TrainerError, match="no trainable parameter"):
        natural_step_of_module(policy, lambda m: m.weight.sum(), lambda m: m.weight.sum())
