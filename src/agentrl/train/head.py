"""Log-probabilities and entropies over a vocabulary, without the logits of a whole batch.

At 151,936 words the logits of 512 tokens are 311 MB in float32, and what autograd keeps beside them is more. Here the
logits live in tiles that fit the cache: the forward pass keeps a running maximum and sum per token, the backward pass
computes each tile again.

Cost for K tokens, width D and V words, in the forward pass 2KDV operations and in the backward pass 6KDV: the logits
again, the gradient of the hidden states, that of the projection. Autograd on whole logits needs 2KDV less and moves
4KV bytes from and to memory a dozen times or more; at 512 tokens of width 96 it takes twice the processor time. Here
the projection is read once in each pass and the logits stay in the cache. Beside the gradients, two tiles and O(KD)
numbers are held. Keeping the probabilities (4KV bytes) would save the second logits, about a quarter of the time, and
cost what the tiles save of memory.

Sources: the running softmax is that of Milakov and Gimelshein (1805.02867); losses over tiles of the vocabulary as in
Wijmans et al. (2411.09009).

Shape suffixes: K tokens, D width, V vocabulary; in a tile R tokens and W words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

SMALL_LOGITS = 2**23
"""Up to so many logits (32 MiB in float32) they are computed at once: no slower, and simpler to differentiate."""
TILE_ROWS = 512
TILE_WORDS = 1024
"""2 MiB of float32 logits. On a core with 2 MiB of cache of its own, 512 to 2,048 words take the same time within a
tenth, and 256 a tenth more."""
_LOWEST = -1e30


class TokenScores(NamedTuple):
    """Log-probability of each target and entropy of its distribution, in nats, each (K,)."""

    logprobs_K: Tensor
    entropy_K: Tensor


def token_scores(
    hidden_KD: Tensor,
    weight_VD: Tensor,
    target_K: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    small_logits: int = SMALL_LOGITS,
) -> TokenScores:
    """What the distribution softmax((hidden @ weight.T + bias) / temperature) says of each target.

    Args:
        hidden_KD: last hidden states of the tokens before the targets. Half precision is computed in float32.
        weight_VD: the output projection.
        target_K: word ids, int64, in [0, V).
        bias_V: added to the logits.
        temperature: that of the sampler, above 0.
        entropy_gradient: whether the entropies carry a gradient.
        small_logits: up to so many, K times V, the logits are computed at once; above, in tiles.
    """
    if hidden_KD.shape[0] * weight_VD.shape[0] > small_logits:
        sizes = TILE_ROWS, TILE_WORDS
        return tiled_scores(hidden_KD, weight_VD, target_K, bias_V, temperature, entropy_gradient, *sizes)
    return _scores_at_once(hidden_KD, weight_VD, target_K, bias_V, temperature, entropy_gradient)


def _scores_at_once(
    hidden_KD: Tensor,
    weight_VD: Tensor,
    target_K: Tensor,
    bias_V: Tensor | None,
    temperature: float,
    entropy_gradient: bool,
) -> TokenScores:
    dtype = _computed_in(hidden_KD)
    logits_KV = hidden_KD.to(dtype) @ weight_VD.to(dtype).T
    if bias_V is not None:
        logits_KV = logits_KV + bias_V
    if temperature != 1.0:  # a pass over all logits in each direction
        logits_KV = logits_KV / temperature
    logprobs_KV = logits_KV.log_softmax(-1)
    logprobs_K = logprobs_KV.gather(1, target_K[:, None]).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_K = -(logprobs_KV.exp() * logprobs_KV).sum(-1)
    return TokenScores(logprobs_K, entropy_K)


def tiled_scores(
    hidden_KD: Tensor,
    weight_VD: Tensor,
    target_K: Tensor,
    bias_V: Tensor | None,
    temperature: float,
    entropy_gradient: bool,
    rows: int,
    words: int,
) -> TokenScores:
    """As `token_scores`, in tiles of ``rows`` tokens and ``words`` words, whatever their number."""
    scaled_KD = hidden_KD.to(_computed_in(hidden_KD)) / temperature
    scaled_V = None if bias_V is None else bias_V.to(scaled_KD.dtype) / temperature
    tiles = _Tiles(scaled_KD, target_K, weight_VD.shape[0], rows, words)
    logprobs_K, entropy_K = _TiledScores.apply(scaled_KD, weight_VD, scaled_V, tiles, entropy_gradient)  # type: ignore[no-untyped-call]
    return TokenScores(logprobs_K, entropy_K if entropy_gradient else entropy_K.detach())


def _computed_in(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


class _Tiles:
    """The cut into tiles, two of them to compute in, and which targets lie in which tile."""

    def __init__(self, like_KD: Tensor, target_K: Tensor, vocabulary: int, rows: int, words: int) -> None:
        self.target_K = target_K
        self.row_slices = [slice(a, min(a + rows, len(target_K))) for a in range(0, len(target_K), rows)]
        self.word_slices = [slice(a, min(a + words, vocabulary)) for a in range(0, vocabulary, words)]
        self.scratch = like_KD.new_empty(2, min(rows, len(target_K)) * min(words, vocabulary))
        self.order_K = target_K.argsort()
        edges = torch.arange(0, vocabulary + words, words, device=target_K.device)
        self.edges = torch.searchsorted(target_K[self.order_K], edges).tolist()

    def words(self, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype) -> Iterator[_Words]:
        """The projection, some words at a time, in the type that is computed in."""
        for index, span in enumerate(self.word_slices):
            found = self.order_K[self.edges[index] : self.edges[index + 1]]
            bias_W = None if bias_V is None else bias_V[span]
            yield _Words(span, weight_VD[span].to(dtype), bias_W, found, self.target_K[found] - span.start)

    def tile(self, which: int, rows: int, words: int) -> Tensor:
        """A part of the memory that is used for one tile after the other."""
        return self.scratch[which, : rows * words].view(rows, words)

    def logits(self, hidden_RD: Tensor, part: _Words) -> Tensor:
        """Logits of one tile; they are overwritten by those of the next."""
        logits_RW = self.tile(0, len(hidden_RD), len(part.weight_WD))
        torch.mm(hidden_RD, part.weight_WD.T, out=logits_RW)
        return logits_RW if part.bias_W is None else logits_RW.add_(part.bias_W)


class _Words(NamedTuple):
    """Neighbouring words: their part of the projection, and the tokens whose targets are among them (and at which)."""

    span: slice
    weight_WD: Tensor
    bias_W: Tensor | None
    tokens: Tensor
    columns: Tensor


class _Running:
    """Maximum of the logits seen so far and, relative to it, sum of exp(z) and of z exp(z), each (K, 1)."""

    def __init__(self, hidden_KD: Tensor) -> None:
        shape = (len(hidden_KD), 1)
        self.high = hidden_KD.new_full(shape, _LOWEST)
        self.total = hidden_KD.new_zeros(shape)
        self.moment = hidden_KD.new_zeros(shape)

    def add(self, rows: slice, logits_RW: Tensor, scratch_RW: Tensor) -> None:
        """Take in a tile, which is overwritten."""
        old = self.high[rows].clone()
        high = torch.maximum(old, logits_RW.amax(1, keepdim=True), out=self.high[rows])
        torch.exp(logits_RW.sub_(high), out=scratch_RW)
        shift = old.sub_(high)
        decay = shift.exp()
        total, moment = self.total[rows], self.moment[rows]
        moment.addcmul_(total, shift).mul_(decay).add_(logits_RW.mul_(scratch_RW).sum(1, keepdim=True))
        total.mul_(decay).add_(scratch_RW.sum(1, keepdim=True))


class _TiledScores(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, tiles: _Tiles, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        running = _Running(hidden_KD)
        chosen_K = hidden_KD.new_empty(len(hidden_KD))
        for part in tiles.words(weight_VD, bias_V, hidden_KD.dtype):
            for rows in tiles.row_slices:
                logits_RW = tiles.logits(hidden_KD[rows], part)
                _keep_targets(chosen_K, logits_RW, rows, part)
                running.add(rows, logits_RW, tiles.tile(1, *logits_RW.shape))
        log_total = running.total.log()
        entropy_K = (log_total - running.moment / running.total).squeeze(1)
        ctx.save_for_backward(hidden_KD, weight_VD, bias_V, running.high + log_total, entropy_K)
        ctx.tiles, ctx.entropy_gradient = tiles, entropy_gradient
        return (chosen_K - running.high.squeeze(1)) - log_total.squeeze(1), entropy_K.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_K: Tensor, grad_entropy_K: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden_KD, weight_VD, bias_V, log_total, entropy_K = ctx.saved_tensors
        pull = _Pull(grad_K, grad_entropy_K if ctx.entropy_gradient else None, entropy_K, log_total)
        grads = _Gradients(pull, hidden_KD, weight_VD, bias_V, ctx.needs_input_grad)
        for part in ctx.tiles.words(weight_VD, bias_V, hidden_KD.dtype):
            grads.add_targets(part)
            for rows in ctx.tiles.row_slices:
                logits_RW = ctx.tiles.logits(hidden_KD[rows], part)
                grads.add_tile(rows, pull.of_tile(rows, logits_RW, ctx.tiles), part)
            grads.finish(part)
        if grads.hidden_KD is not None:
            grads.hidden_KD.mul_(pull.scale)
        return grads.hidden_KD, grads.weight_VD, grads.bias_V, None, None


def _keep_targets(chosen_K: Tensor, logits_RW: Tensor, rows: slice, part: _Words) -> None:
    here = (part.tokens >= rows.start) & (part.tokens < rows.stop)
    tokens = part.tokens[here]
    chosen_K[tokens] = logits_RW[tokens - rows.start, part.columns[here]]


class _Pull:
    """The gradient of a tile's logits, as ``scale`` times (``at_target`` at the target, minus `of_tile`).

    With g and e the gradients of a token's log-probability and of its entropy H, that of the logit of word v is
    g [v is the target] - p_v (g + e (log p_v + H)). Without e, g is a factor of the whole row and stays outside the
    tile; with e, the factor outside is 1.
    """

    def __init__(self, grad_K: Tensor, grad_entropy_K: Tensor | None, entropy_K: Tensor, log_total: Tensor) -> None:
        grad, ones = grad_K[:, None], torch.ones_like(grad_K)[:, None]
        self.log_total = log_total
        self.entropy_grad = None if grad_entropy_K is None else grad_entropy_K[:, None]
        self.scale, self.at_target = (grad, ones) if self.entropy_grad is None else (ones, grad)
        self.base = grad if self.entropy_grad is None else grad + self.entropy_grad * entropy_K[:, None]

    def of_tile(self, rows: slice, logits_RW: Tensor, tiles: _Tiles) -> Tensor:
        """p_v, or p_v (g + e (log p_v + H)) where the entropy has a gradient; overwrites the logits."""
        logprobs_RW = logits_RW.sub_(self.log_total[rows])
        if self.entropy_grad is None:
            return logprobs_RW.exp_()
        probs_RW = torch.exp(logprobs_RW, out=tiles.tile(1, *logits_RW.shape))
        return logprobs_RW.mul_(self.entropy_grad[rows]).add_(self.base[rows]).mul_(probs_RW)


class _Gradients:
    """The gradients that are asked for, gathered tile by tile in the type that is computed in."""

    def __init__(
        self, pull: _Pull, hidden_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, needed: Sequence[bool]
    ) -> None:
        self.pull = pull
        self.scaled_KD = pull.scale * hidden_KD
        self.hidden_KD = torch.zeros_like(hidden_KD) if needed[0] else None
        self.weight_VD = torch.zeros_like(weight_VD) if needed[1] else None
        self.bias_V = torch.zeros_like(bias_V) if needed[2] and bias_V is not None else None
        self.words_WD = hidden_KD.new_empty(0)

    def add_targets(self, part: _Words) -> None:
        """What the targets among these words add, and the place for what the tiles will."""
        at_target = self.pull.at_target[part.tokens]
        if self.hidden_KD is not None:
            self.hidden_KD[part.tokens] += at_target * part.weight_WD[part.columns]
        if self.weight_VD is not None:
            same = self.weight_VD.dtype == part.weight_WD.dtype
            self.words_WD = self.weight_VD[part.span] if same else torch.zeros_like(part.weight_WD)
            self.words_WD.index_add_(0, part.columns, at_target * self.scaled_KD[part.tokens])
        if self.bias_V is not None:
            self.bias_V[part.span].index_add_(0, part.columns, (at_target * self.pull.scale[part.tokens]).squeeze(1))

    def add_tile(self, rows: slice, pull_RW: Tensor, part: _Words) -> None:
        """What all words of a tile take away."""
        if self.hidden_KD is not None:
            self.hidden_KD[rows].addmm_(pull_RW, part.weight_WD, alpha=-1.0)
        if self.weight_VD is not None:
            self.words_WD.addmm_(pull_RW.T, self.scaled_KD[rows], alpha=-1.0)
        if self.bias_V is not None:
            self.bias_V[part.span].addmv_(pull_RW.T, self.pull.scale[rows].squeeze(1), alpha=-1.0)

    def finish(self, part: _Words) -> None:
        """Hand in the gradient of these words where it was gathered in another type."""
        if self.weight_VD is not None and self.weight_VD.dtype != self.words_WD.dtype:
            self.weight_VD[part.span] = self.words_WD
