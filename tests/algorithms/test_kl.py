"""Which KL estimator has the right gradient, proved on policies whose sequences can all be listed."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.kl import LOSSES, VALUES, exact_forward, exact_reverse, kl_loss, kl_penalty
from agentrl.algorithms.reduce import token_mean
from agentrl.errors import ConfigError, TrainerError


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def loss(name, logprobs, reference, mask, sampler=None, **clamps):
    """``kl_loss`` with the sampler's log-probabilities only where they are asked; on-policy unless given."""
    sampler = (logprobs.detach() if sampler is None else sampler) if name == "k3_unbiased" else None
    return kl_loss(name, logprobs, reference, mask, sampler_logprobs_T=sampler, **clamps)


LOOPS = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
    "k3_unbiased": lambda d: math.exp(-d) - 1 + d,
    "k3_straight_through": lambda d: math.exp(-d) - 1 + d,
}
# Derivative of the value in the log-probability, on-policy: what an autograd of the listed value must give.
SLOPES = {
    "k2": lambda d: d,
    "k3": lambda d: 1 - math.exp(-d),
    "k3_unbiased": lambda d: 1 - math.exp(-d) + math.exp(-d) - 1 + d,
    "k3_straight_through": lambda d: d,
}
ROWS = st.lists(st.tuples(st.floats(-4, 0), st.floats(-4, 0), st.booleans()), min_size=1, max_size=10)
every_loss = pytest.mark.parametrize("name", LOSSES)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_values_and_slopes_agree_with_a_loop(rows):
    x, reference, mask = (torch.tensor(column) for column in zip(*rows, strict=True))
    x, reference = x.double(), reference.double()
    gaps = (x - reference).tolist()
    for name in VALUES:
        expected = [LOOPS[name](d) if m else 0.0 for d, m in zip(gaps, mask.tolist(), strict=True)]
        assert kl_penalty(name, x, reference, mask).tolist() == pytest.approx(expected, abs=1e-9)
    for name in LOSSES:
        at = x.clone().requires_grad_()
        value = loss(name, at, reference, mask)
        expected = [LOOPS[name](d) if m else 0.0 for d, m in zip(gaps, mask.tolist(), strict=True)]
        assert value.tolist() == pytest.approx(expected, abs=1e-9)
        slopes = [SLOPES[name](d) if m else 0.0 for d, m in zip(gaps, mask.tolist(), strict=True)]
        assert torch.autograd.grad(value.sum(), at)[0].tolist() == pytest.approx(slopes, abs=1e-9)


class Enumerable:
    """Two tokens over three symbols, the second depending on the first, with a reference and an older sampler."""

    sequences = tuple(itertools.product(range(3), repeat=2))

    def __init__(self, num_tokens=2):
        generator = torch.Generator().manual_seed(11)

        def draw():
            shapes = ((3,), (3, 3))[:num_tokens]
            return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

        self.policy = [logits.requires_grad_() for logits in draw()]
        self.reference = draw()
        self.sampler = [p.detach() + 0.7 * noise for p, noise in zip(self.policy, draw(), strict=True)]
        self.sequences = tuple(itertools.product(range(3), repeat=num_tokens))
        self.mask = torch.ones(num_tokens).bool()

    def logprobs(self, logits, sequence):
        first = logits[0].log_softmax(-1)[sequence[0]]
        if len(sequence) == 1:
            return first[None]
        return torch.stack([first, logits[1][sequence[0]].log_softmax(-1)[sequence[1]]])

    def gradient(self, scalar):
        found = torch.autograd.grad(scalar, self.policy, allow_unused=True)
        pairs = zip(found, self.policy, strict=True)
        return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in pairs])

    def exact(self, *, forward=False):
        """Gradient of the KL between the distributions of whole sequences."""
        logs = [(self.logprobs(self.policy, s).sum(), self.logprobs(self.reference, s).sum()) for s in self.sequences]
        if forward:
            return self.gradient(sum(q.exp() * (q - p) for p, q in logs))
        return self.gradient(sum(p.exp() * (p - q) for p, q in logs))

    def exact_per_token(self, *, forward=False, prefixes=None):
        """Gradient of the sum over t of the KL at t, with the prefixes' distribution held fixed."""
        divergence = exact_forward if forward else exact_reverse
        prefixes = (prefixes or self.policy)[0].detach().softmax(-1)
        total = divergence(self.policy[0][None], self.reference[0][None], torch.tensor([True])).sum()
        if len(self.policy) == 2:
            total = total + prefixes @ divergence(self.policy[1], self.reference[1], torch.ones(3).bool())
        return self.gradient(total)

    def expected_loss(self, of_tokens, *, sampler=None):
        """Expectation under the sampler (the policy, when None) of the gradient of a sampled sequence's loss."""
        total = 0.0
        for sequence in self.sequences:
            logprobs = self.logprobs(self.policy, sequence)
            drawn = self.logprobs(sampler or self.policy, sequence).detach()
            value = of_tokens(logprobs, self.logprobs(self.reference, sequence), drawn).sum()
            total = total + drawn.sum().exp() * self.gradient(value)
        return total

    def expected_penalty(self, name, *, to_go):
        """Expectation of the policy gradient whose only reward is minus the penalty, negated."""

        def surrogate(logprobs, reference, drawn):
            cost = kl_penalty(name, logprobs, reference, self.mask)
            return (cost.flip(0).cumsum(0).flip(0) if to_go else cost) * logprobs

        return self.expected_loss(surrogate)


