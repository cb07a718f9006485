"""Our side: groups through the harness and the engine, credit, one optimizer step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.algorithms.presets import preset
from agentrl.bench.report import BenchError
from agentrl.engine.local import LocalEngine, Schedule
from agentrl.harness.loop import ToolLoop
from agentrl.loops.rl import credit
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.protocols import TaskSet
from agentrl.rollout.group import rollout
from agentrl.train.losses import PolicyGradient
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Trace

LEARNING_RATE = 1e-6
BETAS = (0.9, 0.999)
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a step was made of, so that both sides can be compared.

    Attributes:
        episodes: that were played and trained.
        steps: of the optimizer so far.
        sampled: tokens that the policy wrote, a mean over episodes.
        given: tokens of prompts and tools, a mean over episodes.
    """

    episodes: int
    steps: int
    sampled: float
    given: float


class Ours:
    """Synchronous GRPO on a task set.

    Args:
        policy: is trained.
        tasks: all of them are played in every step.
        harness: the agent loop.
        group: attempts at each task.
        steps: of the optimizer that will be taken, for its schedule.
        schedule: of the engine.
    """

    def __init__(
        self,
        policy: HuggingFacePolicy,
        tasks: TaskSet,
        harness: ToolLoop,
        *,
        group: int,
        steps: int,
        schedule: Schedule = "lockstep",
    ) -> None:
        self.policy, self.tasks, self.harness, self.group = policy, tasks, harness, group
        settings = OptimizerSettings(
            learning_rate=LEARNING_RATE,
            matrix_learning_rate=LEARNING_RATE,
            total_steps=steps,
            warmup_steps=1,
            final_fraction=0.0,
            betas=BETAS,
            max_grad_norm=MAX_GRAD_NORM,
        )
        self.trainer = Trainer(policy, settings)
        self.algorithm = preset("grpo")
        self.loss = PolicyGradient(self.algorithm)
        self.engine = LocalEngine(policy, schedule=schedule)
        self.taken = 0

    def step(self) -> Counts:
        """Sample, score, credit, train, publish.

        Raises:
            BenchError: an attempt failed, or was left out, so that it would be other work than TRL's.
        """
        self.policy.eval()
        played = rollout(
            self.tasks,
            [self.tasks[index] for index in range(len(self.tasks))],
            harness=self.harness,
            sampler=self.engine,
            attempts=self.group,
            seed=0,
            name=f"step-{self.taken}",
        )
        groups = asyncio.run(played)
        credited = credit(groups, self.algorithm)
        traces = credited.traces
        check(traces, len(credited.samples))
        self.policy.train()
        self.trainer.step(credited.samples, self.loss)
        self.taken += 1
        self.engine.publish(self.taken)
        sampled = sum(trace.num_sampled for trace in traces)
        whole = sum(len(sample.token_ids) for sample in credited.samples)
        return Counts(
            episodes=len(traces),
            steps=self.trainer.steps,
            sampled=sampled / len(traces),
            given=(whole - sampled) / len(traces),
        )


def check(traces: Sequence[Trace], num_samples: int) -> None:
    """Every attempt was scored and is trained as one sequence.

    Raises:
        BenchError: not so.
    """
    faults = [trace.error for trace in traces if trace.error is not None]
    if faults:
        raise BenchError(f"{len(faults)} of {len(traces)} attempts failed: {faults[0]}")
    if num_samples != len(traces):
        raise BenchError(f"{num_samples} of {len(traces)} attempts are trained; TRL trains all")
