"""Which tokens a truncated distribution keeps: by hand, against transformers, and at equals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from agentrl.errors import TrainerError
from agentrl.train import truncation
from agentrl.train.truncation import check_reported, kept
from agentrl.types import Sample, Sampling

PROBABILITIES = torch.tensor([[0.10, 0.40, 0.05, 0.25, 0.20]])
LOGITS = PROBABILITIES.log()


def ids(logits, **rules):
    (mask,) = kept(logits, Sampling(**rules))
    return mask.nonzero().squeeze(1).tolist()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 1}, [1]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),  # 0.40 is not enough
        ({"top_p": 0.84}, [1, 3, 4]),  # 0.40 + 0.25 + 0.20 = 0.85
        ({"top_p": 0.86}, [0, 1, 3, 4]),
        ({"min_p": 0.30}, [1, 3, 4]),  # at least 0.3 * 0.40 = 0.12
        ({"min_p": 1.0}, [1]),
        # Of the three likeliest, 40/85, 25/85 and 20/85: the first two have 65/85 = 0.765.
        ({"top_k": 3, "top_p": 0.76}, [1, 3]),
        ({"top_k": 3, "top_p": 0.77}, [1, 3, 4]),
        # Min-p comes last. Before top-p it would leave 1 and 3, of which 1 alone has 40/65 = 0.615 and is enough.
        ({"top_p": 0.61, "min_p": 0.60}, [1, 3]),
    ],
)
def test_by_hand(rules, expected):
    assert ids(LOGITS, **rules) == expected


def in_transformers(logits, sampling):
    """What the warpers of transformers leave, in the order in which its `generate` calls them."""
    warpers = []
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    for warper in warpers:
        logits = warper(None, logits)
    return logits > -math.inf


samplings = st.builds(
    Sampling,
    top_k=st.sampled_from([0, 0, 1, 2, 5, 30, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
)


@settings(max_examples=150, deadline=None)
@given(samplings, st.integers(0, 2**31), st.sampled_from([0.3, 1.0, 4.0]), st.sampled_from([1, 2, 7, 700]))
def test_the_same_tokens_as_in_transformers(sampling, seed, scale, words):
    logits = scale * torch.randn(3, words, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.equal(kept(logits, sampling), in_transformers(logits, sampling))


def test_the_order_matters_and_is_that_of_transformers():
    """Negative control: the test above would see another order."""
    sampling = Sampling(top_p=0.61, min_p=0.60)
    ours = kept(LOGITS.double(), sampling)
    assert torch.equal(ours, in_transformers(LOGITS.double(), sampling))
    min_p_first = MinPLogitsWarper(0.60)(None, LOGITS.double())
    assert (TopPLogitsWarper(0.61)(None, min_p_first) > -math.inf).sum() == 1 != ours.sum()


@pytest.mark.parametrize("first", [1, 2, 40])
def test_where_the_search_for_the_nucleus_begins_changes_nothing(first, monkeypatch):
    """Rows of unlike nuclei: that of the first is one token, that of the last nearly all."""
    scales = torch.tensor([[20.0], [3.0], [1.0], [0.1]])
    logits = scales * torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    expected = kept(logits, Sampling(top_p=0.9))
    monkeypatch.setattr(truncation, "FIRST_RANKED", first)
    assert torch.equal(kept(logits, Sampling(top_p=0.9)), expected)
    assert expected.sum(1).tolist() == in_transformers(logits, Sampling(top_p=0.9)).sum(1).tolist()
    assert expected[0].sum() < 5
    assert expected[3].sum() > 400


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"top_k": 2}, [1, 2, 3]),  # the second has an equal
        ({"top_k": 2, "top_p": 0.49}, [1]),  # 4/8, 2/8 and 2/8
        ({"top_k": 2, "top_p": 0.51}, [1, 2, 3]),
        ({"top_p": 0.45}, [1, 2, 3]),
        ({"min_p": 0.5}, [1, 2, 3]),
    ],
)
def test_equals_are_kept_together(rules, expected):
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.2, 0.1]]).log()
    assert ids(logits, **rules) == expected


def test_many_equals():
    logits = torch.zeros(2, 300)
    logits[1, 7] = 5.0
    for rules in ({"top_k": 3}, {"top_p": 0.2}, {"top_k": 3, "top_p": 0.2}, {"min_p": 1.0}):
        first, second = kept(logits, Sampling(**rules))
        assert first.all()
        assert second[7]
    # e^5 = 148 of 148 + 299: a third; with 0.2 it is enough alone.
    assert kept(logits, Sampling(top_p=0.2))[1].sum() == 1


@settings(max_examples=40, deadline=None)
@given(samplings, st.integers(0, 2**31), st.randoms(use_true_random=False))
def test_neither_the_place_of_a_word_nor_the_other_rows_matter(sampling, seed, random):
    # Few levels, so that there are equals.
    logits = torch.randint(-8, 8, (3, 20), generator=torch.Generator().manual_seed(seed)).float() / 4
    mask = kept(logits, sampling)
    order = random.sample(range(20), 20)
    assert torch.equal(kept(logits[:, order], sampling), mask[:, order])
    for row in range(3):
        assert torch.equal(kept(logits[row : row + 1], sampling)[0], mask[row])
    assert mask.gather(1, logits.argmax(1, keepdim=True)).all()


def test_a_word_that_the_model_rules_out_is_never_kept():
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    for rules in ({}, {"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.01}, {"top_k": 3, "top_p": 0.999999}):
        assert ids(logits, **rules) == [0, 2]


def test_rounding_of_a_mass_near_1_drops_no_rule():
    """The float32 masses of top-k may add up to less than top-p; what top-k dropped must stay out."""
    logits = torch.randn(50, 400, generator=torch.Generator().manual_seed(0))
    assert torch.equal(kept(logits, Sampling(top_k=100, top_p=1 - 1e-12)), kept(logits, Sampling(top_k=100)))


def reported(support, weights=(0.0, 1.0, 1.0), objective="pg"):
    return Sample(
        token_ids=(7, 4, 5),
        weights={objective: weights},
        logprobs=(None, -1.0, -1.0),
        advantages=weights,
        trace_id="run-3-1",
        group_id="g",
        support=support,
    )


@pytest.mark.parametrize("rule", [{"top_p": 0.9999}, {"top_k": 50}, {"min_p": 1e-6}])
def test_a_sampler_that_truncates_must_say_what_it_drew_from(rule):
    sampling = Sampling(**rule)
    whole = reported((None, (4,), (5, 6)))
    check_reported([whole, reported((None, (4,), None), weights=(0.0, 1.0, 0.0))], sampling)
    for silent, place in ((reported(()), 1), (reported((None, (4,), None)), 2)):
        with pytest.raises(TrainerError, match=f"trace run-3-1: token {place} has no support.*{next(iter(rule))}="):
            check_reported([whole, silent], sampling)
        check_reported([whole, silent], Sampling(temperature=0.7))
    check_reported([reported((), objective="ce")], sampling)  # a likelihood is that of the whole vocabulary
