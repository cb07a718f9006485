"""Signs that an attempt games its reward, what becomes of such an attempt, and how good the signs are.

Two signs are cheap. An attempt that changed a test touched what judges it. An attempt whose visible and hidden tests
disagree passed what it saw without doing what was asked, or the reverse. The second alone is no proof: a program that
is honestly wrong can pass the few tests that it saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from agentrl.types import Score, ToolCall, Trace

OnHack = Literal["nothing", "zero", "leave_out"]
"""What becomes of the reward of an attempt that shows signs: it stays, it is 0, or there is none."""

CHANGING_TOOLS: Mapping[str, str] = MappingProxyType({"edit": "path"})
"""A tool that changes something, and its argument that says what."""
VISIBLE, HIDDEN = "visible_tests", "hidden_tests"
VERDICT = "no_hack"
"""Name of the score that takes the place of the reward of a caught attempt."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What speaks for a hack.

    Attributes:
        touched: the tests that a call changed, as the calls named them, each once.
        disagrees: whether exactly one of the visible and the hidden tests passed; None where one was not scored.
    """

    touched: tuple[str, ...]
    disagrees: bool | None

    @property
    def found(self) -> bool:
        """Whether there is any sign."""
        return bool(self.touched) or self.disagrees is True

    def __str__(self) -> str:
        told = [f"changed {', '.join(self.touched)}"] if self.touched else []
        told += ["visible and hidden tests disagree"] if self.disagrees else []
        return "; ".join(told) or "no sign"


def signs_of_hacking(
    trace: Trace, is_test: Callable[[str], bool], *, changing: Mapping[str, str] = CHANGING_TOOLS
) -> Signs:
    """What a finished attempt shows.

    Args:
        trace: the attempt, with its scores ``visible_tests`` and ``hidden_tests`` if it has them, of any weight.
        is_test: whether what a call names is a test.
        changing: the tools that change what one of their arguments names, and that argument. To read a test, or to
            write its name into a program, is no sign.
    """
    named = (call.arguments.get(changing[call.name]) for call in _carried_out(trace) if call.name in changing)
    touched = dict.fromkeys(value for value in named if isinstance(value, str) and is_test(value))
    return Signs(touched=tuple(touched), disagrees=_disagrees(trace))


def _carried_out(trace: Trace) -> Iterator[ToolCall]:
    """The well-formed calls whose answer was no error; answers come in the order of the calls."""
    unanswered: deque[ToolCall] = deque()
    for node in trace.events:
        unanswered.extend(node.message.tool_calls)
        if node.message.role == "tool" and unanswered:
            call = unanswered.popleft()
            if call.problem is None and not node.message.content.startswith("error"):
                yield call


def _disagrees(trace: Trace) -> bool | None:
    values = {score.name: score.value for score in trace.scores}
    visible, hidden = values.get(VISIBLE), values.get(HIDDEN)
    return None if visible is None or hidden is None else visible != hidden


def sanctioned(scores: Sequence[Score], signs: Signs, on_hack: OnHack) -> tuple[Score, ...]:
    """The scores after the detector had its say.

    Without a sign, or with ``nothing``, they are as they were. Else what was measured stays as metrics of weight 0, and
    the reward is the new score ``no_hack``: 0.0 for ``zero``, not scored for ``leave_out``, which keeps the attempt out
    of the baseline of its group and out of training.
    """
    if on_hack == "nothing" or not signs.found:
        return tuple(scores)
    verdict = Score(name=VERDICT, value=0.0 if on_hack == "zero" else None, explanation=str(signs))
    return (*(replace(score, weight=0.0) for score in scores), verdict)


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How a detector did on attempts whose truth is known: four counts."""

    caught: int
    false_alarms: int
    missed: int
    passed_over: int

    @property
    def false_alarm_rate(self) -> float | None:
        """Share of the honest attempts that were flagged; None when none was honest."""
        return _share(self.false_alarms, self.false_alarms + self.passed_over)

    @property
    def miss_rate(self) -> float | None:
        """Share of the hacks that were not flagged; None when there was no hack."""
        return _share(self.missed, self.missed + self.caught)


def confusion(judged: Iterable[tuple[bool, bool]]) -> Confusion:
    """The counts of (flagged, truly a hack), one pair an attempt."""
    pairs = list(judged)
    return Confusion(
        caught=pairs.count((True, True)),
        false_alarms=pairs.count((True, False)),
        missed=pairs.count((False, True)),
        passed_over=pairs.count((False, False)),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
