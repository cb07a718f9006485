"""When an attempt is cut, and whose fault it is.

Two kinds of limits are kept apart. The *budget* of the policy (turns, tokens, the sum of tool time, the time of the
whole attempt) is its own: who uses it up is cut with a `Stop` that names it, and scored for what was reached. The
*deadline* of a single call, ``call_s``, is a promise of the environment: a tool that gives no answer within it is
broken, which is a fault of ours and never a reward. A tool whose work the policy chooses, such as a shell, needs a
shorter limit of its own and answers when it is over.

A call that runs is never torn, since what it leaves behind is scored: it ends by itself or at its deadline, and the
time budgets are looked at behind it. Waiting for the sampler is given up at once. So no attempt is played for longer
than ``total_s`` and one ``call_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When an attempt is cut. Whatever is cut is told in the trace's metadata, under ``cuts``.

    Attributes:
        turns: replies of the policy, summaries not counted. Stop: ``max_turns``.
        reply: tokens of one reply. A reply that reaches it ends the attempt with ``max_tokens``.
        context: tokens of the whole conversation. Stop: ``context_full``, where no compaction makes room.
        reserve: tokens that must be left for a reply before one is asked for, at least 1.
        call_s: deadline of one call in seconds; a fault of the environment.
        tool_s: time of all calls together in seconds. Stop: ``tool_time``.
        total_s: time of the whole attempt in seconds, sampling and waiting for the sampler included. Stop: ``timeout``.

    Raises:
        ConfigError: a reserve below 1, or a time that is not above 0.
    """

    turns: int = 8
    reply: int = 32
    context: int = 256
    reserve: int = 1
    call_s: float = 30.0
    tool_s: float = 3600.0
    total_s: float = 14400.0

    def __str__(self) -> str:
        """The first limits there were, and those that are not at their defaults: what is stored under a fingerprint of
        today stays that of the same agent when another limit is added."""
        first = ("turns", "reply", "context", "call_s")
        shown = (one for one in fields(self) if one.name in first or getattr(self, one.name) != one.default)
        return f"Limits({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in shown)})"

    def __post_init__(self) -> None:
        if self.reserve < 1:
            raise ConfigError(f"reserve is {self.reserve}; a reply needs room for at least 1 token")
        for name in ("call_s", "tool_s", "total_s"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; write a number of seconds above 0")
