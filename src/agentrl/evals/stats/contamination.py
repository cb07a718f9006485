"""Was a task in the training data? A check from log-probabilities alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from agentrl.evals.stats.checks import as_values


def min_k_logprob(logprobs: ArrayLike, percent: float = 20.0) -> float:
    """Min-K% Prob: mean of the least likely ``percent`` of a text's tokens, at least one. High means seen before.

    Args:
        logprobs: [tokens], natural logarithms, each <= 0.
        percent: above 0 and up to 100.

    Raises:
        ValueError: no token, a logprob that is NaN or positive, or a percentage out of range.

    Source: Shi et al. 2024, "Detecting Pretraining Data from Large Language Models", arXiv 2310.16789.

    >>> min_k_logprob([-0.1, -0.2, -3, -5, -0.3, -0.4, -0.2, -0.6, -0.5, -0.1], 20)
    -4.0
    """
    array = as_values(logprobs, "logprobs")
    if not len(array) or not (array <= 0).all():
        wrong = array[~(array <= 0)][0] if len(array) else "nothing"
        raise ValueError(f"logprobs hold {wrong}; give one number <= 0 for each token")
    if not 0 < percent <= 100:
        raise ValueError(f"percent is {percent!r}; give the share of tokens in percent, such as 20")
    number = max(1, math.floor(len(array) * percent / 100 + 1e-9))
    return float(np.sort(array)[:number].mean())
