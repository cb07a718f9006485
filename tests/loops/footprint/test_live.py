"""Bytes alive at once, counted while code runs on shapes or on numbers."""

import pytest
import torch

from agentrl.loops.footprint.live import LARGE, LiveBytes, Product


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_peak_is_what_was_alive_at_once(device: str) -> None:
    given = torch.empty(1000, device=device)
    with LiveBytes([given]) as live:
        first = given + 1.0  # 4,000 bytes
        second = first * 2.0  # 8,000 together
        del first
        second.mul_(2.0)  # in place
        view = second[:10]  # the same memory
    assert (live.now, live.peak) == (4000, 8000)
    del view, second
    assert live.now == 0


def test_large_and_small_tensors_have_peaks_of_their_own() -> None:
    with LiveBytes() as live:
        large = torch.empty(LARGE, dtype=torch.uint8, device="meta")
        del large
        small = torch.empty(LARGE - 1, dtype=torch.uint8, device="meta")
    assert (live.large_peak, live.small_peak, live.peak) == (LARGE, LARGE - 1, LARGE)
    assert live.now == small.nbytes


def test_matrix_products_are_told_by_their_sizes() -> None:
    weight = torch.empty(5, 3, device="meta", requires_grad=True)
    with LiveBytes([weight]) as live:
        (torch.empty(7, 3, device="meta") @ weight.T).sum().backward()
    # forward (7, 3) x (3, 5); backward of the weight (5, 7) x (7, 3), or its transpose
    assert live.products[Product(1, 7, 3, 5)] == 1
    assert sum(live.products.values()) == 2
    assert weight.grad is not None
    assert weight.grad.shape == (5, 3)


def test_indices_with_numbers_meet_shapes() -> None:
    with LiveBytes():
        rows = torch.empty(9, 4, device="meta").index_select(0, torch.tensor([1, 5]))
    assert rows.shape == (2, 4)
    with pytest.raises(RuntimeError, match="device"):  # without it they do not
        torch.empty(9, 4, device="meta") + torch.ones(9, 4)
