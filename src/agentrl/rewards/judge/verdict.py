"""What a grading came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The outcome of one grading. Nothing of it but the reward goes back to a policy.

    Attributes:
        verdict: ``pass`` when every hidden test passed, ``fail`` when one did not, ``error`` when there is no verdict.
        tier: 1 when the pass cannot be forged, 2 when a forgery would only be likely to show.
        num_passed: how many hidden tests passed.
        num_tests: how many there are.
        wall_ms: how long it took.
        seed: of the inputs that were drawn for it.
        repeatable: whether to grade the same files by the same tests and seed would come to the same, as far as that
            lies with us: nothing was lost, and no limit, signal or clock of ours ended the candidate.
        why: what went wrong, for people and logs.
    """

    verdict: Literal["pass", "fail", "error"]
    tier: int
    num_passed: int
    num_tests: int
    wall_ms: float
    seed: int = 0
    repeatable: bool = False
    why: str = ""

    @property
    def reward(self) -> float | None:
        """1 for a pass, 0 for a fail; None when there is no verdict, since a fault of ours is not a zero."""
        return {"pass": 1.0, "fail": 0.0, "error": None}[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.verdict,
            "reward": self.reward,
            "tier": self.tier,
            "tests": {"passed": self.num_passed, "total": self.num_tests},
            "wall_ms": round(self.wall_ms, 1),
        }
