"""Attempts that run while the trainer works: started as far ahead as the bound allows, watched, handed over as groups.

Everything happens in one event loop, in callbacks that do not wait, so what is decided depends on the order of events
alone. With ``order="dispatch"`` not even on that: which groups are dispatched at which version and which step takes
them is the same in each run, and with publications that wait so is the version of each token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from agentrl.errors import ConfigError, TrainerError
from agentrl.protocols import Sampler
from agentrl.rollout.answers import check_versions, fault_of, fault_trace, place_of, wrong_answer
from agentrl.rollout.attempt import AttemptId
from agentrl.rollout.buffer import Buffer
from agentrl.rollout.outstanding import Outstanding, Ticket
from agentrl.rollout.plan import GroupPlan
from agentrl.types import Fault, Group, Task, Trace

Play = Callable[[Task, AttemptId, bool], Coroutine[Any, Any, Trace]]
"""Opens the conversation of an attempt at once, greedy or not, and gives the coroutine that plays it.

All conversations of groups that are dispatched together are open before the first of them goes on."""
AtPublication = Literal["continue", "wait"]


class _Running(NamedTuple):
    work: asyncio.Task[Trace]
    deadline: asyncio.TimerHandle
    started: float


class Generation:
    """Plays the groups of a stream and hands them to the trainer.

    Args:
        buffer: what is out, and the bound.
        plan: the group of each number of the stream; the same whenever it is asked.
        play: plays one attempt.
        sampler: whose version the attempts are stamped with.
        note: takes a line for people.
        deadline_s: after so long an attempt is given up, as a fault that says where it hung. Longer than its harness
            needs to end it with what was reached.
        at_publication: what becomes of attempts in flight: they ``continue`` over it, with a version at each token, or
            the publication does ``wait`` until they have ended. Then each attempt has one version, and a step lasts
            as long as the slowest attempt that was in flight in it.
        repeatable: whether an attempt that broke is played a second time, with the same draws; what `is_repeatable`
            says of the task set.
        grace_s: how long an attempt that was given up may take to clean up before it is told of as stuck.

    Raises:
        ConfigError: a time that is not finite and above 0.
    """

    def __init__(
        self,
        buffer: Buffer,
        *,
        plan: Callable[[int], GroupPlan],
        play: Play,
        sampler: Sampler,
        note: Callable[[str], None],
        deadline_s: float,
        at_publication: AtPublication = "continue",
        repeatable: bool = False,
        grace_s: float = 10.0,
    ) -> None:
        if not 0.0 < deadline_s < float("inf") or not 0.0 < grace_s < float("inf"):
            raise ConfigError(f"deadline_s {deadline_s!r} and grace_s {grace_s!r}; write finite seconds above 0")
        self.buffer = buffer
        self._plan, self._play, self._sampler, self._note = plan, play, sampler, note
        self._at_publication, self._deadline_s, self._grace_s = at_publication, deadline_s, grace_s
        self._repeatable = repeatable
        self._running: dict[Ticket, _Running] = {}
        self._leaving: dict[asyncio.Task[Trace], Ticket] = {}
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._took_at: float | None = None
        self._learning_s = self._told_s = 0.0
        self._busy_s, self._busy_since = 0.0, 0.0
        self.seconds_waiting = 0.0
        """How long the trainer has waited for groups."""
        self.stuck: list[str] = []
        """Attempts that were given up and would not end."""

    @property
    def seconds_busy(self) -> float:
        """How long attempts have been in flight, so far."""
        return self._busy_s + (_now() - self._busy_since if self._running else 0.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give up what is in flight. Waits for its clean-up, not longer than the grace."""
        self.buffer.close()
        self._release()
        if self._leaving:
            _, left = await asyncio.wait(self._leaving, timeout=self._grace_s)
            for work in left:
                self._look_after(work)

    # The trainer.

    def begin(self, step: int) -> None:
        """The trainer is at ``step``: what the bound allows is dispatched, behind what a checkpoint had in flight.

        Raises:
            TrainerError: see `Buffer.begin`.
        """
        self.buffer.begin(step, self._sampler.version)
        self._release()
        if not self._running:
            self._start(self.buffer.reopen())
        self._fill()

    async def take(self, count: int | None = None) -> list[Group]:
        """The groups of the step, in order of dispatch; once it has them, ``count`` more of the stream.

        Raises:
            TrainerError: they cannot come, since nothing is in flight and nothing may be dispatched.
            SamplerError: a token is of a version that it cannot be of; see `check_versions`.
        """
        if count is not None:
            self.buffer.want(count)
        return await self._obtain(self.buffer.take)

    async def play_now(self, plans: Sequence[GroupPlan]) -> list[Group]:
        """Groups that are played for this step alone, while the trainer waits; the stream goes on beside them."""
        self._start([ticket for plan in plans for ticket in self.buffer.dispatch(plan, reserved=True)])
        return await self._obtain(self.buffer.take_reserved)

    async def publish(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish new weights, when attempts in flight have ended if they do not continue. `begin` follows."""
        started = _now()
        if self._took_at is not None:
            self._learning_s = started - self._took_at
        if self._at_publication == "wait":
            await self._until_idle()
            self.seconds_waiting += _now() - started
        await publish()

    async def _until_idle(self) -> None:
        while self._running or any(work.get_name() not in self.stuck for work in self._leaving):
            await self._change()

    async def _obtain(self, take: Callable[[], list[Group] | None]) -> list[Group]:
        started = _now()
        while True:
            self._check()
            groups = take()
            self._release()
            self._fill()
            if groups is not None:
                self._took_at = _now()
                self.seconds_waiting += self._took_at - started
                return groups
            if not self._running:
                raise TrainerError(self._why_nothing_comes())
            await self._change()

    def _why_nothing_comes(self) -> str:
        buffer = self.buffer
        return (
            f"step {buffer.step} waits for {buffer.need} groups and none can come: version {buffer.version} is the "
            f"newest published, {buffer.num_out} groups are out, and max_staleness is {buffer.pacing.max_staleness}; "
            "publish before the step, or raise max_staleness"
        )

    async def _change(self) -> None:
        """Wait until a group is complete, or nothing is in flight or on its way out any more."""
        self._check()
        self._changed.clear()
        await self._changed.wait()
        self._check()

    def _check(self) -> None:
        """Raise what went wrong in a callback."""
        if self._failure is not None:
            raise self._failure

    # Attempts.

    def _fill(self) -> None:
        tickets: list[Ticket] = []
        while self.buffer.room:
            tickets += self.buffer.dispatch(self._plan(self.buffer.next_number))
        self._start(tickets)

    def _start(self, tickets: Sequence[Ticket]) -> None:
        opened = [(ticket, self._opened(ticket)) for ticket in tickets]
        loop = asyncio.get_running_loop()
        for ticket, coroutine in opened:
            work = loop.create_task(coroutine, name=self._name(ticket))
            work.add_done_callback(partial(self._safely, self._finished, ticket))
            deadline = loop.call_later(self._deadline_s, self._safely, self._overdue, ticket)
            if not self._running:
                self._busy_since = _now()
            self._running[ticket] = _Running(work, deadline, loop.time())

    def _opened(self, ticket: Ticket) -> Coroutine[Any, Any, Trace]:
        group = self._group(ticket)
        try:
            return self._play(group.task, group.identity(ticket), self.buffer.shape.is_greedy(ticket.attempt))
        except Exception as error:  # a sampler that cannot be reached fails this attempt and no other
            return _raising(error)

    def _finished(self, ticket: Ticket, work: asyncio.Task[Trace]) -> None:
        if ticket not in self._running:
            self._left(ticket, work)
            return
        running = self._stop(ticket)
        self._warn_if_slow(ticket, _now() - running.started)
        self._answer(ticket, self._outcome(ticket, work))

    def _left(self, ticket: Ticket, work: asyncio.Task[Trace]) -> None:
        """An attempt that was given up is over. If it answers all the same, the answer is refused."""
        del self._leaving[work]
        if not work.cancelled() and work.exception() is None:
            self.buffer.end(ticket, work.result())
        self._changed.set()

    def _outcome(self, ticket: Ticket, work: asyncio.Task[Trace]) -> Trace | Fault:
        if work.cancelled():
            return Fault(boundary="environment", message=f"{work.get_name()} cancelled itself")
        error = work.exception()
        if error is not None:
            return fault_of(error)
        wrong = wrong_answer(self._group(ticket), ticket, work.result())
        if wrong is None:
            check_versions(ticket, work.result(), newest=self._sampler.version)
        return work.result() if wrong is None else wrong

    def _overdue(self, ticket: Ticket) -> None:
        work = self._running[ticket].work
        if work.done():
            return
        message = f"{work.get_name()} gave no answer within {self._deadline_s:g} s; it waits in {place_of(work)}"
        self._give_up(ticket)
        self._note(message)
        self._answer(ticket, Fault(boundary="environment", message=message))

    def _answer(self, ticket: Ticket, found: Trace | Fault) -> None:
        trace = fault_trace(self._group(ticket), ticket, found) if isinstance(found, Fault) else found
        completed = self.buffer.num_completed
        if trace.error is not None and self._repeatable and ticket.trial == 0:
            self._start([self.buffer.again(ticket, trace)])
        else:
            self.buffer.end(ticket, trace)
        self._release()
        if self.buffer.num_completed > completed or not self._running:
            self._changed.set()

    def _release(self) -> None:
        for ticket in self.buffer.pop_given_up():
            if ticket in self._running:  # not so of one that a checkpoint had in flight and that is too old now
                self._give_up(ticket)

    def _give_up(self, ticket: Ticket) -> None:
        running, loop = self._stop(ticket), asyncio.get_running_loop()
        self._leaving[running.work] = ticket
        loop.call_soon(running.work.cancel)  # behind its first step, so that whoever opened something closes it
        loop.call_later(self._grace_s, self._safely, self._look_after, running.work)

    def _stop(self, ticket: Ticket) -> _Running:
        """An attempt runs no more."""
        running = self._running.pop(ticket)
        running.deadline.cancel()
        if not self._running:
            self._busy_s += _now() - self._busy_since
        return running

    def _look_after(self, work: asyncio.Task[Trace]) -> None:
        name = work.get_name()
        if not work.done() and name not in self.stuck:
            self.stuck.append(name)
            self._note(f"{name} is stuck: given up {self._grace_s:g} s ago, it still waits in {place_of(work)}")
            self._changed.set()

    def _safely(self, act: Callable[..., None], *values: Any) -> None:
        """Do something in a callback; what it raises is raised in the trainer."""
        try:
            act(*values)
        except Exception as error:
            self._failure = error
            self._changed.set()

    def _warn_if_slow(self, ticket: Ticket, seconds: float) -> None:
        """Say so when an attempt lasts longer than the bound can hide; again when one lasts twice as long."""
        bound = self.buffer.pacing.max_staleness
        if not bound or not self._learning_s or seconds <= max(bound * self._learning_s, 2 * self._told_s):
            return
        self._told_s = seconds
        late = "its group may be dropped" if self.buffer.order == "first_come" else "the trainer waits for it"
        self._note(
            f"{self._name(ticket)} took {seconds:.1f} s and the trainer learns {self._learning_s:.1f} s in a step: "
            f"with max_staleness {bound} {late}. A larger one hides slow tools; where sampling is slow, it does not"
        )

    def _group(self, ticket: Ticket) -> Outstanding:
        group = self.buffer.group_of(ticket)
        assert group is not None, "what runs is in flight"
        return group

    def _name(self, ticket: Ticket) -> str:
        group = self._group(ticket)
        return f"attempt {group.identity(ticket).trace_id} at task {group.task.id!r}"


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _raising(error: Exception) -> Trace:
    raise error
