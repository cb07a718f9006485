"""Synchronous reinforcement learning: sample groups, score, credit, optimizer steps, publish; again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from agentrl.algorithms.filters import FilterReport, filter_groups, overlong
from agentrl.algorithms.outcomes import outcomes
from agentrl.algorithms.presets import REDUCTIONS, Preset, correction, preset
from agentrl.config import RlConfig
from agentrl.errors import TaskError
from agentrl.loops.context import RunContext
from agentrl.loops.earlier import earlier_weights
from agentrl.loops.learner import Learner
from agentrl.loops.notes import left_out, trained_on
from agentrl.loops.sampling import prefilled_since
from agentrl.rollout.group import rollout
from agentrl.tokens.samples import samples
from agentrl.train.trainer import OptimizerSettings
from agentrl.types import Group, Sample, Stop, Trace

Play = Callable[[Sequence[int], str], Awaitable[list[Group]]]
"""Plays a group at each task, given by their indices, under a name that they share."""


def reinforce(run: RunContext) -> None:
    """Train the policy on its own attempts."""
    settings = run.config.rl
    run.train_tasks()  # made here, since their time is not that of the first step
    algorithm = configured_preset(settings)
    learner = make_learner(run, algorithm)
    asyncio.run(run.publish(run.progress.step, restored=True))
    work = run.engine.stats
    run.reporter.phase("rl", settings.steps)
    for step in range(run.progress.step, settings.steps):
        started = time.perf_counter()
        busy, prefilled = work.seconds, work.prefilled
        credited = asyncio.run(_collect(run, step, algorithm))
        sampled = time.perf_counter()
        metrics = learn(run, learner, credited, step)
        asyncio.run(run.publish(step + 1))
        ended = time.perf_counter()
        sampling = work.seconds - busy
        metrics |= rollout_metrics(credited) | {
            "tokens_prefilled": prefilled_since(work, prefilled),
            "seconds_step": ended - started,
            "seconds_sampling": sampling,
            "seconds_tools": sampled - started - sampling,
            "seconds_training": ended - sampled,
            "resident_mib": run.resident_mib(),
        }
        record(run, step + 1, metrics, credited)
        if evaluates(settings, step + 1):
            run.measure_small(step + 1)
        due = (step + 1) % settings.checkpoint_every == 0
        run.finish_step(step + 1, checkpoint=due, last=step + 1 == settings.steps)


def make_learner(run: RunContext, algorithm: Preset) -> Learner:
    """What trains the policy of a run, as it was at the checkpoint when the run is resumed."""
    settings = run.config.rl
    max_tokens = run.config.hf.micro_batch_tokens
    trainer = run.start_phase("rl", replace(optimizer_settings(settings), max_tokens=max_tokens))
    own_critic = replace(critic_settings(settings), max_tokens=max_tokens) if settings.separate_critic else None
    return Learner(
        trainer,
        algorithm,
        settings,
        critic=run.start_critic(own_critic) if own_critic else None,
        reference=run.reference() if settings.kl_coef else None,
        entropy_coef=run.progress.entropy_coef,
        earlier=partial(earlier_weights, run.folder.checkpoints),
        seed=run.config.seed,
    )


def evaluates(settings: RlConfig, step: int) -> bool:
    """Whether a small evaluation is due after so many steps; the last one is followed by the whole evaluation."""
    return bool(settings.eval_every) and step % settings.eval_every == 0 and step < settings.steps


@dataclass(frozen=True, kw_only=True)
class Credited:
    """Groups whose attempts say whether and how they are trained, what of them is trained, what was left out, and how
    often other tasks were played in the place of groups that were."""

    groups: list[Group]
    samples: list[Sample]
    report: FilterReport
    refills: int = 0

    @property
    def traces(self) -> list[Trace]:
        """All attempts, the greedy ones of a group after its others."""
        return [trace for group in self.groups for trace in (*group.traces, *([group.greedy] if group.greedy else ()))]


async def _collect(run: RunContext, step: int, algorithm: Preset) -> Credited:
    """Play the groups of a step."""

    async def play(indices: Sequence[int], name: str) -> list[Group]:
        task_set = run.train_tasks()
        return await rollout(
            task_set,
            [task_set[index] for index in indices],
            harness=run.harness,
            sampler=run.engine,
            attempts=run.config.rl.group_size,
            seed=run.config.seed,
            name=name,
            greedy=algorithm.greedy,
        )

    drawn = run.draw(len(run.train_tasks()), run.config.rl.groups_per_step, step, "rl")
    async with run.connected():
        return await refilled(run, step, algorithm, await play(drawn, f"rl-{step + 1}"), play)


async def refilled(run: RunContext, step: int, algorithm: Preset, groups: list[Group], play: Play) -> Credited:
    """Credit to the groups of a step, and to others in the place of those left out where the algorithm asks for it.

    A refill draws as many tasks as a step has, and plays those of them that the step has not had yet.

    Args:
        run: draws the tasks.
        step: from 0.
        algorithm: the preset.
        groups: those that the step begins with.
        play: plays others.

    Raises:
        TaskError: none of the attempts that the step begins with could be scored.
    """
    settings, task_set = run.config.rl, run.train_tasks()
    size = settings.groups_per_step
    check_scored(groups, step)
    credited = credit(groups, algorithm)
    if not algorithm.refill:
        return credited
    for refill in range(settings.max_refills):
        if credited.report.kept.num_groups >= size:
            break
        drawn = run.draw(len(task_set), size, step * settings.max_refills + refill, "rl-refill")
        used = {group.task.id for group in groups}
        fresh = [index for index in dict.fromkeys(drawn) if task_set[index].id not in used]
        groups = groups + await play(fresh, f"rl-{step + 1}-refill-{refill + 1}")
        credited = replace(credit(groups, algorithm, at_most=size), refills=refill + 1)
    return credited


def check_scored(groups: Sequence[Group], step: int) -> None:
    """Refuse a step that nothing can be learnt from, since something of ours is broken: no attempt has a reward.

    Raises:
        TaskError: with how many broke at which boundary, and the words of the first.
    """
    traces = [trace for group in groups for trace in group.traces]
    faults = [trace.error for trace in traces if trace.error is not None]
    if not faults or any(trace.reward is not None for trace in traces):
        return
    counts = ", ".join(f"{count} {name}" for name, count in Counter(fault.boundary for fault in faults).most_common())
    raise TaskError(
        f"none of the {len(traces)} attempts of step {step + 1} could be scored ({counts}); the first: "
        f"{faults[0].message}. Mend it and go on from the last checkpoint with --resume"
    )


def learn(run: RunContext, learner: Learner, credited: Credited, step: int) -> dict[str, float | None]:
    """The optimizer steps of a step; where nothing is trained, trainer and sampler are compared all the same."""
    metrics = learner.learn(credited.samples, step)
    if not credited.samples:
        metrics |= learner.compare([made for trace in credited.traces for made in samples(trace, 0.0)], step)
    if learner.entropy is not None:
        run.progress.entropy_coef = learner.entropy.coefficient
    return metrics


def credit(groups: Sequence[Group], algorithm: Preset, *, at_most: int | None = None) -> Credited:
    """Rewards to advantages, group by group; what teaches nothing is left out and counted.

    Args:
        groups: all of a step.
        algorithm: the preset.
        at_most: groups to train; those beyond are left out as ``surplus``.
    """
    known = [outcomes(group) for group in groups]
    credits = algorithm.credit(known)
    reasons, report = filter_groups(known, credits, algorithm.filters, algorithm.attempt_filters, at_most=at_most)
    noted: list[Group] = []
    made: list[Sample] = []
    for group, values, why in zip(groups, credits, reasons, strict=True):
        traces: list[Trace] = []
        for trace, value, reason in zip(group.traces, values, why, strict=True):
            if reason is not None:
                traces.append(left_out(trace, reason))
                continue
            traces.append(trained_on(trace, "pg", None if algorithm.critic else value))
            imitate = algorithm.imitation > 0 and (trace.reward or 0.0) > 0
            made.extend(samples(trace, value, imitate=imitate))
        greedy = None if group.greedy is None else left_out(group.greedy, "greedy")
        noted.append(replace(group, traces=tuple(traces), greedy=greedy))
    return Credited(groups=noted, samples=made, report=report)


def rollout_metrics(credited: Credited) -> dict[str, float | None]:
    """What the attempts of a step were like; greedy ones are counted apart."""
    traces = [trace for group in credited.groups for trace in group.traces]
    rewards = [trace.reward for trace in traces if trace.reward is not None]
    replies = [node.message for trace in traces for node in trace.events if node.message.role == "assistant"]
    calls = [call for message in replies for call in message.tool_calls]
    report = credited.report
    lost = [tally for tally in report.dropped.values() if tally.num_attempts]
    lost_scored = sum(tally.num_scored for tally in lost)
    return {
        "episodes": len(traces),
        "episodes_greedy": len(credited.traces) - len(traces),
        "episodes_scored": len(rewards),
        "episodes_unscored": len(traces) - len(rewards),
        "episodes_done": sum(trace.stop is Stop.DONE for trace in traces),
        "episodes_overlong": report.attempts_dropped("overlong"),
        "episodes_left_out": sum(tally.num_attempts for tally in lost),
        "episodes_left_out_scored": lost_scored,
        "reward_left_out": sum(tally.reward for tally in lost) / lost_scored if lost_scored else None,
        "tokens_left_out": sum(tally.tokens for tally in lost),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "turns": len(replies) / len(traces),
        "calls": len(calls),
        "calls_malformed": sum(call.problem is not None for call in calls),
        "tokens_sampled": sum(trace.num_sampled for trace in credited.traces),
        "groups": report.num_groups,
        "groups_trained": report.kept.num_groups,
        "groups_uncredited": report.groups_dropped("uncredited"),
        "groups_no_signal": report.groups_dropped("no_signal"),
        "groups_surplus": report.groups_dropped("surplus"),
        "no_signal_share": report.share_dropped("no_signal"),
        "refills": credited.refills,
    }


def record(run: RunContext, step: int, metrics: dict[str, float | None], credited: Credited) -> None:
    """Keep and show a step."""
    seconds, tokens = (metrics[name] or 0.0 for name in ("seconds_step", "tokens_sampled"))
    episodes = len(credited.traces)
    metrics |= {"tokens_per_s": tokens / seconds, "episodes_per_s": episodes / seconds}
    run.progress.episodes += episodes
    run.progress.tokens_sampled += int(tokens)
    for stage in ("sampling", "tools", "training", "waiting", "overlap"):
        if f"seconds_{stage}" in metrics:
            run.add_seconds(stage, metrics[f"seconds_{stage}"] or 0.0)
    run.add_seconds("rl", seconds)
    run.folder.append_metrics("rl", step, metrics)
    if step % run.config.rl.traces_every == 0 or step == 1:
        with run.timed("traces"):
            run.folder.write_traces("rl", step, credited.traces)
    run.reporter.step(step, {name: value for name, value in metrics.items() if value is not None})


def configured_preset(settings: RlConfig) -> Preset:
    """The preset with what the configuration sets of it."""
    chosen = preset(settings.algorithm, **settings.parameters)
    if settings.reduction is not None:
        chosen = replace(chosen, reduction=REDUCTIONS[settings.reduction])
    if settings.correction != "none":
        chosen = replace(chosen, correction=correction(settings.correction, **settings.correction_parameters))
    if settings.mask_truncated:
        chosen = replace(chosen, attempt_filters=(overlong,))
    return chosen


def optimizer_settings(settings: RlConfig) -> OptimizerSettings:
    """The optimizer of the policy: its schedule begins when a critic has warmed up, whose head is trained before."""
    per_step = settings.epochs * settings.minibatches
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        matrix_learning_rate=settings.matrix_learning_rate,
        total_steps=(settings.steps - settings.critic_warmup) * per_step,
        delay_steps=0 if settings.separate_critic else settings.critic_warmup * per_step,
        final_fraction=settings.final_fraction,
        max_grad_norm=settings.max_grad_norm,
    )


def critic_settings(settings: RlConfig) -> OptimizerSettings:
    """The optimizer of a critic that is a network of its own: it learns from the first step to the last."""
    per_step = settings.epochs * settings.minibatches
    return replace(optimizer_settings(settings), total_steps=settings.steps * per_step)
