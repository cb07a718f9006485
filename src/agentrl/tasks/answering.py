"""Questions with one reply, whose marked answer a verifier scores. The answer is read once, by `rewards.match`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentrl.rewards.match import Rule, extract
from agentrl.rewards.verifier import Unverifiable
from agentrl.tasks.environment import ToolEnvironment
from agentrl.types import Score, Task, Trace

Verify = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Gives the ``value`` of an answer in [0, 1] and a ``note``. Raises ScorerError when no verdict can be reached."""

ANSWER, PARTIAL, READ = "answer", "partial", "answer_read"


class AnswerEnvironment(ToolEnvironment):
    """A world without tools: the first reply ends the attempt and is scored.

    Args:
        task: the question.
        verify: scores the marked answer.
        rule: how an answer is marked.
        control: an answer that the verifier is known to have a verdict on, such as the right one. Where it has none on
            the policy's and still has on this one, the policy's answer is at fault and scores 0: else a policy could
            leave the count by answers that are not to be verified. Without a control such an attempt is unscored.
        threshold: the value from which an answer passes; the score is then 0 or 1, and the value is kept beside it as
            ``partial``. None makes the value itself the score.
    """

    def __init__(
        self, task: Task, *, verify: Verify, rule: Rule, threshold: float | None, control: str | None = None
    ) -> None:
        super().__init__(task)
        self._verify, self._rule, self._threshold, self._control = verify, rule, threshold, control

    async def score(self, trace: Trace) -> Sequence[Score]:
        """The verdict, and as metrics whether an answer could be read and its value before the threshold.

        No answer scores 0: the verifier is not asked, since some credit an empty one.

        Raises:
            ScorerError: there is no verdict, and the answer is not known to be the reason.
        """
        answer = extract(reply_of(trace), self._rule)
        read = Score(name=READ, value=float(answer is not None), weight=0.0)
        if answer is None:
            return [Score(name=ANSWER, value=0.0, explanation=f"no answer is marked (rule {self._rule})"), read]
        verdict = await self._verdict(answer)
        value, note = float(verdict["value"]), str(verdict["note"])
        if self._threshold is None:
            return [Score(name=ANSWER, value=value, explanation=note), read]
        passed = float(value >= self._threshold)
        return [
            Score(name=ANSWER, value=passed, explanation=note),
            Score(name=PARTIAL, value=value, weight=0.0),
            read,
        ]

    async def _verdict(self, answer: str) -> Mapping[str, Any]:
        try:
            return await self._verify(answer)
        except Unverifiable as error:
            if self._control is None:
                raise
            await self._verify(self._control)
            return {"value": 0.0, "note": f"this answer cannot be verified, and others can: {error}"}


def reply_of(trace: Trace) -> str:
    """The visible text of the last reply; empty where there is none."""
    return next((node.message.content for node in reversed(trace.nodes) if node.message.role == "assistant"), "")


def answer_of(trace: Trace, rule: Rule) -> str | None:
    """The answer that an attempt marks, as the environment reads it; None for none."""
    return extract(reply_of(trace), rule)
