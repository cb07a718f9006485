"""What a step of sampling does besides matrix products, in C: attention over the cache, norms, rotary positions, gates.

In small models a step is some hundred operations that each take longer to start, and to find their numbers in memory
again, than to compute. ``native.c`` does them in eight passes a layer. It is compiled by the machine's own compiler for
its own processor when it is first wanted (a second), and kept in the user's cache folder. Where there is no compiler,
or it gives other numbers, everything is computed by torch as before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from agentrl.policy.compiled import library, refuse

SOURCE = Path(__file__).with_suffix(".c")
WIDEST = 256
"""Numbers of a head, at most."""
BLOCK = 256
"""Tokens that go all the way from an attention to the next before others do."""

_INT, _FLOAT, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class _Layout(ctypes.Structure):
    _fields_ = (
        ("query_heads", _INT),
        ("heads", _INT),
        *(
            (name, _POINTER)
            for name in ("order", "group", "piece", "own_room", "own_place", "prompt_room", "prompt_length")
        ),
    )


class _Slots(ctypes.Structure):
    _fields_ = tuple((name, _POINTER) for name in ("own_keys", "own_values", "prompt_keys", "prompt_values"))


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the tokens of a step lie; integers, M of each.

    Attributes:
        table: (7, M): an order in which the tokens of one prompt are side by side, and of them those of one slot; the
            numbers of the prompt and of the slot of each place in it; and for each token the room of its own slot and
            its place there, the room of its prompt and how long that is (0 where there is none).
        slots: (layers, 4, M) addresses: of the keys and values of its own slot, and of its prompt.
        parts: ranges of the order, for a thread each.
    """

    table: Tensor
    slots: Tensor
    parts: Sequence[tuple[int, int]]


class Kernels:
    """The compiled functions, for heads of one width.

    Args:
        library: compiled from ``native.c``.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._keep, self._attend = library.keep, library.attend
        self._add_norm, self._rotate, self._gate = library.add_norm, library.rotate, library.gate
        pointer, number = _POINTER, _INT
        self._keep.argtypes = (pointer, pointer, number, pointer, number, pointer, number)
        self._attend.argtypes = (pointer, pointer, pointer, number, number, number, number, pointer, pointer, pointer)
        self._add_norm.argtypes = (number, number, pointer, pointer, pointer, _FLOAT, pointer)
        self._rotate.argtypes = (number, number, pointer, pointer, _FLOAT, _FLOAT, pointer, pointer, pointer)
        self._gate.argtypes = (number, pointer, pointer)
        self._between = library.between
        self._between.argtypes = (pointer, number, *[pointer] * 13)
        for function in (self._keep, self._attend, self._add_norm, self._rotate, self._gate, self._between):
            function.restype = None

    def __deepcopy__(self, memo: object) -> Kernels:
        return self  # a copy of a policy has weights of its own, and the same functions

    def attend(
        self, places: Places, layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, window: int | None
    ) -> Tensor:
        """Write keys and values where they belong, and give the attention (M, H * E); queries come scaled."""
        tokens, heads, width = q_MHE.shape
        q_MHE, k_MKE, v_MKE = (
            x if x.stride()[1:] == (width, 1) and x.dtype == torch.float32 else _plain(x) for x in (q_MHE, k_MKE, v_MKE)
        )
        out_MD = q_MHE.new_empty(tokens, heads * width)
        sums_2MH = q_MHE.new_empty(2, tokens, heads)
        layout = _Layout(heads, k_MKE.shape[1], *_rows(places.table))
        slots = _Slots(*_rows(places.slots[layer]))
        where = ctypes.addressof(layout), ctypes.addressof(slots)
        self._keep(*where, tokens, k_MKE.data_ptr(), k_MKE.stride(0), v_MKE.data_ptr(), v_MKE.stride(0))
        results = (*_rows(sums_2MH), out_MD.data_ptr())

        def attend(part: tuple[int, int]) -> None:
            self._attend(*where, q_MHE.data_ptr(), q_MHE.stride(0), window or 0, *part, *results)

        first, *others = places.parts
        pending = [_threads().submit(attend, part) for part in others]
        attend(first)
        for one in pending:
            one.result()
        return out_MD

    def add_norm(self, x_MD: Tensor, added_MD: Tensor | None, weight_D: Tensor, epsilon: float) -> Tensor:
        """Add to ``x_MD`` in place, and give the RMS norm (M, D) of the sum."""
        out_MD = torch.empty_like(x_MD)
        added_MD = None if added_MD is None else _plain(added_MD)
        added = None if added_MD is None else added_MD.data_ptr()
        rows, width = x_MD.shape
        self._add_norm(rows, width, x_MD.data_ptr(), added, weight_D.data_ptr(), epsilon, out_MD.data_ptr())
        return out_MD

    def rotate(self, x_MHE: Tensor, weight_E: Tensor | None, epsilon: float, factor: float, turns: Turns) -> Tensor:
        """Norm heads where there is a weight, multiply them by ``factor``, turn them by their positions; in place."""
        x_MHE = _plain(x_MHE)
        weight = None if weight_E is None else weight_E.data_ptr()
        self._rotate(*x_MHE.shape[:2], x_MHE.data_ptr(), weight, epsilon, factor, *turns.addresses)
        return x_MHE

    def between(
        self,
        widths: ctypes.Structure,
        behind: ctypes.Structure | None,
        before: ctypes.Structure,
        product: int,
        turns: Turns,
        attended_MQ: Tensor | None,
        numbers: Sequence[Tensor],
    ) -> None:
        """From an attention to the next; see ``between.h`` and `agentrl.policy.segments`."""
        attended_MQ = None if attended_MQ is None else _plain(attended_MQ)
        given = None if attended_MQ is None else attended_MQ.data_ptr()
        structures = (None if one is None else ctypes.addressof(one) for one in (behind, before))
        addresses = (x.data_ptr() for x in numbers)
        rows = len(numbers[0])
        self._between(ctypes.addressof(widths), rows, *structures, product, *turns.addresses, given, *addresses)

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        """``x = silu(x) * y``, in place."""
        x, y = _plain(x), _plain(y)
        self._gate(x.numel(), x.data_ptr(), y.data_ptr())
        return x


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The cosines and sines (T, E) of positions, and the positions (M) of some tokens."""

    positions_M: Tensor
    cosines_TE: Tensor
    sines_TE: Tensor

    @property
    def addresses(self) -> tuple[int, int, int]:
        """In memory."""
        return self.positions_M.data_ptr(), self.cosines_TE.data_ptr(), self.sines_TE.data_ptr()


