"""Distributions over a part of the vocabulary: against all logits, masked, at float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from agentrl.errors import TrainerError
from agentrl.train import support as module
from agentrl.train.head import token_scores
from agentrl.train.packing import count, pack
from agentrl.train.support import pack_support, supported_scores
from agentrl.types import Sample

D, V = 5, 23


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def sample(ids, support, trace="t"):
    """A sample whose tokens are all trained but the first."""
    weights = (0.0,) + (1.0,) * (len(ids) - 1)
    return Sample(
        token_ids=tuple(ids),
        weights={"pg": weights},
        logprobs=(None,) + (-1.0,) * (len(ids) - 1),
        advantages=weights,
        trace_id=trace,
        group_id=trace,
        support=support,
    )


TOKENS = (0, 22, 3, 3, 11, 4)
SUPPORT = ((0,), (0, 1, 2, 21, 22), None, (2, 3), tuple(range(V)), (1, 4, 9, 11))
"""One word alone, both ends, the whole vocabulary by its absence and word by word; some words in several."""


def parts(dtype=torch.float64):
    given = sample((7, *TOKENS), (None, *SUPPORT))
    columns = normal(len(TOKENS), D, dtype=dtype), normal(V, D, seed=1, dtype=dtype), normal(V, seed=2, dtype=dtype)
    return columns, torch.tensor(TOKENS), pack_support([(given, np.arange(1, len(TOKENS) + 1))])


def ours(columns, target_K, support, temperature=1.0, *, entropy_gradient=True):
    hidden_KD, weight_VD, bias_V = columns
    how = {"bias_V": bias_V, "temperature": temperature, "entropy_gradient": entropy_gradient}
    return supported_scores(hidden_KD, weight_VD, target_K, support, **how)


def dense(columns, target_K, temperature=1.0):
    """All logits, those outside the support at -inf, as torch's own distribution has it."""
    hidden_KD, weight_VD, bias_V = columns
    logits_KV = (hidden_KD @ weight_VD.T + bias_V) / temperature
    logprobs, entropies = [], []
    for logits_V, token, ids in zip(logits_KV, target_K.tolist(), SUPPORT, strict=True):
        words = list(ids or range(V))
        over = torch.distributions.Categorical(logits=logits_V[words])
        logprobs.append(over.log_prob(torch.tensor(words.index(token))))
        entropies.append(over.entropy())
    return torch.stack(logprobs), torch.stack(entropies)


def gradients(scores, inputs):
    """Of a sum with unequal factors, for the log-probabilities and the entropies."""
    factors = torch.arange(1.0, len(TOKENS) + 1, dtype=scores[0].dtype)
    return torch.autograd.grad((scores[0] * factors + scores[1] * factors.flip(0)).sum(), inputs)


def test_one_token_by_hand():
    # Logits 0, ln 2, ln 5 and ln 9; of the words 1 and 2 the probabilities are 2/7 and 5/7.
    weight = torch.tensor([[0.0], [math.log(2)], [math.log(5)], [math.log(9)]])
    support = pack_support([(sample((0, 1), (None, (1, 2))), np.array([1]))])
    scores = supported_scores(torch.ones(1, 1), weight, torch.tensor([1]), support)
    assert scores.logprobs_K.item() == pytest.approx(math.log(2 / 7))
    assert scores.entropy_K.item() == pytest.approx(-(2 / 7 * math.log(2 / 7) + 5 / 7 * math.log(5 / 7)))