def close(one, other):
    return torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def far(one, other):
    return (one - other).abs().max() > 1e-3


REVERSE = ["k2", "k3_unbiased", "k3_straight_through"]


@pytest.mark.parametrize("name", REVERSE)
def test_these_losses_descend_the_reverse_kl(name):
    problem = Enumerable()
    found = problem.expected_loss(lambda x, ref, drawn: loss(name, x, ref, problem.mask))
    assert close(found, problem.exact_per_token())
    assert far(found, problem.exact_per_token(forward=True))


def test_k3_as_a_loss_descends_the_forward_kl():
    problem = Enumerable()
    found = problem.expected_loss(lambda x, ref, drawn: loss("k3", x, ref, problem.mask))
    assert close(found, problem.exact_per_token(forward=True))
    assert far(found, problem.exact_per_token())


def test_k1_as_a_loss_has_no_gradient_and_is_refused():
    problem = Enumerable()
    assert problem.expected_loss(lambda x, ref, drawn: x - ref).abs().max() < 1e-15
    assert problem.exact_per_token().abs().max() > 0.1
    with pytest.raises(ConfigError, match="k1 as a loss has no gradient"):
        loss("k1", tensor([-1.0]), tensor([-1.0]), torch.tensor([True]))


def test_without_a_gradient_through_the_ratio_k3_unbiased_is_k3_again():
    # Negative control: the ratio as a detached weight, as a correction would give it.
    problem = Enumerable()
    found = problem.expected_loss(
        lambda x, ref, drawn: (x - drawn).exp().detach() * loss("k3", x, ref, problem.mask),
    )
    assert close(found, problem.exact_per_token(forward=True))


@pytest.mark.parametrize("name", REVERSE)
def test_a_loss_per_token_does_not_see_what_a_token_brings_about_later(name):
    problem = Enumerable()
    found = problem.expected_loss(lambda x, ref, drawn: loss(name, x, ref, problem.mask))
    assert far(found, problem.exact())
    # With one token there is no later, and both are the same.
    single = Enumerable(num_tokens=1)
    found = single.expected_loss(lambda x, ref, drawn: loss(name, x, ref, single.mask))
    assert close(found, single.exact())


def test_k1_in_the_reward_has_the_exact_gradient_of_the_sequences():
    problem = Enumerable()
    assert close(problem.expected_penalty("k1", to_go=True), problem.exact())
    # Charged to its own token alone it is the gradient per token, as a loss is.
    assert close(problem.expected_penalty("k1", to_go=False), problem.exact_per_token())


@pytest.mark.parametrize("name", ["k2", "k3"])
@pytest.mark.parametrize("num_tokens", [1, 2])
def test_k2_and_k3_in_the_reward_are_biased(name, num_tokens):
    problem = Enumerable(num_tokens)
    assert far(problem.expected_penalty(name, to_go=True), problem.exact())
    assert far(problem.expected_penalty(name, to_go=False), problem.exact_per_token())


@every_loss
@pytest.mark.parametrize("num_tokens", [1, 2])
def test_off_policy_only_the_unbiased_form_is_right(name, num_tokens):
    # Tokens drawn from an older sampler, whose prefixes they are.
    problem = Enumerable(num_tokens)
    exact = problem.exact_per_token(prefixes=problem.sampler)
    found = problem.expected_loss(
        lambda x, ref, drawn: loss(name, x, ref, problem.mask, drawn), sampler=problem.sampler
    )
    assert close(found, exact) if name == "k3_unbiased" else far(found, exact)


