"""The findings of a report in words and tables, each number with its interval or the reason why it has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from agentrl.evals import stats
from agentrl.evals.report.control import Control
from agentrl.evals.report.document import Block, Code, Grid, Picture, Section, Sentences
from agentrl.evals.report.drift import Drift
from agentrl.evals.report.findings import Findings, Missing
from agentrl.evals.report.forecast import Fit, Forecast, Range
from agentrl.evals.report.passes import AtK, Crossing, Passes, Solved, SolvedBy
from agentrl.evals.report.sources import commands
from agentrl.evals.report.weights import Change, total

LISTED = 12
"""Tasks that a table names."""
MANY = 16
"""Attempts at a task from which on pass@k says something about what a policy can do at all."""


def title(found: Findings) -> str:
    """The heading of a report."""
    return f"What RL changed: {found.config.recipe}, seed {found.config.seed}"


def sections(found: Findings, pictures: dict[str, Path]) -> list[Section]:
    """All parts, in order; ``pictures`` are there by the part's name as far as there was something to draw."""
    return [
        Section(title="In short", blocks=_short(found)),
        Section(title="Learning curve and forecast", blocks=_curve(found, pictures)),
        Section(title="pass@k before and after", blocks=_passes(found, pictures)),
        Section(title="Tasks that only one of them solves", blocks=_solved(found.solved, pictures)),
        Section(title="Forgetting against divergence", blocks=_drift(found.drift, pictures)),
        Section(title="Which weights changed", blocks=_weights(found.changes, pictures)),
        Section(title="The control run", blocks=_control(found.control)),
        Section(title="How to read the intervals", blocks=_reading()),
    ]


def spoken(one: stats.Interval | Range, *, signed: bool = False, digits: int = 3) -> str:
    """A number with its interval: ``0.350 [0.302, 0.398]``."""
    mean = one.value if isinstance(one, Range) else one.mean
    sign = "+" if signed else ""
    return f"{mean:{sign}.{digits}f} [{one.low:{sign}.{digits}f}, {one.high:{sign}.{digits}f}]"


