"""Answers that are none: faults that stand in the place of an attempt, and where a stuck one hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentrl.errors import AgentRLError, SamplerError
from agentrl.rollout.outstanding import Outstanding, Ticket
from agentrl.types import Fault, Stop, Trace


def fault_trace(group: Outstanding, ticket: Ticket, fault: Fault) -> Trace:
    """An attempt that came to nothing, for a reason that is not the policy's. It has no reward."""
    identity = group.identity(ticket)
    return Trace(
        id=identity.trace_id,
        task_id=group.task.id,
        group_id=identity.group_id,
        attempt=identity.attempt,
        seed=identity.seed,
        nodes=(),
        stop=Stop.ERROR,
        error=fault,
    )


def fault_of(error: BaseException) -> Fault:
    """What a failure says; an error of a foreign kind is a bug of the environment."""
    if isinstance(error, AgentRLError):
        return Fault(boundary=error.boundary, message=str(error))
    return Fault(boundary="environment", message=f"the attempt raised {type(error).__name__}: {error}")


def wrong_answer(group: Outstanding, ticket: Ticket, trace: Any) -> Fault | None:
    """Why something cannot be the answer to a ticket: it is no trace, or that of another attempt. None when it can."""
    if not isinstance(trace, Trace):
        return Fault(boundary="environment", message=f"the attempt answered with {type(trace).__name__}, not a Trace")
    identity = group.identity(ticket)
    asked = (identity.trace_id, identity.group_id, identity.attempt, group.task.id)
    found = (trace.id, trace.group_id, trace.attempt, trace.task_id)
    if found != asked:
        return Fault(boundary="environment", message=f"the attempt {asked} answered with that of {found}")
    return None


def check_versions(ticket: Ticket, trace: Trace, *, newest: int) -> None:
    """Refuse tokens that are older than the dispatch of their attempt, or of a version that nobody has published.

    Raises:
        SamplerError: the sampler did not get a publication, keeps an old cache, or labels its tokens wrongly. Nothing
            that it says of ages can be believed.
    """
    versions = [version for node in trace.nodes for version in node.versions]
    wrong = [version for version in versions if not ticket.version <= version <= newest]
    if wrong:
        raise SamplerError(
            f"attempt {trace.id} was dispatched at version {ticket.version} and has a token of version {wrong[0]}, "
            f"where {newest} is the newest published: the sampler lacks a publication or labels its tokens wrongly"
        )


def place_of(work: asyncio.Task[Any]) -> str:
    """Where a task waits: the coroutines that wait for each other, outermost first, and the innermost line."""
    names, line = [], ""
    inner: Any = work.get_coro()
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        names.append(inner.__qualname__)
        line = f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        inner = inner.cr_await
    return " > ".join(names) + line if names else "nowhere"
