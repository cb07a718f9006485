"""Sums over sequences whose tokens stand in any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.flat import mean_per_token, total_per_token
from agentrl.errors import TrainerError

ROWS = st.lists(st.tuples(st.floats(-5, 5), st.booleans(), st.integers(0, 4)), min_size=0, max_size=20)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_totals_and_means_agree_with_a_loop(rows):
    values = torch.tensor([x if kept else 0.0 for x, kept, _ in rows], dtype=torch.float64)
    mask = torch.tensor([kept for _, kept, _ in rows], dtype=torch.bool)
    segment = torch.tensor([s for _, _, s in rows], dtype=torch.int64)
    kept = {s: [x for x, is_kept, other in rows if is_kept and other == s] for _, _, s in rows}
    expected = [sum(kept[s]) for _, _, s in rows]
    assert total_per_token(values, segment).tolist() == pytest.approx(expected, abs=1e-12)
    means = [sum(kept[s]) / max(1, len(kept[s])) for _, _, s in rows]
    assert mean_per_token(values, mask, segment).tolist() == pytest.approx(means, abs=1e-12)


def test_thousands_of_small_terms_keep_their_digits_in_float32():
    # 2^24 + 1 + 1 is 2^24 when added one by one in float32.
    values = torch.tensor([2.0**24, 1.0, 1.0])
    assert total_per_token(values, torch.zeros(3, dtype=torch.int64))[0].item() == 2.0**24 + 2


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (torch.tensor([0]), "one int64 id per token"),
        (torch.tensor([0.0, 1.0]), "one int64 id per token"),
        (torch.tensor([0, -1]), "id -1; count them from 0"),
    ],
)
def test_ids_that_are_none_are_refused(segment, message):
    with pytest.raises(TrainerError, match=message):
        total_per_token(torch.ones(2), segment)
