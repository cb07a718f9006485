"""What the loops of a run share: its parts, its progress, and how both are saved."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from agentrl.algorithms.filters import Credit
from agentrl.config import TrainConfig
from agentrl.engine.local import LocalEngine, Schedule
from agentrl.engine.random import derive_seed
from agentrl.errors import StoreError, TaskError
from agentrl.evals.evaluate import Evaluation, evaluate
from agentrl.harness.configured import configured_loop
from agentrl.loops.agent import check_tools, make_agent, make_critic
from agentrl.loops.sampling import RunSampler, local_engine
from agentrl.loops.served import Served
from agentrl.policy.base import Policy
from agentrl.rollout.buffer import Buffer
from agentrl.sandbox.base import Level
from agentrl.sandbox.choose import choose
from agentrl.sandbox.jobs import Limits as JobLimits
from agentrl.sandbox.pool import Pool
from agentrl.sandbox.walls import memory
from agentrl.store import RunFolder
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tokens.samples import Objective
from agentrl.train.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    optimizer_tensors,
    read_checkpoint,
    restore_optimizers,
    write_checkpoint,
)
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Trace
from agentrl.ui.live import Reporter

PHASES = ("warm_start", "rejection", "rl")
"""In the order in which a run goes through them."""
CRITIC, SAMPLER, BEST = "critic", "sampler", "best"
"""What stands before the names of tensors in a checkpoint that are not the policy's."""


@dataclass
class Progress:
    """How far a run has come; everything that a resumed run cannot compute anew."""

    phase: str = "warm_start"
    step: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    episodes: int = 0
    tokens_sampled: int = 0
    outcomes: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    entropy_coef: float = 0.0
    stopped_early: bool = False
    best_loss: float | None = None
    best_step: int = 0
    misses: int = 0


class Stopped(Exception):
    """Somebody asked the run to stop; a checkpoint has been written."""


class RunContext:
    """The parts of one run, made from its configuration.

    Nothing here keeps a random state: what is drawn at a step is derived from the seed and the step's number, so a
    resumed run draws the same.
    """

    def __init__(self, config: TrainConfig, folder: RunFolder, reporter: Reporter) -> None:
        self.config, self.folder, self.reporter = config, folder, reporter
        self.progress = Progress()
        required = Level[config.sandbox.require.upper()]
        chosen = choose(require=required, allow_unsafe=config.sandbox.allow_unsafe)
        self.sandbox = chosen.support.as_record()
        folder.write_sandbox(self.sandbox)
        reporter.note(f"sandbox: {self.sandbox['backend']}, level {self.sandbox['level']}")
        self.agent = make_agent(config)
        if not config.model.is_tiny:
            check_tools(self.agent, config.model.name)
            if self.agent.vocabulary and not self.agent.vocabulary.config.get("chat_template"):
                reporter.note(
                    f"{config.model.name} has no chat template: it is spoken to in {self.agent.renderer.name}"
                )
        self.renderer = self.agent.renderer
        self.harness = configured_loop(self.renderer, config)
        self.served = Served(config, self.agent, folder.path) if config.engine.kind == "vllm" else None
        """The servers that sample, where there are some."""
        self.pool = Pool(  # behind what may be refused, since only a run that there is closes it
            chosen.backend,
            size=config.sandbox.workers,
            limits=JobLimits(wall_s=config.sandbox.wall_s, cpu_s=config.sandbox.cpu_s),
        )
        self.model = self.agent.model
        self.current: RunSampler = self.served.sampler if self.served else local_engine(config, self.model)
        """Has the policy's weights of now when it is asked: for evaluations, and rounds of rejection sampling."""
        self.engine: RunSampler = self.current
        """Plays the attempts of reinforcement learning."""
        if self.served is None and (config.rl.publish_every > 1 or config.rl.overlaps):
            schedule: Schedule = "continuous" if config.rl.overlaps else "lockstep"
            self.engine = local_engine(config, self.model.frozen_copy(), schedule=schedule)
        self.trainer: Trainer | None = None
        self.critic: Trainer | None = None
        self.best: dict[str, Tensor] | None = None
        """The weights with the lowest validation loss, while a phase may still go back to them."""
        self.buffer: Buffer | None = None
        """What an asynchronous run plays ahead."""
        self._restored: dict[str, dict[str, Tensor]] = {}
        self._lagging: dict[str, Tensor] | None = None
        """The policy's weights as servers have them that lag."""
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

    def connected(self) -> AbstractAsyncContextManager[object]:
        """Keeps connections to servers, where some sample, between conversations."""
        return nullcontext() if self.served is None else self.served.sampler

    async def publish(self, version: int, *, restored: bool = False) -> None:
        """Give the sampler the weights of the policy, when it is time to, under the number of steps that made them.

        Args:
            version: steps that have been taken.
            restored: whether the phase begins, or the run has just been resumed in it; a sampler that lags then gets
                back what it had.

        Raises:
            SamplerError: servers did not get them.
        """
        late = version % self.config.rl.publish_every
        if self.served is not None:
            await self._publish_to(self.served, version, late, restored)
            return
        local(self.current).publish(version)
        if self.engine is self.current or (late and not restored):
            return
        engine = local(self.engine)
        engine.model.load_tensors(self._restored[f"weights.{SAMPLER}"] if late else self.model.tensors())
        engine.publish(version - late)

    async def _publish_to(self, served: Served, version: int, late: int, restored: bool) -> None:
        if late and not restored:
            return
        now = cloned(self.model.tensors()) if late else {}
        if late:
            self.model.load_tensors(self._restored[f"weights.{SAMPLER}"])
        try:
            await served.publish(version - late, anew=restored)
            if self.config.rl.publish_every > 1:
                self._lagging = cloned(self.model.tensors())
        finally:
            if late:
                self.model.load_tensors(now)

    async def publish_now(self, version: int) -> None:
        """Give `current` the weights that the policy has now; a sampler in this process has them, and gets their name.

        Raises:
            SamplerError: servers did not get them.
        """
        if self.served is None:
            local(self.current).publish(version)
        else:
            await self.served.publish(version)

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
        state: dict[str, Any] = {"progress": asdict(self.progress), "optimizer_steps": self.trainer.steps}
        weights, optimizer = self.model.tensors(), optimizer_tensors(self.trainer.optimizers)
        if self.critic is not None:
            state["critic_steps"] = self.critic.steps
            weights |= _prefixed(CRITIC, self.critic.model.tensors())
            optimizer |= _prefixed(CRITIC, optimizer_tensors(self.critic.optimizers))
        if self.engine is not self.current:
            weights |= _prefixed(SAMPLER, local(self.engine).model.tensors())
        if self._lagging is not None:
            weights |= _prefixed(SAMPLER, self._lagging)
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
            self.folder.truncate_after(-1, phases=(*PHASES, "eval", "eval_before"))
            return False
        found = read_checkpoint(path)
        self._restored = _parts("weights", found.weights) | _parts("optimizer", found.optimizer)
        self.model.load_tensors(self._restored["weights"])
        self._restored_steps = found.state["optimizer_steps"]
        self._restored_critic_steps = found.state.get("critic_steps", 0)
        self._restored_buffer = found.state.get("buffer")
        self.progress = Progress(**found.state["progress"])
        self.best = self._restored.get(f"weights.{BEST}")
        phase = self.progress.phase
        self.folder.truncate_after(self.progress.step, phases=(phase,))
        self.folder.truncate_after(-1, phases=PHASES[PHASES.index(phase) + 1 :])
        if phase == "warm_start":
            self.folder.truncate_after(-1, phases=("eval", "eval_before"))
        elif phase == "rejection":
            self.folder.truncate_after(0, phases=("eval",))
        else:
            self.folder.truncate_after(self.progress.step)
            # no checkpoint follows the last evaluation, so it is always done again
            self.folder.truncate_after(self.config.rl.steps - 1, phases=("eval",))
        self.reporter.note(f"resumed at {self.progress.phase} step {self.progress.step}")
        return True


