"""A step of the key-value cache: where new tokens lie, and their attention over what is cached.

Nothing is copied to attend, unless few slots of a bucket are in the step. Each query's attention over its prompt and
over its tail are put together by the sums of exponentials that they were divided by.

Shape suffixes: M new tokens of a step, B pieces whose successors are asked for, K heads of keys and values, H heads of
queries, S = H / K, U slots of a part, N the most queries of a slot, T keys that are looked at, P queries of a part, W
tokens that are written, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentrl.policy.slots import Bucket, Slot
from agentrl.policy.transformer import HIDDEN

K = TypeVar("K")
T = TypeVar("T")

MAX_SCORES = 2**25
"""Attention scores that are held at once: 128 MiB in float32."""

_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class Piece(NamedTuple):
    """New tokens of one sequence.

    Attributes:
        slot: where they go, behind what is there.
        prompt: what comes before the slot; None where the slot holds the sequence from its first token.
        token_ids: the new tokens.
        previous_id: the token before the first of them, 0 where there is none.
        ends: whether what follows the last of them is asked for.
    """

    slot: Slot
    prompt: Slot | None
    token_ids: Sequence[int]
    previous_id: int
    ends: bool


class _Found(NamedTuple):
    """Attention of some queries over some keys (P, H, E), and the logarithm (P, H) of the sum of exponentials that it
    was divided by."""

    out: Tensor
    log_sum: Tensor


class _Part(NamedTuple):
    """Queries that look at slots of one bucket.

    Attributes:
        bucket: of the slots.
        rows: of the slots, as a slice where they lie side by side.
        width: N.
        length: T.
        token_P: the queries' places in M, or None for all in their order.
        place_P: their places in (U, N), or None where they fill it in their order.
        at_UN: how far behind the first key of the slot each query is.
        hidden: what is added to the scores (U, 1, N, T): ``HIDDEN`` at keys that a query does not see.
    """

    bucket: Bucket
    rows: slice | Tensor
    width: int
    length: int
    token_P: Tensor | None
    place_P: Tensor | None
    at_UN: Tensor
    hidden: Tensor


class Step:
    """Where the new tokens of a step lie, and their attention."""

    def __init__(self, pieces: Sequence[Piece], *, query_heads: int, device: torch.device) -> None:
        self.query_heads, self.device = query_heads, device
        widths = np.array([len(piece.token_ids) for piece in pieces])
        starts = np.array([piece.slot.length for piece in pieces])
        before = np.array([piece.prompt.length if piece.prompt else 0 for piece in pieces])
        ends = np.cumsum(widths)
        ids_M = np.fromiter((token for piece in pieces for token in piece.token_ids), np.int64, int(ends[-1]))
        previous_M = np.concatenate(([0], ids_M[:-1]))
        previous_M[ends - widths] = [piece.previous_id for piece in pieces]
        own_M = np.arange(ends[-1]) + np.repeat(starts - ends + widths, widths)
        position_M = own_M + np.repeat(before, widths)
        self.longest = int(position_M.max()) + 1
        self.num_tokens = int(ends[-1])
        asked = np.array([piece.ends for piece in pieces])
        put = self._put
        self.ids_M, self.previous_M, self.positions_M = put(ids_M), put(previous_M), put(position_M)
        self.last_B = put(ends[asked] - 1)
        self.writes: list[tuple[Bucket, Tensor | None, Tensor, Tensor]] = []
        self.own: list[_Part] = []
        self.prompts: list[_Part] = []
        tokens = [np.arange(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self._plan_own(pieces, tokens, own_M)
        self._plan_prompts(pieces, tokens, position_M)
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def go_on(self, ids: Sequence[int]) -> None:
        """Become the next step, where this one has one token of each piece and so has the next; what does not change is
        not laid out again."""
        self.ids_M, self.previous_M = self._put(np.array(ids)), self.ids_M
        self.positions_M, self.longest = self.positions_M + 1, self.longest + 1
        self.writes = [(bucket, token_W, row_W, place_W + 1) for bucket, token_W, row_W, place_W in self.writes]
        self.own = [_longer(part) for part in self.own]
        self.prompts = [part._replace(at_UN=part.at_UN + 1) for part in self.prompts]
        self._masks = {}

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def attend(self, layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:
        """See `agentrl.policy.base.Attend`."""
        for bucket, token_W, row_W, place_W in self.writes:
            for kept, new in zip(bucket.layers[layer], (k_MKE, v_MKE), strict=True):
                kept.transpose(1, 2)[row_W, place_W] = new if token_W is None else new[token_W]
        window = None if window is None or self.longest <= window else window
        found = self._own(layer, q_MHE, window)
        for part in self.prompts:
            _merge(found, self._look(part, layer, q_MHE, window), part.token_P)
        return found.out.flatten(1)

    def _own(self, layer: int, q_MHE: Tensor, window: int | None) -> _Found:
        """Every token's attention over its own slot."""
        first = self._look(self.own[0], layer, q_MHE, window)
        if self.own[0].token_P is None:
            return first
        tokens, heads = q_MHE.shape[:2]
        found = _Found(first.out.new_empty(tokens, heads, first.out.shape[2]), first.log_sum.new_empty(tokens, heads))
        for n, part in enumerate(self.own):
            for whole, new in zip(found, self._look(part, layer, q_MHE, window) if n else first, strict=True):
                whole[part.token_P] = new
        return found

    def _plan_own(self, pieces: Sequence[Piece], tokens: Sequence[np.ndarray], own_M: np.ndarray) -> None:
        """Every token is written and sees its own slot up to itself."""
        put = self._put
        for bucket, members in _by(lambda n: pieces[n].slot.bucket, range(len(pieces))):
            token_W = np.concatenate([tokens[n] for n in members])
            row_W = np.repeat([pieces[n].slot.row for n in members], [len(tokens[n]) for n in members])
            whole = len(token_W) == self.num_tokens
            self.writes.append((bucket, None if whole else put(token_W), put(row_W), put(own_M[token_W])))
            for _, alike in _by(lambda n: _class(len(tokens[n])), members):
                slots = {pieces[n].slot: tokens[n] for n in alike}
                self.own += self._parts(bucket, slots, own_M, own_M)

    def _plan_prompts(self, pieces: Sequence[Piece], tokens: Sequence[np.ndarray], position_M: np.ndarray) -> None:
        """The tokens of a tail see its prompt whole."""
        users: dict[Slot, list[np.ndarray]] = {}
        for piece, mine in zip(pieces, tokens, strict=True):
            if piece.prompt is not None:
                users.setdefault(piece.prompt, []).append(mine)
        whole = {slot: np.concatenate(parts) for slot, parts in users.items()}
        seen_M = np.zeros(self.num_tokens, dtype=np.int64)
        for slot, mine in whole.items():
            seen_M[mine] = slot.length - 1
        for bucket, members in _by(lambda slot: slot.bucket, whole):
            for _, alike in _by(lambda slot: _class(len(whole[slot])), members):
                self.prompts += self._parts(bucket, {slot: whole[slot] for slot in alike}, seen_M, position_M)

    def _parts(
        self, bucket: Bucket, slots: dict[Slot, np.ndarray], seen_M: np.ndarray, at_M: np.ndarray
    ) -> Iterator[_Part]:
        """Lay out the queries of some slots. Too many scores are cut into parts.

        Args:
            bucket: of the slots.
            slots: and the tokens that look at each.
            seen_M: the last key that each token sees.
            at_M: how far behind the first key each token is.
        """
        most = max(1, MAX_SCORES // (self.query_heads * bucket.room * max(map(len, slots.values()))))
        ordered = sorted(slots, key=lambda slot: slot.row)
        for start in range(0, len(ordered), most):
            chosen = ordered[start : start + most]
            yield self._part(bucket, chosen, [slots[slot] for slot in chosen], seen_M, at_M)

    def _part(
        self,
        bucket: Bucket,
        slots: Sequence[Slot],
        tokens: Sequence[np.ndarray],
        seen_M: np.ndarray,
        at_M: np.ndarray,
    ) -> _Part:
        put = self._put
        rows = np.array([slot.row for slot in slots])
        low, span = int(rows[0]), int(rows[-1] - rows[0]) + 1
        side_by_side = 4 * len(rows) >= 3 * span
        unit = rows - low if side_by_side else np.arange(len(rows))
        units = span if side_by_side else len(rows)
        counts = np.array([len(mine) for mine in tokens])
        width = int(counts.max())
        token_P = np.concatenate(tokens)
        place_P = np.concatenate([u * width + np.arange(count) for u, count in zip(unit, counts, strict=True)])
        length = int(seen_M[token_P].max()) + 1
        seen_UN = np.zeros(units * width, dtype=np.int64)
        seen_UN[place_P] = seen_M[token_P]
        at_UN = np.zeros(units * width, dtype=np.int64)
        at_UN[place_P] = at_M[token_P]
        hidden = np.arange(length) > seen_UN.reshape(units, 1, width, 1)
        filled = len(place_P) == units * width and bool((place_P[1:] > place_P[:-1]).all())
        in_order = len(token_P) == self.num_tokens and bool((token_P[1:] > token_P[:-1]).all())
        return _Part(
            bucket=bucket,
            rows=slice(low, low + span) if side_by_side else put(rows),
            width=width,
            length=length,
            token_P=None if in_order else put(token_P),
            place_P=None if filled else put(place_P),
            at_UN=put(at_UN.reshape(units, width)),
            hidden=put(np.where(hidden, np.float32(HIDDEN), np.float32(0.0))),
        )

    def _look(self, part: _Part, layer: int, q_MHE: Tensor, window: int | None) -> _Found:
        """Attention of a part's queries over its slots, in the order of ``token_P``.

        The query heads of one head of keys lie beside each other, as further queries of it.
        """
        keys, values = (x[part.rows, :, : part.length] for x in part.bucket.layers[layer])
        units, heads = keys.shape[:2]
        shared, width = q_MHE.shape[1] // heads, part.width
        q = q_MHE if part.token_P is None else q_MHE[part.token_P]
        if part.place_P is not None:
            q = q.new_zeros(units * width, *q.shape[1:]).index_copy_(0, part.place_P, q)
        mask = self._mask(part, shared, window)
        if width == 1 and part.place_P is None:
            out, log_sum = _attend(q.view(units, heads, shared, -1), keys, values, mask)
            return _Found(out.flatten(1, 2), log_sum.flatten(1))
        q = q.view(units, width, heads, shared, -1).transpose(1, 2).reshape(units, heads, width * shared, -1)
        out, log_sum = _attend(q, keys, values, mask)
        split = (units, heads, width, shared)
        out, log_sum = (x.reshape(*split, *x.shape[3:]).transpose(1, 2) for x in (out, log_sum))
        found = _Found(out.reshape(units * width, heads * shared, -1), log_sum.reshape(units * width, -1))
        return found if part.place_P is None else _Found(*(x[part.place_P] for x in found))

    def _mask(self, part: _Part, shared: int, window: int | None) -> Tensor:
        """What is added to the scores (U, 1, N * S, T), once for all layers."""
        key = (id(part), shared, window)
        if key not in self._masks:
            hidden = part.hidden if window is None else _hide_far(part, window)
            if shared > 1 and part.width > 1:
                hidden = hidden.repeat_interleave(shared, 2)
            self._masks[key] = hidden.expand(-1, -1, part.width * shared, -1)
        return self._masks[key]


def _longer(part: _Part) -> _Part:
    """Each slot a token longer, which its query sees."""
    at_UN, length = part.at_UN + 1, part.length + 1
    later = torch.arange(length, device=at_UN.device) > at_UN[:, None, :, None]
    return part._replace(length=length, at_UN=at_UN, hidden=torch.where(later, HIDDEN, 0.0))


def _attend(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Attention (U, K, N, E) and the logarithm (U, K, N) of the sum of exponentials; queries come scaled."""
    if q.device.type == "cpu" and q.dtype != torch.float16 and keys.shape[3] == values.shape[3]:
        out, log_sum = _fused(q, keys, values, 0.0, False, attn_mask=hidden.to(q.dtype), scale=1.0)
        return out, log_sum
    scores = q @ keys.transpose(2, 3)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).add_(hidden)
    log_sum = scores.logsumexp(-1)
    weights = scores.sub_(log_sum[..., None]).exp_().to(values.dtype)
    return weights @ values, log_sum


def _hide_far(part: _Part, window: int) -> Tensor:
    """What hides keys that are behind the window too."""
    far = part.at_UN[:, None, :, None] - torch.arange(part.length, device=part.at_UN.device) >= window
    return torch.where(far, HIDDEN, part.hidden)


def _merge(found: _Found, other: _Found, token_P: Tensor | None) -> None:
    """Take the attention of some tokens over further keys into a result, in place."""
    mine = found if token_P is None else _Found(*(x[token_P] for x in found))
    share = torch.sigmoid(other.log_sum - mine.log_sum)[..., None].to(mine.out.dtype)
    out = mine.out.add_((other.out - mine.out).mul_(share))
    if token_P is not None:
        found.out.index_copy_(0, token_P, out)


def _class(count: int) -> int:
    """Slots with similarly many queries are looked at together: 1, 2, 3 to 4, 5 to 8 and so on."""
    return (count - 1).bit_length()


def _by(key: Callable[[T], K], items: Iterable[T]) -> Iterable[tuple[K, list[T]]]:
    """The items of each key, keys in the order of their first item."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups.items()
