"""One group that is out: which of its attempts are in flight, which have ended, and with what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from agentrl.protocols import TaskSet
from agentrl.records import trace_from_json, trace_to_json
from agentrl.rollout.attempt import AttemptId
from agentrl.rollout.plan import GroupPlan, GroupShape
from agentrl.types import Group, Task, Trace


class End(StrEnum):
    """What became of a dispatched attempt. Each has exactly one.

    ``consumed``: the trainer has its group, in which an attempt with a fault is unscored. ``stale``: its group was too
    old and was dropped whole. ``surplus``: it ended and was not needed, since the group had enough others or the run
    stopped. ``cancelled``: the same, and it was given up in flight. ``failed``: it broke and was played once more.
    """

    CONSUMED = "consumed"
    STALE = "stale"
    SURPLUS = "surplus"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Ticket(NamedTuple):
    """One dispatched attempt: of which group, by order of dispatch; which of its attempts; for which time it is played,
    from 0; and the version of the sampler at that moment."""

    group: int
    attempt: int
    trial: int
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A dispatched attempt and its end, at a step of the trainer. ``trace`` is None when it was in flight."""

    ticket: Ticket
    plan: GroupPlan
    end: End
    step: int
    trace: Trace | None


class Answer(NamedTuple):
    """What an attempt came to, and the oldest version that sampled one of its tokens (that of the dispatch when it has
    none)."""

    ticket: Ticket
    trace: Trace
    oldest: int

    @classmethod
    def of(cls, ticket: Ticket, trace: Trace) -> Answer:
        """The answer of an attempt."""
        versions = (version for node in trace.nodes for version in node.versions)
        return cls(ticket, trace, min(versions, default=ticket.version))


@dataclass(eq=False, kw_only=True)
class Outstanding:
    """A group between dispatch and its end.

    Attributes:
        number: by order of dispatch.
        plan: what is played.
        reserved: whether it is for the step that dispatched it alone.
        open: the attempts in flight.
        answers: of those that ended, in the order in which they did.
        completed: its place in the order of completion; None while it lacks an attempt.
    """

    number: int
    plan: GroupPlan
    reserved: bool = False
    open: dict[int, Ticket] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    completed: int | None = None
    _oldest: int | None = None

    @property
    def task(self) -> Task:
        """What is attempted."""
        return self.plan.task

    @property
    def oldest(self) -> int:
        """Version of the oldest token. What is in flight samples with the version of its dispatch or a later one."""
        if self._oldest is None:
            stamps = [ticket.version for ticket in self.open.values()]
            self._oldest = min(stamps + [one.oldest for one in self.answers.values()])
        return self._oldest

    def identity(self, ticket: Ticket) -> AttemptId:
        """Which attempt it is."""
        return self.plan.identity(ticket.attempt)

    def dispatch(self, attempt: int, *, version: int, trial: int = 0) -> Ticket:
        """An attempt is played from now on."""
        self.open[attempt] = ticket = Ticket(self.number, attempt, trial, version)
        self._oldest = None
        return ticket

    def answer(self, ticket: Ticket, trace: Trace) -> None:
        """An attempt has ended."""
        del self.open[ticket.attempt]
        self.answers[ticket.attempt] = Answer.of(ticket, trace)
        self._oldest = None

    def part_with(self, attempt: int) -> Answer:
        """An attempt that ended belongs to the group no more."""
        self._oldest = None
        return self.answers.pop(attempt)

    def give_up(self) -> list[Ticket]:
        """What is in flight belongs to the group no more."""
        self._oldest = None
        tickets = list(self.open.values())
        self.open.clear()
        return tickets

    def has_enough(self, shape: GroupShape) -> bool:
        """Whether the group is made: of attempts without a fault, or of all there are."""
        if not self.open:
            return True
        if any(map(shape.is_greedy, self.open)):
            return False
        return sum(self.answers[n].trace.error is None for n in self._sampled(shape)) >= shape.attempts

    def unneeded(self, shape: GroupShape) -> list[int]:
        """The attempts that ended and do not make the group: the last to end, those with a fault before others."""
        by_worth = sorted(self._sampled(shape), key=lambda n: self.answers[n].trace.error is not None)
        return by_worth[shape.attempts :]

    def group(self, shape: GroupShape) -> Group:
        """The group, complete, its attempts in the order of their numbers."""
        traces = tuple(self.answers[n].trace for n in sorted(self._sampled(shape)))
        greedy = self.answers[shape.attempts].trace if shape.greedy else None
        return Group(id=self.plan.id, task=self.task, traces=traces, greedy=greedy)

    def _sampled(self, shape: GroupShape) -> Iterator[int]:
        return (n for n in self.answers if not shape.is_greedy(n))

    def to_json(self) -> dict[str, Any]:
        """JSON-plain data.

        Raises:
            StoreError: a trace holds something that JSON cannot hold exactly.
        """
        return {
            "number": self.number,
            "plan": self.plan.to_json(),
            "completed": self.completed,
            "open": [list(ticket) for ticket in self.open.values()],
            "answers": [
                {"ticket": list(one.ticket), "trace": trace_to_json(one.trace)} for one in self.answers.values()
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], task_set: TaskSet) -> Outstanding:
        """What `to_json` wrote.

        Raises:
            StoreError: another task set, or a damaged trace.
        """
        answers = [Answer.of(Ticket(*one["ticket"]), trace_from_json(one["trace"])) for one in data["answers"]]
        return cls(
            number=data["number"],
            plan=GroupPlan.from_json(data["plan"], task_set),
            open={ticket.attempt: ticket for ticket in (Ticket(*fields) for fields in data["open"])},
            answers={one.ticket.attempt: one for one in answers},
            completed=data["completed"],
        )
