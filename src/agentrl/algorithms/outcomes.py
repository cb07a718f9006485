"""What credit may know of the attempts at a task: numbers and names, no tokens. No torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from agentrl.types import Group, Score, Stop, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One attempt.

    Attributes:
        reward: None when it was not scored.
        scores: those that the reward is made of, for credit that looks at each of them; empty when it is one number.
        turns: tokens that the policy sampled in each of its turns.
        states: a name of the state before each turn, as the environment gave it, or empty.
        stop: why it ended.
        oldest_version: of the policies that sampled its tokens; None when it has none.
    """

    reward: float | None
    scores: tuple[Score, ...] = ()
    turns: tuple[int, ...] = (1,)
    states: tuple[Hashable, ...] = ()
    stop: Stop = Stop.DONE
    oldest_version: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.turns)

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it, and not the policy."""
        return self.stop in (Stop.MAX_TURNS, Stop.CONTEXT_FULL, Stop.MAX_TOKENS, Stop.TOOL_TIME, Stop.TIMEOUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """The attempts at one task that are compared, and the reward of a greedy attempt beside them where one was made
    (None also when it was not scored)."""

    attempts: tuple[Outcome, ...]
    greedy: float | None = None

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """One reward per attempt."""
        return tuple(attempt.reward for attempt in self.attempts)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sampled tokens of each attempt."""
        return tuple(attempt.num_tokens for attempt in self.attempts)


def outcomes(group: Group) -> Outcomes:
    """What is known of a group."""
    return Outcomes(
        attempts=tuple(map(outcome, group.traces)), greedy=None if group.greedy is None else group.greedy.reward
    )


def outcome(trace: Trace) -> Outcome:
    """What is known of an attempt."""
    versions = [version for node in trace.nodes for version in node.versions]
    return Outcome(
        reward=trace.reward,
        scores=tuple(score for score in trace.scores if score.weight != 0.0),
        turns=tuple(len(node.sampled_ids) for node in trace.nodes if node.sampled_ids),
        states=tuple(trace.metadata.get("states", ())),
        stop=trace.stop,
        oldest_version=min(versions, default=None),
    )


def of_rewards(groups: Sequence[Sequence[float | None]]) -> list[Outcomes]:
    """Attempts of which nothing but the reward is known, each of one turn of one token.

    >>> of_rewards([[1.0, None]])[0].rewards
    (1.0, None)
    """
    return [Outcomes(attempts=tuple(Outcome(reward=reward) for reward in rewards)) for rewards in groups]