def local(sampler: RunSampler) -> LocalEngine:
    """The engine that a sampler is where no servers sample."""
    assert isinstance(sampler, LocalEngine), type(sampler)
    return sampler


def cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are now."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _prefixed(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{part}:{name}": tensor for name, tensor in tensors.items()}


def _parts(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The policy's tensors under ``kind``, and those of another part under ``kind.part``."""
    found: dict[str, dict[str, Tensor]] = {kind: {}}
    for name, tensor in tensors.items():
        part, _, own = name.rpartition(":")
        found.setdefault(f"{kind}.{part}" if part else kind, {})[own] = tensor
    return found


def resident_mib() -> float:
    """Resident memory in MiB: the peak of this process, and what those below it, such as sandboxes, hold now.

    A page that several of those share is counted once. Where there is no /proc, only this process is counted.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own = peak / 1024 if sys.platform != "darwin" else peak / 2**20
    return own + memory.used_bytes(memory.descendants(os.getpid())[1:], enough=0) / 2**20


def trained_on(trace: Trace, objective: Objective, advantage: Credit = None) -> Trace:
    """The trace with a note, for whoever looks at it later, that its sampled tokens were trained.

    Args:
        trace: the attempt.
        objective: the weight that those tokens had, ``pg`` or ``ce``.
        advantage: that of each of them, or one for each turn; None where there is none, or where a critic gave each
            its own.
    """
    if isinstance(advantage, tuple):
        return _noted(trace, objective=objective, advantage=None, advantages=list(advantage))
    return _noted(trace, objective=objective, advantage=advantage)


def left_out(trace: Trace, reason: str) -> Trace:
    """The trace with a note that none of its tokens was trained, and why: ``no_signal``, ``unscored``."""
    return _noted(trace, left_out=reason, advantage=None)


def _noted(trace: Trace, **note: str | float | list[float] | None) -> Trace:
    return replace(trace, metadata={**trace.metadata, **note})
