"""``agentrl bench async``: asynchronous training beside our own synchronous one, with tools of a heavy tail.

Every run of a seed begins with the same weights, after the same warm start, draws the same tasks, meets the same delays
and trains as many episodes. Throughput is episodes over the whole time of the loop, in which the first attempts are
waited for and the last ones run out. Held-out tasks have quick tools and the same draws in all runs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from torch import Tensor

from agentrl.bench.generation.engine import described, of_threads, threads_of
from agentrl.bench.report import Aim, BenchError, Cell, Report, Table
from agentrl.bench.training.delays import LATE_S, LONGEST_S, MEDIAN_S, SlowLoop
from agentrl.config import TrainConfig, apply_overrides, load_recipe
from agentrl.engine.local import LocalEngine
from agentrl.evals.stats import Interval, interval_of, paired_difference, pass_at_1
from agentrl.loops.context import RunContext
from agentrl.loops.rl import reinforce
from agentrl.loops.rl_async import reinforce_async
from agentrl.loops.sft import warm_start
from agentrl.store import RunFolder
from agentrl.ui.live import PlainReporter

SYNC, LOCKSTEP, ASYNC = "sync, continuous", "sync, lockstep", "async"
COLUMNS = (
    "run",
    "seed",
    "steps",
    "episodes",
    "seconds",
    "episodes/s",
    "times sync, continuous",
    "unscored",
    "mean age",
    "oldest",
    "pass@1",
)
Outcomes = Mapping[str, list[float | None]]
"""Task -> the rewards of its attempts."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run.

    Attributes:
        steps: of every run.
        seeds: each with a warm start of its own.
        max_staleness: of the asynchronous run.
        at_publication: what attempts in flight do then, ``continue`` or ``wait``.
        warm_steps: of the warm start.
        train_tasks: that tasks are drawn from.
        test_tasks: held out, two attempts each.
        groups: in a step.
        group: attempts of each.
    """

    steps: int = 20
    seeds: int = 1
    max_staleness: int = 2
    at_publication: str = "continue"
    warm_steps: int = 330
    train_tasks: int = 1000
    test_tasks: int = 200
    groups: int = 16
    group: int = 8

    def config(self, seed: int, *, ahead: bool) -> TrainConfig:
        """The recipe bugfix-tiny with these sizes."""
        changed: dict[str, object] = {
            "seed": seed,
            "rl.steps": self.steps,
            "rl.groups_per_step": self.groups,
            "rl.group_size": self.group,
            "rl.eval_every": 0,
            "rl.checkpoint_every": 10**6,
            "rl.parity_every": 0,
            "tasks.train_tasks": self.train_tasks,
            "warm_start.steps": self.warm_steps,
            "eval.tasks": self.test_tasks,
        }
        if ahead:
            changed |= {
                "rl.mode": "async",
                "rl.max_staleness": self.max_staleness,
                "rl.at_publication": self.at_publication,
            }
        return apply_overrides(load_recipe("bugfix-tiny"), {name: str(value) for name, value in changed.items()})


QUICK = Plan(steps=2, warm_steps=5, train_tasks=8, test_tasks=4, groups=2, group=2)


@dataclass(frozen=True, kw_only=True)
class Played:
    """One run.

    Attributes:
        arm: how it was run.
        seed: of it.
        steps: that it took.
        episodes: that were trained.
        seconds: of the whole loop.
        unscored: attempts without a reward.
        age_mean: of trained tokens, in steps; None for synchronous runs, whose tokens have no age.
        age_max: of the oldest.
        outcomes: of held-out tasks.
    """

    arm: str
    seed: int
    steps: int
    episodes: int
    seconds: float
    unscored: int
    age_mean: float | None
    age_max: float | None
    outcomes: Outcomes

    @property
    def episodes_per_s(self) -> float:
        """Over the whole loop."""
        return self.episodes / self.seconds


def measure(plan: Plan, *, threads: int = 0, log: TextIO, quick: bool = False) -> Report:
    """Run everything: for each seed a warm start, both synchronous runs and the asynchronous one.

    Args:
        plan: what is run.
        threads: of torch; 0 for as many as there are cores.
        log: is told how far it is.
        quick: the smallest runs there are, in place of ``plan``.

    Raises:
        BenchError: two runs trained different numbers of episodes, or one went beyond its bound.
    """
    chosen, used, before = QUICK if quick else plan, threads_of(threads), os.getloadavg()[0]
    with of_threads(used):
        played = [one for seed in range(chosen.seeds) for one in of_seed(chosen, seed, log)]
    check(played, chosen)
    return Report(
        bench="async",
        settings={**vars(chosen), "threads": used},
        machine=described(),
        load=(before, os.getloadavg()[0]),
        tables=[as_table(played, chosen)],
        aims=aims(played),
    )


def of_seed(plan: Plan, seed: int, log: TextIO) -> list[Played]:
    """The runs of one seed, from the same weights."""
    weights = _warm(plan, seed, log)
    return [_play(plan, arm, seed, weights, log) for arm in (LOCKSTEP, SYNC, ASYNC)]


def _warm(plan: Plan, seed: int, log: TextIO) -> dict[str, Tensor]:
    with _run(plan.config(seed, ahead=False), log) as run:
        warm_start(run)
        return {name: tensor.clone() for name, tensor in run.model.tensors().items()}


def _play(plan: Plan, arm: str, seed: int, weights: Mapping[str, Tensor], log: TextIO) -> Played:
    log.write(f"\n{arm}, seed {seed}\n")
    with _run(plan.config(seed, ahead=arm == ASYNC), log) as run:
        run.model.load_tensors(weights)
        run.train_tasks()  # made before the clock runs
        quick = run.harness
        run.harness = SlowLoop.of(quick)
        if arm == SYNC:
            run.engine = run.current = LocalEngine(run.model, sampling=run.config.rl.sampling, schedule="continuous")
        (reinforce_async if arm == ASYNC else reinforce)(run)
        run.harness = quick
        run.measure("after", plan.steps)
        return _as_played(run, arm, seed)


@contextmanager
def _run(config: TrainConfig, log: TextIO) -> Iterator[RunContext]:
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as root:
        run = RunContext(config, RunFolder.create(Path(root), config), PlainReporter(log))
        try:
            yield run
        finally:
            run.close()


def _as_played(run: RunContext, arm: str, seed: int) -> Played:
    rows = run.folder.metrics("rl")
    taken = [(row["tokens_taken"], row["age_mean"]) for row in rows if row.get("age_mean") is not None]
    tokens = sum(count for count, _ in taken)
    return Played(
        arm=arm,
        seed=seed,
        steps=run.progress.step,
        episodes=int(sum(row["episodes"] for row in rows)),
        seconds=sum(row["seconds_step"] for row in rows),
        unscored=int(sum(row["episodes_unscored"] for row in rows)),
        age_mean=sum(count * age for count, age in taken) / tokens if tokens else None,
        age_max=max((row["age_max"] for row in rows if row.get("age_max") is not None), default=None),
        outcomes=run.progress.outcomes["after"],
    )


def check(played: Sequence[Played], plan: Plan) -> None:
    """Equal episodes, and no token beyond the bound.

    Raises:
        BenchError: not so.
    """
    wanted = plan.steps * plan.groups * plan.group
    for one in played:
        if one.episodes != wanted:
            raise BenchError(f"{one.arm}, seed {one.seed}, trained {one.episodes} episodes; {wanted} were wanted")
        if one.age_max is not None and one.age_max > plan.max_staleness:
            raise BenchError(
                f"{one.arm}, seed {one.seed}, trained a token {one.age_max:g} steps old; the bound is "
                f"{plan.max_staleness}"
            )


def as_table(played: Sequence[Played], plan: Plan) -> Table:
    """One row a run."""
    base = {one.seed: one.episodes_per_s for one in played if one.arm == SYNC}
    rows: list[tuple[Cell, ...]] = [
        (
            one.arm,
            one.seed,
            one.steps,
            one.episodes,
            one.seconds,
            one.episodes_per_s,
            one.episodes_per_s / base[one.seed],
            one.unscored,
            one.age_mean,
            one.age_max,
            pass_at_1(one.outcomes).mean,
        )
        for one in played
    ]
    return Table(
        title=f"bugfix-tiny with slow tools, max_staleness {plan.max_staleness}, {plan.at_publication} at publication",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(
            f"delay of a tool call: lognormal, median {MEDIAN_S:g} s, 95th percentile {LATE_S:g} s, cut at "
            f"{LONGEST_S:g} s; drawn from seed, step, task, attempt and call",
            "sync, lockstep: as rl.mode=sync runs, repeatable bit for bit; sync, continuous: the same loop on an "
            "engine that waits for nobody, which is the faster one to compare with",
        ),
    )


def aims(played: Sequence[Played]) -> list[Aim]:
    """Throughput against the faster synchronous run, and what was lost in pass@1, in points."""
    by_arm = {arm: [one for one in played if one.arm == arm] for arm in (LOCKSTEP, SYNC, ASYNC)}

    def rate(arm: str) -> float:
        return sum(one.episodes for one in by_arm[arm]) / sum(one.seconds for one in by_arm[arm])

    faster = max((SYNC, LOCKSTEP), key=rate)
    lost = difference(by_arm[SYNC], by_arm[ASYNC])
    told = f"{100 * lost.mean:+.1f} [{100 * lost.low:+.1f}, {100 * lost.high:+.1f}], {lost.method}"
    return [
        Aim(name=f"episodes/s, async / {faster}", value=rate(ASYNC) / rate(faster), wanted=1.6),
        Aim(name=f"pass@1, async - {SYNC}", value=100 * lost.mean, wanted=-3.0, unit="points", note=told),
        Aim(name="lower end of its interval", value=100 * lost.low, wanted=-3.0, unit="points", note=told),
    ]


def difference(first: Sequence[Played], second: Sequence[Played]) -> Interval:
    """Of pass@1, second - first, with its interval: over seeds, or over tasks where there is one seed."""
    if len(first) == 1:
        return paired_difference(first[0].outcomes, second[0].outcomes)
    pairs = zip(first, second, strict=True)
    return interval_of([pass_at_1(b.outcomes).mean - pass_at_1(a.outcomes).mean for a, b in pairs], bounds=(-1.0, 1.0))
