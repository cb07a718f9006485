"""The parts of a run's configuration, each with its fields, their bounds, and what contradicts what within it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl.catalogue import CORRECTIONS, check_parameters, entry
from agentrl.errors import ConfigError
from agentrl.types import Sampling


class Section(BaseModel):
    """Base of every part of the configuration: frozen, without surplus keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


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


AlgorithmName = Literal[
    "reinforce",
    "rloo",
    "remax",
    "ppo",
    "ppo_turn",
    "vapo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gigpo",
    "lite_ppo",
    "decoupled_ppo",
    "gspo",
    "luspo",
    "gmpo",
    "cispo",
    "sapo",
    "two_sided",
    "dppo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gdpo",
    "opo",
    "gpg",
    "maxrl",
    "pass_at_k",
    "topr",
    "vespo",
    "dro",
]
"""The names of `agentrl.catalogue`."""
CorrectionName = Literal[
    "none",
    "token_tis",
    "sequence_tis",
    "geometric_tis",
    "token_mis",
    "sequence_mis",
    "geometric_mask",
    "sequence_mask_tis",
    "outlier_mask",
    "m2po",
    "kpop",
]
"""The names of `agentrl.catalogue.CORRECTIONS`, and none."""


class RlConfig(Section):
    """Reinforcement learning: how much is sampled, how it becomes credit, how far a step may go."""

    algorithm: AlgorithmName = Field(default="dr_grpo", description="see `agentrl algorithms`")
    parameters: dict[str, float] = Field(
        default={}, description="those of the algorithm that are not at their defaults, such as clip_high"
    )
    reduction: Literal["token", "sequence", "constant", "group"] | None = Field(
        default=None, description="how the losses of a step become one number; unset: the algorithm's own"
    )
    steps: int = Field(default=100, ge=0, description="batches of attempts; 0 stops after the warm start")
    groups_per_step: int = Field(default=12, ge=1, description="tasks in a step")
    group_size: int = Field(default=8, ge=1, description="attempts at each task, which share a baseline")
    learning_rate: float = Field(default=3e-4, ge=0, description="learning rate; 0 is the control that must not drift")
    matrix_learning_rate: float = Field(
        default=2e-3, ge=0, description="learning rate of Muon (matrices of the blocks)"
    )
    epochs: int = Field(default=1, ge=1, description="passes over the samples of a step")
    minibatches: int = Field(
        default=1,
        ge=1,
        description="optimizer steps of a pass, each over a part of the groups; the last are off-policy",
    )
    publish_every: int = Field(
        default=1,
        ge=1,
        description="steps between publications to the sampler; above 1 it lags, as in asynchronous runs",
    )
    correction: CorrectionName = Field(
        default="none", description="what multiplies the loss where the sampler is not the policy of the step's start"
    )
    correction_parameters: dict[str, float] = Field(
        default={}, description="those of the correction that are not at their defaults, such as cap"
    )
    mask_truncated: bool = Field(default=False, description="whether attempts that a limit ended are not trained")
    max_refills: int = Field(
        default=3, ge=0, description="times that an algorithm with a refill may sample again for one step"
    )
    kl_coef: float = Field(
        default=0.0, ge=0, description="pull towards the policy that reinforcement learning began with"
    )
    kl_loss: Literal["k2", "k3", "k3_unbiased", "k3_straight_through"] = Field(
        default="k3_unbiased", description="estimator of that pull; k3 descends the forward divergence"
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="weight of the entropy bonus")
    entropy_target: float | None = Field(
        default=None,
        ge=0,
        description="entropy in nats per token that the bonus is adapted to hold; unset: it is fixed",
    )
    separate_critic: bool = Field(
        default=False, description="whether the critic is a network of its own, which begins as a copy of the policy"
    )
    critic_warmup: int = Field(
        default=0, ge=0, description="first steps, in which the critic learns and the policy does not"
    )
    temperature: float = Field(default=1.0, gt=0, description="sampling temperature of training attempts")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="sample from the likeliest tokens with this probability together; 1: all"
    )
    top_k: int = Field(default=0, ge=0, description="sample from so many of the likeliest tokens; 0: all")
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="sample from tokens with this share of the likeliest one's probability"
    )
    final_fraction: float = Field(
        default=0.1, ge=0, le=1, description="share of the learning rate that is left at the last step"
    )
    max_grad_norm: float = Field(default=1.0, gt=0, description="gradients are scaled down to this norm")
    eval_every: int = Field(default=25, ge=0, description="steps between small evaluations; 0 for none")
    checkpoint_every: int = Field(default=25, ge=1, description="steps between checkpoints")
    traces_every: int = Field(default=10, ge=1, description="steps between those whose attempts are stored")
    parity_every: int = Field(
        default=25,
        ge=0,
        description="steps between those whose metrics say in full how far trainer and sampler are apart; the first "
        "step does too, with 0 it alone",
    )

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)

    @model_validator(mode="after")
    def _parameters_fit_the_algorithm(self) -> Self:
        known = entry(self.algorithm)
        clips = any("clip_" in name for name in known.parameters)
        for name, value in self.parameters.items():
            if name in ("clip_low", "clip_high") and not clips:
                raise ValueError(
                    f"parameters.{name} {value:g} with {self.algorithm}, which does not clip the ratio; leave it out, "
                    f"or choose the algorithm by --algorithm {self.algorithm}, which leaves out what the recipe sets"
                )
        _check(self.algorithm, known.parameters, self.parameters)
        for name in ("clip_low", "clip_high"):
            value = self.parameters.get(name, 0.0)
            if name in known.parameters and value > 100 * known.parameters[name]:
                warnings.warn(
                    f"rl.parameters.{name} is {value:g} and {self.algorithm} is made for {known.parameters[name]:g}: "
                    "so wide it never clips",
                    stacklevel=2,
                )
        return self

    @model_validator(mode="after")
    def _the_correction_fits_the_algorithm(self) -> Self:
        if self.correction == "none":
            if self.correction_parameters:
                raise ValueError("correction_parameters without a correction; set correction, or leave them out")
            return self
        known, takes = CORRECTIONS[self.correction], entry(self.algorithm).corrections
        if takes == "none":
            raise ValueError(
                f"correction {self.correction} with {self.algorithm}, whose formula looks at the sampler itself; "
                "set it to none"
            )
        if takes == "sequence" and not known.per_sequence:
            right = ", ".join(name for name, one in CORRECTIONS.items() if one.per_sequence)
            raise ValueError(
                f"correction {self.correction} with {self.algorithm}: it has one ratio a sequence, and a factor of "
                f"each token would make another formula of it; take one of {right}"
            )
        _check(self.correction, known.parameters, self.correction_parameters)
        return self

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        known = entry(self.algorithm)
        if self.group_size < known.min_group:
            raise ValueError(
                f"group_size {self.group_size} with {self.algorithm}: a baseline of the group needs at least "
                f"{known.min_group} attempts; set group_size to 8, or algorithm to reinforce_pp"
            )
        if self.minibatches > self.groups_per_step:
            raise ValueError(
                f"minibatches {self.minibatches} with groups_per_step {self.groups_per_step}: a group is never cut; "
                f"set minibatches to {self.groups_per_step} or less"
            )
        if self.entropy_coef and self.entropy_target is not None:
            raise ValueError(
                f"entropy_coef {self.entropy_coef:g} with entropy_target {self.entropy_target:g}, which finds the "
                "coefficient itself; set one of them"
            )
        for name in ("separate_critic", "critic_warmup"):
            if getattr(self, name) and not known.critic:
                raise ValueError(
                    f"{name} {getattr(self, name)} with {self.algorithm}, which has no critic; leave it out, or set "
                    "algorithm to ppo"
                )
        if self.steps and self.critic_warmup >= self.steps:
            raise ValueError(
                f"critic_warmup {self.critic_warmup} with steps {self.steps}: the policy would never learn; set "
                f"critic_warmup below {self.steps}"
            )
        return self


def _check(owner: str, known: Mapping[str, float], given: Mapping[str, float]) -> None:
    try:
        check_parameters(owner, known, given)
    except ConfigError as error:
        raise ValueError(str(error)) from error


class HarnessConfig(Section):
    """What the agent loop allows beside turns and tokens, in training and evaluation alike: time, and what is done
    where the context is full or a call is malformed."""

    system_prompt: str = Field(
        default="", description="system message in place of the tasks' own; empty leaves tasks as they are"
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
