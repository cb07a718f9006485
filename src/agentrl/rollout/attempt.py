"""One try at a task. It never raises: whatever fails becomes a fault on the trace."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from agentrl.errors import AgentRLError, ScorerError
from agentrl.harness.loop import AgentLoop, Transcript
from agentrl.protocols import Environment, Session, TaskSet
from agentrl.types import Fault, Score, Stop, Task, Trace


@dataclass(frozen=True, kw_only=True)
class AttemptId:
    """Which attempt of which group this is, and the seed of its draws."""

    group_id: str
    attempt: int
    seed: int

    @property
    def trace_id(self) -> str:
        """Unique within a run."""
        return f"{self.group_id}-{self.attempt}"


async def attempt(
    task_set: TaskSet, task: Task, harness: AgentLoop, session: Session, identity: AttemptId, *, score: bool = True
) -> Trace:
    """Play one attempt, and score it unless it is a demonstration that nobody will reward."""
    transcript = Transcript()
    scores: tuple[Score, ...] = ()
    fault: Fault | None = None
    environment: Environment | None = None
    try:
        try:
            environment = task_set.environment(task)
            await harness.run(task, environment, session, transcript)
        finally:  # an engine waits for every conversation that is open
            await session.close()
        if score:
            scores = await _score(environment, _trace(task, harness, identity, transcript, (), None), transcript)
            scores += harness.penalties(transcript)
    except asyncio.CancelledError:  # a deadline, or an attempt that nobody waits for any more
        if environment is not None:
            await environment.close()
        raise
    except Exception as error:  # whatever breaks is a fault of ours, never the policy's
        fault = _fault(error)
    if environment is not None:
        try:
            await environment.close()
        except Exception as error:
            fault = fault or _fault(error)
    return _trace(task, harness, identity, transcript, scores, fault)


def _fault(error: Exception) -> Fault:
    """What a failure says; an error of a foreign kind is a bug of the environment."""
    if isinstance(error, AgentRLError):
        return Fault(boundary=error.boundary, message=str(error))
    return Fault(boundary="environment", message=f"{type(error).__name__}: {error}")


async def _score(environment: Environment, trace: Trace, transcript: Transcript) -> tuple[Score, ...]:
    started = time.perf_counter()
    try:
        scores = tuple(await environment.score(trace))
    except AgentRLError:
        raise
    except Exception as error:
        raise ScorerError(f"score raised {type(error).__name__}: {error}") from error
    transcript.seconds["scoring"] = time.perf_counter() - started
    return scores


def _trace(
    task: Task,
    harness: AgentLoop,
    identity: AttemptId,
    transcript: Transcript,
    scores: tuple[Score, ...],
    fault: Fault | None,
) -> Trace:
    return Trace(
        id=identity.trace_id,
        task_id=task.id,
        group_id=identity.group_id,
        attempt=identity.attempt,
        seed=identity.seed,
        nodes=tuple(transcript.nodes),
        stop=Stop.ERROR if fault or transcript.stop is None else transcript.stop,
        scores=scores,
        error=fault,
        seconds=dict(transcript.seconds),
        metadata={"harness": harness.fingerprint}
        | ({"states": transcript.states} if transcript.states else {})
        | transcript.notes,
    )
