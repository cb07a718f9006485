"""Who acts, on what, and within which limits."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.fields import nearest
from agentrl.settings.section import Section

TASK_SETS = ("bugfix", "humanevalfix", "math", "reasoning-gym")
"""Names of the task sets, as `agentrl eval` has them and the ids of their tasks begin."""


class TasksConfig(Section):
    """Which tasks the policy acts on, and what it may see and do there."""

    name: Literal["bugfix"] = Field(default="bugfix", description="task set")
    level: Literal["tiny", "small", "repo"] = Field(default="tiny", description="size of the programs")
    train_tasks: int = Field(default=2000, ge=1, description="distinct training tasks to draw groups from")
    longest_program: int | None = Field(
        default=None, ge=2, description="lines of the longest program that is taken; unset: all"
    )
    max_turns: int = Field(default=6, ge=1, description="replies that the policy may give in one attempt")
    max_reply: int = Field(default=20, ge=2, description="tokens that one reply may have")
    report: Literal["short", "full"] = Field(default="short", description="how much a test run tells")
    tests_writable: bool = Field(default=False, description="whether the policy may edit the visible tests")
    reward: Literal["hidden", "visible", "random"] = Field(
        default="hidden",
        description="which tests decide the reward; random draws it, the control that has nothing to learn from",
    )
    show_results: bool = Field(default=True, description="whether a test run shows its results")
    on_hack: Literal["nothing", "zero", "leave_out"] = Field(
        default="nothing", description="what becomes of the reward of an attempt that shows signs of reward hacking"
    )

    @model_validator(mode="after")
    def _a_drawn_reward_knows_nothing(self) -> Self:
        if self.reward == "random" and self.on_hack != "nothing":
            raise ValueError(
                f"reward random with on_hack {self.on_hack}: the reward would depend on what the attempt did, and the "
                "control would have something to learn from; set on_hack to nothing"
            )
        return self

    def for_evaluation(self) -> Self:
        """The same tasks with a reward that measures: where training draws it, the hidden tests decide."""
        return self.model_copy(update={"reward": "hidden"}) if self.reward == "random" else self


TINY_AGENT = "tiny-agent"
"""The model that has a shape of its own below, and a vocabulary of its own."""


class ModelConfig(Section):
    """Which model is trained, and the shape of TinyAgent."""

    name: str = Field(
        default=TINY_AGENT, min_length=1, description="tiny-agent, or a Hugging Face model by its name or folder"
    )
    layers: int = Field(default=2, ge=1, description="transformer blocks")
    width: int = Field(default=64, ge=2, description="size of the residual stream")
    heads: int = Field(default=4, ge=1, description="attention heads; the width is divided among them")
    mlp_width: int = Field(default=256, ge=1, description="hidden size of the feed-forward part")
    context: int = Field(default=256, ge=8, description="longest sequence in tokens")
    value_head: bool = Field(default=False, description="whether a value head is trained")

    @property
    def is_tiny(self) -> bool:
        """Whether TinyAgent is trained."""
        return self.name == TINY_AGENT

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} with heads {self.heads}: rotary positions need an even size of each head; "
                f"set width to a multiple of {2 * self.heads}"
            )
        return self


class HuggingFaceConfig(Section):
    """How a Hugging Face model is loaded and trained; where TinyAgent is, micro_batch_tokens alone is used."""

    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="of the weights")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda where there is one")
    attention: Literal["auto", "fused", "masked"] = Field(
        default="auto", description="of training: fused on the CPU, masked anywhere; auto takes the faster"
    )
    gradient_checkpointing: bool = Field(default=False, description="compute layers again instead of keeping them")
    micro_batch_tokens: int = Field(
        default=8192,
        ge=1,
        description="tokens that are trained at once; a larger group stands alone; see `agentrl plan-memory`",
    )
    lora_rank: int = Field(default=0, ge=0, description="rank of the adapters that are trained; 0 trains all weights")
    lora_alpha: float = Field(default=32.0, gt=0, description="adapters are scaled by lora_alpha / lora_rank")
    lora_targets: tuple[str, ...] = Field(
        default=("all-linear",), description="names of the linear layers that get adapters, such as q_proj,v_proj"
    )
    thinking: bool = Field(default=False, description="whether the model may reason before it replies")
    renderer: str = Field(
        default="auto",
        pattern=r"^(auto|chatml|template|library:[a-z0-9._-]+)$",
        description="what writes its conversations: auto, chatml, template (the model's own), or library:FAMILY",
    )
    today: str | None = Field(
        default=None, pattern=r"^\d{4}-\d{2}-\d{2}$", description="the date that some templates print, as 2026-01-31"
    )

    @model_validator(mode="after")
    def _what_is_set_of_adapters_is_used(self) -> Self:
        for name in ("lora_alpha", "lora_targets"):
            value, default = getattr(self, name), type(self).model_fields[name].default
            if not self.lora_rank and value != default:
                said = ",".join(value) if name == "lora_targets" else f"{value:g}"
                raise ValueError(
                    f"{name} {said} with lora_rank 0, which trains no adapters; set lora_rank to 32, or leave it out"
                )
        return self


class HarnessConfig(Section):
    """What the agent loop allows beside turns and tokens, in training and evaluation alike: time, and what is done
    where the context is full or a call is malformed."""

    system_prompt: str = Field(
        default="", description="system message in place of the tasks' own; empty leaves tasks as they are"
    )
    system_prompts: dict[str, str] = Field(
        default={}, description="those of single task sets, by name, such as math; others have system_prompt"
    )
    reserve: int = Field(default=1, ge=1, description="tokens that must be left before a reply is asked for")
    call_s: float = Field(
        default=30.0, gt=0, description="deadline of one tool call in seconds; whoever misses it is broken"
    )
    tool_s: float = Field(default=3600.0, gt=0, description="time of all tool calls of an attempt, in seconds")
    total_s: float = Field(
        default=14400.0, gt=0, description="time of a whole attempt in seconds, waiting for the sampler included"
    )
    compaction: Literal["none", "drop_results", "summarize"] = Field(
        default="none", description="what makes room in a full context; none ends the attempt"
    )
    fill: float = Field(
        default=0.5, gt=0, le=1, description="share of the context that may be filled after results were dropped"
    )
    summary: int = Field(default=512, ge=1, description="tokens of a summary; replies leave room for it")
    malformed: Literal["answer", "end", "penalise"] = Field(
        default="answer", description="a malformed call is answered with what is wrong, ends the attempt, or costs too"
    )
    malformed_penalty: float = Field(
        default=0.0, ge=0, description="taken off the reward for each malformed call, in training"
    )

    @model_validator(mode="after")
    def _prompts_are_of_task_sets(self) -> Self:
        for name in self.system_prompts:
            if name not in TASK_SETS:
                raise ValueError(
                    f"system_prompts.{name}: there is no task set {name!r}; {nearest(name, TASK_SETS)}the task sets "
                    f"are {', '.join(TASK_SETS)}"
                )
        return self

    @model_validator(mode="after")
    def _a_penalty_is_asked_for(self) -> Self:
        if self.malformed == "penalise" and not self.malformed_penalty:
            raise ValueError(
                "malformed penalise with malformed_penalty 0: nothing is taken; set malformed_penalty to 0.1"
            )
        if self.malformed == "answer" and self.malformed_penalty:
            raise ValueError(
                f"malformed_penalty {self.malformed_penalty:g} with malformed answer, which takes nothing; set "
                "malformed to penalise, or to end, which may take something too"
            )
        return self
