"""Which groups are left out of a step and why, counted. Groups are kept or left out whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Filter = Callable[[Sequence[float | None]], bool]
"""True when a group with these advantages is to be left out. Its function name is the reason in the report."""


@dataclass(frozen=True, kw_only=True)
class FilterReport:
    """How many groups were kept, and how many were left out by reason; each group counts once."""

    num_kept: int
    num_dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_groups(self) -> int:
        """Groups that were looked at."""
        return self.num_kept + sum(self.num_dropped.values())

    def share_dropped(self, reason: str) -> float:
        """Share of all groups, in [0, 1], that were left out for ``reason``; 0.0 when there was no group."""
        return self.num_dropped.get(reason, 0) / self.num_groups if self.num_groups else 0.0


class Filtered(NamedTuple):
    """The ids of the groups that stay, in the order given, the others with their reasons, and the counts."""

    kept: tuple[str, ...]
    left_out: Mapping[str, str]
    report: FilterReport


def unscored(advantages: Sequence[float | None]) -> bool:
    """No attempt of the group has credit, because none was scored. That is our failure and not the policy's."""
    return all(advantage is None for advantage in advantages)


def no_signal(advantages: Sequence[float | None]) -> bool:
    """Every scored attempt earned the same, so no token of the group has a policy gradient."""
    return not any(advantages)


def filter_groups(advantages: Mapping[str, Sequence[float | None]], filters: Sequence[Filter]) -> Filtered:
    """Leave out the groups that a filter names; the first filter that does is the reason.

    A group without any scored attempt is always left out, as ``unscored``, before the filters are asked.

    Args:
        advantages: group id to the advantages of its attempts, None where an attempt was not scored.
        filters: rules of a preset, asked in order.
    """
    reasons = {group: _reason(values, (unscored, *filters)) for group, values in advantages.items()}
    kept = tuple(group for group, reason in reasons.items() if reason is None)
    left_out = {group: reason for group, reason in reasons.items() if reason is not None}
    report = FilterReport(num_kept=len(kept), num_dropped=dict(Counter(left_out.values())))
    return Filtered(kept=kept, left_out=left_out, report=report)


def _reason(advantages: Sequence[float | None], filters: Sequence[Filter]) -> str | None:
    return next((rule.__name__ for rule in filters if rule(advantages)), None)
