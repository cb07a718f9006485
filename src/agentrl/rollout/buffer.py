"""Groups between dispatch and training: nothing is too old, nothing is lost, nothing is used twice.

The buffer has no clock and starts nothing. It says how many groups may be dispatched, takes what ended, and hands whole
groups to the trainer. All that it holds is plain data that a checkpoint keeps. `agentrl.rollout.generation` plays the
attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import StoreError, TrainerError
from agentrl.protocols import TaskSet
from agentrl.rollout.order import ORDERS, Candidate, Order, Wanted
from agentrl.rollout.outstanding import End, Ended, Outstanding, Ticket
from agentrl.rollout.pacing import Pacing
from agentrl.rollout.plan import GroupPlan, GroupShape
from agentrl.types import Group, Trace

SCHEMA = 1
"""Of a buffer's state."""


class Buffer:
    """Every group that was dispatched and is neither consumed nor dropped.

    Args:
        pacing: the bound.
        shape: the attempts of a group.
        order: which groups a step takes; see `agentrl.rollout.order`.
    """

    def __init__(self, pacing: Pacing, shape: GroupShape, *, order: Order = "dispatch") -> None:
        self.pacing, self.shape, self.order = pacing, shape, order
        self.step = self.version = self.need = 0
        self.next_number = 0
        """Of the next group of the stream."""
        self.refused = 0
        """Answers of attempts that had had their end."""
        self._groups: dict[int, Outstanding] = {}
        self.num_completed = 0
        """Groups that had all their attempts, since the run began."""
        self._num_dispatched = 0
        self._ended: list[Ended] = []
        self._given_up: list[Ticket] = []

    # What is out.

    @property
    def in_flight(self) -> list[Ticket]:
        """The attempts that have not ended, by order of dispatch."""
        return [ticket for number in sorted(self._groups) for ticket in self._groups[number].open.values()]

    @property
    def num_complete(self) -> int:
        """Groups that wait for the trainer."""
        return sum(group.completed is not None for group in self._groups.values())

    @property
    def num_out(self) -> int:
        """Groups that wait for the trainer or have attempts in flight."""
        return len(self._groups)

    @property
    def room(self) -> int:
        """Groups of the stream that may be dispatched now; see `agentrl.rollout.pacing`."""
        out = sum(not group.reserved for group in self._groups.values())
        return self.pacing.room(step=self.step, version=self.version, need=self.need, out=out)

    def group_of(self, ticket: Ticket) -> Outstanding | None:
        """The group of an attempt in flight; None when the attempt has had its end."""
        group = self._groups.get(ticket.group)
        return group if group is not None and group.open.get(ticket.attempt) == ticket else None

    # The trainer.

    def begin(self, step: int, version: int) -> None:
        """The trainer is at ``step`` and the sampler has ``version``; what is too old for the step is dropped.

        Raises:
            TrainerError: either goes back, or the version is one that no step has made.
        """
        if step < self.step or not self.version <= version <= step:
            raise TrainerError(
                f"step {step} with version {version} after step {self.step} with version {self.version}: neither goes "
                "back, and version v are the weights after v steps"
            )
        self.step, self.version, self.need = step, version, self.pacing.groups_per_step
        self._drop_stale()

    def want(self, count: int) -> None:
        """The step takes ``count`` more groups of the stream."""
        self.need = count

    def take(self) -> list[Group] | None:
        """The groups that the step takes, in order of dispatch; None when they are not there yet."""
        self._drop_stale()
        candidates = [
            Candidate(group.number, self.pacing.last_step(group.oldest), group.completed)
            for group in self._groups.values()
            if not group.reserved
        ]
        wanted = Wanted(self.step, self.need, self.pacing.groups_per_step)
        chosen = ORDERS[self.order](candidates, wanted)
        if chosen is None:
            return None
        self.need = 0
        return [self._consume(self._groups[number]) for number in chosen]

    def take_reserved(self) -> list[Group] | None:
        """The groups that were dispatched for this step alone, when all of them are complete."""
        self._drop_stale()
        mine = [group for group in self._groups.values() if group.reserved]
        if any(group.completed is None for group in mine):
            return None
        return [self._consume(group) for group in mine]

    # Attempts.

    def dispatch(self, plan: GroupPlan, *, reserved: bool = False) -> list[Ticket]:
        """A group is played from now on; its attempts, in the order of their numbers.

        Args:
            plan: the next group of the stream.
            reserved: it is for this step alone, and takes no place in the stream.
        """
        group = Outstanding(number=self._num_dispatched, plan=plan, reserved=reserved)
        self._num_dispatched += 1
        self.next_number += not reserved
        self._groups[group.number] = group
        return [group.dispatch(attempt, version=self.version) for attempt in range(self.shape.size)]

    def reopen(self) -> list[Ticket]:
        """The attempts that a checkpoint had in flight, which are played from their beginning."""
        for group in self._groups.values():
            for old in list(group.open.values()):
                group.dispatch(old.attempt, version=self.version, trial=old.trial)
        return self.in_flight

    def end(self, ticket: Ticket, trace: Trace) -> bool:
        """An attempt has answered. False when it had had its end: the answer is refused, and counted."""
        group = self.group_of(ticket)
        if group is None:
            self.refused += 1
            return False
        group.answer(ticket, trace)
        if group.has_enough(self.shape):
            self._complete(group)
        return True

    def again(self, ticket: Ticket, trace: Trace) -> Ticket:
        """An attempt that broke is played once more, on a ticket of its own."""
        group = self.group_of(ticket)
        assert group is not None, "only an attempt in flight can break"
        group.answer(ticket, trace)
        self._note_answer(group, ticket.attempt, End.FAILED)
        return group.dispatch(ticket.attempt, version=self.version, trial=ticket.trial + 1)

    def close(self) -> None:
        """The run stops: what is out has its end."""
        for group in list(self._groups.values()):
            self._remove(group, End.SURPLUS, in_flight=End.CANCELLED)

    def pop_given_up(self) -> list[Ticket]:
        """The attempts in flight that nobody waits for any more, since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def pop_ended(self) -> list[Ended]:
        """The attempts that had their end since the last call."""
        ended, self._ended = self._ended, []
        return ended

    # Checkpoints.

    def state(self) -> dict[str, Any]:
        """All that is out as JSON-plain data, between two steps.

        Raises:
            StoreError: a trace holds something that JSON cannot hold exactly.
        """
        assert not any(group.reserved for group in self._groups.values()), "a step is not over"
        return {
            "schema": SCHEMA,
            "next_number": self.next_number,
            "num_dispatched": self._num_dispatched,
            "num_completed": self.num_completed,
            "groups": [self._groups[number].to_json() for number in sorted(self._groups)],
        }

    def restore(self, state: Mapping[str, Any], task_set: TaskSet) -> None:
        """Go on from `state`; `begin` and `reopen` follow.

        Raises:
            StoreError: another task set, another shape of groups, a newer schema, or damaged data.
        """
        if state.get("schema") != SCHEMA:
            raise StoreError(f"a buffer of schema {state.get('schema')!r}; this version reads schema {SCHEMA}")
        try:
            groups = [Outstanding.from_json(data, task_set) for data in state["groups"]]
            self.next_number = state["next_number"]
            self._num_dispatched, self.num_completed = state["num_dispatched"], state["num_completed"]
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the buffer cannot be read: {error!r}; resume from another checkpoint") from error
        for group in groups:
            if len(group.plan.seeds) != self.shape.size:
                raise StoreError(
                    f"group {group.plan.id!r} was begun with {len(group.plan.seeds)} attempts and the run now has "
                    f"{self.shape.size}; resume with the settings that the run began with"
                )
        self._groups = {group.number: group for group in groups}

    # Ends.

    def _drop_stale(self) -> None:
        for group in list(self._groups.values()):
            if self.pacing.last_step(group.oldest) < self.step:
                self._remove(group, End.STALE, in_flight=End.STALE)

    def _complete(self, group: Outstanding) -> None:
        for attempt in group.unneeded(self.shape):
            self._note_answer(group, attempt, End.SURPLUS)
        self._give_up(group, End.CANCELLED)
        group.completed = self.num_completed
        self.num_completed += 1

    def _consume(self, group: Outstanding) -> Group:
        assert group.completed is not None, "only a complete group is consumed"
        assert self.step <= self.pacing.last_step(group.oldest), "nothing is consumed that is too old"
        made = group.group(self.shape)
        self._remove(group, End.CONSUMED, in_flight=End.CANCELLED)
        return made

    def _remove(self, group: Outstanding, end: End, *, in_flight: End) -> None:
        del self._groups[group.number]
        for attempt in list(group.answers):
            self._note_answer(group, attempt, end)
        self._give_up(group, in_flight)

    def _note_answer(self, group: Outstanding, attempt: int, end: End) -> None:
        ticket, trace, _ = group.part_with(attempt)
        self._ended.append(Ended(ticket=ticket, plan=group.plan, end=end, step=self.step, trace=trace))

    def _give_up(self, group: Outstanding, end: End) -> None:
        for ticket in group.give_up():
            self._ended.append(Ended(ticket=ticket, plan=group.plan, end=end, step=self.step, trace=None))
            self._given_up.append(ticket)
