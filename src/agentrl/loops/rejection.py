"""Rejection sampling: attempt tasks, verify, imitate the policy's own successes; again with what has been learnt.

One round is one step of the phase. Whether rounds go on from each other or each begins anew is the difference between
expert iteration and STaR:

- RAFT, Dong et al. 2023, arXiv 2304.06767: go on (``restart false``), the best of each task (``keep 1``);
- expert iteration, Anthony et al. 2017, arXiv 1705.08439: go on;
- STaR, Zelikman et al. 2022, arXiv 2203.14465, and ReST-EM, Singh et al. 2023, arXiv 2312.06585: each round trains the
  weights from before round 1 (``restart true``) on what the weights of the last round reached. STaR's second attempt
  with the answer as a hint is not made here.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentrl.config import RejectionConfig
from agentrl.engine.random import derive_seed
from agentrl.errors import TrainerError
from agentrl.loops.canary import Canary
from agentrl.loops.context import RunContext
from agentrl.loops.notes import left_out, trained_on
from agentrl.metrics import merge
from agentrl.rollout.group import rollout
from agentrl.tokens.samples import samples
from agentrl.train.losses import supervised
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Group, Sample, Stop, Trace

PHASE = "rejection"
T = TypeVar("T")


def reject_and_imitate(run: RunContext) -> None:
    """All rounds that are left. A round that is interrupted is done again from its beginning.

    Raises:
        TrainerError: a round has nothing to imitate.
        SamplerError: servers did not get the weights, or one of them says other things than these weights do.
    """
    settings = run.config.rejection
    if run.progress.phase != PHASE:
        run.progress.phase, run.progress.step = PHASE, 0
    if run.progress.step >= settings.rounds:
        return
    run.reporter.phase("rejection sampling", settings.rounds)
    canary = None if run.served is None else Canary.of(run, every=1)
    asyncio.run(_publish(run, canary, run.progress.step))
    for number in range(run.progress.step + 1, settings.rounds + 1):
        started = time.perf_counter()
        groups = asyncio.run(play(run, number))
        chosen = choose(groups, settings, derive_seed(run.config.seed, "keep", number))
        sampled = time.perf_counter()
        metrics = round_metrics(chosen)
        with run.timed("traces"):  # before anything can be refused, so that they can be looked at
            run.folder.write_traces(PHASE, number, [trace for group in chosen.groups for trace in group.traces])
        _refuse_nothing(number, metrics, settings)
        metrics |= train(run, chosen.samples, number)
        asyncio.run(_publish(run, canary, number))
        ended = time.perf_counter()
        metrics |= {"seconds_step": ended - started, "seconds_training": ended - sampled}
        _record(run, number, metrics)
        run.finish_step(number, checkpoint=True, last=number == settings.rounds)


async def _publish(run: RunContext, canary: Canary | None, version: int) -> None:
    """Give the sampler the weights, and where servers have them let each prove it: nothing in a round would show."""
    await run.publish_now(version)
    if canary is not None:
        async with run.connected():
            canary.begin(version)
            await canary.check(_at_once, learnt=False)


async def _at_once(work: Callable[..., T], *values: Any) -> T:
    return work(*values)


async def play(run: RunContext, number: int) -> list[Group]:
    """The attempts of a round. Tasks are drawn without repetition until all have been had."""
    settings, task_set = run.config.rejection, run.train_tasks()
    drawn = run.draw(len(task_set), settings.tasks_per_round, number - 1, PHASE)
    groups: list[Group] = []
    async with run.connected():
        for lot, first in enumerate(range(0, len(drawn), settings.tasks_at_once)):
            groups += await rollout(
                task_set,
                [task_set[index] for index in drawn[first : first + settings.tasks_at_once]],
                harness=run.harness,
                sampler=run.current,
                attempts=settings.attempts,
                seed=run.config.seed,
                name=f"{PHASE}-{number}-{lot}",
            )
    return groups


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a round imitates.

    Attributes:
        groups: all attempts, each with a note of whether it is trained, and else why not.
        samples: of those that are.
        num_distinct: successes that differ from every other at the same task.
        num_solved: groups whose attempts were all successes.
        num_unsolved: groups without a success.
        solved_share: share of the weight of ``samples`` that stands in groups which were all successes.
    """

    groups: tuple[Group, ...]
    samples: tuple[Sample, ...]
    num_distinct: int
    num_solved: int
    num_unsolved: int
    solved_share: float


