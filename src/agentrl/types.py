"""The data that flows through the loop. Frozen, keyword-only, standard library only.

Each stage hands on a new, richer object; nothing is filled in later:

    Completion ▶ Node ▶ Trace ▶ Group ▶ Sample ▶ (train/packing.py) Batch

Entry ``t`` of every per-token sequence describes ``token_ids[t]``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from agentrl.errors import SamplerError, ScorerError

Role = Literal["system", "user", "assistant", "tool"]


class Stop(StrEnum):
    """Why an attempt ended. Only DONE is a termination; all others are truncations or faults."""

    DONE = "done"
    MAX_TURNS = "max_turns"
    CONTEXT_FULL = "context_full"
    MAX_TOKENS = "max_tokens"
    TOOL_TIME = "tool_time"
    TIMEOUT = "timeout"
    MALFORMED = "malformed"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call that the policy wrote. ``problem`` says what is malformed about it, else None."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a conversation, in the shape that chat models share."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What a tool call gave back. ``done`` ends the attempt."""

    content: str
    done: bool = False
    error: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem. It holds everything that the policy may see and nothing that it may not.

    ``id`` carries a behaviour version (``bugfix-v1/tiny/train/17``). Hidden tests never appear here:
    they stay with the scorer.
    """

    id: str
    prompt: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    split: str = "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a token is drawn: which are kept, and how sharp their distribution is.

    Attributes:
        temperature: divides the logits, above 0.
        top_p: keeps the likeliest tokens that together have this probability, in (0, 1]; 1 keeps all.
        top_k: keeps so many of the likeliest tokens; 0 keeps all.
        min_p: keeps the tokens with at least this share of the likeliest one's probability, in [0, 1]; 0 keeps all.

    Raises:
        SamplerError: a value outside its bounds.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < math.inf:
            raise SamplerError(f"temperature is {self.temperature}; it must be above 0 (a greedy session has no draws)")
        if not 0.0 < self.top_p <= 1.0:
            raise SamplerError(f"top_p is {self.top_p}; it must be above 0 and at most 1, which keeps every token")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise SamplerError(f"top_k is {self.top_k}; it must be a whole number, 0 to keep every token")
        if not 0.0 <= self.min_p <= 1.0:
            raise SamplerError(f"min_p is {self.min_p}; it must be between 0, which keeps every token, and 1")

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One reply of a sampler: ids, the log-probability of each under the distribution it was drawn from,
    and the policy version that produced each.

    ``support`` is empty when the whole vocabulary could be drawn. Of a sampler that truncates it has, for each token,
    the ids that could be drawn in its place, ascending, itself among them.

    Raises:
        SamplerError: lists of unequal length, a log-probability that is missing, NaN or positive, or a token that is
            not in its support.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: Literal["stop", "length", "abort"]
    support: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        check_sampled("completion", self.token_ids, self.logprobs, self.versions)
        check_support("completion", self.token_ids, self.support)


def check_sampled(owner: str, token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
    """Refuse numbers that a sampler cannot have produced.

    Raises:
        SamplerError: naming ``owner``, the position and the value.
    """
    if not len(token_ids) == len(logprobs) == len(versions):
        raise SamplerError(
            f"{owner}: {len(token_ids)} sampled ids, {len(logprobs)} logprobs and {len(versions)} versions; "
            "there must be one of each per sampled token"
        )
    for position, logprob in enumerate(logprobs):
        if not isinstance(logprob, float) or not logprob <= 0.0 or logprob == -math.inf:
            raise SamplerError(
                f"{owner}: logprob {logprob!r} at sampled position {position} is not a finite number <= 0; "
                "the sampler must report the log-probability of the token that it drew"
            )


def check_support(owner: str, token_ids: Sequence[int], support: Sequence[tuple[int, ...]]) -> None:
    """Refuse a support that a sampler cannot have drawn these tokens from. An empty one is the whole vocabulary.

    Raises:
        SamplerError: naming ``owner``, the position and the token.
    """
    if not support:
        return
    if len(support) != len(token_ids):
        raise SamplerError(
            f"{owner}: {len(token_ids)} sampled ids and {len(support)} supports; there must be one per sampled token, "
            "or none at all where the whole vocabulary could be drawn"
        )
    for position, (token, ids) in enumerate(zip(token_ids, support, strict=True)):
        if tuple(sorted(set(ids))) != ids or ids[:1] < (0,):
            raise SamplerError(
                f"{owner}: the support at sampled position {position} is not a tuple of ids >= 0 in ascending order, "
                "each once"
            )
        place = bisect_left(ids, token)
        if place == len(ids) or ids[place] != token:
            raise SamplerError(
                f"{owner}: token {token} at sampled position {position} is not among the {len(ids)} ids of its "
                "support; the sampler must report the ids that it drew from"
            )


@dataclass(frozen=True, kw_only=True)
class Node:
    """One message's span of a trace: ``context_ids`` were given to the policy, ``sampled_ids`` came from it.

    No mask is stored, so a mask cannot disagree with the tokens. ``parent`` is the index of the node
    that this one continues (None for a root). ``support`` is that of the `Completion`. ``copied`` is true of a message
    that an earlier branch has told and this one lays again, whole or shortened; its ids are context here.
    """

    parent: int | None
    message: Message
    context_ids: tuple[int, ...] = ()
    sampled_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    support: tuple[tuple[int, ...], ...] = ()
    copied: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One verdict. ``value`` None means not scored, which is never 0.0.

    Raises:
        ScorerError: a value or weight that is NaN or infinite.
    """

    name: str
    value: float | None
    weight: float = 1.0
    explanation: str = ""

    def __post_init__(self) -> None:
        for label, number in (("value", self.value), ("weight", self.weight)):
            if number is not None and not math.isfinite(number):
                raise ScorerError(f"score {self.name!r}: {label} {number!r} is not finite; use None for 'not scored'")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """An infrastructure error, with the boundary that it came from."""

    boundary: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One attempt at a task, whole: every token that was given or sampled, why it ended, what it scored."""

    id: str
    task_id: str
    group_id: str
    attempt: int
    seed: int
    nodes: tuple[Node, ...]
    stop: Stop
    scores: tuple[Score, ...] = ()
    error: Fault | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        """Weighted sum of the scores; None when the attempt failed for our reasons or any weighted score is
        missing. A score with weight 0 is a metric and cannot make the reward missing."""
        weighted = [score for score in self.scores if score.weight != 0.0]
        if self.error is not None or not weighted or any(score.value is None for score in weighted):
            return None
        return sum(score.weight * score.value for score in weighted if score.value is not None)

    def branches(self) -> tuple[tuple[int, ...], ...]:
        """Every root-to-leaf path as node indices, in the order of the leaves."""
        parents = {node.parent for node in self.nodes}
        return tuple(self._path(leaf) for leaf in range(len(self.nodes)) if leaf not in parents)

    def _path(self, leaf: int) -> tuple[int, ...]:
        path: list[int] = []
        index: int | None = leaf
        while index is not None:
            path.append(index)
            index = self.nodes[index].parent
        return tuple(reversed(path))

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled in this attempt."""
        return sum(len(node.sampled_ids) for node in self.nodes)

    @property
    def num_turns(self) -> int:
        """Replies that the policy gave."""
        return sum(1 for node in self.events if node.message.role == "assistant")

    @property
    def events(self) -> tuple[Node, ...]:
        """What happened, each thing once: the nodes without those that lay a branch's messages again."""
        return tuple(node for node in self.nodes if not node.copied)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The attempts at one task that share a baseline, and the greedy attempt beside them where one was made: it is a
    baseline itself, and is never trained."""

    id: str
    task: Task
    traces: tuple[Trace, ...]
    greedy: Trace | None = None

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """One reward per attempt, None where the attempt was not scored."""
        return tuple(trace.reward for trace in self.traces)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One token sequence to train on.

    ``weights`` maps an objective (``pg``, ``ce``, ``kl``, ``value``) to one weight per token; 0.0 means that
    the token is context there. ``logprobs`` are the sampler's, None where the token was not sampled.

    What is empty is absent. ``returns`` are the targets of a value function, and ``values`` what it said before the
    step, both read where ``value`` has a weight. ``reference_logprobs`` are those of the policy that a KL term pulls
    to, ``old_logprobs`` those of the policy before the step where it is not the sampler, and ``importance`` a factor
    of each token's policy loss. ``support`` has the ids that each token was drawn from, None where that is the whole
    vocabulary and at context; all log-probabilities of a token with a support are over it.
    """

    token_ids: tuple[int, ...]
    weights: Mapping[str, tuple[float, ...]]
    logprobs: tuple[float | None, ...]
    advantages: tuple[float, ...]
    trace_id: str
    group_id: str
    versions: tuple[int | None, ...] = ()
    returns: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    reference_logprobs: tuple[float | None, ...] = ()
    old_logprobs: tuple[float | None, ...] = ()
    importance: tuple[float, ...] = ()
    support: tuple[tuple[int, ...] | None, ...] = ()
