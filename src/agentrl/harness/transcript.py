"""What an attempt has come to so far: the tree of messages, why it ended, and a note of everything that was cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from agentrl.errors import AgentRLError, SamplerError
from agentrl.types import Completion, Message, Node, Stop

T = TypeVar("T")


class Span(NamedTuple):
    """A message and its token ids."""

    message: Message
    ids: tuple[int, ...] = ()


@dataclass
class Transcript:
    """What an attempt has come to so far.

    Attributes:
        nodes: every message with its tokens; a tree.
        leaf: index of the node that the next one continues; None where a branch begins.
        unsent: messages that the policy has not been given yet.
        num_tokens: of the branch that the policy sees now.
        notes: kept in the trace's metadata; JSON-plain.
        started: when the attempt began, on the clock of `time.monotonic`.
    """

    nodes: list[Node] = field(default_factory=list)
    leaf: int | None = None
    unsent: list[Message] = field(default_factory=list)
    stop: Stop | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"sampling": 0.0, "tools": 0.0})
    states: list[str] = field(default_factory=list)
    num_tokens: int = 0
    num_malformed: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def add(
        self,
        message: Message,
        context_ids: Sequence[int] = (),
        completion: Completion | None = None,
        *,
        copied: bool = False,
    ) -> None:
        """Append one message's span to the branch.

        Args:
            message: what was said.
            context_ids: what the policy was given.
            completion: what it sampled behind that.
            copied: whether an earlier branch has told the message.
        """
        context = tuple(context_ids)
        if completion is None:
            node = Node(parent=self.leaf, message=message, context_ids=context, copied=copied)
        else:
            node = Node(
                parent=self.leaf,
                message=message,
                context_ids=context,
                sampled_ids=completion.token_ids,
                logprobs=completion.logprobs,
                versions=completion.versions,
                support=completion.support,
            )
        self.leaf = len(self.nodes)
        self.nodes.append(node)
        self.num_tokens += len(node.context_ids) + len(node.sampled_ids)

    def fork(self, parent: int | None, num_tokens: int) -> None:
        """Go on behind another node, up to which the conversation has so many tokens."""
        self.leaf, self.num_tokens = parent, num_tokens

    def cut(self, stop: Stop, what: str, **details: Any) -> None:
        """End the attempt, and note what was cut and by how much."""
        self.stop = stop
        self.note("cuts", stop=str(stop), what=what, **details)

    def note(self, kind: str, **details: Any) -> None:
        """Keep something for the trace's metadata."""
        self.notes.setdefault(kind, []).append(details)

    def end(self) -> None:
        """Keep for people what the policy was not given any more. It has no ids."""
        for message in self.unsent:
            self.add(message)
        self.unsent.clear()


async def in_time(reply: Awaitable[T], transcript: Transcript, total_s: float) -> T | None:
    """A reply of the sampler; None where the attempt's time is over before there is one, which ends the attempt.

    Args:
        reply: what is waited for; it is given up at the end of the time.
        transcript: of the attempt.
        total_s: time of the whole attempt, in seconds.

    Raises:
        AgentRLError: what the sampler raised; an error of another kind as a SamplerError.
    """
    started = time.perf_counter()
    deadline = asyncio.timeout(transcript.started + total_s - time.monotonic())
    try:
        async with deadline:
            return await reply
    except AgentRLError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and deadline.expired():
            transcript.cut(Stop.TIMEOUT, "reply", total_s=total_s)
            return None
        raise SamplerError(f"the sampler raised {type(error).__name__}: {error}") from error
    finally:
        transcript.seconds["sampling"] += time.perf_counter() - started
