"""How replies are answered: calls are carried out, in their order or at the same time, and users speak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

from agentrl.errors import AgentRLError, EnvironmentFault
from agentrl.harness.limits import Limits
from agentrl.harness.transcript import Transcript
from agentrl.protocols import Environment, Talking
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Message, Observation, Stop, ToolCall

Q = TypeVar("Q")
T = TypeVar("T")


class Answerer:
    """Answers the replies of one attempt, within its limits.

    Calls of one reply are carried out in their order. Neighbours whose tools the environment names in
    ``parallel_tools`` run at the same time; their results stand in the order of the calls all the same, and where some
    fail, the results of the others are kept.
    """

    def __init__(
        self, environment: Environment, limits: Limits, malformed: MalformedPolicy, transcript: Transcript
    ) -> None:
        self.environment = environment
        self.limits = limits
        self.malformed = malformed
        self.transcript = transcript
        self._parallel: frozenset[str] = frozenset(getattr(environment, "parallel_tools", ()))

    async def answer(self, reply: Message) -> None:
        """Put the answers to a reply on the transcript, unsent, or say there why the attempt is over.

        Raises:
            AgentRLError: of the boundary that failed.
        """
        if reply.tool_calls:
            await self._carry_out(reply.tool_calls)
        elif isinstance(self.environment, Talking):
            await self._hear(self.environment, reply)
        else:
            self.transcript.stop = Stop.DONE

    async def _carry_out(self, calls: Sequence[ToolCall]) -> None:
        left = len(calls)
        for batch in self._batches(calls):
            if self._counts_as_malformed(batch[0]):
                self.transcript.num_malformed += 1
                if self.malformed.end:
                    self.transcript.cut(Stop.MALFORMED, "calls", calls_left=left)
                    return
            done = await self._run(batch)
            left -= len(batch)
            if done:
                self.transcript.stop = Stop.DONE
            if done or self._out_of_time(left):
                return

    def _batches(self, calls: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
        """Calls that may run at the same time, in lots; every other one by itself."""
        for together, run in groupby(calls, key=self._is_independent):
            found = list(run)
            yield from [found] if together else ([call] for call in found)

    def _is_independent(self, call: ToolCall) -> bool:
        return call.name in self._parallel and not self._counts_as_malformed(call)

    def _counts_as_malformed(self, call: ToolCall) -> bool:
        return self.malformed.concerns(call)

    async def _run(self, batch: Sequence[ToolCall]) -> bool:
        """Carry out calls at the same time. Says whether one of them ended the attempt; the answers then need no ids.

        Raises:
            AgentRLError: the first failure, in the order of the calls, when the results of all others are kept.
        """
        with self._timed():
            if len(batch) == 1:
                found: Sequence[Observation | BaseException] = [await self._call(batch[0])]
            else:
                found = await asyncio.gather(*map(self._call, batch), return_exceptions=True)
        done = False
        for call, one in zip(batch, found, strict=True):
            if isinstance(one, Observation):
                self.transcript.unsent.append(Message(role="tool", content=one.content, tool_call_id=call.id))
                done = done or one.done
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return done

    async def _call(self, call: ToolCall) -> Observation:
        return await self._within(self.environment.call, call, f"tool {call.name!r}")

    async def _hear(self, environment: Talking, reply: Message) -> None:
        """What the user says to a reply without calls."""
        with self._timed():
            observation = await self._within(environment.respond, reply, "the user")
        if observation is not None and (observation.content or not observation.done):
            self.transcript.unsent.append(Message(role="user", content=observation.content))
        if observation is None or observation.done:
            self.transcript.stop = Stop.DONE
        else:
            self._out_of_time(0)

    async def _within(self, ask: Callable[[Q], Awaitable[T]], question: Q, who: str) -> T:
        """An answer before the deadline of a call; what fails is the environment's fault."""
        deadline = asyncio.timeout(self.limits.call_s)
        try:
            async with deadline:
                return await ask(question)
        except AgentRLError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise EnvironmentFault(f"{who} gave no answer within {self.limits.call_s} s") from None
            raise EnvironmentFault(f"{who} raised {type(error).__name__}: {error}") from error

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.transcript.seconds["tools"] += time.perf_counter() - started

    def _out_of_time(self, calls_left: int) -> bool:
        """Whether a time budget is used up; the attempt is then cut."""
        spent, total = self.transcript.seconds["tools"], time.monotonic() - self.transcript.started
        if spent >= self.limits.tool_s:
            self.transcript.cut(Stop.TOOL_TIME, "attempt", calls_left=calls_left, tool_s=self.limits.tool_s)
        elif total >= self.limits.total_s:
            self.transcript.cut(Stop.TIMEOUT, "attempt", calls_left=calls_left, total_s=self.limits.total_s)
        return self.transcript.stop is not None
