"""How many bytes of tensors are alive at once while code runs, and what it computes.

Works on tensors of the meta device too, which have shapes and no numbers: a step of any size is traced in a second.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

LARGE = 32 * 2**20
"""Bytes from which the C library always gives a freed block back to the system. It keeps smaller ones for later
(glibc's largest dynamic M_MMAP_THRESHOLD)."""


class Product(NamedTuple):
    """A matrix product of (rows, inner) with (inner, columns), ``batch`` of them at once."""

    batch: int
    rows: int
    inner: int
    columns: int


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered.

    Args:
        given: tensors that were there before, and do not count.

    Attributes:
        now: bytes of the tensors that were made and are alive.
        peak: the most of them at once.
        small_peak, large_peak: the same of tensors below and from `LARGE` alone; the two need not coincide.
        products: how often each matrix product was computed.
        attention_flops: operations of fused attention.
    """

    def __init__(self, given: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.small_now = self.small_peak = self.large_peak = 0
        self.products: Counter[Product] = Counter()
        self.attention_flops = 0
        self._alive: dict[int, Any] = {}
        for tensor in given:
            self._alive[tensor.untyped_storage()._cdata] = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in _WHOLE:
            with self:  # in inference mode an operation comes whole, which is made of others elsewhere
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        given = _tensors((*args, *kwargs.values()))
        if any(tensor.is_meta for tensor in given) and not all(tensor.is_meta for tensor in given):
            args, kwargs = tree_map_only(Tensor, _shape_of, (args, kwargs))
        out = func(*args, **kwargs)
        made = _tensors((out,))
        for tensor in made:
            self._see(tensor)
        self._count(func, args, kwargs, out)
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        size = storage.nbytes()
        self._alive[key] = weakref.ref(storage, self._forgetting(key, size))
        self._add(size, +1)
        self.peak = max(self.peak, self.now)
        self.small_peak = max(self.small_peak, self.small_now)
        self.large_peak = max(self.large_peak, self.now - self.small_now)

    def _add(self, size: int, sign: int) -> None:
        self.now += sign * size
        if size < LARGE:
            self.small_now += sign * size

    def _forgetting(self, key: int, size: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self._alive.pop(key, None)
            self._add(size, -1)

        return forget

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        packet = func._overloadpacket
        if packet in _PRODUCTS:
            self.products[_product(*args[_PRODUCTS[packet] :])] += 1
        elif packet in _FUSED:
            flops, tensors = _FUSED[packet]
            self.attention_flops += flops(*(tensor.shape for tensor in args[:tensors]))
        elif packet in flop_registry:
            self.attention_flops += flop_registry[packet](*args, **kwargs, out_val=out)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Those among some values, and in the lists among them."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _shape_of(tensor: Tensor) -> Tensor:
    """Indices and masks have numbers, which the shapes that they meet do not need."""
    return tensor if tensor.is_meta else torch.empty_like(tensor, device="meta")


_FUSED: dict[Any, tuple[Callable[..., int], int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
}
"""Fused attention of the CPU, which torch does not count: its operations by the shapes of its first tensors."""
_WHOLE = {*_FUSED, *flop_registry}
_PRODUCTS = {
    torch.ops.aten.mm: 0,
    torch.ops.aten.bmm: 0,
    torch.ops.aten.addmm: 1,
    torch.ops.aten.addmm_: 1,
    torch.ops.aten.baddbmm: 1,
}
"""The operations that are matrix products, and which argument is the first matrix."""


def _product(left: Tensor, right: Tensor, *_: Any) -> Product:
    batch = left.shape[0] if left.ndim == 3 else 1
    return Product(batch, left.shape[-2], left.shape[-1], right.shape[-1])