def p_spoken(p: float) -> str:
    """A p-value, not more exact than it can be."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _say(*texts: str) -> tuple[Block, ...]:
    return tuple(Sentences(text=text) for text in texts if text)


def _missing(part: Missing) -> tuple[Block, ...]:
    return _say(f"Not measured: {part.why}.")


def _short(found: Findings) -> tuple[Block, ...]:
    config = found.config
    reward = {
        "hidden": "hidden tests decided the reward",
        "visible": "the visible tests decided the reward, which can be exploited",
        "random": "the reward was drawn, 0 or 1, whatever an attempt did: this run is a control",
    }[config.tasks.reward]
    told = (
        f"Run {found.run.path.name}: {found.steps} steps of {config.rl.algorithm}, {config.rl.groups_per_step} groups "
        f"of {config.rl.group_size} attempts a step; {reward}. The base is the policy before the first step of RL. It "
        "is one run: how much another seed would differ is not known from it."
    )
    if isinstance(found.outcome, Missing):
        return (*_say(told), *_missing(found.outcome))
    one = found.outcome
    sides = ("base", one.before, False), ("trained", one.after, False), ("paired difference", one.difference, True)
    rows = tuple((name, spoken(side, signed=signed), side.method) for name, side, signed in sides)
    size = (
        f"{one.difference.num_tasks} tasks in {one.difference.num_clusters} clusters; "
        f"p {p_spoken(one.p_value)} ({one.test}). From {found.source}."
    )
    head = ("mean score, held-out tasks", "with 95 % interval", "method")
    return (*_say(told), Grid(head=head, rows=rows), *_say(size))


def _curve(found: Findings, pictures: dict[str, Path]) -> tuple[Block, ...]:
    curve = found.curve
    if not curve.bins:
        return _say("Not measured: the run has fewer than two steps with a reward.")
    points = [f"step {one.step}: {one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in curve.points]
    small = f"Small evaluations on validation tasks: {'; '.join(points)}." if points else ""
    ends = (("first", curve.bins[0]), ("last", curve.bins[-1]))
    said = [
        f"{name} bin (steps {one.first} to {one.last}) "
        + (spoken(one.interval) if one.interval else f"{one.mean:.3f}, without an interval: all steps have the same")
        for name, one in ends
    ]
    blank = f" {curve.skipped} steps without a scored attempt are left out." if curve.skipped else ""
    drawn = "It was drawn, so that it says nothing of the policy. " if found.config.tasks.reward == "random" else ""
    reward = (
        f"Training reward, on tasks that the policy meets for the first time in the first pass over them: "
        f"{', '.join(said)}. {drawn}The interval of a bin is over its steps, so that a trend within it widens it."
        f"{blank}"
    )
    caption = "Each mark is the mean of neighbouring steps (width) with its 95 % interval (height)."
    return (*_picture(pictures, "curve", caption), *_say(reward, small), *_forecast(found.forecast))


def _forecast(one: Forecast) -> tuple[Block, ...]:
    if one.refused:
        return _say(f"No forecast: {one.refused}.")
    assert one.early is not None
    assert one.whole is not None
    assert one.score is not None
    assert one.ahead is not None
    score = one.score
    better = "better than" if score.gain.low > 0 else "worse than" if score.gain.high < 0 else "not told apart from"
    return _say(
        f"A sigmoid fitted to the first {one.early.num_steps} steps ({_ends(one.early)}) was scored on the other "
        f"{score.num_steps}: measured minus forecast {spoken(score.error, signed=True)}, where the forecast's own 95 % "
        f"band is {score.band:.3f} wide; "
        f"{spoken(score.covered)} of the steps lie within its 95 % prediction interval. It is {better} the forecast "
        f"that nothing changes: gain in squared error {spoken(score.gain, signed=True, digits=5)} (root mean squares "
        f"{score.rmse:.4f} and {score.rmse_flat:.4f}, whose uncertainty is in that gain).",
        f"Fitted to all steps ({_ends(one.whole)}), it foresees {spoken(one.ahead)} at step {one.ahead_steps}, if "
        "nothing but the number of steps changes; learning rates that fall to the end of the run would change too.",
    )


def _ends(one: Fit) -> str:
    return f"from {one.start:.3f} to a ceiling of {spoken(one.ceiling)}, half-way at step {one.middle:.0f}"


def _passes(found: Findings, pictures: dict[str, Path]) -> tuple[Block, ...]:
    part = found.passes
    more = Code(lines=tuple(commands(found.run, found.steps, 32)))
    if isinstance(part, Missing):
        return (*_missing(part), more)
    head = ("k", "base", "trained", "paired difference", "p (Holm)")
    grid = Grid(head=head, rows=tuple(map(_at_row, part.at)))
    left = f" {part.left_out} tasks that only one side has scores for are left out." if part.left_out else ""
    size = (
        f"{part.num_tasks} tasks in {part.num_clusters} clusters, {part.attempts} or more attempts at each by both, "
        f"paired by task at each k, 95 % intervals; p adjusted over all k.{left}"
    )
    few = (
        f"{part.attempts} attempts at a task say little about what either can do with many tries; more are made by:"
        if part.attempts < MANY
        else ""
    )
    caption = "pass@k of both with 95 % intervals, and their difference on the same tasks."
    return (
        *_picture(pictures, "passes", caption),
        grid,
        *_say(size, _crossing(part), few),
        *((more,) if few else ()),
    )


def _at_row(one: AtK) -> tuple[str, ...]:
    found = one.comparison
    sides = (spoken(found.before), spoken(found.after), spoken(found.difference, signed=True))
    return (str(one.k), *sides, p_spoken(one.p_value))


def _crossing(part: Passes) -> str:
    if part.crossing is None:
        return "Crossing: the trained policy is not ahead at k = 1, so there is nothing to cross."
    one = part.crossing
    last = part.at[-1]
    if one.k is not None:
        where = f"Crossing: the base is ahead from k = {one.k} on."
    else:
        where = f"No crossing up to k = {part.attempts}: the trained policy is not behind at any k."
    if last.p_value < 0.05:
        who = "trained policy" if last.comparison.difference.mean > 0 else "base"
        sure = f"At k = {last.k} the {who} is ahead, and chance does not explain it."
    else:
        sure = f"At k = {last.k} chance may explain the difference."
    return (
        f"{where} The 95 % interval of the k at which they cross is {_k_range(one, part.attempts)}, and "
        f"{100 * one.share:.0f} % of resampled task sets have a crossing. {sure}"
    )


def _k_range(one: Crossing, most: int) -> str:
    ends = [f"{end:.0f}" if math.isfinite(end) else f"above {most}" for end in (one.low, one.high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _solved(part: SolvedBy | Missing, pictures: dict[str, Path]) -> tuple[Block, ...]:
    if isinstance(part, Missing):
        return _missing(part)
    shares = Grid(
        head=("solved at least once by", "tasks", "share of tasks, 95 % interval"),
        rows=tuple(
            (who, str(sum(one.who == who for one in part.tasks)), spoken(share)) for who, share in part.shares.items()
        ),
    )
    told = (
        "A task that a policy never solved in its few attempts may still be one that it solves at times. The p-value "
        "beside a task is that of the same chance on both sides (Fisher's exact test, adjusted by Benjamini and "
        "Hochberg); counts of attempts are counted, and have no interval."
    )
    caption = "Every task by its share of passed attempts before and after; area: tasks at one place."
    blocks: list[Block] = [*_picture(pictures, "solved", caption), shares, *_say(told)]
    for who in ("base only", "trained only"):
        mine = sorted((one for one in part.tasks if one.who == who), key=lambda one: one.p_value)
        if mine:
            rest = f", the {LISTED} clearest" if len(mine) > LISTED else ""
            blocks += [*_say(f"Solved by the {who} ({len(mine)} of the tasks{rest}):"), _tasks(mine[:LISTED])]
        else:
            blocks += _say(f"Solved by the {who}: no task.")
    if any(one.who in ("base only", "trained only") for one in part.tasks) and all(part.show):
        lines = [f"agentrl show {folder} --trace ID" for folder in dict.fromkeys(part.show)]
        blocks += [
            *_say("An attempt turn by turn, that of the base and that of the trained:"),
            Code(lines=tuple(lines)),
        ]
    return tuple(blocks)


def _tasks(found: Sequence[Solved]) -> Grid:
    head = ("task", "base passed", "trained passed", "p (adjusted)", "attempt of the base", "attempt of the trained")
    rows = tuple(
        (
            one.task,
            f"{one.base[0]} of {one.base[1]}",
            f"{one.trained[0]} of {one.trained[1]}",
            p_spoken(one.p_value),
            one.trace_base or "-",
            one.trace_trained or "-",
        )
        for one in found
    )
    return Grid(head=head, rows=rows)


def _drift(part: tuple[Drift, ...] | Missing, pictures: dict[str, Path]) -> tuple[Block, ...]:
    if isinstance(part, Missing):
        return _missing(part)
    names = ("divergence", "forgetting", "unlearning")
    head = ("checkpoint", "KL(base || checkpoint)", "demonstrations to retain", "other demonstrations")
    rows = (
        ("base", *("0 by definition",) * 3),
        *((f"step {one.step}", *(_drift_cell(getattr(one, name)) for name in names)) for one in part),
    )
    told = (
        "All in nats per token, with 95 % intervals clustered by task. The divergence is exact at each token of the "
        "base's own stored attempts. The other columns are the rise of the loss on the run's stored demonstrations. To "
        "be retained are those without a fault: one edit, tests that pass, a hand-in. A rise there is forgetting. The "
        "others show a wrong guess or a mistake, which RL may well unlearn. The base was trained on both."
    )
    caption = "One mark a checkpoint that the run keeps, with 95 % intervals both ways."
    return (*_picture(pictures, "drift", caption), Grid(head=head, rows=rows), *_say(told))


def _drift_cell(one: stats.Interval | None) -> str:
    return "no spread, or too few tasks" if one is None else spoken(one, signed=True, digits=4)


def _weights(part: tuple[Change, ...] | Missing, pictures: dict[str, Path]) -> tuple[Block, ...]:
    if isinstance(part, Missing):
        return _missing(part)
    head = (
        "tensor",
        "shape",
        "changed, float32",
        "changed, bfloat16",
        "size of the change",
        "stable rank: change",
        "before",
        "noise",
    )
    grid = Grid(head=head, rows=tuple(map(_weight_row, (*part, total(part)))))
    told = (
        "Between the base and the last checkpoint. These are counts and norms of all weights of two files, with "
        "nothing estimated, so they have no interval. A weight is changed where its value differs, in bfloat16 after "
        "both were rounded. The size is |D| / |W| (Frobenius norms). The stable rank |D|^2 / (largest singular "
        "value)^2 says over how many directions a change is spread; noise of that shape would have about the last "
        "column's."
    )
    caption = "Share of the weights that changed, and stable rank of the change, by tensor."
    return (*_picture(pictures, "weights", caption), grid, *_say(told))


def _weight_row(one: Change) -> tuple[str, ...]:
    ranks = (one.stable_rank, one.stable_rank_before, one.stable_rank_noise)
    return (
        one.name,
        " x ".join(map(str, one.shape)) or f"{one.weights} weights",
        f"{one.share:.4f}",
        f"{one.share_bf16:.4f}",
        "-" if one.relative is None else f"{one.relative:.4f}",
        *("-" if rank is None else f"{rank:.1f}" for rank in ranks),
    )


def _control(part: Control | Missing) -> tuple[Block, ...]:
    if isinstance(part, Missing):
        return _say(f"Not measured: {part.why}.")
    head = ("gain in mean score, before to after", "with 95 % interval")
    rows = (
        ("this run", spoken(part.gain, signed=True)),
        (f"control, reward {part.reward}", spoken(part.gain_control, signed=True)),
        ("this run minus control, paired", spoken(part.excess, signed=True)),
    )
    same = "the same weights, to the bit" if part.same_base else "other weights"
    told = (
        f"{part.num_tasks} tasks that both were evaluated on. Both began RL with {same}. They differ in "
        f"{'; '.join(part.differing) or 'nothing'}. Of the gain, the last line is what the control does not explain. "
        "Each is one run; the intervals are over tasks, not over seeds."
    )
    return (Grid(head=head, rows=rows), *_say(f"Control: {part.name}.", told))


def _reading() -> tuple[Block, ...]:
    return _say(
        "An interval in brackets is a 95 % interval over tasks, with tasks that share a program taken as one cluster "
        "where the run knows it. Differences are paired: each task is compared with itself. Intervals cover the draw "
        "of tasks and of attempts, not that of another training run.",
    )


def _picture(pictures: dict[str, Path], name: str, caption: str) -> tuple[Block, ...]:
    return (Picture(path=pictures[name], caption=caption),) if name in pictures else ()
