"""Learning from conversations that are worth imitating: demonstrations, and the policy's own successes."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.settings.section import Section


class WarmStartConfig(Section):
    """Supervised fine-tuning on demonstrations, before anything else is trained."""

    steps: int = Field(
        default=200, ge=0, description="optimizer steps; 0 leaves the weights as they are made or loaded"
    )
    data: str | None = Field(
        default=None,
        min_length=1,
        description="file or folder of conversations: chat JSONL, Parquet, or traces of runs; unset: a scripted solver "
        "demonstrates the training tasks",
    )
    min_reward: float = Field(default=1.0, description="attempts in files of traces are taken from this reward on")
    overlong: Literal["refuse", "cut", "leave_out"] = Field(
        default="refuse", description="what becomes of a conversation in a file that is longer than model.context"
    )
    demonstrations: int = Field(default=2, ge=1, description="scripted demonstrations of each training task")
    batch_size: int = Field(
        default=64, ge=1, description="demonstrations or conversations in a step; those of a task come together"
    )
    learning_rate: float = Field(default=3e-3, gt=0, description="peak learning rate of AdamW (embeddings, gains)")
    matrix_learning_rate: float = Field(default=2e-2, gt=0, description="peak learning rate of Muon (matrices)")
    warmup_steps: int = Field(default=20, ge=0, description="steps in which the learning rate rises to its peak")
    final_fraction: float = Field(
        default=0.05, ge=0, le=1, description="share of the learning rate that is left at the last step"
    )
    validation: float = Field(
        default=0.0, ge=0, lt=1, description="share of the tasks or conversations that is held out to validate on"
    )
    validate_every: int = Field(default=25, ge=1, description="steps between validations; the last step has one too")
    patience: int = Field(
        default=0, ge=0, description="validations without a lower loss after which training stops; 0 never stops it"
    )
    checkpoint_every: int = Field(default=100, ge=1, description="steps between checkpoints")
    reverts: float = Field(
        default=0.35, ge=0, le=1, description="chance that a repair that passed its tests is taken back"
    )
    wrong_edit: float = Field(default=0.1, ge=0, le=1, description="chance that an edit of the broken line is wrong")
    untested: float = Field(default=0.3, ge=0, le=1, description="chance that an edit is handed in without a test run")
    gives_up: float = Field(
        default=0.15, ge=0, le=1, description="chance that a failing test run is followed by submit"
    )
    meddles: float = Field(
        default=0.0, ge=0, le=1, description="chance that the tests are emptied instead of the program repaired"
    )

    @model_validator(mode="after")
    def _a_task_fits_into_a_step(self) -> Self:
        if self.data is None and self.batch_size < self.demonstrations:
            raise ValueError(
                f"batch_size {self.batch_size} with demonstrations {self.demonstrations}: those of a task are trained "
                f"in one step; set batch_size to {self.demonstrations} or more"
            )
        return self

    @model_validator(mode="after")
    def _what_is_set_is_used(self) -> Self:
        if self.patience and not self.validation:
            raise ValueError(
                f"patience {self.patience} without a validation set, whose loss decides; set validation to 0.1, or "
                "patience to 0"
            )
        if self.data is not None and not self.steps:
            raise ValueError(f"data {self.data!r} with steps 0: it would not be read; set steps, or leave data out")
        return self


class RejectionConfig(Section):
    """Rejection sampling: the policy's own successes are imitated, round after round, behind the warm start."""

    rounds: int = Field(default=0, ge=0, description="times that attempts are sampled and trained; 0 for none")
    tasks_per_round: int = Field(default=256, ge=1, description="training tasks that a round attempts")
    tasks_at_once: int = Field(default=32, ge=1, description="tasks that are played at the same time")
    attempts: int = Field(default=8, ge=1, description="attempts at each task")
    min_reward: float = Field(default=1.0, description="an attempt with this reward is a success")
    keep: int = Field(
        default=2,
        ge=1,
        description="distinct successes of a task that are trained at most, so that easy ones do not "
        "crowd out the rest",
    )
    prefer: Literal["shortest", "random"] = Field(
        default="random", description="which are kept of more successes: those with the fewest sampled tokens, or any"
    )
    solved_weight: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="weight in the loss of tasks whose attempts all succeeded; 0 leaves them out",
    )
    epochs: int = Field(default=2, ge=1, description="passes over what a round kept")
    batch_size: int = Field(default=64, ge=1, description="kept attempts in an optimizer step, at most")
    learning_rate: float = Field(default=1e-3, gt=0, description="peak learning rate of AdamW (embeddings, gains)")
    matrix_learning_rate: float = Field(default=4e-3, gt=0, description="peak learning rate of Muon (matrices)")
    warmup_steps: int = Field(default=5, ge=0, description="steps of a round in which the learning rate rises")
    final_fraction: float = Field(
        default=0.1, ge=0, le=1, description="share of the learning rate that is left at a round's last step"
    )
    restart: bool = Field(
        default=False,
        description="whether each round trains the weights from before round 1 (STaR) instead of going on (expert "
        "iteration)",
    )

    @model_validator(mode="after")
    def _keep_is_of_the_attempts(self) -> Self:
        if self.keep > self.attempts:
            raise ValueError(
                f"keep {self.keep} with attempts {self.attempts}: there are never so many successes; set keep to "
                f"{self.attempts} or less"
            )
        return self
