"""What each part must do. A part is anything with these methods; nothing needs to inherit or register."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from agentrl.types import Completion, Message, Observation, Score, Task, ToolCall, ToolSpec, Trace


@runtime_checkable
class Environment(Protocol):
    """One attempt's world. Created for a task, used once, closed."""

    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the policy may call."""
        ...

    async def call(self, call: ToolCall) -> Observation:
        """Carry out one well-formed or malformed call and say what came of it."""
        ...

    def state(self) -> str | None:
        """A name of the state in which the policy acts next: equal names, equal states. None when there is none."""
        ...

    async def score(self, trace: Trace) -> Sequence[Score]:
        """Judge the finished attempt. Raises ScorerError when no verdict can be reached."""
        ...

    async def close(self) -> None:
        """Release what the attempt held. Safe to call twice."""
        ...


@runtime_checkable
class Talking(Protocol):
    """What an `Environment` has besides, when somebody in it answers what the policy says: a user, or the world itself.

    Without it a reply that makes no call ends the attempt. An environment may also have a ``parallel_tools``: names of
    tools whose calls do not depend on each other, so that those of one reply may run at the same time.
    """

    async def respond(self, reply: Message) -> Observation | None:
        """What the user says to a reply without calls. None, or ``done``, ends the attempt."""
        ...


@runtime_checkable
class TaskSet(Protocol):
    """A named, versioned, finite list of tasks with the world that belongs to each."""

    id: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Task: ...

    def environment(self, task: Task) -> Environment:
        """A fresh environment for one attempt at ``task``."""
        ...


class Renderer(Protocol):
    """Messages to token ids and back. Appending a message never changes the ids before it."""

    @property
    def name(self) -> str:
        """Equal names write and read equally. Part of what makes two agents the same."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a reply. The sampled stop id belongs to the reply and is trained."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[tuple[int, ...], ...]:
        """The ids of each opening message, one tuple a message; tools go where the model expects them."""
        ...

    def extend(self, messages: Sequence[Message], sampled_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The ids that append messages (tool results, a user turn) behind the reply ``sampled_ids``, one tuple a
        message. All that follow a reply are given together: templates put results of several calls into one turn."""
        ...

    def generation_prompt(self) -> tuple[int, ...]:
        """The ids that open the policy's turn."""
        ...

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message that the policy sampled. Never raises on bad output: calls carry `problem`."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people. Never used to make ids."""
        ...


class Session(Protocol):
    """One conversation with a sampler. What was sent and sampled before stays cached in it."""

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:
        """Append ``context_ids`` to the conversation and sample a reply of at most ``max_tokens``."""
        ...

    async def rewind(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` ids of the conversation, given or sampled, and forget what came behind them."""
        ...

    async def close(self) -> None:
        """Free the conversation's cache. Safe to call twice."""
        ...


class Sampler(Protocol):
    """Something that continues token sequences with a versioned policy."""

    @property
    def version(self) -> int:
        """The version of the weights that are sampled from now."""
        ...

    def session(self, seed: int, *, greedy: bool = False) -> Session:
        """Open a conversation whose random draws depend on ``seed`` and on nothing else.

        A ``greedy`` one takes the likeliest token each time; its log-probabilities are those of the distribution that
        the others draw from.
        """
        ...


class Harness(Protocol):
    """Lets a policy act in an environment until something says stop."""

    async def run(self, task: Task, environment: Environment, session: Session, transcript: Any) -> None:
        """Play one attempt into ``transcript``, which holds all that happened even when this raises."""
        ...
