"""Random numbers that depend on a seed and a position and on nothing else (no order of calls, no batch)."""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from any mixture of names and numbers."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One float64 in [0, 1) per (seed, position). Source: SplitMix64 (Steele et al. 2014), the position as counter."""
    with np.errstate(over="ignore"):
        z = seeds.astype(np.uint64) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        z ^= z >> np.uint64(31)
    uniform: np.ndarray = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform
