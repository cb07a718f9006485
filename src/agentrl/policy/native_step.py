"""A step of the key-value cache with attention by `agentrl.policy.native`: on the CPU, in float32.

Shape suffixes: M new tokens of a step, P pieces, B pieces whose successors are asked for, K heads of keys and values,
H heads of queries, E width of a head, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from agentrl.policy.compiled import refuse
from agentrl.policy.native import SOURCE, Kernels, Places, kernels
from agentrl.policy.slots import Budget, LayerShape, Pool, Slot
from agentrl.policy.step import Piece, Step

TOLERANCE = 1e-5
"""Most that attention may differ from that of torch, for keys and values of size one."""
_OWN_PLACE = 4
"""Row of `Places.table` that has each token's place in its own slot."""
WORTH_A_THREAD = 2**23
"""Numbers of keys that a thread multiplies with: about a millisecond."""


class NativeStep:
    """Where the new tokens of a step lie, and their attention; as `Step`.

    Args:
        pieces: the new tokens, of one piece side by side.
        kernels: attend.
        key_numbers: numbers of a key that a token's queries are multiplied with, H * E.
    """

    def __init__(self, pieces: Sequence[Piece], kernels: Kernels, *, key_numbers: int) -> None:
        self.kernels = kernels
        own = [piece.slot for piece in pieces]
        prompts = [piece.prompt for piece in pieces]
        before = [prompt or slot for prompt, slot in zip(prompts, own, strict=True)]  # of length 0 where there is none
        numbers: dict[Slot | None, int] = {}
        group_P = np.array([numbers.setdefault(prompt, len(numbers)) for prompt in prompts])
        widths, lengths, rooms, prompt_lengths, prompt_rooms = np.array(
            [
                (len(piece.token_ids), slot.length, slot.bucket.room, prompt.length if prompt else 0, other.bucket.room)
                for piece, slot, prompt, other in zip(pieces, own, prompts, before, strict=True)
            ]
        ).T
        slots = np.concatenate((_addresses(own), _addresses(before)), axis=1)
        ends = np.cumsum(widths)
        piece_M = np.repeat(np.arange(len(pieces)), widths)
        self._order = order = np.argsort(group_P[piece_M], kind="stable")
        own_M = np.arange(ends[-1]) + (lengths - ends + widths)[piece_M]
        position_M = own_M + prompt_lengths[piece_M]
        at_order = piece_M[order]
        per_token = (rooms[piece_M], own_M, prompt_rooms[piece_M], prompt_lengths[piece_M])
        self._key_numbers = key_numbers
        self.places = Places(
            table=torch.from_numpy(np.stack((order, group_P[at_order], at_order, *per_token))),
            slots=torch.from_numpy(slots.take(piece_M, axis=-1)),
            parts=_parts(position_M, order, key_numbers),
        )
        self.num_tokens, self.longest = int(ends[-1]), int(position_M.max()) + 1
        ids_M = np.fromiter((token for piece in pieces for token in piece.token_ids), np.int64, self.num_tokens)
        previous_M = np.concatenate(([0], ids_M[:-1]))
        previous_M[ends - widths] = [piece.previous_id for piece in pieces]
        asked = np.array([piece.ends for piece in pieces])
        self.ids_M, self.previous_M, self.positions_M, self.last_B = map(
            torch.from_numpy, (ids_M, previous_M, position_M, ends[asked] - 1)
        )

    def go_on(self, ids: Sequence[int]) -> None:
        """See `agentrl.policy.step.Step.go_on`."""
        self.ids_M, self.previous_M = torch.tensor(ids), self.ids_M
        self.positions_M += 1
        self.longest += 1
        self.places.table[_OWN_PLACE] += 1
        if torch.get_num_threads() > 1:
            parts = _parts(self.positions_M.numpy(), self._order, self._key_numbers)
            self.places = replace(self.places, parts=parts)

    def attend(self, layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:
        """See `agentrl.policy.base.Attend`."""
        window = None if window is None or self.longest <= window else window
        return self.kernels.attend(self.places, layer, q_MHE, k_MKE, v_MKE, window)


def _parts(position_M: np.ndarray, order: np.ndarray, key_numbers: int) -> Sequence[tuple[int, int]]:
    """Ranges of the order that look at about as many keys each, as many as there are threads and as are worth it."""
    total = np.cumsum(position_M[order] + 1)
    count = min(torch.get_num_threads(), max(1, int(total[-1]) * key_numbers // WORTH_A_THREAD))
    if count == 1:
        return [(0, len(order))]
    inner = np.searchsorted(total, total[-1] * np.arange(1, count) / count)
    bounds = [0, *inner.tolist(), len(order)]
    return [(begin, end) for begin, end in pairwise(bounds) if begin < end]


def _addresses(slots: Sequence[Slot]) -> np.ndarray:
    """Where the keys and the values of some slots begin in memory (L, 2, M)."""
    buckets = {slot.bucket: None for slot in slots}
    numbers = {bucket: number for number, bucket in enumerate(buckets)}
    tensors = [[x for layer in bucket.layers for x in layer] for bucket in buckets]
    start = np.array([[x.data_ptr() for x in of_bucket] for of_bucket in tensors])
    step = np.array([[x.stride(0) * x.element_size() for x in of_bucket] for of_bucket in tensors])
    which = np.array([numbers[slot.bucket] for slot in slots])
    row = np.array([slot.row for slot in slots])
    found = start[which] + row[:, None] * step[which]
    return np.ascontiguousarray(found.T).reshape(-1, 2, len(slots))


def attention_kernels(shapes: Sequence[LayerShape], like: Tensor) -> Kernels | None:
    """What attends, for layers of these shapes and keys of the type of ``like``; None where torch
    has to."""
    widths = {width for shape in shapes for width in (shape.key_width, shape.value_width)}
    if len(widths) > 1 or like.dtype != torch.float32 or like.device.type != "cpu":
        return None
    found = kernels(widths.pop())
    if found is None or all(_agree(found, shape) for shape in {*shapes}):
        return found
    refuse(SOURCE, "torch")
    return None


@cache
@torch.inference_mode()
def _agree(found: Kernels, shape: LayerShape) -> bool:
    """Compare with torch on a few conversations of two prompts and of none, of lengths around those of a tile."""
    pool = Pool([shape], torch.zeros(0), Budget(2**40))
    prompts = [pool.take(length) for length in (70, 3)]
    before = [*[prompts[0]] * 8, prompts[1], None, None]
    tails = [pool.take(150) for _ in before]
    generator = torch.Generator().manual_seed(0)
    for bucket in pool.buckets.values():
        for x in bucket.layers[0]:
            x.normal_(generator=generator)
    for slot, length in zip((*prompts, *tails), (70, 3, 0, 1, 3, 63, 64, 65, 129, 7, 5, 128, 0), strict=True):
        slot.length = length
    pieces = [
        Piece(slot=slot, prompt=prompt, token_ids=[1] * count, previous_id=0, ends=True)
        for slot, prompt, count in zip(tails, before, (1, 1, 1, 1, 1, 1, 1, 20, 1, 1, 70), strict=True)
    ]
    sizes = ((shape.query_heads, shape.key_width), (shape.heads, shape.key_width), (shape.heads, shape.value_width))
    tokens = sum(len(piece.token_ids) for piece in pieces)
    qkv = [torch.randn(tokens, *size, generator=generator) for size in sizes]
    qkv[0] *= shape.key_width**-0.5
    ours = NativeStep(pieces, found, key_numbers=2**15)  # in several parts, where there are threads
    theirs = Step(pieces, query_heads=shape.query_heads, device=torch.device("cpu"))
    pairs = [(ours.attend(0, *qkv, window=window), theirs.attend(0, *qkv, window=window)) for window in (None, 66)]
    return all(bool((one - other).abs().max() <= TOLERANCE) for one, other in pairs)