def test_values_on_average():
    # k1 and k3 average to the KL of the whole sequences, k2 does not.
    problem = Enumerable()
    rows = [(problem.logprobs(problem.policy, s), problem.logprobs(problem.reference, s)) for s in problem.sequences]
    exact = sum(p.sum().exp() * (p - q).sum() for p, q in rows).item()
    means = {
        name: sum(p.sum().exp() * kl_penalty(name, p, q, problem.mask).sum() for p, q in rows).item() for name in VALUES
    }
    assert means["k1"] == pytest.approx(exact, rel=1e-12)
    assert means["k3"] == pytest.approx(exact, rel=1e-12)
    assert abs(means["k2"] - exact) > 1e-3


def test_the_three_gradients_on_exact_numbers():
    # L17: logits .1, .3, -.2 against 1, 0, -1, over the whole distribution.
    logits, reference = tensor([0.1, 0.3, -0.2]).requires_grad_(), tensor([1.0, 0.0, -1.0]).log_softmax(-1)
    right = {"k2": (-0.310559, 0.115475, 0.195084), "k3": (-0.327656, 0.167598, 0.160058)}
    right |= {"k3_unbiased": right["k2"], "k3_straight_through": right["k2"]}
    for name, expected in right.items():
        logprobs = logits.log_softmax(-1)
        value = (logprobs.detach().exp() * loss(name, logprobs, reference, torch.ones(3).bool())).sum()
        assert torch.autograd.grad(value, logits)[0].tolist() == pytest.approx(expected, abs=1e-6)
    for divergence, expected in ((exact_reverse, right["k2"]), (exact_forward, right["k3"])):
        value = divergence(logits[None], reference[None], torch.tensor([True])).sum()
        assert torch.autograd.grad(value, logits)[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_penalty_is_added_before_the_mean():
    # L17: (1.02 + 1.04 + 4 * .51) / 6; the 3s stand at pads. Added after a mean over pads it would be 0.754167.
    pg = tensor([1, 1, math.nan, math.nan, 0.5, 0.5, 0.5, 0.5])
    mask = torch.tensor([True, True, False, False, True, True, True, True])
    reference = -tensor([0.2, 0.4, 3, 3, 0.1, 0.1, 0.1, 0.1])
    total = pg + 0.1 * kl_penalty("k1", torch.zeros(8).double(), reference, mask)
    assert token_mean(total, mask.double(), 6.0).item() == pytest.approx(0.683333, abs=1e-6)


@pytest.mark.parametrize("name", ["k3", "k3_straight_through", "k3_unbiased"])
def test_a_clamp_acts_alike_in_the_reward_and_in_the_loss(name):
    # L18: d = -15 clamped to 5: e^5 - 1 - 5 = 142.413159, not 3269001.372472.
    x, reference, mask = tensor([-16.0]), tensor([-1.0]), torch.tensor([True])
    assert kl_penalty("k3", x, reference, mask, log_ratio_clamp=5).item() == pytest.approx(142.413159, abs=1e-6)
    assert loss(name, x, reference, mask, log_ratio_clamp=5).item() == pytest.approx(142.413159, abs=1e-6)
    assert kl_penalty("k3", x, reference, mask).item() == pytest.approx(3269001.372472, abs=1e-5)
    assert loss(name, x, reference, mask, value_clamp=10).item() == 10.0


def test_what_a_clamp_leaves_of_the_gradient():
    # The far token feels nothing of k2 and k3, a pull of the clamped size from the straight-through form.
    def slope(name, **clamps):
        x = tensor([-16.0]).requires_grad_()
        value = loss(name, x, tensor([-1.0]), torch.tensor([True]), **clamps)
        return torch.autograd.grad(value.sum(), x)[0].item()

    assert [slope(name, log_ratio_clamp=5) for name in ("k2", "k3")] == [0.0, 0.0]
    assert slope("k3_straight_through", log_ratio_clamp=5) == -5.0
    assert slope("k3_straight_through", value_clamp=10) == -15.0
    # Of rho times the value, only rho moves.
    assert slope("k3_unbiased", value_clamp=10) == 10.0


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e9, -1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_loss
def test_what_stands_behind_the_mask_changes_nothing_to_the_bit(name, dtype, poison):
    mask = torch.tensor([True, False, True])

    def run(hidden):
        x = tensor([-0.4, hidden, -1.1], dtype).requires_grad_()
        value = loss(name, x, tensor([-0.5, -hidden, -0.7], dtype), mask, tensor([-0.3, hidden, -1.0], dtype))
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    for clean, poisoned in zip(run(0.0), run(poison), strict=True):
        assert torch.equal(clean, poisoned)
        assert poisoned[1] == 0.0


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e9])
@pytest.mark.parametrize("divergence", [exact_reverse, exact_forward])
def test_rows_behind_the_mask_change_nothing_to_the_bit(divergence, poison):
    mask = torch.tensor([True, False])

    def run(hidden):
        logits = tensor([[0.1, 0.3], [hidden, hidden]]).requires_grad_()
        value = divergence(logits, tensor([[0.2, -0.3], [hidden, 0.0]]), mask)
        return value.detach(), torch.autograd.grad(value.sum(), logits)[0]

    for clean, poisoned in zip(run(0.0), run(poison), strict=True):
        assert torch.equal(clean, poisoned)
    assert run(poison)[0][1] == 0.0