@pytest.mark.parametrize("chunk", [1, 3 * D, 2**20])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_masked_logits(temperature, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    columns, target_K, support = parts()
    found, expected = ours(columns, target_K, support, temperature), dense(columns, target_K, temperature)
    torch.testing.assert_close(tuple(found), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(found, columns), gradients(expected, columns), rtol=1e-11, atol=1e-12)
    # Negative control: the distributions over the whole vocabulary are others.
    whole = token_scores(*columns[:2], target_K, bias_V=columns[2], temperature=temperature, entropy_gradient=True)
    changed = (whole.logprobs_K - found.logprobs_K).abs() > 1e-3
    assert changed.tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("entropy_gradient", [True, False])
def test_the_gradient_is_that_of_finite_differences(entropy_gradient):
    columns, target_K, support = parts()
    outputs = 2 if entropy_gradient else 1
    assert gradcheck(
        lambda *x: tuple(ours(x, target_K, support, 0.8, entropy_gradient=entropy_gradient))[:outputs], columns
    )


def test_entropies_carry_a_gradient_only_where_it_is_asked_for():
    columns, target_K, support = parts()
    for asked in (True, False):
        scores = ours(columns, target_K, support, entropy_gradient=asked)
        assert scores.entropy_K.requires_grad is asked
        assert scores.logprobs_K.requires_grad
        assert torch.equal(scores.entropy_K, ours(columns, target_K, support).entropy_K)


def test_a_word_that_is_in_no_support_gets_no_gradient_and_may_be_anything():
    (hidden_KD, weight_VD, _), target_K, _ = parts()
    supports = tuple((token, token + 30) for token in TOKENS)
    wide_VD = torch.cat((weight_VD, normal(30, D, seed=3))).detach()
    used = {word for ids in supports for word in ids}
    for unused in set(range(len(wide_VD))) - used:
        wide_VD[unused] = float("nan") if unused % 2 else 1e30
    wide_VD.requires_grad_()
    support = pack_support([(sample((7, *TOKENS), (None, *supports)), np.arange(1, len(TOKENS) + 1))])
    scores = supported_scores(hidden_KD, wide_VD, target_K, support, entropy_gradient=True)
    assert scores.logprobs_K.isfinite().all()
    (grad,) = torch.autograd.grad(scores.logprobs_K.sum() + scores.entropy_K.sum(), wide_VD)
    assert {word for word in range(len(wide_VD)) if grad[word].any()} == used


def test_a_token_that_alone_could_be_drawn_is_sure_and_teaches_nothing():
    columns, _, _ = parts()
    support = pack_support([(sample((7, 4), (None, (4,))), np.array([1]))])
    hidden_KD = columns[0][:1]
    scores = supported_scores(hidden_KD, columns[1], torch.tensor([4]), support, entropy_gradient=True)
    assert (scores.logprobs_K.item(), scores.entropy_K.item()) == (0.0, 0.0)
    (grad,) = torch.autograd.grad(scores.logprobs_K.sum() + scores.entropy_K.sum(), columns[1])
    assert not grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    exact, target_K, support = parts()
    columns = [x.detach().to(dtype).requires_grad_() for x in exact]
    wide = [x.detach().float().requires_grad_() for x in columns]
    found, expected = ours(columns, target_K, support), ours(wide, target_K, support)
    assert found.logprobs_K.dtype == found.entropy_K.dtype == torch.float32
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-5, atol=1e-5)
    for mine, other in zip(gradients(found, columns), gradients(expected, wide), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.float(), other, rtol=4 * torch.finfo(dtype).eps, atol=2e-2)


def test_frozen_parts_get_no_gradient_and_change_none():
    columns, target_K, support = parts()
    full = torch.autograd.grad(ours(columns, target_K, support).logprobs_K.sum(), columns)
    for kept in range(3):
        some = [x.detach().requires_grad_(place == kept) for place, x in enumerate(columns)]
        ours(some, target_K, support).logprobs_K.sum().backward()
        assert [x.grad is not None for x in some] == [place == kept for place in range(3)]
        torch.testing.assert_close(some[kept].grad, full[kept])


