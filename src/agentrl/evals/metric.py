"""What is compared: the mean score, or what k attempts at a task come to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.evals import stats
from agentrl.evals.table import Table

Floats = NDArray[np.float64]
_K = re.compile(r"(?P<name>pass@|pass\^|best@|worst@)(?P<k>[1-9]\d*)")
_ESTIMATORS = {
    "pass@": stats.pass_at_k,
    "pass^": stats.pass_hat_k,
    "best@": stats.best_at_k,
    "worst@": stats.worst_at_k,
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number per task.

    Attributes:
        name: ``mean``, ``pass@``, ``pass^``, ``best@`` or ``worst@``.
        k: attempts, where the metric has a number of them.
        threshold: the least score that passes; None where scores are 0 or 1, or are not made to pass.
        bounds: what a score can be; not used where it passes or fails.
    """

    name: str
    k: int = 1
    threshold: float | None = None
    bounds: tuple[float, float] = (0.0, 1.0)

    @property
    def label(self) -> str:
        """As it is written: ``mean``, ``pass@4``."""
        return self.name if self.name == "mean" else f"{self.name}{self.k}"

    @property
    def passes(self) -> bool:
        """Whether scores are made to pass or fail."""
        return self.threshold is not None or self.name in ("pass@", "pass^")

    @property
    def range(self) -> tuple[float, float]:
        """What a value can be."""
        return (0.0, 1.0) if self.passes else self.bounds

    def table(self, table: Table) -> Table:
        """The table with the scores that count, checked.

        Raises:
            StoreError: a score that needs a threshold, or that is out of bounds.
        """
        return table.passing(self.threshold) if self.passes else table.within(*self.bounds)

    def values(self, scores: Floats) -> Floats:
        """One value per task: [T, K, ...] to [T, ...]; NaN where a task has fewer than k attempts.

        Raises:
            ValueError: no task has k attempts.
        """
        if self.name == "mean":
            return stats.mean_score(scores)
        return _ESTIMATORS[self.name](scores, self.k)


def parse_metric(text: str, threshold: float | None = None, bounds: tuple[float, float] = (0.0, 1.0)) -> Metric:
    """A metric as the command line names it.

    Raises:
        ValueError: an unknown name.
    """
    if text == "mean":
        return Metric(name="mean", threshold=threshold, bounds=bounds)
    match = _K.fullmatch(text)
    if match is None:
        raise ValueError(f"metric {text!r} is unknown; write mean, pass@K, pass^K, best@K or worst@K, such as pass@4")
    return Metric(name=match["name"], k=int(match["k"]), threshold=threshold, bounds=bounds)


def parse_bounds(text: str) -> tuple[float, float]:
    """``LOW,HIGH`` as numbers. Raises ValueError for anything else."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"bounds {text!r} are not two numbers; write LOW,HIGH such as -1,1") from None
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"bounds {text!r}: the first must be below the second, both finite")
    return low, high
