"""How far a policy has gone from where RL began, and what it forgot on the way.

Divergence is the forward one, KL(base || trained), over the tokens that the base sampled in its own attempts: exact at
each token, over the whole vocabulary. Forgetting is the rise of the loss on a retention set: the demonstrations without
a fault, which are one edit, a test run that passes and the hand-in. The others show a wrong guess or a mistake that RL
may unlearn. The warm start trained on both, so that the base knows them and so may every later checkpoint.

Source: Shenfeld, Pari and Agrawal 2025, "RL's Razor: Why Online Reinforcement Learning Forgets Less", arXiv 2509.04259,
which finds that forward divergence foretells forgetting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.evals import stats
from agentrl.types import Trace

Floats = NDArray[np.float64]
Kind = Literal["own", "retained", "other"]
"""Attempts of the base, demonstrations to retain, and the other demonstrations."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One trace under one checkpoint, summed over its ``tokens`` sampled tokens, in nats.

    Attributes:
        step: of the checkpoint.
        kind: see `Kind`.
        unit: what traces that are not independent share: the cluster of the task, or the task.
        divergence: KL(base || checkpoint).
        loss: of the checkpoint, and ``loss_base`` of the base: minus the log-probability of the tokens.
    """

    step: int
    kind: Kind
    unit: str
    tokens: int
    divergence: float
    loss: float
    loss_base: float


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A checkpoint against the base, each per token with its interval; None where there is nothing to measure it on.

    ``divergence`` is in nats; so are ``forgetting`` and ``unlearning``, the rise of the loss on the demonstrations to
    retain and on the others.
    """

    step: int
    divergence: stats.Interval | None
    forgetting: stats.Interval | None
    unlearning: stats.Interval | None


def drift(readings: Sequence[Reading]) -> tuple[Drift, ...]:
    """What the readings of each checkpoint come to, by step."""
    found = []
    for step in sorted({one.step for one in readings}):
        mine = [one for one in readings if one.step == step]
        of: dict[str, list[Reading]] = {kind: [] for kind in ("own", "retained", "other")}
        for one in mine:
            of[one.kind].append(one)
        found.append(
            Drift(
                step=step,
                divergence=_per_token(of["own"], [one.divergence for one in of["own"]]),
                forgetting=_per_token(of["retained"], [one.loss - one.loss_base for one in of["retained"]]),
                unlearning=_per_token(of["other"], [one.loss - one.loss_base for one in of["other"]]),
            )
        )
    return tuple(found)


def _per_token(readings: Sequence[Reading], sums: Sequence[float]) -> stats.Interval | None:
    names = sorted({one.unit for one in readings})
    if len(names) < 2:
        return None
    numbers = {name: number for number, name in enumerate(names)}
    clusters = np.array([numbers[one.unit] for one in readings], dtype=np.int64)
    return ratio_interval(np.array(sums), np.array([one.tokens for one in readings], dtype=np.float64), clusters)


def ratio_interval(parts: Floats, sizes: Floats, clusters: NDArray[np.int64]) -> stats.Interval | None:
    """Sum of ``parts`` over sum of ``sizes``, each [n], with the clustered interval of its linearised values.

    None where all ratios are the same number, which shows no spread.

    Source: the delta method for a ratio of means, as in Cochran 1977, "Sampling Techniques", section 6.3.

    >>> round(ratio_interval(np.array([1.0, 4.0]), np.array([1.0, 3.0]), np.array([0, 1])).mean, 6)
    1.25
    """
    ratio = float(parts.sum() / sizes.sum())
    linear = ratio + (parts - ratio * sizes) / sizes.mean()
    if float(np.ptp(linear)) < 1e-12:
        return None
    return stats.interval_of(linear, clusters=clusters, bounds=None)


def is_faultless(trace: Trace) -> bool:
    """Whether an attempt is one edit, a test run that passes, and the hand-in."""
    calls = [call.name for node in trace.events for call in node.message.tool_calls]
    answers = [node.message.content for node in trace.events if node.message.role == "tool"]
    return calls == ["edit", "test", "submit"] and len(answers) > 1 and "passed" in answers[1]