@every_loss
def test_nan_at_a_trained_token_comes_out_as_nan(name):
    value = loss(name, tensor([math.nan, -1]), tensor([-1, -1]), torch.ones(2).bool())
    assert value.isnan().tolist() == [True, False]


def test_penalty_reference_and_sampler_are_constants():
    rows = [tensor([-1.0]).requires_grad_() for _ in range(3)]
    mask = torch.tensor([True])
    assert not kl_penalty("k1", rows[0], rows[1].detach(), mask).requires_grad
    assert not kl_penalty("k3", rows[0], rows[1], mask).requires_grad
    kl_loss("k3_unbiased", rows[0], rows[1], mask, sampler_logprobs_T=rows[2]).sum().backward()
    assert [row.grad is None for row in rows] == [False, True, True]


def test_exact_divergences_on_exact_numbers():
    # p_S = .7 .2 .1, p_T = .5 .4 .1: reverse 0.096901 = sum S ln(S/T), forward 0.109023 = sum T ln(T/S).
    student, teacher, mask = tensor([[0.7, 0.2, 0.1]]).log(), tensor([[0.5, 0.4, 0.1]]).log(), torch.tensor([True])
    assert exact_reverse(student, teacher, mask).item() == pytest.approx(0.096901, abs=1e-6)
    assert exact_forward(student, teacher, mask).item() == pytest.approx(0.109023, abs=1e-6)
    # Logits need not be normalised.
    assert exact_reverse(student + 3, teacher - 2, mask).item() == pytest.approx(0.096901, abs=1e-6)
    # L22: teacher .7 .2 .1, student .4 .4 .2.
    teacher, student = tensor([[0.7, 0.2, 0.1]]).log(), tensor([[0.4, 0.4, 0.2]]).log()
    assert exact_forward(student, teacher, mask).item() == pytest.approx(0.183787, abs=1e-6)
    assert exact_reverse(student, teacher, mask).item() == pytest.approx(0.192042, abs=1e-6)


def test_excluded_symbols_count_nothing_and_missing_support_is_infinite():
    # Both exclude the last symbol: .5 ln(.5/.25) + .5 ln(.5/.75) = .143841.
    policy = tensor([[0.0, 0.0, -math.inf]]).requires_grad_()
    reference = tensor([[0.25, 0.75, 0.0]]).log()
    value = exact_reverse(policy, reference, torch.tensor([True]))
    assert value.item() == pytest.approx(0.143841, abs=1e-6)
    gradient = torch.autograd.grad(value.sum(), policy)[0]
    assert gradient.isfinite().all()
    # p (log p/q - KL): .5 (.693147 - .143841)
    assert gradient.tolist()[0] == pytest.approx([0.274653, -0.274653, 0.0], abs=1e-6)
    assert exact_reverse(torch.zeros(1, 3), reference.float(), torch.tensor([True])).item() == math.inf


def test_bad_input_is_refused():
    one, mask = tensor([-1.0]), torch.tensor([True])
    with pytest.raises(ConfigError, match="no penalty 'k4'; write one of k1, k2, k3"):
        kl_penalty("k4", one, one, mask)
    with pytest.raises(ConfigError, match="no KL loss 'k4'; write one of k2"):
        kl_loss("k4", one, one, mask)
    with pytest.raises(ConfigError, match="k3_unbiased with sampler_logprobs_T missing"):
        kl_loss("k3_unbiased", one, one, mask)
    with pytest.raises(ConfigError, match="k2 with sampler_logprobs_T given"):
        kl_loss("k2", one, one, mask, sampler_logprobs_T=one)
    for clamp in ("log_ratio_clamp", "value_clamp"):
        with pytest.raises(ConfigError, match=f"{clamp} is 0"):
            kl_penalty("k3", one, one, mask, **{clamp: 0})
    with pytest.raises(TrainerError, match="one entry per token, flat"):
        kl_loss("k2", one, tensor([-1.0, -1.0]), mask)
    with pytest.raises(TrainerError, match="one row over the same vocabulary per token"):
        exact_reverse(torch.zeros(2, 3), torch.zeros(2, 4), torch.ones(2).bool())
