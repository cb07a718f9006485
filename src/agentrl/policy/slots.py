"""Where keys and values lie: slots of one sequence each, side by side with others of the same room.

Slots of equal room share one tensor a layer, so that attention meets many of them in one product. A slot that outgrows
its room moves to one of twice the room, so that a token is moved once on average. What is given back is used again, or
handed back when it is wanted elsewhere.

Memory is bounded at every moment. Where slots become more or fewer, their tensors are copied one at a time, and while
one is, the old and the new are both there. So the budget is asked for the bytes of each slot and, for a copy, those of
its largest tensor once more.

Shape suffixes: R slots of a bucket, K heads of keys and values, T room in tokens, E width of a head.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from agentrl.policy.base import Policy

SMALLEST = 64
"""Room of the smallest slots, in tokens."""


class CacheFull(Exception):
    """There is no memory for what is asked; something has to be given back first."""


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What a layer keeps of a token."""

    heads: int
    key_width: int
    value_width: int
    query_heads: int


@torch.inference_mode()
def layer_shapes(model: Policy) -> tuple[list[LayerShape], Tensor, int]:
    """What each layer of a model keeps of a token, found out with one token; an empty tensor of its type; and the bytes
    of a token's logits."""
    shapes: list[LayerShape] = []
    kind: list[Tensor] = []

    def look(layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:  # noqa: ARG001
        heads = k_MKE.shape[1]
        shapes.append(
            LayerShape(heads=heads, key_width=k_MKE.shape[2], value_width=v_MKE.shape[2], query_heads=q_MHE.shape[1])
        )
        kind.append(k_MKE.new_zeros(0))
        return v_MKE.repeat_interleave(q_MHE.shape[1] // heads, 1).flatten(1)

    zero = torch.zeros(1, dtype=torch.long, device=next(model.parameters()).device)
    logits_BV = model.advance(zero, zero, zero, look, zero)
    return shapes, kind[0], logits_BV.nbytes


class KeysValues(NamedTuple):
    """Keys (R, K, T, E) and values of one layer."""

    keys: Tensor
    values: Tensor


@dataclass(eq=False)
class Slot:
    """One sequence in a cache: ``length`` tokens of it are there."""

    bucket: Bucket
    row: int
    length: int = 0


class Bucket:
    """Slots of one room."""

    def __init__(self, room: int, shapes: Sequence[LayerShape], like: Tensor) -> None:
        self.room, self.rows = room, 0
        self.slots: WeakValueDictionary[int, Slot] = WeakValueDictionary()
        """Those in use, by their row. Whoever uses a slot holds it, and it holds the bucket, which thus goes with the
        last of them and does not wait for the garbage collector."""
        self._free: list[int] = []
        self.layers = [
            KeysValues(
                like.new_zeros(0, shape.heads, room, shape.key_width),
                like.new_zeros(0, shape.heads, room, shape.value_width),
            )
            for shape in shapes
        ]

    @property
    def is_full(self) -> bool:
        """Whether another slot needs more memory."""
        return not self._free

    def take(self) -> Slot:
        """The lowest free row."""
        row = heapq.heappop(self._free)
        slot = self.slots[row] = Slot(self, row)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Free a row; what it holds is not read again."""
        del self.slots[slot.row]
        heapq.heappush(self._free, slot.row)

    @torch.inference_mode()
    def resize(self, rows: int) -> None:
        """Have so many rows, at least those in use, which move to the front where they do not fit."""
        if rows < self.rows:
            self._pack()
        used = len(self.slots)
        for place in range(len(self.layers)):  # each old tensor goes before the next new one comes
            self.layers[place] = self.layers[place]._replace(keys=_resized(self.layers[place].keys, rows, used))
            self.layers[place] = self.layers[place]._replace(values=_resized(self.layers[place].values, rows, used))
        self.rows = rows
        self._free = [row for row in range(rows) if row not in self.slots]

    def _pack(self) -> None:
        used = sorted(self.slots)
        for layer in self.layers:
            for x in layer:
                for to, row in enumerate(used):
                    if to != row:
                        x[to] = x[row]
        moved = [self.slots[row] for row in used]
        self.slots = WeakValueDictionary(enumerate(moved))
        for row, slot in enumerate(moved):
            slot.row = row


def _resized(x: Tensor, rows: int, used: int) -> Tensor:
    new = _zeros((rows, *x.shape[1:]), x)  # hidden keys are read, and must be numbers
    kept = min(rows, x.shape[0])
    assert kept >= min(used, x.shape[0])
    new[:kept] = x[:kept]
    return new


def _zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """On the CPU by numpy, which leaves the zeros to the system and asks it for large pages: what is not written takes
    no time and no memory, and what is takes a fifth of the time. Vectors begin at multiples of their 64 bytes."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not size:
        return like.new_zeros(shape)
    memory = np.zeros(size + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return torch.from_numpy(memory[start : start + size]).view(like.dtype).view(shape)


class Pool:
    """Slots of any room, within a budget that several pools share.

    Attributes:
        bytes_per_token: that the budget is asked for: of a token's keys and values, and of their copy.
        buckets: by their room.
        moves: how often slots may have come to lie elsewhere, or have been cut or given back.
    """

    def __init__(self, shapes: Sequence[LayerShape], like: Tensor, budget: Budget) -> None:
        self.shapes, self.like, self.budget = shapes, like, budget
        self.buckets: dict[int, Bucket] = {}
        self.moves = 0
        item = like.element_size()
        sizes = [s.heads * width * item for s in shapes for width in (s.key_width, s.value_width)]
        self.bytes_per_token = sum(sizes) + max(sizes)

    def take(self, length: int) -> Slot:
        """A slot with room for so many tokens.

        Raises:
            CacheFull: none is free and there is no memory for another.
        """
        room = _room(length)
        bucket = self.buckets.get(room)
        if bucket is None:
            bucket = self.buckets[room] = Bucket(room, self.shapes, self.like)
        if bucket.is_full:
            self._grow(bucket)
        return bucket.take()

    def give_back(self, slot: Slot) -> None:
        """Free a slot."""
        self.moves += 1
        slot.bucket.give_back(slot)

    def cut(self, slot: Slot, length: int) -> None:
        """Forget all but the first tokens of a slot."""
        if length < slot.length:
            self.moves += 1
            slot.length = length

    def moved(self, slot: Slot, length: int) -> Slot:
        """The slot, or a larger one with what it holds, so that so many tokens have room.

        Raises:
            CacheFull: there is no memory for a larger one; the slot is as it was.
        """
        if length <= slot.bucket.room:
            return slot
        larger = self.take(length)
        copy(slot, larger, slot.length)
        self.give_back(slot)
        if not slot.bucket.slots:
            self._shrink(slot.bucket)
        return larger

    def shrink(self) -> None:
        """Hand back the memory of slots that are free."""
        for bucket in list(self.buckets.values()):
            self._shrink(bucket)

    @property
    def held(self) -> int:
        """Bytes of keys and values now."""
        return sum(x.nbytes for bucket in self.buckets.values() for layer in bucket.layers for x in layer)

    @property
    def has_free(self) -> bool:
        """Whether there is memory to hand back."""
        return any(len(bucket.slots) < bucket.rows for bucket in self.buckets.values())

    def _shrink(self, bucket: Bucket) -> None:
        used = len(bucket.slots)
        if used < bucket.rows:
            self.budget.used -= (bucket.rows - used) * bucket.room * self.bytes_per_token
            self.moves += 1
            bucket.resize(used)
        if not used:
            del self.buckets[bucket.room]

    def _grow(self, bucket: Bucket) -> None:
        """Twice the rows, since each time all of them are copied, or as large a part of that as there is memory for.
        Where half of the memory is free, as many as there are slots of half the room, which often grow together."""
        row, more = bucket.room * self.bytes_per_token, max(4, bucket.rows)
        half = self.buckets.get(bucket.room // 2)
        if half and 2 * (self.budget.used + len(half.slots) * row) <= self.budget.limit:
            more = max(more, len(half.slots))
        while more > 1 and self.budget.used + more * row > self.budget.limit:
            more //= 2
        self.budget.take(more * row)
        self.moves += 1
        bucket.resize(bucket.rows + more)


@dataclass
class Budget:
    """Bytes of keys, values and kept logits: the most that may be held at any moment, and what has been asked for."""

    limit: int
    used: int = 0

    def take(self, size: int) -> None:
        """Count so many bytes more.

        Raises:
            CacheFull: that would be more than may be.
        """
        if self.used + size > self.limit:
            raise CacheFull
        self.used += size


@torch.inference_mode()
def copy(source: Slot, to: Slot, length: int) -> None:
    """Copy the first tokens of one slot into another."""
    for theirs, ours in zip(source.bucket.layers, to.bucket.layers, strict=True):
        for old, new in zip(theirs, ours, strict=True):
            new[to.row, :, :length] = old[source.row, :, :length]
    to.length = length


def _room(length: int) -> int:
    """The power of two that holds so many tokens."""
    return max(SMALLEST, 1 << (length - 1).bit_length())
