"""One sampled token a row, by inverting the cumulative distribution at the row's own uniform number.

Shape suffixes: B rows, V vocabulary, C chunks of the vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from agentrl.policy import compiled

SOURCE = Path(compiled.__file__).with_name("draw.c")
_CHUNK = 1024
"""Words whose probabilities are added up before they are searched: a large vocabulary is then read twice instead of
being added up word by word in float64."""
_MANY = 2**22
"""Logits that are worth several threads, which torch has."""
_TOLERANCE = 1e-5
"""Most that a log-probability may differ from that in float64."""


@torch.inference_mode()
def draw(scaled_BV: Tensor, uniform_B: Tensor, greedy_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token a row.

    Args:
        scaled_BV: logits, divided by the temperature; -inf where a token cannot be drawn. Overwritten.
        uniform_B: float64 in [0, 1).
        greedy_B: rows that take the likeliest token instead.

    Returns:
        The tokens (B,) and the log-probability (B,) of each under the distribution that ``scaled_BV`` gives, in
        float64.
    """
    threads = torch.get_num_threads() > 1 and scaled_BV.numel() > _MANY
    plain = scaled_BV.device.type == "cpu" and scaled_BV.dtype == torch.float32 and scaled_BV.is_contiguous()
    in_c = _compiled() if plain and not threads else None
    return _by_torch(scaled_BV, uniform_B, greedy_B) if in_c is None else _draw(in_c, scaled_BV, uniform_B, greedy_B)


def _draw(in_c: Callable[..., None], scaled_BV: Tensor, uniform_B: Tensor, greedy_B: Tensor) -> tuple[Tensor, Tensor]:
    rows, words = scaled_BV.shape
    token_B, logprob_B = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float64)
    given = (scaled_BV, uniform_B.contiguous(), greedy_B.contiguous())
    sums = torch.empty(words // 64 + 1, dtype=torch.float64)
    in_c(rows, words, *(x.data_ptr() for x in (*given, sums, token_B, logprob_B)))
    return token_B, logprob_B


@cache
def _compiled() -> Callable[..., None] | None:
    library = compiled.library(SOURCE)
    if library is None:
        return None
    found = library.draw
    found.argtypes, found.restype = (*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 6), None
    if _agrees(found):
        return found
    compiled.refuse(SOURCE, "torch")
    return None


def _agrees(in_c: Callable[..., None]) -> bool:
    """Compare on words at the edges of the parts that are added up, each drawn at the middle of its share."""
    wanted_B = torch.tensor([0, 1, 63, 64, 100, 191, 192, 199, 70, 128, 194, 30])
    rows, words, greedy_B = len(wanted_B), 200, wanted_B == 30
    logits_BV = torch.randn(rows, words, generator=torch.Generator().manual_seed(0)).sub_(95.0)
    logits_BV[4] += 190.0  # e^95 is more than a float32 holds, and e^-95 less
    logits_BV[5, 7::50], logits_BV[6, 7::50] = -torch.inf, -1e3
    logits_BV[8, :70] = logits_BV[9, 129:] = logits_BV[10, 195:] = -torch.inf
    logits_BV[11, 30] = logits_BV[11, 150] = 3.0  # of two likeliest words the first
    share_BV = logits_BV.double().softmax(1)
    middle_B = (share_BV.cumsum(1) - share_BV / 2).gather(1, wanted_B[:, None])[:, 0]
    middle_B[8] = 0.0  # the first of what can be drawn
    middle_B[9:11] = 1.0  # where rounding may take it: the last
    middle_B[11] = 0.9  # drawn, it would be the second
    token_B, logprob_B = _draw(in_c, logits_BV.clone(), middle_B, greedy_B)
    expected_B = share_BV.gather(1, wanted_B[:, None])[:, 0].log()
    return torch.equal(token_B, wanted_B) and bool((logprob_B - expected_B).abs().max() <= _TOLERANCE)


def _by_torch(scaled_BV: Tensor, uniform_B: Tensor, greedy_B: Tensor) -> tuple[Tensor, Tensor]:
    top_B1, likeliest_B1 = scaled_BV.max(1, keepdim=True)
    weight_BV = scaled_BV.sub_(top_B1).exp_()
    drawn_B, total_B = _invert(weight_BV, uniform_B)
    drawn_B = torch.where(greedy_B, likeliest_B1[:, 0], drawn_B)
    chosen_B = weight_BV.gather(1, drawn_B[:, None])[:, 0].double()
    return drawn_B, (chosen_B / total_B).log_().clamp_(max=0.0)


def _invert(weight_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """The token (B,) at which the cumulative weight exceeds that share of all, and the sum (B,) of all in float64."""
    rows, words = weight_BV.shape
    if words <= 2 * _CHUNK:
        token_B1, total_B1 = _first_beyond(weight_BV, uniform_B[:, None], relative=True)
        return token_B1[:, 0], total_B1[:, 0]
    whole = words // _CHUNK * _CHUNK
    sums = [weight_BV[:, :whole].view(rows, -1, _CHUNK).sum(-1), weight_BV[:, whole:].sum(-1, keepdim=True)]
    sum_BC = torch.cat(sums, dim=1).double()
    through_BC = sum_BC.cumsum(-1)
    total_B = through_BC[:, -1]
    target_B1 = (uniform_B * total_B)[:, None]
    chunk_B1 = _search(through_BC, target_B1)
    before_B1 = (through_BC - sum_BC).gather(1, chunk_B1)
    word_BW = chunk_B1 * _CHUNK + torch.arange(_CHUNK, device=weight_BV.device)
    within_BW = weight_BV.gather(1, word_BW.clamp(max=words - 1)).masked_fill_(word_BW >= words, 0.0)
    place_B1, _ = _first_beyond(within_BW, target_B1 - before_B1, relative=False)
    return (chunk_B1 * _CHUNK + place_B1)[:, 0].clamp_(max=words - 1), total_B  # what is not a number is nowhere


def _first_beyond(weight_BV: Tensor, target_B1: Tensor, *, relative: bool) -> tuple[Tensor, Tensor]:
    cumulative_BV = weight_BV.double().cumsum(-1)
    total_B1 = cumulative_BV[:, -1:]
    return _search(cumulative_BV, target_B1 * total_B1 if relative else target_B1), total_B1


def _search(cumulative_BV: Tensor, target_B1: Tensor) -> Tensor:
    """The first place that exceeds the target, which rounding may have put at the end: then the last of some weight."""
    end_B1 = cumulative_BV[:, -1:]
    target_B1 = torch.minimum(target_B1, torch.nextafter(end_B1, torch.zeros_like(end_B1)))
    found_B1 = torch.searchsorted(cumulative_BV, target_B1.clamp(min=0.0), right=True)
    return found_B1.clamp_(max=cumulative_BV.shape[1] - 1)  # what is not a number exceeds nothing
