"""How far the policies are apart: on exact numbers, under every split, and against exact divergences."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.corrections import geometric_mask, sequence_tis, token_mis, token_tis
from agentrl.algorithms.diagnostics import Diagnostics, diagnostics
from agentrl.errors import TrainerError


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def test_the_mean_before_truncation_stands_beside_the_one_after():
    # L03: ratios .67032, 7.389056, 1.105171: mean 3.054849; capped at 2, 1.258497; masked at 2, .59183.
    old, sampler, mask = tensor([-0.4, 2.0, 0.1]), torch.zeros(3).double(), torch.ones(3).bool()
    capped = diagnostics(old, sampler, mask, token_tis(old, sampler, mask, cap=2.0))
    assert capped.mean_weight == pytest.approx(3.054849, abs=1e-6)
    assert capped.corrected_mean_weight == pytest.approx(1.258497, abs=1e-6)
    assert (capped.share_capped, capped.share_kept) == (pytest.approx(1 / 3), 1.0)
    masked = diagnostics(old, sampler, mask, token_mis(old, sampler, mask, low=0.5, high=2.0))
    assert masked.mean_weight == pytest.approx(3.054849, abs=1e-6)
    assert masked.corrected_mean_weight == pytest.approx(0.59183, abs=1e-5)
    assert (masked.share_capped, masked.share_kept) == (0.0, pytest.approx(2 / 3))
    assert masked.max_ratio == pytest.approx(7.389056, abs=1e-6)


def test_effective_sample_size_chi_square_and_k3_on_exact_numbers():
    # Ratios 1, 3: (1 + 3)^2 / (2 * 10) = .8; 10/2 - 1 = 4; k3 (0 + 3 - 1 - ln 3) / 2.
    old, mask = tensor([1.0, 3.0]).log(), torch.ones(2).bool()
    report = diagnostics(old, torch.zeros(2).double(), mask, token_tis(old, torch.zeros(2).double(), mask, cap=2.0))
    assert report.effective_sample_size == pytest.approx(0.8)
    assert report.chi_square == pytest.approx(4.0)
    assert report.k3 == pytest.approx((2 - math.log(3)) / 2)
    # Weights 1, 2: 9 / (2 * 5)
    assert report.corrected_effective_sample_size == pytest.approx(0.9)


def test_expectations_are_the_divergences_they_estimate():
    # 1,000 draws in the exact proportions of the sampler (.5, .3, .2) against a policy (.4, .4, .2).
    mu, policy = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    draws = [symbol for symbol, p in enumerate(mu) for _ in range(round(1000 * p))]
    old, sampler = tensor([policy[s] for s in draws]).log(), tensor([mu[s] for s in draws]).log()
    mask = torch.ones(1000).bool()
    report = diagnostics(old, sampler, mask, token_tis(old, sampler, mask))
    assert report.mean_weight == pytest.approx(1.0)
    assert report.k3 == pytest.approx(sum(q * math.log(q / p) for q, p in zip(mu, policy, strict=True)))
    assert report.chi_square == pytest.approx(sum(p * p / q for q, p in zip(mu, policy, strict=True)) - 1)


def test_per_sequence_the_product_counts_once():
    # L02 in the report: token weights near 1, products at 0.06 - it is the length, not the engine.
    old, sampler = torch.full((8001,), -1.00035), torch.full((8001,), -1.0)
    mask = torch.ones(8001).bool()
    mask[8000] = False
    sequence = torch.zeros(8001, dtype=torch.int64)
    sequence[8000] = 1  # a sequence without a trained token does not count
    correction = sequence_tis(old, sampler, mask, sequence_T=sequence)
    by_token = diagnostics(old, sampler, mask, correction)
    by_sequence = diagnostics(old, sampler, mask, correction, sequence_T=sequence)
    assert (by_token.num_weights, by_sequence.num_weights) == (8000, 1)
    assert by_token.mean_weight == pytest.approx(0.99965, abs=1e-5)
    assert by_sequence.mean_weight == pytest.approx(0.06081, rel=1e-3)
    assert by_sequence.corrected_mean_weight == pytest.approx(0.06081, rel=1e-3)


def test_per_sequence_shares_count_sequences():
    # Three sequences, scattered; the middle one is rejected by its mean e^.5.
    old = tensor([0.0, 0.5, 0.0, 0.5, 0.001]) - 2
    sampler, mask, sequence = torch.full((5,), -2.0).double(), torch.ones(5).bool(), torch.tensor([0, 1, 0, 1, 2])
    correction = geometric_mask(old, sampler, mask, sequence_T=sequence)
    report = diagnostics(old, sampler, mask, correction, sequence_T=sequence)
    assert (report.num_weights, report.num_kept) == (3, 2)
    # Products 1, e, e^.001
    assert report.mean_weight == pytest.approx((1 + math.e + math.exp(0.001)) / 3)
    assert report.corrected_mean_weight == pytest.approx(2 / 3)


ROWS = st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.booleans()), min_size=2, max_size=12)


@settings(max_examples=50, deadline=None)
@given(rows=ROWS, data=st.data())
def test_reports_of_pieces_add_up_to_the_report_of_the_step(rows, data):
    old, sampler, mask = (torch.tensor(column) for column in zip(*rows, strict=True))
    cut = data.draw(st.integers(1, len(rows) - 1))

    def report(piece):
        correction = token_tis(old[piece], sampler[piece], mask[piece])
        return diagnostics(old[piece], sampler[piece], mask[piece], correction)

    whole, parts = report(slice(None)), report(slice(cut)) + report(slice(cut, None))
    assert vars(parts) == pytest.approx(vars(whole), rel=1e-12, abs=1e-12)
    if whole.num_weights:
        assert 0 < whole.effective_sample_size <= 1 + 1e-12
        assert whole.k3 >= -1e-12


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e9])
def test_what_stands_behind_the_mask_is_not_read(poison):
    def report(hidden):
        old, sampler, mask = tensor([-1.0, hidden]), tensor([-1.5, -hidden]), torch.tensor([True, False])
        return diagnostics(old, sampler, mask, token_tis(old, sampler, mask))

    assert report(poison) == report(0.0)


def test_ratios_that_overflow_stay_numbers():
    old, sampler, mask = tensor([-1.0, -1.0]), tensor([-1e9, -1.0]), torch.ones(2).bool()
    report = diagnostics(old, sampler, mask, token_tis(old, sampler, mask))
    assert report.effective_sample_size == pytest.approx(0.5)
    assert report.max_ratio == pytest.approx(math.exp(100))
    assert all(math.isfinite(value) for value in vars(report).values())


def test_a_report_on_nothing_has_no_means():
    empty = tensor([])
    report = diagnostics(empty, empty, empty.bool(), token_tis(empty, empty, empty.bool()))
    assert report.num_weights == 0
    for name in (name for name, value in vars(Diagnostics).items() if isinstance(value, property)):
        with pytest.raises(TrainerError, match="no token was trained"):
            getattr(report, name)
