"""Which weights training changed, matrix by matrix, from two stored checkpoints and without torch.

A change below the resolution of bfloat16 vanishes when the weights are stored or served in it, so the share of changed
weights is counted in float32 and after rounding to bfloat16. The stable rank of a change, |D|_F^2 / |D|_2^2, says over
how many directions it is spread: 1 for a single one, and for independent noise about m n / (sqrt(m) + sqrt(n))^2.

Source: Mukherjee et al. 2025, "Reinforcement Learning Finetunes Small Subnetworks in Large Language Models", arXiv
2505.11711, for the share in bfloat16; Rudelson and Vershynin 2007 for the stable rank.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from agentrl.errors import StoreError

Floats = NDArray[np.float32]
_FILE, _STATE = "model.safetensors", "state.json"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of one tensor.

    Attributes:
        name: of the tensor.
        shape: of it.
        weights: how many it has.
        changed: how many differ in float32, and ``changed_bf16`` after rounding both to bfloat16.
        relative: |D|_F / |W|_F, the size of the change beside that of the weights before; None where those are zero.
        stable_rank: of the change; None where nothing changed or the tensor is no matrix.
        stable_rank_before: of the matrix before.
        stable_rank_noise: of independent noise of the same shape, for comparison.
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    changed: int
    changed_bf16: int
    relative: float | None
    stable_rank: float | None
    stable_rank_before: float | None
    stable_rank_noise: float | None

    @property
    def share(self) -> float:
        """Of the weights that differ in float32."""
        return self.changed / self.weights

    @property
    def share_bf16(self) -> float:
        """Of the weights that differ in bfloat16."""
        return self.changed_bf16 / self.weights


def read_weights(checkpoint: Path) -> dict[str, Floats]:
    """The policy's tensors of a stored checkpoint as float32; those of a critic or a sampler are left out.

    Raises:
        StoreError: it is missing or damaged, or has tensors that are no floating-point numbers.
    """
    file = checkpoint / _FILE
    try:
        digests = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["sha256"]
        data = file.read_bytes()
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{checkpoint}: not a readable checkpoint ({error})") from error
    if hashlib.sha256(data).hexdigest() != digests.get(_FILE):
        raise StoreError(f"{file}: damaged, its checksum differs; copy the run again")
    try:
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise StoreError(f"{file}: not safetensors ({error})") from error
    return {name: _as_float32(file, name, tensor) for name, tensor in tensors if ":" not in name}


def _as_float32(file: Path, name: str, tensor: Mapping[str, object]) -> Floats:
    kind, data, shape = str(tensor["dtype"]), tensor["data"], tensor["shape"]
    assert isinstance(data, bytes | bytearray)
    assert isinstance(shape, list)
    if kind == "BF16":
        wide = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(shape)
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
    if kind not in kinds:
        raise StoreError(f"{file}: tensor {name!r} is of type {kind}; changes are counted in BF16, F16, F32 or F64")
    return np.frombuffer(data, dtype=kinds[kind]).astype(np.float32).reshape(shape)


def bfloat16(values: Floats) -> NDArray[np.uint16]:
    """The bits of float32 numbers rounded to the nearest bfloat16, ties to even.

    >>> [hex(bits) for bits in bfloat16(np.array([1.0, 1.00390625, 1.01171875], dtype=np.float32))]
    ['0x3f80', '0x3f80', '0x3f82']
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def changes(before: Mapping[str, Floats], after: Mapping[str, Floats]) -> tuple[Change, ...]:
    """Each tensor's change, by name, the tenth block after the ninth.

    Raises:
        StoreError: the checkpoints do not have the same tensors, or one holds a number that is not finite.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise StoreError(f"the checkpoints do not have the same tensors: {', '.join(odd[:3])} is in one of them alone")
    return tuple(_change(name, before[name], after[name]) for name in sorted(before, key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _change(name: str, before: Floats, after: Floats) -> Change:
    if before.shape != after.shape:
        raise StoreError(f"tensor {name!r} has the shape {before.shape} before and {after.shape} after")
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise StoreError(f"tensor {name!r} holds a number that is not finite")
    difference = after.astype(np.float64) - before.astype(np.float64)
    size = float(np.linalg.norm(before.astype(np.float64)))
    matrix = before.ndim == 2 and min(before.shape) > 1
    return Change(
        name=name,
        shape=tuple(before.shape),
        weights=before.size,
        changed=int((before != after).sum()),
        changed_bf16=int((bfloat16(before) != bfloat16(after)).sum()),
        relative=float(np.linalg.norm(difference)) / size if size else None,
        stable_rank=stable_rank(difference) if matrix else None,
        stable_rank_before=stable_rank(before) if matrix else None,
        stable_rank_noise=noise_rank(*before.shape) if matrix else None,
    )


def stable_rank(matrix: NDArray[np.floating]) -> float | None:
    """|M|_F^2 / |M|_2^2, between 1 and the rank; None for a matrix of zeros.

    >>> round(stable_rank(np.diag([2.0, 1.0, 1.0])), 6)
    1.5
    """
    largest = float(np.linalg.norm(matrix.astype(np.float64), 2))
    return float(np.linalg.norm(matrix.astype(np.float64))) ** 2 / largest**2 if largest else None


def noise_rank(rows: int, columns: int) -> float:
    """About the stable rank of independent noise of a shape: its largest singular value is near sqrt(m) + sqrt(n).

    >>> noise_rank(100, 100)
    25.0
    """
    return rows * columns / (math.sqrt(rows) + math.sqrt(columns)) ** 2


def total(found: tuple[Change, ...]) -> Change:
    """All tensors as one. Its relative size is over all weights together, which needs theirs; it is left out."""
    return Change(
        name="all",
        shape=(),
        weights=sum(one.weights for one in found),
        changed=sum(one.changed for one in found),
        changed_bf16=sum(one.changed_bf16 for one in found),
        relative=None,
        stable_rank=None,
        stable_rank_before=None,
        stable_rank_noise=None,
    )
