"""What every statistic asks of its input, and the words for what was wrong with it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]


def as_scores(scores: ArrayLike, name: str = "scores") -> Array:
    """Scores as a float array [tasks, attempts, *checkpoints]; NaN where an attempt is missing.

    Raises:
        ValueError: fewer than two dimensions, no task or attempt, an infinite score, or nothing but NaN.
    """
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim < 2:
        raise ValueError(
            f"{name} has shape {array.shape}; give [tasks, attempts], for one attempt each values[:, None]"
        )
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: there is no task or no attempt in it")
    _refuse_infinite(array, name)
    if np.isnan(array).all():
        raise ValueError(f"{name}: every attempt is NaN, which means missing; score at least one attempt")
    return array


def as_values(values: ArrayLike, name: str = "values") -> Array:
    """One number per task as a float array [tasks]; NaN where a task has none.

    Raises:
        ValueError: not one-dimensional, or an infinite value.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; give one number per task, [tasks]")
    _refuse_infinite(array, name)
    return array


def as_labels(labels: ArrayLike | None, num_tasks: int, name: str = "clusters") -> Labels:
    """The group of each task, numbered from 0 in order of first appearance; each task its own where None.

    Raises:
        ValueError: not one whole number >= 0 per task.
    """
    if labels is None:
        return np.arange(num_tasks, dtype=np.int64)
    array = np.asarray(labels)
    if array.shape != (num_tasks,):
        raise ValueError(f"{name} has shape {array.shape}; give one number for each of the {num_tasks} tasks")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} are {array.dtype}; number the groups 0, 1, 2, ... as integers")
    if array.size and array.min() < 0:
        at = int(np.argmin(array))
        raise ValueError(
            f"{name}[{at}] is {array[at]}; number the groups from 0, a task of no group gets its own number"
        )
    _, first, inverse = np.unique(array, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def check_k(k: int) -> None:
    """Raise ValueError unless ``k`` is a whole number of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k is {k!r}; it is a number of attempts, 1 or more")


def check_share(share: float, name: str = "level") -> None:
    """Raise ValueError unless ``share`` is strictly between 0 and 1."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"{name} is {share!r}; give a share between 0 and 1, such as 0.95")


def check_enough(num_attempts: NDArray[np.int64], k: int, what: str) -> None:
    """Raise ValueError when no task has ``k`` attempts, so that ``what`` is defined nowhere."""
    most = int(num_attempts.max())
    if most < k:
        raise ValueError(f"{what} needs {k} attempts at a task and no task has more than {most}; run more or lower k")


class Counts(NamedTuple):
    """Scored attempts and passes among them, each [tasks, *checkpoints]."""

    attempts: NDArray[np.int64]
    passes: NDArray[np.int64]


def counts(scores: ArrayLike, threshold: float | None = None) -> Counts:
    """Scored attempts and passes per task, from scores [tasks, attempts, *checkpoints].

    Args:
        scores: NaN where an attempt is missing.
        threshold: an attempt passes when its score is at least this. Without one every score must be 0 or 1.

    Raises:
        ValueError: a score is neither 0 nor 1 and no threshold was given.
    """
    array = as_scores(scores)
    present = ~np.isnan(array)
    if threshold is None:
        passed = array == 1.0
        _refuse_partial(array, present & ~passed & (array != 0.0))
    elif not np.isfinite(threshold):
        raise ValueError(f"threshold is {threshold!r}; give the lowest score that is a pass")
    else:
        passed = array >= threshold
    return Counts(present.sum(axis=1), passed.sum(axis=1))


def _refuse_partial(array: Array, partial: NDArray[np.bool_]) -> None:
    if partial.any():
        at = tuple(int(i) for i in np.argwhere(partial)[0])
        raise ValueError(
            f"score {array[at]:g} of task {at[0]}, attempt {at[1]} is neither 0 nor 1; "
            "say from which score on an attempt is a pass (threshold=1.0 for full marks only)"
        )


def _refuse_infinite(array: Array, name: str) -> None:
    if np.isinf(array).any():
        at = tuple(int(i) for i in np.argwhere(np.isinf(array))[0])
        raise ValueError(f"{name}{list(at)} is {array[at]}; scores are finite, and NaN stands for a missing attempt")