def choose(groups: Sequence[Group], settings: RejectionConfig, seed: int) -> Chosen:
    """Pick at most ``keep`` distinct successes of each task.

    A success has the reward, and the policy ended it itself: one that a limit cut would teach no end. Two attempts are
    distinct when their sampled ids are. Where every attempt at a task is a success, its weight is ``solved_weight``.

    Args:
        groups: the attempts of a round.
        settings: what is kept.
        seed: of the draw among more successes.
    """
    rng = random.Random(seed)
    judged = [_Judged.of(group, settings, rng) for group in groups]
    made = [sample for one in judged for sample in one.samples]
    solved = sum(_weight(sample) for one in judged if one.solved for sample in one.samples)
    total = sum(map(_weight, made))
    return Chosen(
        groups=tuple(one.group for one in judged),
        samples=tuple(made),
        num_distinct=sum(one.num_distinct for one in judged),
        num_solved=sum(one.solved for one in judged),
        num_unsolved=sum(not one.num_distinct for one in judged),
        solved_share=solved / total if total else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """One group: noted, with its samples."""

    group: Group
    samples: tuple[Sample, ...]
    num_distinct: int
    solved: bool

    @classmethod
    def of(cls, group: Group, settings: RejectionConfig, rng: random.Random) -> _Judged:
        reasons = [_failure(trace, settings) for trace in group.traces]
        firsts: dict[tuple[tuple[int, ...], ...], int] = {}
        for index, trace in enumerate(group.traces):
            if reasons[index] is None and firsts.setdefault(_said(trace), index) != index:
                reasons[index] = "repeated"
        distinct = list(firsts.values())
        solved = all(reason in (None, "repeated") for reason in reasons)
        weight = settings.solved_weight if solved else 1.0
        kept = set(_preferred(distinct, group, settings, rng)) if weight else set()
        for index in distinct:
            if index not in kept:
                reasons[index] = "surplus" if weight else "too_easy"
        traces = tuple(
            trained_on(trace, "ce") if reason is None else left_out(trace, reason)
            for trace, reason in zip(group.traces, reasons, strict=True)
        )
        made = (sample for index in sorted(kept) for sample in samples(group.traces[index], None, objective="ce"))
        return cls(
            group=replace(group, traces=traces),
            samples=tuple(_weighted(sample, weight) for sample in made),
            num_distinct=len(distinct),
            solved=solved,
        )


def _failure(trace: Trace, settings: RejectionConfig) -> str | None:
    """Why an attempt is no success; None for one that is."""
    if trace.reward is None:
        return "unscored"
    if trace.reward < settings.min_reward:
        return "failed"
    return None if trace.stop is Stop.DONE else "overlong"


def _said(trace: Trace) -> tuple[tuple[int, ...], ...]:
    return tuple(node.sampled_ids for node in trace.nodes if node.sampled_ids)


def _preferred(distinct: Sequence[int], group: Group, settings: RejectionConfig, rng: random.Random) -> Sequence[int]:
    if len(distinct) <= settings.keep:
        return distinct
    if settings.prefer == "random":
        return rng.sample(distinct, settings.keep)
    return sorted(distinct, key=lambda index: (group.traces[index].num_sampled, index))[: settings.keep]


def _weighted(sample: Sample, weight: float) -> Sample:
    if weight == 1.0:
        return sample
    return replace(sample, weights={"ce": tuple(weight * value for value in sample.weights["ce"])})


def _weight(sample: Sample) -> float:
    return sum(sample.weights["ce"])


def round_metrics(chosen: Chosen) -> dict[str, float | None]:
    """What the attempts of a round were like, and what became of them."""
    traces = [trace for group in chosen.groups for trace in group.traces]
    rewards = [trace.reward for trace in traces if trace.reward is not None]
    why = Counter(str(trace.metadata.get("left_out", "kept")) for trace in traces)
    return {
        "episodes": len(traces),
        "episodes_scored": len(rewards),
        "episodes_unscored": len(traces) - len(rewards),
        "episodes_done": sum(trace.stop is Stop.DONE for trace in traces),
        "episodes_overlong": why["overlong"],
        "episodes_passed": len(traces) - why["unscored"] - why["failed"] - why["overlong"],
        "episodes_distinct": chosen.num_distinct,
        "episodes_kept": why["kept"],
        "episodes_left_out": len(traces) - why["kept"],
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "turns": sum(trace.num_turns for trace in traces) / len(traces),
        "tokens_sampled": sum(trace.num_sampled for trace in traces),
        "groups": len(chosen.groups),
        "groups_trained": len({sample.group_id for sample in chosen.samples}),
        "groups_solved": chosen.num_solved,
        "groups_unsolved": chosen.num_unsolved,
        "solved_share": chosen.solved_share,
    }


def _refuse_nothing(number: int, metrics: dict[str, float | None], settings: RejectionConfig) -> None:
    """A round that has nothing to imitate cannot go on, and the reason is in the setting."""
    if metrics["episodes_kept"]:
        return
    counts = {name: int(metrics[name] or 0) for name in ("episodes", "groups", "episodes_overlong", "episodes_passed")}
    if counts["episodes_passed"]:
        raise TrainerError(
            f"round {number}: every task that was solved was solved in all of its {settings.attempts} attempts, and "
            "rejection.solved_weight 0 leaves those out; set it above 0, or take harder tasks"
        )
    raise TrainerError(
        f"round {number}: none of {counts['episodes']} attempts at {counts['groups']} tasks is a success (reward "
        f"{settings.min_reward:g} or more, ended by the policy; a limit ended {counts['episodes_overlong']} that had "
        "the reward), so there is nothing to imitate; raise rejection.attempts, train the warm start longer, or take "
        "easier tasks"
    )


def train(run: RunContext, kept: Sequence[Sample], number: int) -> dict[str, float | None]:
    """The optimizer steps of a round, with an optimizer of its own: the merged metrics of all of them."""
    settings = run.config.rejection
    if settings.restart:
        run.model.load_tensors(run.weights_before(PHASE))
    batches = list(_batches(kept, settings, derive_seed(run.config.seed, "order", number)))
    optimizer = replace(optimizer_settings(settings, len(batches)), max_tokens=run.config.hf.micro_batch_tokens)
    run.trainer = Trainer(run.model, optimizer)
    return dict(merge([run.trainer.step(batch, supervised) for batch in batches]))


def optimizer_settings(settings: RejectionConfig, total_steps: int) -> OptimizerSettings:
    """The optimizer of a round of so many steps."""
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        matrix_learning_rate=settings.matrix_learning_rate,
        total_steps=total_steps,
        warmup_steps=settings.warmup_steps,
        final_fraction=settings.final_fraction,
    )


def _batches(kept: Sequence[Sample], settings: RejectionConfig, seed: int) -> Iterator[list[Sample]]:
    """Pass after pass over what was kept, each in an order of its own, cut into parts of nearly equal size."""
    rng = random.Random(seed)
    count = -(-len(kept) // settings.batch_size)
    for _ in range(settings.epochs):
        order = rng.sample(range(len(kept)), len(kept))
        for part in range(count):
            places = order[part * len(kept) // count : (part + 1) * len(kept) // count]
            yield [kept[place] for place in places]


def _record(run: RunContext, number: int, metrics: dict[str, float | None]) -> None:
    """Keep and show a round."""
    run.progress.episodes += int(metrics["episodes"] or 0)
    run.progress.tokens_sampled += int(metrics["tokens_sampled"] or 0)
    run.add_seconds(PHASE, metrics["seconds_step"] or 0.0)
    run.folder.append_metrics(PHASE, number, metrics)
    run.reporter.step(number, {name: value for name, value in metrics.items() if value is not None})
