"""What a step of an asynchronous run has to tell: ages of what was trained, ends of the attempts, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.rollout.bias import Bias
from agentrl.rollout.outstanding import End, Ended


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """The attempts that ended in a step.

    Attributes:
        ends: how many had each end.
        ages: sampled tokens that the trainer took, by age in trainer steps.
        groups_stale: groups that were dropped as too old.
        faults: attempts that broke, by boundary.
        bias: what the dropped were like beside the kept.
    """

    ends: Counter[End]
    ages: Counter[int]
    groups_stale: int
    faults: Counter[str]
    bias: Bias

    @classmethod
    def of(cls, ended: Sequence[Ended]) -> Staleness:
        """Of the ends since the last step."""
        ages: Counter[int] = Counter()
        for one in ended:
            if one.end is End.CONSUMED and one.trace is not None:
                ages.update(one.step - version for node in one.trace.nodes for version in node.versions)
        return cls(
            ends=Counter(one.end for one in ended),
            ages=ages,
            groups_stale=len({one.ticket.group for one in ended if one.end is End.STALE}),
            faults=Counter(one.trace.error.boundary for one in ended if one.trace is not None and one.trace.error),
            bias=Bias.of(ended),
        )

    @property
    def age_mean(self) -> float | None:
        """Mean age of a token that the trainer took, in trainer steps."""
        total = self.ages.total()
        return sum(age * count for age, count in self.ages.items()) / total if total else None

    def row(self, *, updates_per_step: int = 1) -> dict[str, float | None]:
        """As metrics.

        Args:
            updates_per_step: optimizer updates in a trainer step, to give the largest age in updates as well.
        """
        oldest = max(self.ages, default=None)
        length, reward = self.bias.length_difference, self.bias.reward_difference
        return {
            "age_mean": self.age_mean,
            "age_max": oldest,
            "age_max_updates": None if oldest is None else oldest * updates_per_step,
            "tokens_taken": self.ages.total(),
            "groups_stale": self.groups_stale,
            **{f"episodes_{end}": self.ends[end] for end in End},
            "length_dropped_difference": length.value if length else None,
            "length_dropped_error": length.error if length else None,
            "reward_dropped_difference": reward.value if reward else None,
            "reward_dropped_error": reward.error if reward else None,
            "family_shift": self.bias.family_shift,
        }
