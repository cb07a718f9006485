"""Clip-Cov and KL-Cov: which tokens are chosen, what happens to them, and that the threshold forms do not care how a
step is cut."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import covariance as cov
from agentrl.algorithms.objectives import ppo_clip
from agentrl.errors import ConfigError, TrainerError
from tests.algorithms.tree import POISON, Tree, tensor

CLIP = {"clip_low": 0.2, "clip_high": 0.3}
BAND = {"share": 0.3, "cov_low": 0.1, "cov_high": 2.0}
MEANS = cov.StepMeans(advantage=0.1, logprob=-1.2)
CALLS = {
    "clip_cov": partial(cov.clip_cov, **CLIP, **BAND),
    "clip_cov_threshold": partial(cov.clip_cov_threshold, means=MEANS, cov_low=0.2, cov_high=2.0, **CLIP),
    "kl_cov": partial(cov.kl_cov, share=0.3, kl_coef=0.5),
    "kl_cov_threshold": partial(cov.kl_cov_threshold, means=MEANS, cov_low=0.2, kl_coef=0.5),
}
every_call = pytest.mark.parametrize("objective", CALLS.values(), ids=CALLS)

LOGPROB = st.floats(min_value=-3, max_value=-0.05)
TOKENS = st.lists(
    st.tuples(LOGPROB, LOGPROB, st.floats(min_value=-3, max_value=3), st.booleans()), min_size=1, max_size=12
)


def columns(tokens):
    x, old, credit, mask = zip(*tokens, strict=True)
    return tensor(x), tensor(old), tensor(credit), torch.tensor(mask)


def surrogate(x, old, credit, low=0.8, high=1.3):
    ratio = np.exp(x - old)
    return -np.minimum(ratio * credit, np.clip(ratio, low, high) * credit)


def reference(tokens, clipped):
    """Losses of the two step-wide forms, over the trained tokens only, in numpy."""
    x, old, credit = np.array([token[:3] for token in tokens if token[3]]).reshape(-1, 3).T
    if not len(x):
        return []
    values = (credit - credit.mean()) * (x - x.mean())
    count = max(1, int(0.3 * len(x)))
    if not clipped:
        chosen = values >= np.sort(values)[-count]
        return list(surrogate(x, old, credit, 0.0, np.inf) + 0.5 * chosen * abs(x - old))
    ratio = np.exp(x - old)
    cut = ((credit > 0) & (ratio > 1.3)) | ((credit < 0) & (ratio < 0.8))
    ranked = np.sort(values[(values > 0.1) & (values < 2.0) & ~cut])
    chosen = (values >= ranked[-min(count, len(ranked))]) & (values < 2.0) & ~cut if len(ranked) else cut & False
    return list(np.where(chosen, 0.0, surrogate(x, old, credit)))


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS)
def test_agrees_with_numpy(name, tokens):
    # Sums in another order may swap two covariances that are equal but for rounding.
    rows = columns(tokens)
    values = cov.covariance(rows[0], rows[2], rows[3], cov.step_means(rows[0], rows[2], rows[3]))[rows[3]].sort().values
    edges = torch.cat([values.diff().abs(), (values - 0.1).abs(), (values - 2.0).abs()])
    if (edges < 1e-9).any():
        return
    result = CALLS[name](*rows).loss_T
    assert result[rows[3]].tolist() == pytest.approx(reference(tokens, name == "clip_cov"), abs=1e-9)
    assert result[~rows[3]].tolist() == [0.0] * int((~rows[3]).sum())


# Four tokens, credit 1, -1, 1, -1 (mean 0), log-probabilities -1, -1, -3, -7 (mean -3): covariance 2, -2, 0, 4.
LOGPROBS, CREDIT, ALL = [-1.0, -1.0, -3.0, -7.0], [1.0, -1.0, 1.0, -1.0], torch.ones(4).bool()


def test_covariance_on_exact_numbers():
    means = cov.step_means(tensor(LOGPROBS), tensor(CREDIT), ALL)
    assert means == (0.0, -3.0)
    values = cov.covariance(tensor(LOGPROBS), tensor(CREDIT), ALL, means)
    assert values.tolist() == [2.0, -2.0, 0.0, 4.0]
    # A share of .5 of 4 tokens is 2, of .0002 at least 1.
    assert (cov.covariance_bound(values, 4, share=0.5), cov.covariance_bound(values, 4)) == (2.0, 4.0)
    assert cov.covariance_bound(values[:0], 4) == math.inf


@pytest.mark.parametrize(
    ("share", "band", "still"),
    [
        (2e-4, (1.0, 5.0), [False, False, False, True]),
        (0.5, (1.0, 5.0), [True, False, False, True]),
        (1.0, (1.0, 3.0), [True, False, False, False]),
        (1.0, (5.0, 6.0), [False] * 4),
    ],
)
def test_clip_cov_cuts_exactly_the_chosen_tokens(share, band, still):
    x = tensor(LOGPROBS).requires_grad_()
    low, high = band
    result = cov.clip_cov(x, x.detach(), tensor(CREDIT), ALL, **CLIP, share=share, cov_low=low, cov_high=high)
    assert (torch.autograd.grad(result.loss_T.sum(), x)[0] == 0).tolist() == still
    assert result.clipped_T.tolist() == still


def test_clip_cov_leaves_what_the_clip_has_cut_out_of_the_draw():
    # The token of covariance 4 has fallen to half its ratio with credit -1: the clip has it, so the next one is chosen.
    old = tensor([-1.0, -1.0, -3.0, -7.0 + math.log(2)])
    result = cov.clip_cov(tensor(LOGPROBS), old, tensor(CREDIT), ALL, **CLIP)
    assert result.clipped_T.tolist() == [True, False, False, True]


def test_a_generator_draws_uniformly_from_the_band():
    draw = partial(cov.clip_cov, tensor(LOGPROBS), tensor(LOGPROBS), tensor(CREDIT), ALL, **CLIP)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([draw(generator=generator).clipped_T for _ in range(400)]).double().mean(0)
    # Two candidates, one drawn: each in half of 400 draws, standard error .025.
    assert drawn.tolist() == pytest.approx([0.5, 0.0, 0.0, 0.5], abs=0.1)
    again = [draw(generator=torch.Generator().manual_seed(1)).clipped_T for _ in range(2)]
    assert torch.equal(*again)


def test_kl_cov_pulls_the_chosen_token_only():
    # Ratio 2 everywhere: loss -2 A, and + .5 log 2 at the token of covariance 4; gradient -2 A, and + .5 there.
    x = tensor(LOGPROBS).requires_grad_()
    result = cov.kl_cov(x, tensor(LOGPROBS) - math.log(2), tensor(CREDIT), ALL, kl_coef=0.5)
    assert result.loss_T.tolist() == pytest.approx([-2.0, 2.0, -2.0, 2.0 + 0.5 * math.log(2)])
    assert torch.autograd.grad(result.loss_T.sum(), x)[0].tolist() == pytest.approx([-2.0, 2.0, -2.0, 2.5])
    assert not result.clipped_T.any()


def step_of(tokens):
    x, old, credit, mask = columns(tokens)
    means = cov.step_means(x, credit, mask)
    bound = cov.covariance_bound(cov.covariance(x, credit, mask, means), int(mask.sum()), share=0.3)
    return (x, old, credit, mask), means, bound


@settings(max_examples=40, deadline=None)
@given(tokens=TOKENS, cut=st.integers(min_value=0, max_value=12))
def test_the_threshold_forms_do_not_depend_on_how_the_step_is_cut(tokens, cut):
    rows, means, bound = step_of(tokens)
    kl = partial(cov.kl_cov_threshold, means=means, cov_low=bound, kl_coef=0.5)
    clip = partial(cov.clip_cov_threshold, means=means, cov_low=bound, cov_high=math.inf, **CLIP)
    for form in (kl, clip):
        pieces = [form(*(row[part] for row in rows)).loss_T for part in (slice(cut), slice(cut, None))]
        assert torch.equal(form(*rows).loss_T, torch.cat(pieces))
    assert torch.equal(kl(*rows).loss_T, CALLS["kl_cov"](*rows).loss_T)


def test_the_other_forms_do():
    # Negative control: cut in two, each half has a token of its own to pull.
    rows = tensor(LOGPROBS), tensor(LOGPROBS) - math.log(2), tensor(CREDIT), ALL
    whole = cov.kl_cov(*rows).loss_T
    halves = torch.cat([cov.kl_cov(*(row[part] for row in rows)).loss_T for part in (slice(2), slice(2, None))])
    assert not torch.equal(whole, halves)


@every_call
@settings(max_examples=20, deadline=None)
@given(tokens=TOKENS, seed=st.integers(0, 99))
def test_permuting_the_tokens_permutes_the_losses(objective, tokens, seed):
    # Numbers on a coarse grid, so that sums do not depend on their order.
    rows = [row if row.dtype == torch.bool else (row * 4).round() / 4 for row in columns(tokens)]
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    permuted = objective(*(row[order] for row in rows)).loss_T
    torch.testing.assert_close(permuted, objective(*rows).loss_T[order], rtol=1e-12, atol=1e-12)


@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("poison", POISON)
def test_what_stands_behind_the_mask_changes_nothing_to_the_bit(objective, dtype, poison):
    mask = torch.tensor([True, False, True, False])

    def run(hidden):
        rows = [tensor([a, hidden, b, hidden], dtype) for a, b in ((-0.4, -1.7), (-0.5, -1.6), (1.5, -0.5))]
        rows[0].requires_grad_()
        result = objective(*rows, mask)
        loss = result.loss_T.sum()
        return loss.detach(), torch.autograd.grad(loss, rows[0])[0], result.ratio_T, result.clipped_T

    for clean, poisoned in zip(run(0.0), run(poison), strict=True):
        assert torch.equal(clean, poisoned)
        assert torch.isfinite(poisoned).all()


@every_call
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_at_a_trained_token_comes_out_as_nan(objective, place):
    rows = [tensor([-1.0, -1.0]), tensor([-1.0, -1.0]), tensor([-1.0, 1.0])]
    rows[place][0] = math.nan
    assert objective(*rows, torch.ones(2).bool()).loss_T.isnan().tolist() == [True, False]


@every_call
def test_nothing_trained_is_no_loss(objective):
    rows = tensor([-1.0]), tensor([-1.0]), tensor([1.0])
    assert objective(*rows, torch.tensor([False])).loss_T.tolist() == [0.0]


@every_call
def test_credit_and_the_old_policy_are_constants(objective):
    rows = [tensor([-1.0, -2.0]).requires_grad_() for _ in range(3)]
    objective(*rows, torch.ones(2).bool()).loss_T.sum().backward()
    assert [row.grad is None for row in rows] == [False, True, True]


@pytest.mark.parametrize("name", ["kl_cov", "kl_cov_threshold"])
def test_on_policy_kl_cov_is_the_exact_policy_gradient(name):
    tree = Tree()
    torch.testing.assert_close(tree.expected(CALLS[name]), tree.exact(), rtol=0.0, atol=1e-9)


def test_clip_cov_is_not():
    # Negative control, and what the method is for: it takes gradient away on policy too.
    tree = Tree()
    assert (tree.expected(CALLS["clip_cov"]) - tree.exact()).abs().max() > 1e-3
    silent = partial(cov.clip_cov, **CLIP, cov_low=98.0, cov_high=99.0)
    plain = partial(ppo_clip, **CLIP)
    assert torch.equal(tree.expected(silent), tree.expected(plain))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (partial(cov.clip_cov, **CLIP, cov_low=5.0, cov_high=1.0), r"cov_low is 5.0 and cov_high 1.0"),
        (partial(cov.clip_cov, **CLIP, share=0.0), r"share is 0.0"),
        (partial(cov.kl_cov, share=1.5), r"share is 1.5"),
        (partial(cov.kl_cov, kl_coef=-1.0), r"kl_coef is -1.0"),
    ],
)
def test_an_impossible_setting_is_refused(call, match):
    one = tensor([-1.0])
    with pytest.raises(ConfigError, match=match):
        call(one, one, one, torch.tensor([True]))


@every_call
def test_uneven_shapes_are_refused(objective):
    one = tensor([-1.0])
    with pytest.raises(TrainerError, match="give one entry per token"):
        objective(one, one, tensor([1.0, 2.0]), torch.tensor([True]))
