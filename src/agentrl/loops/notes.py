"""What is noted on an attempt once it is known what became of it."""

from __future__ import annotations

from dataclasses import replace

from agentrl.algorithms.filters import Credit
from agentrl.tokens.samples import Objective
from agentrl.types import Trace


def trained_on(trace: Trace, objective: Objective, advantage: Credit = None) -> Trace:
    """The trace with a note, for whoever looks at it later, that its sampled tokens were trained.

    Args:
        trace: the attempt.
        objective: the weight that those tokens had, ``pg`` or ``ce``.
        advantage: that of each of them, or one for each turn; None where there is none, or where a critic gave each
            its own.
    """
    if isinstance(advantage, tuple):
        return _noted(trace, objective=objective, advantage=None, advantages=list(advantage))
    return _noted(trace, objective=objective, advantage=advantage)


def left_out(trace: Trace, reason: str) -> Trace:
    """The trace with a note that none of its tokens was trained, and why: ``no_signal``, ``unscored``."""
    return _noted(trace, left_out=reason, advantage=None)


def _noted(trace: Trace, **note: str | float | list[float] | None) -> Trace:
    return replace(trace, metadata={**trace.metadata, **note})
