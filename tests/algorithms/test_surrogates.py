"""Every objective per token against a loop of its own, and its gradient against what its definition says."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import surrogates
from agentrl.algorithms.objectives import ppo_clip, reinforce
from agentrl.errors import ConfigError, TrainerError
from tests.algorithms.tree import POISON, Tree, tensor

# One row per objective. The loop takes one token (log-probability x, old one, credit, and the log-probability at which
# weights without a gradient are frozen); ``still`` says where the definition leaves no gradient, by ratio, old
# probability and credit.


def clamp(value, low, high):
    return min(max(value, low), high)


def loop_dual_clip(x, old, credit, at):
    ratio = math.exp(x - old)
    least = min(ratio * credit, clamp(ratio, 0.8, 1.3) * credit)
    return -(max(least, 3 * credit) if credit < 0 else least)


def loop_two_sided(x, old, credit, at):
    ratio = math.exp(x - old)
    return -min(min(ratio, 4) * credit, clamp(ratio, 0.8, 1.3) * credit)


def loop_cispo(x, old, credit, at):
    return -clamp(math.exp(at - old), 0.5, 2) * credit * x


def loop_sapo(x, old, credit, at):
    tau = 1.0 if credit > 0 else 1.05
    return -(4 / tau) / (1 + math.exp(-tau * (math.exp(x - old) - 1))) * credit


def loop_dppo_tv(x, old, credit, at):
    new, mu = math.exp(at), math.exp(old)
    gone = (credit > 0 and new - mu > 0.2) or (credit < 0 and mu - new > 0.2)
    return 0.0 if gone else -min(new / mu, 20) * credit * x


def loop_dppo_kl(x, old, credit, at):
    return (
        0.0 if still_dppo_kl(math.exp(at - old), math.exp(old), credit) else -min(math.exp(at - old), 20) * credit * x
    )


def loop_topr_token(x, old, credit, at):
    return -credit * x if credit >= 0 else -min(math.exp(at - old), 1) * credit * x


def loop_dro(x, old, credit, at):
    return -(credit * x - 0.5 / 2 * (x - old) ** 2)


def loop_rollout_is(x, old, credit, at):
    ratio = math.exp(at - old)
    return -ratio * credit * x if 0.8 <= ratio <= 1.3 else 0.0


def still_ppo(ratio, mu, credit):
    return (credit > 0 and ratio > 1.3) or (credit < 0 and ratio < 0.8)


def still_dual_clip(ratio, mu, credit):
    return still_ppo(ratio, mu, credit) or (credit < 0 and ratio > 3)


def still_two_sided(ratio, mu, credit):
    return still_ppo(ratio, mu, credit) or (credit < 0 and ratio > 4)


def still_never(ratio, mu, credit):
    return False


def still_dppo_tv(ratio, mu, credit):
    return (credit > 0 and ratio * mu - mu > 0.2) or (credit < 0 and mu - ratio * mu > 0.2)


def still_dppo_kl(ratio, mu, credit):
    new = ratio * mu
    divergence = mu * math.log(mu / new) + (1 - mu) * math.log((1 - mu) / (1 - new))
    return divergence > 0.05 and ((credit > 0 and new > mu) or (credit < 0 and new < mu))


def still_rollout_is(ratio, mu, credit):
    return not 0.8 <= ratio <= 1.3


CLIP = {"clip_low": 0.2, "clip_high": 0.3}
BATTERY = {
    "ppo_dual_clip": (partial(surrogates.ppo_dual_clip, **CLIP), loop_dual_clip, still_dual_clip),
    "ppo_two_sided": (partial(surrogates.ppo_two_sided, **CLIP), loop_two_sided, still_two_sided),
    "cispo": (partial(surrogates.cispo, ratio_min=0.5, ratio_max=2.0), loop_cispo, still_never),
    "sapo": (surrogates.sapo, loop_sapo, still_never),
    "dppo_tv": (surrogates.dppo_tv, loop_dppo_tv, still_dppo_tv),
    "dppo_kl": (surrogates.dppo_kl, loop_dppo_kl, still_dppo_kl),
    "topr_token": (surrogates.topr_token, loop_topr_token, still_never),
    "dro": (partial(surrogates.dro, beta=0.5), loop_dro, still_never),
    "rollout_is": (partial(surrogates.rollout_is, **CLIP), loop_rollout_is, still_rollout_is),
}
every_objective = pytest.mark.parametrize(("objective", "loop", "still"), BATTERY.values(), ids=BATTERY)
every_call = pytest.mark.parametrize("objective", [row[0] for row in BATTERY.values()], ids=BATTERY)

LOGPROB = st.floats(min_value=-3, max_value=-0.05)
CREDIT = st.floats(min_value=-3, max_value=3)
TOKENS = st.lists(st.tuples(LOGPROB, LOGPROB, CREDIT, st.booleans()), min_size=1, max_size=10)


def columns(tokens):
    x, old, credit, mask = zip(*tokens, strict=True)
    return tensor(x), tensor(old), tensor(credit), torch.tensor(mask)


def near_a_corner(x, old, credit, *_):
    """Whether a step of 1e-6 could cross a bound at which some loop has no derivative."""
    return min(abs(math.exp(x - old) - edge) for edge in (0.8, 1.3, 3, 4)) < 1e-4


@every_objective
@settings(max_examples=25, deadline=None)
@given(tokens=TOKENS)
def test_agrees_with_a_loop_over_single_tokens(objective, loop, still, tokens):
    expected = [loop(x, old, credit, x) if mask else 0.0 for x, old, credit, mask in tokens]
    result = objective(*columns(tokens))
    assert result.loss_T.tolist() == pytest.approx(expected, abs=1e-9)
    ratios = [math.exp(x - old) if mask else 1.0 for x, old, credit, mask in tokens]
    assert result.ratio_T.tolist() == pytest.approx(ratios)


@every_objective
@settings(max_examples=25, deadline=None)
@given(tokens=TOKENS)
def test_gradient_agrees_with_finite_differences(objective, loop, still, tokens):
    tokens = [token for token in tokens if not near_a_corner(*token)] or [(-1.0, -1.0, 1.0, True)]
    x, old, credit, mask = columns(tokens)
    x.requires_grad_()
    objective(x, old, credit, mask).loss_T.sum().backward()
    h = 1e-6
    expected = [
        (loop(x + h, old, credit, x) - loop(x - h, old, credit, x)) / (2 * h) if mask else 0.0
        for x, old, credit, mask in tokens
    ]
    assert x.grad.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


RATIOS = (0.02, 0.3, 0.5, 0.79, 0.81, 0.95, 1.05, 1.29, 1.31, 1.9, 2.1, 2.9, 3.1, 3.9, 4.1, 9.0)
GRID = [
    (math.log(ratio * mu), math.log(mu), credit)
    for ratio, mu, credit in itertools.product(RATIOS, (0.1, 0.3, 0.5, 0.9), (-2.0, -0.5, 0.5, 2.0))
    if ratio * mu < 1
]


@every_objective
def test_the_gradient_is_zero_exactly_where_the_definition_says(objective, loop, still):
    x, old, credit = (tensor(column) for column in zip(*GRID, strict=True))
    x.requires_grad_()
    result = objective(x, old, credit, torch.ones(len(GRID), dtype=torch.bool))
    gradient = torch.autograd.grad(result.loss_T.sum(), x)[0]
    expected = [still(math.exp(now - before), math.exp(before), a) for now, before, a in GRID]
    assert (gradient == 0).tolist() == expected
    if still is not still_never:
        assert result.clipped_T.tolist() == expected
        assert any(expected)
        assert not all(expected)


@every_call
@settings(max_examples=15, deadline=None)
@given(tokens=st.lists(st.tuples(LOGPROB, CREDIT), min_size=1, max_size=8))
def test_at_ratio_one_the_gradient_is_that_of_reinforce(objective, tokens):
    old, credit = (tensor(column) for column in zip(*tokens, strict=True))
    mask = torch.ones(len(tokens), dtype=torch.bool)
    gradients = []
    for call in (objective, reinforce):
        x = old.clone().requires_grad_()
        result = call(x, old, credit, mask)
        assert not result.clipped_T.any()
        gradients.append(torch.autograd.grad(result.loss_T.sum(), x)[0])
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


@every_call
def test_the_expected_gradient_on_policy_is_the_exact_policy_gradient(objective):
    tree = Tree()
    torch.testing.assert_close(tree.expected(objective), tree.exact(), rtol=0.0, atol=1e-9)


UNBOUNDED = {
    "cispo": partial(surrogates.cispo, ratio_max=math.inf),
    "dppo_tv": partial(surrogates.dppo_tv, delta=1.0, ratio_max=math.inf),
    "rollout_is": partial(surrogates.rollout_is, clip_low=1.0, clip_high=math.inf),
    "ppo_clip": partial(ppo_clip, clip_low=1.0, clip_high=math.inf),
}


class Bandit(Tree):
    """One token: importance sampling per token is then importance sampling."""

    rewards_N = tensor([1.0, -0.5, 2.0])

    @classmethod
    def sequences(cls, head=()):
        return [(0,), (1,), (2,)]

    def probability_N(self, logprobs_T):
        return logprobs_T.exp()

    def expected(self, objective, sampler=None, rewards_N=rewards_N, **keywords):
        return super().expected(objective, sampler, rewards_N, **keywords)


@pytest.mark.parametrize("objective", UNBOUNDED.values(), ids=UNBOUNDED)
def test_without_bounds_the_ratio_corrects_for_another_sampler(objective):
    policy, sampler = Bandit(seed=3), Bandit(seed=4)
    torch.testing.assert_close(policy.expected(objective, sampler), policy.exact(), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("objective", [reinforce, BATTERY["cispo"][0], surrogates.topr_token])
def test_without_the_whole_ratio_another_sampler_biases_the_gradient(objective):
    policy, sampler = Bandit(seed=3), Bandit(seed=4)
    assert (policy.expected(objective, sampler) - policy.exact()).abs().max() > 0.01


@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("poison", POISON)
def test_what_stands_behind_the_mask_changes_nothing_to_the_bit(objective, dtype, poison):
    mask = torch.tensor([True, False, True, False])

    def run(hidden):
        rows = [tensor([a, hidden, b, hidden], dtype) for a, b in ((-0.4, -1.1), (-0.5, -0.9), (1.5, -0.5))]
        rows[0].requires_grad_()
        result = objective(*rows, mask)
        loss = result.loss_T.sum()
        return loss.detach(), torch.autograd.grad(loss, rows[0])[0], result.ratio_T, result.clipped_T

    for clean, poisoned in zip(run(0.0), run(poison), strict=True):
        assert torch.equal(clean, poisoned)
        assert torch.isfinite(poisoned).all()
    assert run(poison)[1][~mask].tolist() == [0.0, 0.0]
    assert run(poison)[2][~mask].tolist() == [1.0, 1.0]


@every_call
@pytest.mark.parametrize("place", [0, 2], ids=["logprob", "credit"])
def test_nan_at_a_trained_token_comes_out_as_nan(objective, place):
    rows = [tensor([-1.0, -1.0]), tensor([-1.0, -1.0]), tensor([-1.0, 1.0])]
    rows[place][0] = math.nan
    assert objective(*rows, torch.ones(2).bool()).loss_T.isnan().tolist() == [True, False]


@every_call
@pytest.mark.parametrize("credit", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("gap", [-800.0, 800.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_ratio_that_overflows_gives_no_nan(objective, credit, gap, dtype):
    # Outside of probabilities (a log-probability above 0) on purpose, to reach the overflow with a finite weight.
    x = tensor([-1.0 + max(gap, 0.0)], dtype).requires_grad_()
    result = objective(x, tensor([-1.0 - min(gap, 0.0)], dtype), tensor([credit], dtype), torch.tensor([True]))
    assert not result.loss_T.isnan().any()
    assert not torch.autograd.grad(result.loss_T.sum(), x)[0].isnan().any()


@every_call
def test_credit_and_the_old_policy_are_constants(objective):
    rows = [tensor([-1.0, -2.0]).requires_grad_() for _ in range(3)]
    result = objective(*rows, torch.ones(2).bool())
    result.loss_T.sum().backward()
    assert [row.grad is None for row in rows] == [False, True, True]
    assert not result.ratio_T.requires_grad


@every_call
def test_a_loss_per_sequence_or_a_float_mask_is_refused(objective):
    flat = tensor([-1.0, -1.0])
    with pytest.raises(TrainerError, match=r"advantages_T has shape \(1,\)"):
        objective(flat, flat, tensor([1.0]), torch.ones(2).bool())
    with pytest.raises(TrainerError, match="give booleans"):
        objective(flat, flat, flat, torch.ones(2))


@every_call
def test_no_token_at_all_is_an_empty_loss(objective):
    none = tensor([])
    assert objective(none, none, none, torch.zeros(0, dtype=torch.bool)).loss_T.tolist() == []


def losses(objective, ratios, credit):
    old = torch.full((len(ratios),), -9.0, dtype=torch.float64)
    return objective(tensor(ratios).log() - 9.0, old, tensor(credit), torch.ones(len(ratios)).bool())


def test_dual_clip_leaves_positive_credit_alone():
    # A 1, 1, 2, -1, -1, -1 at ratios 1, .5, 1.5, 5, .5, 1 with clip .2 and c = 3:
    # -1, -.5, -1.2 * 2, min(5, 3), .8, 1
    objective = partial(surrogates.ppo_dual_clip, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    result = losses(objective, [1.0, 0.5, 1.5, 5.0, 0.5, 1.0], [1.0, 1.0, 2.0, -1.0, -1.0, -1.0])
    assert result.loss_T.tolist() == pytest.approx([-1, -0.5, -2.4, 3, 0.8, 1])
    assert result.clipped_T.tolist() == [False, False, True, True, True, False]


def test_the_two_sided_clip_is_the_dual_clip_to_the_bit():
    x, old, credit = (tensor(column) for column in zip(*GRID, strict=True))
    mask = torch.ones(len(GRID), dtype=torch.bool)
    dual = surrogates.ppo_dual_clip(x, old, credit, mask, **CLIP, dual_clip=4.0)
    two_sided = surrogates.ppo_two_sided(x, old, credit, mask, **CLIP, delta=4.0)
    assert torch.equal(dual.loss_T, two_sided.loss_T)
    assert (dual.loss_T != ppo_clip(x, old, credit, mask, **CLIP).loss_T).any()


def test_cispo_takes_bounds_and_not_distances():
    # Weights at ratios .2 .9 3 5.5 8 with bounds 0 and 5: .2 .9 3 5 5. Read as distances: 1 1 3 5.5 6.
    ratios = [0.2, 0.9, 3.0, 5.5, 8.0]
    x = (tensor(ratios).log() - 9.0).requires_grad_()
    result = surrogates.cispo(x, torch.full_like(x, -9.0).detach(), torch.ones(5).double(), torch.ones(5).bool())
    gradient = torch.autograd.grad(result.loss_T.sum(), x)[0]
    assert (-gradient).tolist() == pytest.approx([0.2, 0.9, 3.0, 5.0, 5.0])
    assert result.clipped_T.tolist() == [False, False, False, True, True]
    with pytest.raises(ConfigError, match=r"a distance of 0.2 below and above is written 0.8 and 1.2"):
        surrogates.cispo(x, x, x, torch.ones(5).bool(), ratio_min=0.2, ratio_max=0.2)


def test_sapo_at_exact_numbers():
    # tau 1, ratio 1: sigmoid(0) = 1/2, loss -2. tau 2, ratio 2: sigmoid(2) = .880797, loss -(4/2) .880797 = -1.761594.
    assert losses(surrogates.sapo, [1.0], [1.0]).loss_T.tolist() == pytest.approx([-2.0])
    warm = partial(surrogates.sapo, temperature_positive=2.0)
    assert losses(warm, [2.0], [1.0]).loss_T.tolist() == pytest.approx([-1.761594], abs=1e-6)


def test_dppo_looks_at_probabilities_and_not_at_ratios():
    # 0.001 -> 0.05 is a ratio of 50 and a step of 0.049: it stays, with the weight 20. 0.5 -> 0.75 is 1.5 and leaves.
    x = tensor([0.05, 0.75]).log().requires_grad_()
    old, credit, mask = tensor([0.001, 0.5]).log(), tensor([1.0, 1.0]), torch.ones(2).bool()
    result = surrogates.dppo_tv(x, old, credit, mask)
    assert torch.autograd.grad(result.loss_T.sum(), x)[0].tolist() == pytest.approx([-20.0, 0.0])
    assert result.clipped_T.tolist() == [False, True]
    assert ppo_clip(x, old, credit, mask, clip_low=0.2, clip_high=1.0).clipped_T.tolist() == [True, False]


@pytest.mark.parametrize(
    ("mu", "new", "credit", "dropped"),
    [(1.0, 0.5, -1.0, True), (0.5, 1.0, 1.0, True), (1.0, 1.0, 1.0, False), (1.0, 0.99, -1.0, False)],
)
def test_certain_tokens_have_a_binary_divergence_too(mu, new, credit, dropped):
    # mu 1, pi .5: log 2 = .69 > .05. mu .5, pi 1: infinite. mu 1, pi .99: .01.
    columns = tensor([math.log(new)]), tensor([math.log(mu)]), tensor([credit]), torch.tensor([True])
    assert surrogates.dppo_kl(*columns).clipped_T.tolist() == [dropped]


def test_dro_is_at_rest_where_the_log_ratio_is_credit_over_beta():
    x = tensor([-1.0 + 0.3 / 0.5]).requires_grad_()
    loss_T = surrogates.dro(x, tensor([-1.0]), tensor([0.3]), torch.tensor([True]), beta=0.5).loss_T
    assert torch.autograd.grad(loss_T.sum(), x)[0].item() == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (partial(surrogates.ppo_dual_clip, **CLIP, dual_clip=1.0), "dual_clip is 1.0"),
        (partial(surrogates.ppo_two_sided, **CLIP, delta=1.2), "delta is 1.2; give a ratio above 1.3"),
        (partial(surrogates.ppo_two_sided, clip_low=1.5, clip_high=0.2), "clip_low is 1.5"),
        (partial(surrogates.sapo, temperature_negative=0.0), "temperature_negative 0.0"),
        (partial(surrogates.dppo_tv, delta=0.0), "delta is 0.0"),
        (partial(surrogates.dppo_kl, ratio_max=0.5), "ratio_max is 0.5"),
        (partial(surrogates.dro, beta=0.0), "beta is 0.0"),
        (partial(surrogates.rollout_is, clip_low=0.2, clip_high=math.nan), "clip_high is nan"),
    ],
)
def test_an_impossible_setting_is_refused(call, match):
    one = tensor([-1.0])
    with pytest.raises(ConfigError, match=match):
        call(one, one, one, torch.tensor([True]))
