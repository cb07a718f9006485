"""Reinforcement learning: which algorithm, how much of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.catalogue import CORRECTIONS, check_parameters, entry
from agentrl.errors import ConfigError
from agentrl.settings.section import Section
from agentrl.types import Sampling

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
    mode: Literal["sync", "async"] = Field(
        default="sync", description="async: attempts are played while the trainer learns, ahead of it by a bound"
    )
    max_staleness: int = Field(
        default=1,
        ge=0,
        description="that bound: the oldest a trained token may be, in steps; 0 gives the synchronous run, bit for bit",
    )
    order: Literal["dispatch", "overtake", "first_come"] = Field(
        default="dispatch",
        description="which groups an asynchronous step takes: as begun, the first complete as long as none gets too "
        "old, or simply the first complete, which drops slow ones",
    )
    at_publication: Literal["continue", "wait"] = Field(
        default="continue",
        description="attempts in flight go on with new weights in their midst, or a publication waits for their end",
    )
    extra_attempts: int = Field(
        default=0,
        ge=0,
        description="attempts at each task beyond group_size; the first to end make the group, a bias to the quick",
    )
    attempt_s: float | None = Field(
        default=None,
        gt=0,
        description="seconds after which an attempt is given up as a fault; unset: what the limits of the harness "
        "allow, and a minute",
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

    @property
    def overlaps(self) -> bool:
        """Whether attempts may be in flight while the trainer learns, so that the sampler needs weights of its own."""
        return self.mode == "async" and (self.max_staleness > 0 or self.extra_attempts > 0)

    @model_validator(mode="after")
    def _the_bound_can_be_met(self) -> Self:
        if self.mode == "sync":
            for name in ("max_staleness", "order", "at_publication", "extra_attempts", "attempt_s"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} {getattr(self, name)} with mode sync, in which nothing is played ahead; leave it out, "
                        "or set mode to async"
                    )
        elif self.publish_every - 1 > self.max_staleness:
            raise ValueError(
                f"max_staleness {self.max_staleness} with publish_every {self.publish_every} cannot be met: before a "
                f"publication fresh tokens are {self.publish_every - 1} steps old; set max_staleness to "
                f"{self.publish_every - 1} or more, or publish_every to {self.max_staleness + 1} or less"
            )
        return self

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