def test_logits_far_apart_stay_finite_and_no_log_probability_is_positive():
    weight = torch.tensor([[-3000.0], [3000.0], [2999.0], [1e30]]).requires_grad_()
    for target, expected in ((1, -math.log1p(math.exp(-1))), (0, -6000 - math.log1p(math.exp(-1)))):
        support = pack_support([(sample((0, target), (None, (0, 1, 2))), np.array([1]))])
        scores = supported_scores(torch.ones(1, 1), weight, torch.tensor([target]), support, entropy_gradient=True)
        assert scores.logprobs_K.item() == pytest.approx(expected, rel=1e-6)
        assert scores.logprobs_K.item() <= 0
        (grad,) = torch.autograd.grad(scores.logprobs_K.sum() + scores.entropy_K.sum(), weight)
        assert grad.isfinite().all()


def test_without_any_support_nothing_changes_to_the_bit():
    (hidden_KD, weight_VD, _), target_K, _ = parts(torch.float32)
    assert pack_support([(sample((7, *TOKENS), ()), np.arange(1, 7))]) is None
    found, expected = (
        supported_scores(hidden_KD, weight_VD, target_K, None),
        token_scores(hidden_KD, weight_VD, target_K),
    )
    assert all(map(torch.equal, found, expected))


# From samples to a batch.


def test_supports_lie_one_after_the_other_where_tokens_have_them():
    first = sample((7, 4, 5), (None, (4, 9), None), trace="a")
    second = sample((7, 8), (), trace="b")
    third = sample((7, 1, 2), (None, (0, 1, 2), (2,)), trace="c")
    support = pack([[first], [second], [third]], count([first, second, third])).support
    # Trained tokens, in the order of the batch: 4 5 | 8 | 1 2
    assert support.token_N.tolist() == [0, 3, 4]
    assert support.ids_S.tolist() == [4, 9, 0, 1, 2, 2]
    assert support.row_S.tolist() == [0, 0, 1, 1, 1, 2]
    assert support.place_N.tolist() == [0, 3, 5]
    assert pack([[second]], count([second])).support is None


@pytest.mark.parametrize(("ids", "times"), [((4, 9), 0), ((5, 5), 2)])
def test_a_token_that_was_not_drawn_from_its_support_is_refused_by_the_name_of_its_trace(ids, times):
    bad = sample((7, 5), (None, ids), trace="run-3-1")
    with pytest.raises(TrainerError, match=f"trace run-3-1: token 1 is 5, which is {times} times among the 2 ids"):
        pack([[bad]], count([bad]))


def test_supports_and_tokens_must_be_aligned():
    bad = replace(sample((7, 5), (None, (5,))), support=((5,),))
    with pytest.raises(TrainerError, match="support has 1 entries for 2 token ids"):
        pack([[bad]], count([bad]))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_supports_in_any_order(data):
    """Ragged supports at random, against masked logits."""
    words = st.one_of(st.none(), st.sets(st.integers(0, V - 1), min_size=1, max_size=V))
    chosen = data.draw(st.lists(words, min_size=1, max_size=6))
    supports = tuple(None if ids is None else tuple(sorted(ids)) for ids in chosen)
    tokens = tuple(data.draw(st.sampled_from(ids or tuple(range(V)))) for ids in supports)
    support = pack_support([(sample((7, *tokens), (None, *supports)), np.arange(1, len(tokens) + 1))])
    hidden_KD, weight_VD, target_K = normal(len(tokens), D), normal(V, D, seed=1), torch.tensor(tokens)
    mask_KV = torch.ones(len(tokens), V, dtype=torch.bool)
    for row, ids in enumerate(supports):
        if ids is not None:
            mask_KV[row] = torch.isin(torch.arange(V), torch.tensor(ids))
    logprobs_KV = (hidden_KD @ weight_VD.T).masked_fill(~mask_KV, -math.inf).log_softmax(-1)
    found = supported_scores(hidden_KD, weight_VD, target_K, support)
    torch.testing.assert_close(found.logprobs_K, logprobs_KV.gather(1, target_K[:, None]).squeeze(1))
    entropies = -torch.where(mask_KV, logprobs_KV.exp() * logprobs_KV, 0.0).sum(1)
    torch.testing.assert_close(found.entropy_K, entropies)
