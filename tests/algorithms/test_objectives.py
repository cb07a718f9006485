"""Every objective against a loop of its own, finite differences, poison behind the mask and the exact gradient."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.advantages import group_mean
from agentrl.algorithms.objectives import clipped_value_loss, cross_entropy, ppo_clip, reinforce, value_loss
from agentrl.algorithms.reduce import token_mean
from agentrl.errors import ConfigError, TrainerError
from tests.algorithms.tree import POISON, Tree, tensor


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


def loop_clipped_value_loss(x, old, advantage):
    near = min(max(x, old - 0.5), old + 0.5)
    return max((x - advantage) ** 2, (near - advantage) ** 2)


def call_reinforce(x, old, advantages, mask):
    return reinforce(x, old, advantages, mask).loss_T


def call_ppo_clip(x, old, advantages, mask):
    return ppo_clip(x, old, advantages, mask, clip_low=0.2, clip_high=0.3).loss_T


def call_cross_entropy(x, old, advantages, mask):
    return cross_entropy(x, mask)


def call_value_loss(x, old, advantages, mask):
    return value_loss(x, advantages, mask)


def call_clipped_value_loss(x, old, advantages, mask):
    return clipped_value_loss(x, old, advantages, mask, value_clip=0.5)


BATTERY = {
    "reinforce": (call_reinforce, loop_reinforce),
    "ppo_clip": (call_ppo_clip, loop_ppo_clip),
    "cross_entropy": (call_cross_entropy, loop_cross_entropy),
    "value_loss": (call_value_loss, loop_value_loss),
    "clipped_value_loss": (call_clipped_value_loss, loop_clipped_value_loss),
}
every_objective = pytest.mark.parametrize(("objective", "loop"), BATTERY.values(), ids=BATTERY)
POLICY = {"reinforce": reinforce, "ppo_clip": partial(ppo_clip, clip_low=0.2, clip_high=0.3)}

NUMBER = st.floats(min_value=-3, max_value=3)
TOKEN = st.tuples(NUMBER, NUMBER, NUMBER, st.booleans())
TOKENS = st.lists(TOKEN, min_size=1, max_size=12)


def columns(tokens):
    x, old, advantages, mask = zip(*tokens, strict=True)
    return tensor(x), tensor(old), tensor(advantages), torch.tensor(mask)


@every_objective
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS)
def test_agrees_with_a_loop_over_single_tokens(objective, loop, tokens):
    expected = [loop(x, old, advantage) if mask else 0.0 for x, old, advantage, mask in tokens]
    assert objective(*columns(tokens)).tolist() == pytest.approx(expected, abs=1e-9)


def near_a_corner(x, old, target):
    ratio_edges = (math.exp(x - old) - edge for edge in (0.8, 1.3))
    value_edges = (abs(x - old) - 0.5, abs(x - target) - abs(old + math.copysign(0.5, x - old) - target))
    return min(abs(gap) for gap in (*ratio_edges, *value_edges)) < 1e-3


@every_objective
@settings(max_examples=40, deadline=None)
@given(tokens=TOKENS)
def test_gradient_agrees_with_finite_differences(objective, loop, tokens):
    # A step across the corner of a clip has no derivative to agree with.
    tokens = [t for t in tokens if not near_a_corner(*t[:3])] or [(0, 0, 1, True)]
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


def test_the_tree_lists_every_sequence_once():
    tree = Tree()
    assert len(set(Tree.sequences())) == 15
    assert set(tree.prefix_T.tolist()) == set(range(7))
    assert tree.probability_N(tree.logprobs_T()).sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("objective", POLICY.values(), ids=POLICY)
def test_the_expected_gradient_is_the_exact_policy_gradient(objective):
    tree = Tree()
    torch.testing.assert_close(tree.expected(objective), tree.exact(), rtol=0.0, atol=1e-9)


def test_a_constant_baseline_leaves_the_expected_gradient():
    tree = Tree()
    shifted = tree.expected(reinforce, rewards_N=tree.rewards_N - 0.7)
    torch.testing.assert_close(shifted, tree.exact(), rtol=0.0, atol=1e-9)


def test_a_mean_per_sequence_would_not_be_the_policy_gradient():
    # Negative control: dividing each sequence by its own length weighs short sequences up.
    tree = Tree()
    lengths_T = torch.bincount(tree.sequence_T)[tree.sequence_T]

    def per_sequence(*columns):
        loss = reinforce(*columns)
        return loss._replace(loss_T=loss.loss_T / lengths_T)

    assert (tree.expected(per_sequence) - tree.exact()).abs().max() > 0.01


def test_a_baseline_of_the_group_scales_the_exact_gradient_by_its_size():
    # All 225 pairs of sequences. Each attempt is half of its own baseline: (G - 1) / G = 1/2 of the exact gradient.
    tree = Tree()
    chances, rewards = tree.probability_N(tree.logprobs_T()).tolist(), tree.rewards_N.tolist()
    credit_N = torch.zeros(15, dtype=torch.float64)
    for i, j in itertools.product(range(15), repeat=2):
        first, second = group_mean([rewards[i], rewards[j]])
        # A sequence is sampled with its own chance, which ``expected`` brings in; this is the other member's.
        credit_N[i] += chances[j] * first / 2
        credit_N[j] += chances[i] * second / 2
    expected = tree.expected(reinforce, rewards_N=credit_N)
    torch.testing.assert_close(expected, tree.exact() / 2, rtol=0.0, atol=1e-9)


def test_echo_is_cross_entropy_at_the_tokens_of_the_environment():
    # Three sampled tokens and two of a tool result; policy term over 3, ECHO term 0.1 over 2:
    # -(1)(-.5 - 1 - 1.5)/3 + 0.1 (0.2 + 0.4)/2 = 1 + 0.03
    logprobs = tensor([-0.5, -1.0, -0.2, -0.4, -1.5]).requires_grad_()
    sampled = torch.tensor([True, True, False, False, True])
    policy = reinforce(logprobs, logprobs.detach(), torch.ones_like(logprobs), sampled).loss_T
    loss = token_mean(policy, sampled.double(), 3.0)
    loss = loss + token_mean(cross_entropy(logprobs, ~sampled), 0.1 * (~sampled).double(), 2.0)
    assert loss.item() == pytest.approx(1.03)
    loss.backward()
    assert logprobs.grad.tolist() == pytest.approx([-1 / 3, -1 / 3, -0.05, -0.05, -1 / 3])


def test_a_value_clipped_against_the_stored_prediction_has_no_gradient():
    # (2 - 3)^2 = 1 against (1.2 - 3)^2 = 3.24; with PPO's factor of one half 1.62.
    value, mask = tensor([2.0]).requires_grad_(), torch.tensor([True])
    loss = clipped_value_loss(value, tensor([1.0]), tensor([3.0]), mask, value_clip=0.2)
    assert (loss / 2).tolist() == pytest.approx([1.62])
    assert torch.autograd.grad(loss.sum(), value)[0].tolist() == [0.0]


@pytest.mark.parametrize(
    ("new", "gradient"),
    [(1.1, -3.8), (1.2 + 1e-6, 0.0), (2.9, 0.0), (5.0, 4.0), (0.5, -5.0)],
    ids=["within", "just beyond", "nearer by far", "overshot", "moved away"],
)
def test_the_value_clip_acts_only_where_the_clipped_error_is_larger(new, gradient):
    # Old 1, return 3, clip .2. Overshot: (5 - 3)^2 = 4 > 3.24. Moved away: (.5 - 3)^2 = 6.25 > (.8 - 3)^2 = 4.84.
    value, mask = tensor([new]).requires_grad_(), torch.tensor([True])
    clipped_value_loss(value, tensor([1.0]), tensor([3.0]), mask, value_clip=0.2).sum().backward()
    assert value.grad.tolist() == pytest.approx([gradient])


def test_a_missing_stored_value_is_not_hidden():
    one, mask = tensor([1.0]), torch.tensor([True])
    assert clipped_value_loss(one, tensor([math.nan]), one, mask, value_clip=0.2).isnan().all()


@pytest.mark.parametrize("value_clip", [0.0, -1.0, math.nan])
def test_a_value_clip_that_is_no_distance_is_refused(value_clip):
    one = tensor([1.0])
    with pytest.raises(ConfigError, match="value_clip is"):
        clipped_value_loss(one, one, one, torch.tensor([True]), value_clip=value_clip)


def test_stale_data_is_clipped_and_never_compared_with_itself():
    # Current -1, sampler -2, A 1, clip .2: ratio e = 2.718, loss -1.2, no gradient.
    logprobs = tensor([-1.0]).requires_grad_()
    result = ppo_clip(logprobs, tensor([-2.0]), tensor([1.0]), torch.tensor([True]), clip_low=0.2, clip_high=0.2)
    assert (result.ratio_T.tolist(), result.loss_T.tolist()) == (pytest.approx([math.e]), pytest.approx([-1.2]))
    assert torch.autograd.grad(result.loss_T.sum(), logprobs)[0].tolist() == [0.0]


@pytest.mark.parametrize("old", [math.nan, -math.inf, 1e9])
def test_nan_behind_the_mask_reaches_neither_loss_nor_gradient(old):
    # logp 0, 0; A 1, 1; mask 1, 0: loss -1, gradient -1, 0.
    logprobs = tensor([0.0, 0.0]).requires_grad_()
    mask = torch.tensor([True, False])
    loss = ppo_clip(logprobs, tensor([0.0, old]), tensor([1.0, 1.0]), mask, clip_low=0.2, clip_high=0.2).loss_T.sum()
    assert loss.item() == -1.0
    assert torch.autograd.grad(loss, logprobs)[0].tolist() == [-1.0, 0.0]


def test_no_credit_and_a_ratio_that_overflows_is_no_loss():
    logprobs = tensor([0.0]).requires_grad_()
    result = ppo_clip(logprobs, tensor([-900.0]), tensor([0.0]), torch.tensor([True]), clip_low=0.2, clip_high=0.2)
    assert result.loss_T.tolist() == [0.0]
    assert torch.autograd.grad(result.loss_T.sum(), logprobs)[0].tolist() == [0.0]


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