def _plain(x: Tensor) -> Tensor:
    """In float32, one number behind the other: itself, unless a module gives something else."""
    return x.to(torch.float32).contiguous()


def _rows(x: Tensor) -> Sequence[int]:
    """Addresses of the rows."""
    start, step = x.data_ptr(), x.stride(0) * x.element_size()
    return [start + step * row for row in range(x.shape[0])]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="agentrl-attention")


@cache
def kernels(width: int) -> Kernels | None:
    """The functions for heads of a width, compiled if need be; None where they cannot be had."""
    if width % 8 or not 0 < width <= WIDEST:
        return None
    found = library(SOURCE, (f"-DE={width}", f"-DBLOCK={BLOCK}"))
    if found is None or _agrees(made := Kernels(found), width):
        return None if found is None else made
    refuse(SOURCE, "its formulas")
    return None


@torch.inference_mode()
def _agrees(found: Kernels, width: int) -> bool:
    """Compare with formulas on numbers of size one, of which epsilon is a part that counts as it may not be in a model;
    attention has a check of its own."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, added, weight, heads, y = drawn(3, 21), drawn(3, 21), drawn(21), drawn(3, 2, width), drawn(3, 21)
    of_heads, cos, sin = drawn(width), *(drawn(5, width // 2).repeat(1, 2) for _ in range(2))
    turns = Turns(positions_M=torch.tensor([4, 0, 2]), cosines_TE=cos, sines_TE=sin)
    normed = 0.25 * torch.rms_norm(heads, (width,), of_heads, 0.5)
    low, high = normed.chunk(2, -1)
    at = turns.positions_M[:, None]
    pairs = [
        (found.add_norm(x.clone(), added, weight, 0.5), torch.rms_norm(x + added, (21,), weight, 0.5)),
        (found.add_norm(x.clone(), None, weight, 0.5), torch.rms_norm(x, (21,), weight, 0.5)),
        (
            found.rotate(heads.clone(), of_heads, 0.5, 0.25, turns),
            normed * cos[at] + torch.cat((-high, low), -1) * sin[at],
        ),
        (found.gate(x.clone(), y), torch.nn.functional.silu(x) * y),
    ]
    return all(bool((ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()) for ours, theirs in pairs)
