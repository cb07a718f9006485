"""One attempt at one task as evaluations count it: a score, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agentrl.errors import StoreError
from agentrl.types import Stop, Trace


class Status(StrEnum):
    """What became of an attempt.

    ``ERRORED`` and ``TIMED_OUT`` are the agent's own failures: by default they count as score 0. ``UNSCORED`` is a
    failure of ours (a sandbox, a judge, a sampler): the score is missing, never 0.
    """

    SCORED = "scored"
    ERRORED = "errored"
    TIMED_OUT = "timed_out"
    UNSCORED = "unscored"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt, whatever kind of log it came from.

    Attributes:
        checkpoint: whose attempt it is, as results name it.
        task: the task's id. The pair of task and ``number`` occurs once per checkpoint.
        number: which attempt at the task, from 0.
        status: see `Status`; ``score`` is a number where it is ``SCORED`` and None elsewhere.
        score: any finite number.
        cluster: tasks of one cluster are not independent of each other, such as bugs in one program.
        family: a label to report by.
        trace_id: what `agentrl show` finds the attempt by; empty where there is no trace.
        show: the folder that `agentrl show` finds it in; empty where there is none.
        tokens: sampled by the policy; None where it is not known.
        seconds: of work on the attempt; None where it is not known.
        others: scores that do not enter ``score``, by name, such as that of the visible tests.
        origin: where it was read, for messages.

    Raises:
        StoreError: a score that is not finite, or that does not fit the status.
    """

    checkpoint: str
    task: str
    number: int
    status: Status = Status.SCORED
    score: float | None = None
    cluster: str | None = None
    family: str = ""
    trace_id: str = ""
    show: str = ""
    tokens: float | None = None
    seconds: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    origin: str = ""

    def __post_init__(self) -> None:
        scored = self.status is Status.SCORED
        if scored and (self.score is None or not math.isfinite(self.score)):
            raise StoreError(
                f"{self.origin or self.task}: score {self.score!r} is not a finite number; write a number, or the "
                f"status {Status.ERRORED}, {Status.TIMED_OUT} or {Status.UNSCORED}"
            )
        if not scored and self.score is not None:
            raise StoreError(
                f"{self.origin or self.task}: score {self.score!r} beside status {self.status}; leave one of them out"
            )


def attempt_of(trace: Trace, checkpoint: str, *, show: str = "", origin: str = "") -> Attempt:
    """A stored trace as an attempt.

    A fault of ours leaves it unscored. One that ran into its time limit without a score has timed out. The tags
    ``cluster`` and ``family`` are read from the trace's metadata, where `agentrl eval` puts them.
    """
    reward = trace.reward
    return Attempt(
        checkpoint=checkpoint,
        task=trace.task_id,
        number=trace.attempt,
        status=_status(trace, reward),
        score=reward,
        cluster=trace.metadata.get("cluster"),
        family=str(trace.metadata.get("family", "")),
        trace_id=trace.id,
        show=show,
        tokens=_tokens(trace),
        seconds=sum(trace.seconds.values()) if trace.seconds else None,
        others={score.name: score.value for score in trace.scores if score.weight == 0.0 and score.value is not None},
        origin=origin or f"trace {trace.id}",
    )


def _tokens(trace: Trace) -> float | None:
    """Tokens that were sampled: those that are kept, or what a model behind an endpoint said that it made."""
    usage = trace.metadata.get("usage")
    return float(trace.num_sampled) if usage is None else usage.get("completion_tokens")


def _status(trace: Trace, reward: float | None) -> Status:
    if reward is not None:
        return Status.SCORED
    if trace.error is None and trace.stop is Stop.TIMEOUT:
        return Status.TIMED_OUT
    return Status.UNSCORED
