"""What stands around learning: evaluation, and where untrusted programs run."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.settings.section import Section


class EvalConfig(Section):
    """Evaluation on held-out tasks."""

    tasks: int = Field(
        default=240, ge=0, description="held-out tasks before and after; an interval needs two, 0 measures nothing"
    )
    attempts: int = Field(default=1, ge=1, description="attempts at each task")
    during_tasks: int = Field(default=64, ge=2, description="held-out tasks of the small evaluations during training")
    at_once: int | None = Field(
        default=None, ge=1, description="attempts that are played side by side, for less memory; unset: all"
    )

    @model_validator(mode="after")
    def _an_interval_needs_two(self) -> Self:
        if self.tasks == 1:
            raise ValueError("tasks 1: an interval needs two tasks; set tasks to 2 or more, or to 0 to measure nothing")
        return self


class SandboxConfig(Section):
    """Where untrusted programs run."""

    workers: int = Field(default=2, ge=1, description="boxes, each of which runs one program at a time")
    require: Literal["namespaces", "landlock"] = Field(
        default="namespaces", description="the weakest walls to accept; see `agentrl sandbox`"
    )
    allow_unsafe: bool = Field(default=False, description="accept no walls at all, for programs that you trust")
    wall_s: float = Field(default=5.0, gt=0, description="wall-clock limit of one job in seconds")
    cpu_s: float = Field(default=1.0, gt=0, description="processor time that one job may use in seconds")
