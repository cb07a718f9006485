"""What the loops of a run share: its parts, its progress, and how both are saved."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from torch import Tensor

from agentrl.config import TrainConfig
from agentrl.engine.random import derive_seed
from agentrl.errors import StoreError, TaskError
from agentrl.evals.evaluate import Evaluation, evaluate
from agentrl.harness.configured import configured_loop
from agentrl.loops.agent import make_agent, make_critic
from agentrl.loops.footprint.resident import resident_mib
from agentrl.loops.progress import PHASES, Progress, Stopped, forget_all, forget_later
from agentrl.loops.publication import Publishing
from agentrl.policy.base import Policy
from agentrl.rollout.buffer import Buffer
from agentrl.sandbox.base import Level
from agentrl.sandbox.choose import choose
from agentrl.sandbox.jobs import Limits as JobLimits
from agentrl.sandbox.pool import Pool
from agentrl.store import RunFolder
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.train.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    optimizer_tensors,
    read_checkpoint,
    restore_optimizers,
    write_checkpoint,
)
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.ui.live import Reporter

CRITIC, SAMPLER, BEST = "critic", "sampler", "best"
"""What stands before the names of tensors in a checkpoint that are not the policy's."""


class RunContext(Publishing):
    """The parts of one run, made from its configuration.

    Nothing here keeps a random state: what is drawn at a step is derived from the seed and the step's number, so a
    resumed run draws the same.
    """

    def __init__(self, config: TrainConfig, folder: RunFolder, reporter: Reporter) -> None:
        self.folder, self.reporter = folder, reporter
        self.progress, self._wall_until = Progress(), time.perf_counter()
        required = Level[config.sandbox.require.upper()]
        chosen = choose(require=required, allow_unsafe=config.sandbox.allow_unsafe)
        self.sandbox = chosen.support.as_record()
        folder.write_sandbox(self.sandbox)
        reporter.note(f"sandbox: {self.sandbox['backend']}, level {self.sandbox['level']}")
        self.agent = make_agent(config)
        self.renderer = self.agent.renderer
        self.harness = configured_loop(self.renderer, config)
        super().__init__(config, self.agent, folder.path)
        self.pool = Pool(  # behind what may be refused, since only a run that there is closes it
            chosen.backend,
            size=config.sandbox.workers,
            limits=JobLimits(wall_s=config.sandbox.wall_s, cpu_s=config.sandbox.cpu_s),
        )
        self.trainer: Trainer | None = None
        self.critic: Trainer | None = None
        self.best: dict[str, Tensor] | None = None
        """The weights with the lowest validation loss, while a phase may still go back to them."""
        self.buffer: Buffer | None = None
        """What an asynchronous run plays ahead."""
        self._restored: dict[str, dict[str, Tensor]] = {}
        self._restored_buffer: dict[str, Any] | None = None
        self._resident_mib = 0.0
        self._sets: dict[tuple[str, int], BugFix] = {}
        self._orders: dict[tuple[int, int, str], list[int]] = {}

    def close(self) -> None:
        """End the sandboxes, and remove the weights that were written for servers."""
        self.resident_mib()
        self.pool.close()
        if self.served is not None:
            self.served.close()

    def resident_mib(self) -> float:
        """Peak resident memory of the run, its sandboxes included, in MiB; see the function `resident_mib`."""
        self._resident_mib = max(self._resident_mib, resident_mib())
        return self._resident_mib

    # Tasks.

    def tasks(self, split: str, num_tasks: int) -> BugFix:
        """A task set of the run, generated and validated on first use."""
        if (split, num_tasks) not in self._sets:
            settings = self.config.tasks if split == "train" else self.config.tasks.for_evaluation()
            self.reporter.note(f"making and checking {num_tasks} {split} tasks")
            with self.timed("tasks"):
                self._sets[split, num_tasks] = BugFix(
                    settings.level,
                    split,
                    num_tasks,
                    pool=self.pool,
                    report=settings.report,
                    tests_writable=settings.tests_writable,
                    reward=settings.reward,
                    show_results=settings.show_results,
                    on_hack=settings.on_hack,
                    longest_program=settings.longest_program,
                )
            self.reporter.note(f"{split} tasks: {self._sets[split, num_tasks].validation}")
        return self._sets[split, num_tasks]

    def train_tasks(self) -> BugFix:
        """The tasks that are trained on."""
        return self.tasks("train", self.config.tasks.train_tasks)

    def draw(self, size: int, count: int, step: int, purpose: str) -> list[int]:
        """The ``count`` indices below ``size`` of a step: pass after pass over all, each in an order of its own."""
        drawn = []
        for position in range(step * count, (step + 1) * count):
            epoch, place = divmod(position, size)
            drawn.append(self._order(size, epoch, purpose)[place])
        return drawn

    def _order(self, size: int, epoch: int, purpose: str) -> list[int]:
        key = (size, epoch, purpose)
        if key not in self._orders:
            self._orders[key] = list(range(size))
            random.Random(derive_seed(self.config.seed, purpose, epoch)).shuffle(self._orders[key])
        return self._orders[key]

    # Time.

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to a stage of the run."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(stage, time.perf_counter() - started)

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Add time to a stage of the run."""
        self.progress.seconds[stage] = self.progress.seconds.get(stage, 0.0) + seconds

    def add_wall(self) -> None:
        """Add the time since the run was started, gone on with, or last asked this."""
        now = time.perf_counter()
        self.add_seconds("wall", now - self._wall_until)
        self._wall_until = now

    # Training.

    def start_phase(self, phase: str, settings: OptimizerSettings) -> Trainer:
        """The trainer of a phase: as it was at the checkpoint when the run is resumed within the phase, else fresh."""
        trainer = Trainer(self.model, settings)
        if self.progress.phase != phase:
            self.progress.phase, self.progress.step = phase, 0
        elif self.progress.step:
            restore_optimizers(trainer.optimizers, self._restored["optimizer"])
            trainer.steps = int(self._restored_steps)
        self.trainer = trainer
        return trainer

    def start_critic(self, settings: OptimizerSettings) -> Trainer:
        """The trainer of a critic of its own, which begins as a copy of the policy with a value head; as it was at
        the checkpoint when the run is resumed within the phase."""
        assert self.trainer is not None, "the phase has begun"
        model = make_critic(self.config)
        trainer = Trainer(model, settings)
        if self.progress.step:
            model.load_tensors(self._restored[f"weights.{CRITIC}"])
            restore_optimizers(trainer.optimizers, self._restored[f"optimizer.{CRITIC}"])
            trainer.steps = int(self._restored_critic_steps)
        else:
            model.load_tensors(model.tensors() | self.model.tensors())
        self.critic = trainer
        return trainer

    def start_buffer(self, buffer: Buffer) -> Buffer:
        """What plays ahead: as it was at the checkpoint when the run is resumed within the phase, else empty.

        Raises:
            StoreError: the checkpoint's is of other tasks or groups of another shape.
        """
        if self.progress.step and self._restored_buffer is not None:
            buffer.restore(self._restored_buffer, self.train_tasks())
        self.buffer = buffer
        return buffer

    def reference(self) -> Policy:
        """A frozen copy of the policy that reinforcement learning began with, whenever it is asked for."""
        frozen = self.model.frozen_copy()
        frozen.load_tensors(self.weights_before("rl"))
        return frozen

    def weights_before(self, phase: str) -> dict[str, Tensor]:
        """The weights with which a phase began: those at the end of the last phase before it.

        Raises:
            StoreError: their checkpoint is missing or damaged.
        """
        ends = {path.name.split("-")[0]: path for path in sorted(self.folder.checkpoints.glob("*-end"))}
        before = [ends[name] for name in PHASES[: PHASES.index(phase)] if name in ends]
        if not before:
            raise StoreError(f"{self.folder.path} keeps no checkpoint from before {phase}; train again")
        return _parts("weights", read_checkpoint(before[-1]).weights)["weights"]

    # Evaluation.

    def measure(self, name: str, step: int) -> None:
        """Held-out pass@1 on all evaluation tasks, kept under ``name`` (before, after)."""
        if name in self.progress.outcomes or not self.config.eval.tasks:
            return
        settings = self.config.eval
        tasks = self.tasks("test", settings.tasks)
        found = asyncio.run(self._evaluate(tasks, settings.attempts, f"test-{name}", step, publish=True))
        self.progress.outcomes[name] = {task: list(rewards) for task, rewards in found.outcomes.items()}
        self.progress.clusters |= found.clusters
        self.folder.write_traces("eval" if name == "after" else "eval_before", step, found.traces)

    def measure_small(self, step: int) -> None:
        """Pass@1 on a few validation tasks, to see how training goes."""
        asyncio.run(self.measure_beside(step))

    async def measure_beside(self, step: int) -> None:
        """The same, for a loop that plays other attempts meanwhile; the weights that train must rest."""
        await self._evaluate(self.validation_tasks(), 1, f"validation-{step}", step)

    def validation_tasks(self) -> BugFix:
        """The tasks of the small evaluations."""
        return self.tasks("validation", self.config.eval.during_tasks)

    async def _evaluate(
        self, task_set: BugFix, attempts: int, name: str, step: int, *, publish: bool = False
    ) -> Evaluation:
        playing = evaluate(
            task_set,
            harness=self.harness,
            sampler=self.current,
            attempts=attempts,
            seed=derive_seed(self.config.seed, "evaluation"),
            name=name,
            at_once=self.config.eval.at_once,
        )
        with self.timed("evaluation"):
            if publish and self.served is not None:
                await self.served.publish(step)
            try:
                found = await playing
            except ValueError as error:
                raise TaskError(
                    f"evaluation {name} of {len(task_set)} tasks: {error}; the others could not be scored, because "
                    "sandbox, tools or sampler failed: try one with `agentrl eval`, which keeps the attempts"
                ) from error
        interval = found.pass_at_1
        row: dict[str, float] = {
            "pass_rate": interval.mean,
            "pass_rate_low": interval.low,
            "pass_rate_high": interval.high,
            "episodes_scored": interval.num_attempts,
            "episodes_unscored": interval.num_unscored,
        }
        self.folder.append_metrics("eval", step, row)
        self.reporter.evaluation(name, step, interval.mean, interval.low, interval.high)
        return found

    # Saving.

    def finish_step(self, step: int, *, checkpoint: bool, last: bool) -> None:
        """Note that a step is complete; save when it is due or when somebody wants to stop.

        Raises:
            Stopped: after the checkpoint, when a stop was requested.
        """
        self.progress.step = step
        stop = self.reporter.stop_requested
        if checkpoint or last or stop:
            self.save(f"{self.progress.phase}-{step:06d}" + ("-end" if last else ""))
        if stop and not (last and self.progress.phase == PHASES[-1]):
            raise Stopped

    def save(self, name: str) -> None:
        """Write a checkpoint of everything that the run goes on from."""
        assert self.trainer is not None
        self.add_wall()
        state: dict[str, Any] = {"progress": asdict(self.progress), "optimizer_steps": self.trainer.steps}
        weights, optimizer = self.model.tensors(), optimizer_tensors(self.trainer.optimizers)
        if self.critic is not None:
            state["critic_steps"] = self.critic.steps
            weights |= _prefixed(CRITIC, self.critic.model.tensors())
            optimizer |= _prefixed(CRITIC, optimizer_tensors(self.critic.optimizers))
        weights |= _prefixed(SAMPLER, self.lagging())
        if self.best is not None:
            weights |= _prefixed(BEST, self.best)
        if self.buffer is not None:
            state["buffer"] = self.buffer.state()
        checkpoint = Checkpoint(weights=weights, optimizer=optimizer, state=state)
        with self.timed("checkpoints"):
            write_checkpoint(self.folder.checkpoints, name, checkpoint)

    def resume(self) -> bool:
        """Go back to the latest checkpoint; what was recorded after it is removed. False when there is none."""
        self.folder.remove_leftovers()
        path = latest_checkpoint(self.folder.checkpoints)
        if path is None:
            forget_all(self.folder)
            return False
        found = read_checkpoint(path)
        self._restored = _parts("weights", found.weights) | _parts("optimizer", found.optimizer)
        self.model.load_tensors(self._restored["weights"])
        self._restored_steps = found.state["optimizer_steps"]
        self._restored_critic_steps = found.state.get("critic_steps", 0)
        self._restored_buffer = found.state.get("buffer")
        self.progress = Progress(**found.state["progress"])
        self.best = self._restored.get(f"weights.{BEST}")
        self.restore_lagging(self._restored.get(f"weights.{SAMPLER}", {}))
        forget_later(self.folder, self.progress, rl_steps=self.config.rl.steps)
        at = f"{self.progress.phase} step {self.progress.step}"
        self.reporter.note(f"resumed at {at}, the last checkpoint; later steps are done again")
        return True


def _prefixed(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{part}:{name}": tensor for name, tensor in tensors.items()}


def _parts(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The policy's tensors under ``kind``, and those of another part under ``kind.part``."""
    found: dict[str, dict[str, Tensor]] = {kind: {}}
    for name, tensor in tensors.items():
        part, _, own = name.rpartition(":")
        found.setdefault(f"{kind}.{part}" if part else kind, {})[own] = tensor
    return found
