"""Log-probabilities and entropies of tokens that were drawn from a part of the vocabulary only.

A token's distribution is over its support (see `truncation`), so only these rows of the output projection are
multiplied with its hidden state. For 512 tokens of width 1,024 in a vocabulary of 151,936 the forward pass takes a
sixtieth of the time of `head.token_scores` on one core at 50 words a token, and as long at 3,000; the backward pass
then still a quarter. Rows are gathered a few at a time; what is kept for the backward pass is one number per word.

Shape suffixes: K trained tokens, N those that have a support, S the words of all supports, D width, V vocabulary, U
the words that are in any support; C words of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from agentrl.errors import TrainerError
from agentrl.train.head import TokenScores, token_scores
from agentrl.types import Sample

CHUNK = 2**20
"""Numbers gathered at a time (4 MiB in float32). A quarter or four times as many take longer."""


@dataclass(frozen=True, kw_only=True)
class Support:
    """The words that trained tokens were drawn from, for those N of them that a truncating sampler drew.

    Attributes:
        token_N: which of the K trained tokens they are, ascending.
        ids_S: the words of one token after those of the other.
        row_S: which of the N tokens each word belongs to, ascending.
        place_N: where in S each token's target stands.
    """

    token_N: Tensor
    ids_S: Tensor
    row_S: Tensor
    place_N: Tensor


def pack_support(trained: Iterable[tuple[Sample, np.ndarray]]) -> Support | None:
    """The support of the trained tokens of several samples, None when no token has one.

    Args:
        trained: samples, with the places of their trained tokens.

    Raises:
        TrainerError: a token is not exactly once among the ids that it was drawn from, naming its trace.
    """
    tokens: list[int] = []
    places: list[int] = []
    supports: list[tuple[int, ...]] = []
    start = 0
    for k, (sample, place) in enumerate((sample, place) for sample, mine in trained for place in mine.tolist()):
        ids = sample.support[place] if sample.support else None
        if ids is not None:
            tokens.append(k)
            places.append(start + _place(sample, place, ids))
            supports.append(ids)
            start += len(ids)
    if not supports:
        return None
    return Support(
        token_N=torch.tensor(tokens),
        ids_S=torch.from_numpy(np.fromiter(chain.from_iterable(supports), dtype=np.int64, count=start)),
        row_S=torch.arange(len(supports)).repeat_interleave(torch.tensor([len(ids) for ids in supports])),
        place_N=torch.tensor(places),
    )


def _place(sample: Sample, place: int, ids: tuple[int, ...]) -> int:
    token = sample.token_ids[place]
    count = ids.count(token)
    if count != 1:
        raise TrainerError(
            f"trace {sample.trace_id}: token {place} is {token}, which is {count} times among the {len(ids)} ids of "
            "its support; it must be there once, with the other ids that could have been drawn"
        )
    return ids.index(token)


def supported_scores(
    hidden_KD: Tensor,
    weight_VD: Tensor,
    target_K: Tensor,
    support: Support | None,
    *,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> TokenScores:
    """As `head.token_scores`, with the distribution of each token that has a support over that support.

    Args:
        hidden_KD: last hidden states of the tokens before the targets. Half precision is computed in float32.
        weight_VD: the output projection.
        target_K: word ids, int64, in [0, V).
        support: of some of the tokens, or all; the others are scored over the whole vocabulary.
        bias_V: added to the logits.
        temperature: that of the sampler, above 0.
        entropy_gradient: whether the entropies carry a gradient.
    """
    over_all = partial(token_scores, bias_V=bias_V, temperature=temperature, entropy_gradient=entropy_gradient)
    if support is None:
        return over_all(hidden_KD, weight_VD, target_K)
    hidden_ND = hidden_KD.index_select(0, support.token_N)
    known = _over_support(hidden_ND, weight_VD, bias_V, support, temperature, entropy_gradient)
    whole_K = torch.ones_like(target_K, dtype=torch.bool).index_fill(0, support.token_N, False)
    if not whole_K.any():
        return known
    rest = whole_K.nonzero().squeeze(1)
    others = over_all(hidden_KD.index_select(0, rest), weight_VD, target_K[rest])
    order_K = torch.cat((support.token_N, rest)).argsort()
    return TokenScores(*(torch.cat(pair).index_select(0, order_K) for pair in zip(known, others, strict=True)))


def _over_support(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    support: Support,
    temperature: float,
    entropy_gradient: bool,
) -> TokenScores:
    half = hidden_ND.dtype in (torch.bfloat16, torch.float16)
    scaled_ND = (hidden_ND.float() if half else hidden_ND) / temperature
    logits_S = _Logits.apply(scaled_ND, weight_VD, support.ids_S, support.row_S)  # type: ignore[no-untyped-call]
    if bias_V is not None:
        logits_S = logits_S + bias_V.index_select(0, support.ids_S).to(logits_S.dtype) / temperature
    logprobs_S = _log_softmax(logits_S, support.row_S, len(hidden_ND))
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -_sums(logprobs_S.exp() * logprobs_S, support.row_S, len(hidden_ND))
    return TokenScores(logprobs_S.index_select(0, support.place_N), entropy_N)


def _log_softmax(logits_S: Tensor, row_S: Tensor, num_rows: int) -> Tensor:
    """Over the words of each row; never above 0."""
    high_N = logits_S.new_full((num_rows,), -math.inf).scatter_reduce(0, row_S, logits_S.detach(), "amax")
    below_S = logits_S - high_N.index_select(0, row_S)
    return below_S - _sums(below_S.exp(), row_S, num_rows).log().index_select(0, row_S)


def _sums(values_S: Tensor, row_S: Tensor, num_rows: int) -> Tensor:
    return values_S.new_zeros(num_rows).index_add(0, row_S, values_S)


class _Logits(Function):
    """The product of each word's row of the projection with the hidden state of its token, (S,)."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, ids_S: Tensor, row_S: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_ND, weight_VD, ids_S, row_S)
        logits_S = hidden_ND.new_empty(len(ids_S))
        for chunk in _chunks(ids_S, hidden_ND):
            words_CD = weight_VD.index_select(0, ids_S[chunk]).to(hidden_ND.dtype)
            words_CD.mul_(hidden_ND.index_select(0, row_S[chunk]))
            torch.sum(words_CD, 1, out=logits_S[chunk])
        return logits_S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_S: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_ND, weight_VD, ids_S, row_S = ctx.saved_tensors
        of_hidden = _hidden_gradient(grad_S, *ctx.saved_tensors) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_hidden, None, None, None
        words_U, place_S = ids_S.unique(return_inverse=True)
        grad_UD = hidden_ND.new_zeros(len(words_U), hidden_ND.shape[1])
        for chunk in _chunks(ids_S, hidden_ND):
            pull_CD = hidden_ND.index_select(0, row_S[chunk]).mul_(grad_S[chunk, None])
            grad_UD.index_add_(0, place_S[chunk], pull_CD)
        return of_hidden, torch.zeros_like(weight_VD).index_copy_(0, words_U, grad_UD.to(weight_VD.dtype)), None, None


def _hidden_gradient(grad_S: Tensor, hidden_ND: Tensor, weight_VD: Tensor, ids_S: Tensor, row_S: Tensor) -> Tensor:
    grad_ND = torch.zeros_like(hidden_ND)
    for chunk in _chunks(ids_S, hidden_ND):
        words_CD = weight_VD.index_select(0, ids_S[chunk]).to(hidden_ND.dtype)
        grad_ND.index_add_(0, row_S[chunk], words_CD.mul_(grad_S[chunk, None]))
    return grad_ND


def _chunks(ids_S: Tensor, hidden_ND: Tensor) -> Iterator[slice]:
    size = max(1, CHUNK // hidden_ND.shape[1])
    yield from (slice(start, start + size) for start in range(0, len(ids_S), size))
