"""What the attempts that were not trained were like beside those that were: length, reward, task family.

The unit is a group: means are taken over its attempts of the same end, and sums of these over groups. Attempts at one
task are alike, so an interval over attempts would be too narrow. The sums of several steps add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentrl.rollout.outstanding import End, Ended


class Moments(NamedTuple):
    """How many numbers there are, their sum, and the sum of their squares."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, value: float) -> Moments:
        """These and one number more."""
        return Moments(self.num + 1, self.total + value, self.squares + value * value)

    def merged(self, other: Moments) -> Moments:
        """The numbers of both."""
        return Moments(self.num + other.num, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float | None:
        """Their mean; None of none."""
        return self.total / self.num if self.num else None

    @property
    def error_of_mean(self) -> float | None:
        """Standard error of the mean, from the variance with n - 1; None of fewer than two."""
        if self.num < 2:
            return None
        variance = max(0.0, self.squares - self.total**2 / self.num) / (self.num - 1)
        return math.sqrt(variance / self.num)


class Difference(NamedTuple):
    """Mean of the dropped minus mean of the kept, and its standard error, None where it is not known.

    The ends of a 95 % interval lie 1.96 errors off where there are many groups (Welch's interval, 30 or more)."""

    value: float
    error: float | None


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Attempts of one end.

    Attributes:
        attempts: all of them.
        unseen: those that were given up in flight, of which neither length nor reward is known.
        length: for each group the mean of the tokens that its attempts without a fault sampled.
        reward: for each group the mean of its rewards.
    """

    attempts: int = 0
    unseen: int = 0
    length: Moments = Moments()  # noqa: RUF009 (immutable)
    reward: Moments = Moments()  # noqa: RUF009

    def merged(self, other: Fate) -> Fate:
        """The attempts of both."""
        return Fate(
            attempts=self.attempts + other.attempts,
            unseen=self.unseen + other.unseen,
            length=self.length.merged(other.length),
            reward=self.reward.merged(other.reward),
        )


@dataclass(frozen=True, kw_only=True)
class Bias:
    """The attempts that ended, by their end and the family of their task."""

    fates: Mapping[tuple[End, str], Fate] = field(default_factory=dict)

    @classmethod
    def of(cls, ended: Sequence[Ended]) -> Bias:
        """The sums of some ends. Attempts of one group that end alike must be given together."""
        units: dict[tuple[End, str, str], list[Ended]] = {}
        for one in ended:
            units.setdefault((one.end, one.plan.task.family, one.plan.id), []).append(one)
        found = cls()
        for (end, family, _), unit in units.items():
            found = found.merged(cls(fates={(end, family): _fate(unit)}))
        return found

    def merged(self, other: Bias) -> Bias:
        """The attempts of both."""
        keys = [*self.fates, *(key for key in other.fates if key not in self.fates)]
        return Bias(fates={key: self.fates.get(key, Fate()).merged(other.fates.get(key, Fate())) for key in keys})

    def fate(self, *ends: End) -> Fate:
        """The attempts with one of these ends, of all families."""
        found = Fate()
        for (end, _), one in self.fates.items():
            if end in ends:
                found = found.merged(one)
        return found

    @property
    def kept(self) -> Fate:
        """What was trained."""
        return self.fate(End.CONSUMED)

    @property
    def dropped(self) -> Fate:
        """What was not, and could have been."""
        return self.fate(*DROPPED)

    @property
    def length_difference(self) -> Difference | None:
        """How much longer the dropped are, in sampled tokens; None where there is nothing to compare."""
        return _difference(self.dropped.length, self.kept.length)

    @property
    def reward_difference(self) -> Difference | None:
        """How much more the dropped earned."""
        return _difference(self.dropped.reward, self.kept.reward)

    def families(self) -> dict[str, tuple[int, int]]:
        """Of each family how many attempts were kept and how many dropped."""
        kept, dropped = self._counts(End.CONSUMED), self._counts(*DROPPED)
        return {family: (kept[family], dropped[family]) for family in sorted(kept | dropped)}

    @property
    def family_shift(self) -> float | None:
        """Largest difference between the shares that any set of families has of the dropped and of the kept, in
        [0, 1] (total variation distance); None where there is nothing to compare."""
        pairs = self.families().values()
        kept, dropped = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
        if not kept or not dropped:
            return None
        return sum(abs(mine / kept - theirs / dropped) for mine, theirs in pairs) / 2

    def _counts(self, *ends: End) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (end, family), one in self.fates.items():
            if end in ends:
                counts[family] += one.attempts
        return counts


DROPPED = (End.STALE, End.SURPLUS, End.CANCELLED)
"""Ends of what the policy did and nobody trained. What failed is ours, and was played again."""


def _fate(unit: Sequence[Ended]) -> Fate:
    """The attempts of a group that ended alike."""
    traces = [one.trace for one in unit if one.trace is not None]
    lengths = [trace.num_sampled for trace in traces if trace.error is None]
    rewards = [trace.reward for trace in traces if trace.reward is not None]
    return Fate(
        attempts=len(unit),
        unseen=len(unit) - len(traces),
        length=Moments().plus(sum(lengths) / len(lengths)) if lengths else Moments(),
        reward=Moments().plus(sum(rewards) / len(rewards)) if rewards else Moments(),
    )


def _difference(dropped: Moments, kept: Moments) -> Difference | None:
    if dropped.mean is None or kept.mean is None:
        return None
    errors = dropped.error_of_mean, kept.error_of_mean
    known = None if None in errors else math.hypot(*(error for error in errors if error is not None))
    return Difference(dropped.mean - kept.mean, known)
