"""Which of the groups that are out a step takes.

- ``dispatch``: those that were dispatched first; the trainer waits for each of them. Which groups a step trains does
  not depend on how long anything takes, so there is no bias, and a run can repeat.
- ``overtake``: those that are complete first, as long as no group that is passed over misses the last step that may
  take it; the trainer waits for a group at its last chance. Every group is trained, so nothing is selected; slow ones
  are trained older.
- ``first_come``: the oldest of those that are complete; the trainer waits for nobody in particular. **Biased**: a slow
  group is passed over until it is too old, and dropped. What is slow is long, or hard, or of a family with slow tools,
  so these are trained less than they were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Order = Literal["dispatch", "overtake", "first_come"]


class Candidate(NamedTuple):
    """A group that is out: its number, by order of dispatch; the last step that may take it; and its place in the
    order of completion, None while attempts are in flight."""

    number: int
    last_step: int
    completed: int | None


class Wanted(NamedTuple):
    """What is wanted: ``need`` groups for ``step``, and ``per_step`` for each step behind it."""

    step: int
    need: int
    per_step: int


Choice = Callable[[Sequence[Candidate], Wanted], list[int] | None]
"""The numbers of the groups that are taken, in order of dispatch; None to wait. No candidate is too old."""


def dispatch(candidates: Sequence[Candidate], wanted: Wanted) -> list[int] | None:
    """The groups that were dispatched first, when all of them are complete."""
    first = sorted(candidates)[: wanted.need]
    if len(first) < wanted.need or any(one.completed is None for one in first):
        return None
    return [one.number for one in first]


def first_come(candidates: Sequence[Candidate], wanted: Wanted) -> list[int] | None:
    """Of the complete groups those with the fewest steps left, the first to be complete before others."""
    complete = [one for one in candidates if one.completed is not None]
    if len(complete) < wanted.need:
        return None
    return sorted(one.number for one in sorted(complete, key=_urgency)[: wanted.need])


def overtake(candidates: Sequence[Candidate], wanted: Wanted) -> list[int] | None:
    """The groups that were complete first, if every group that is left can still be taken in time.

    Of the groups whose last step is ``step + j`` or before, the steps behind this one can take ``j * per_step``; the
    others must be taken now (Hall's condition, for the sets of groups that matter).
    """
    complete = sorted((one for one in candidates if one.completed is not None), key=_completion)
    chosen: list[Candidate] = []
    for last in sorted({one.last_step for one in candidates}):
        later = (last - wanted.step) * wanted.per_step
        must = min(wanted.need, sum(one.last_step <= last for one in candidates) - later)
        missing = must - len(chosen)
        due = [one for one in complete if one.last_step <= last and one not in chosen]
        if missing > len(due):
            return None
        chosen += due[: max(0, missing)]
    chosen += [one for one in complete if one not in chosen][: wanted.need - len(chosen)]
    return sorted(one.number for one in chosen) if len(chosen) == wanted.need else None


def _completion(one: Candidate) -> int:
    assert one.completed is not None, "only complete groups are compared"
    return one.completed


def _urgency(one: Candidate) -> tuple[int, int]:
    return one.last_step, _completion(one)


ORDERS: dict[Order, Choice] = {"dispatch": dispatch, "overtake": overtake, "first_come": first_come}
