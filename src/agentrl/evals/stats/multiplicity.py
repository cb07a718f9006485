"""Several comparisons at once: p-values adjusted so that looking often is paid for."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from agentrl.evals.stats.checks import Array, as_values


def holm(p_values: ArrayLike) -> Array:
    """Adjusted p-values [m] in the order given: the chance of one false finding or more below alpha is at most alpha.

    Raises:
        ValueError: a p-value outside [0, 1].

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".

    >>> holm([0.01, 0.04, 0.03, 0.005]).round(6).tolist()
    [0.03, 0.06, 0.06, 0.02]
    """
    p = _p_values(p_values)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return _back(np.minimum(stepped, 1.0), order)


def benjamini_hochberg(p_values: ArrayLike) -> Array:
    """Adjusted p-values [m] in the order given; of the findings below alpha at most a share alpha is false, on average.

    Holds for independent and positively dependent tests.

    Raises:
        ValueError: a p-value outside [0, 1].

    Source: Benjamini and Hochberg 1995, "Controlling the false discovery rate".

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.005]).round(6).tolist()
    [0.02, 0.04, 0.04, 0.02]
    """
    p = _p_values(p_values)
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    stepped = np.minimum.accumulate(scaled[::-1])[::-1]
    return _back(np.minimum(stepped, 1.0), order)


def _p_values(p_values: ArrayLike) -> Array:
    p = as_values(p_values, "p_values")
    bad = ~((p >= 0) & (p <= 1))
    if bad.any():
        at = int(bad.argmax())
        raise ValueError(f"p_values[{at}] is {p[at]}; a p-value lies in [0, 1], leave out tests that were not made")
    return p


def _back(ordered: Array, order: np.ndarray[tuple[int, ...], np.dtype[np.intp]]) -> Array:
    result = np.empty_like(ordered)
    result[order] = ordered
    return result
