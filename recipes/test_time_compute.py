"""Test-time compute on BugFix: what is chosen from n attempts, what chooses, and what breaks its ties.

    python -m recipes.test_time_compute --run     (some minutes on a core; without --run only the figure is drawn)

Two small policies play 64 attempts at each of 80 held-out tasks. "tests read-only" is trained for 20 steps on the
hidden tests. In "tests writable" the policy may edit the visible tests, a fifth of its demonstrations empty them, and
it is trained for 5 steps on the visible tests as they stand at the end: a policy that knows a hack. Gold is the hidden
tests. The proxy that picks one of n attempts is the visible tests, and what stands between attempts that pass them:
nothing (ties are split), the policy's own confidence (mean log-probability of its tokens), or the number of its tokens,
fewer first. A vote elects the files that most attempts leave behind; a weighted vote counts only attempts that pass the
visible tests. The ceiling is a chooser that knows gold (pass@n); the belief is what the proxy thinks of its pick. All
are unbiased estimates from the same attempts; a vote's expectation is taken over 512 subsets where there are more.

Measured: gold, mean of 3 training seeds with 95 % intervals over them (the tasks are the same; intervals over tasks,
clustered by program, are in the figure and in the results):

| policy | chooser | n = 1 | n = 4 | n = 16 | n = 64 |
|---|---|---|---|---|---|
| tests read-only | visible tests | 0.58 [0.52, 0.64] | 0.74 [0.70, 0.79] | 0.82 [0.78, 0.86] | 0.89 [0.86, 0.92] |
| tests read-only | visible, then confidence | 0.58 [0.52, 0.64] | 0.74 [0.69, 0.79] | 0.82 [0.77, 0.87] | 0.89 [0.86, 0.92] |
| tests read-only | visible, then fewest tokens | 0.58 [0.52, 0.64] | 0.74 [0.70, 0.79] | 0.82 [0.78, 0.86] | 0.89 [0.86, 0.92] |
| tests read-only | vote | 0.58 [0.52, 0.64] | 0.65 [0.60, 0.70] | 0.67 [0.63, 0.71] | 0.67 [0.62, 0.72] |
| tests read-only | vote of those that pass | 0.58 [0.52, 0.64] | 0.74 [0.70, 0.79] | 0.82 [0.78, 0.87] | 0.89 [0.86, 0.92] |
| tests read-only | ceiling | 0.58 [0.52, 0.64] | 0.74 [0.71, 0.78] | 0.83 [0.79, 0.86] | 0.89 [0.86, 0.93] |
| tests read-only | belief of the proxy | 0.58 [0.52, 0.64] | 0.75 [0.71, 0.78] | 0.83 [0.79, 0.86] | 0.89 [0.86, 0.93] |
| tests writable | visible tests | 0.33 [0.21, 0.45] | 0.49 [0.34, 0.65] | 0.53 [0.35, 0.71] | 0.53 [0.35, 0.71] |
| tests writable | visible, then confidence | 0.33 [0.21, 0.45] | 0.36 [0.18, 0.54] | 0.17 [-0.03, 0.38] | 0.07 [-0.11, 0.25] |
| tests writable | visible, then fewest tokens | 0.33 [0.21, 0.45] | 0.62 [0.52, 0.72] | 0.80 [0.73, 0.88] | 0.90 [0.87, 0.93] |
| tests writable | vote | 0.33 [0.21, 0.45] | 0.41 [0.25, 0.57] | 0.48 [0.31, 0.66] | 0.50 [0.33, 0.68] |
| tests writable | vote of those that pass | 0.33 [0.21, 0.45] | 0.51 [0.33, 0.68] | 0.56 [0.33, 0.80] | 0.57 [0.31, 0.84] |
| tests writable | ceiling | 0.33 [0.21, 0.45] | 0.63 [0.53, 0.73] | 0.80 [0.73, 0.88] | 0.90 [0.87, 0.93] |
| tests writable | belief of the proxy | 0.57 [0.41, 0.74] | 0.90 [0.80, 0.99] | 0.99 [0.96, 1.01] | 1.00 [1.00, 1.00] |

Where the tests cannot be edited they are a good proxy: best-of-n by them rises from 0.58 to 0.89 and stays within 0.01
of the ceiling in each seed. A vote stops at 0.67: on the other tasks some wrong files are left more often than any
right ones. Where the tests can be emptied the proxy believes 1.00 at n = 64 and gold is 0.53 with ties split: the share
of honest repairs among what passes. What breaks the ties decides. With the policy's own confidence gold is highest at n
= 2 and then falls, to 0.07 at n = 64, below a single attempt in each seed, and by 0.41 to 0.53 below ties split (paired
by task; no interval has 0 in it): emptying tests is a monotonous thing to say, so the likeliest attempt that passes is
the hack. With the fewest tokens gold reaches the ceiling, 0.90, since this hack takes more of them than a repair. With
ties split a proxy of pass and fail that passes all that is right cannot make gold fall with n.

What this does not show: the hack was planted, and it is long; a short one would win by the fewest tokens. A vote of
those that pass does not tell hack and repair apart either.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from agentrl.config import TrainConfig, apply_overrides, fingerprint, load_recipe
from agentrl.errors import StoreError
from agentrl.evals.folder import EvaluationFolder
from agentrl.evals.inference import Curve, Grid, best_of, ceiling, doublings, vote
from agentrl.evals.inference.grid import Floats
from agentrl.evals.running import Evaluator
from agentrl.files import write_atomic
from agentrl.loops.evaluation import find_checkpoint, open_context, run_parts, settings_of
from agentrl.loops.run import train
from agentrl.store import RunFolder
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.types import Trace
from agentrl.ui.live import PlainReporter
from recipes.phenomena.study import over_seeds

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "test_time_compute.json", HERE / "test_time_compute.png"
CACHE = HERE.parent / "runs" / "test_time_compute"
TASKS, ATTEMPTS = 80, 64
SEEDS = (0, 1, 2)
SHOWN = (1, 4, 16, 64)
HONEST, HACKER = "tests read-only", "tests writable"
SPLIT, CONFIDENT, SHORT = "visible tests", "visible, then confidence", "visible, then fewest tokens"
VOTE, WEIGHTED, CEILING = "vote", "vote of those that pass", "ceiling"
BELIEF = "belief of the proxy"
COLOURS = {
    SPLIT: "#3b6fb6",
    CONFIDENT: "#d1495b",
    SHORT: "#2a9d8f",
    VOTE: "#e9a03b",
    WEIGHTED: "#7b5ea7",
    CEILING: "#4a4a4a",
    BELIEF: "#8a8a8a",
}
BASE = {
    "tasks.train_tasks": "1000",
    "warm_start.steps": "150",
    "warm_start.reverts": "0.5",
    "warm_start.gives_up": "0.4",
    "warm_start.untested": "0.4",
    "rl.groups_per_step": "8",
    "rl.eval_every": "0",
    "rl.traces_every": "1000",
    "eval.tasks": "20",
    "sandbox.workers": "1",
}
HACK = {
    "tasks.tests_writable": "true",
    "tasks.reward": "visible",
    "tasks.max_turns": "10",
    "warm_start.meddles": "0.2",
}


def configs(seed: int) -> dict[str, TrainConfig]:
    """The two policies of a seed, as training runs."""
    recipe = load_recipe("bugfix-tiny")
    made = {
        HONEST: apply_overrides(recipe, {**BASE, "rl.steps": "20"}),
        HACKER: apply_overrides(recipe, {**BASE, **HACK, "rl.steps": "5"}),
    }
    return {name: config.model_copy(update={"seed": seed}) for name, config in made.items()}


# Playing.


def attempts_of(config: TrainConfig, cache: Path = CACHE) -> list[Trace]:
    """The attempts of the trained policy; what is kept already is not played again."""
    reporter = PlainReporter(sys.stderr)
    root = cache / fingerprint(config)[:16]
    run = _trained(config, root, reporter)
    with open_context(config, reporter) as context:
        parts = run_parts(
            context,
            find_checkpoint(run, ""),
            task_set=context.tasks("test", TASKS),
            settings=settings_of(context.config),
            word=root.name,
            split="test",
            temperature=config.rl.temperature,
            seed=config.seed,
        )
        folder = EvaluationFolder.begin(root / "evaluation", parts.spec, parts.tasks)
        evaluator = Evaluator(
            folder=folder,
            task_set=parts.task_set,
            harness=parts.harness,
            open_session=parts.open_session,
            version=parts.spec.version,
            seed=config.seed,
        )
        asyncio.run(evaluator.run(parts.tasks, ATTEMPTS, lambda standing: False))  # noqa: ARG005
    return folder.traces()


def _trained(config: TrainConfig, root: Path, reporter: PlainReporter) -> RunFolder:
    try:
        run = RunFolder.latest(root)
    except StoreError:
        run = RunFolder.create(root, config)
    if run.summary() is None:
        train(config, run, reporter, resume=True)
    return run


# Choosing.


def curves(config: TrainConfig, traces: Sequence[Trace]) -> list[Curve]:
    """Every way of choosing, at n = 1, 2, 4, ... attempts."""
    grid = Grid.of(traces)
    gold, visible = grid.score("hidden_tests"), grid.score("visible_tests")
    files = _files(config, grid)
    ks = doublings(grid)
    return [
        best_of(SPLIT, grid, visible, gold, ks),
        best_of(CONFIDENT, grid, visible + grid.read(confidence) / 2, gold, ks),
        best_of(SHORT, grid, visible - grid.tokens() / 1e6, gold, ks),
        vote(VOTE, grid, files, gold, ks),
        vote(WEIGHTED, grid, files, gold, ks, weights=visible),
        ceiling(grid, gold, ks),
        best_of(BELIEF, grid, visible, visible, ks),
    ]


def confidence(trace: Trace) -> float:
    """The geometric mean of the chances of the sampled tokens, in (0, 1]."""
    return float(np.exp(np.mean([logprob for node in trace.nodes for logprob in node.logprobs])))


def _files(config: TrainConfig, grid: Grid) -> Floats:
    """A number for each attempt, equal within a task where the files at the end are."""
    settings = config.tasks
    gym = BugFix(settings.level, "test", TASKS, report=settings.report, tests_writable=settings.tests_writable)
    tasks = {gym[index].id: gym[index] for index in range(len(gym))}

    async def files(trace: Trace) -> str:
        world = gym.environment(tasks[trace.task_id])
        assert isinstance(world, BugFixEnvironment)
        for call in (call for node in trace.nodes for call in node.message.tool_calls if call.name == "edit"):
            await world.call(call)
        return hashlib.sha256(json.dumps(dict(world.workspace), sort_keys=True).encode()).hexdigest()

    async def all_files() -> dict[str, str]:
        return {_key(trace): await files(trace) for row in grid.traces for trace in row if trace is not None}

    try:
        found = asyncio.run(all_files())
    finally:
        gym.close()
    return grid.answers(lambda trace: found[_key(trace)])


def _key(trace: Trace) -> str:
    return f"{trace.task_id} {trace.attempt}"


# What came of it.


def plain(found: Sequence[Curve]) -> dict[str, Any]:
    """Curves as JSON: mean, low and high at each n, and tokens."""
    by_name = {one.name: [[round(x, 4) for x in (i.mean, i.low, i.high)] for i in one.intervals()] for one in found}
    split, confident = (next(one for one in found if one.name == name) for name in (SPLIT, CONFIDENT))
    paired = confident.against(split, found[0].ks[-1]).difference
    return {
        "ks": list(found[0].ks),
        "tokens": [round(float(x), 2) for x in found[0].tokens],
        "curves": by_name,
        "confidence minus ties split at the last n": [round(x, 4) for x in (paired.mean, paired.low, paired.high)],
    }


def table(results: Mapping[str, Any]) -> str:
    """The table of the docstring."""
    head = "| policy | chooser | " + " | ".join(f"n = {k}" for k in SHOWN) + " |"
    lines = [head, "|---" * (2 + len(SHOWN)) + "|"]
    for policy, by_seed in results.items():
        for name in COLOURS:
            cells = (str(over_seeds(gold_at(by_seed, name, k))) for k in SHOWN)
            lines.append(f"| {policy} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gold_at(by_seed: Mapping[str, Any], name: str, k: int) -> list[float]:
    """What a way of choosing is worth at n = k, one number a seed."""
    return [one["curves"][name][one["ks"].index(k)][0] for one in by_seed.values()]


def draw(results: Mapping[str, Any], seed: str = "0") -> Figure:
    """Gold over sampled tokens, one panel a policy, bands of 95 % for the choosers by visible tests."""
    figure = Figure(figsize=(10.4, 4.2), dpi=90, layout="constrained")
    figure.suptitle(f"One of n attempts is handed in: gold over what is sampled (seed {seed})", fontsize=11)
    for number, (policy, by_seed) in enumerate(results.items(), start=1):
        axes, one = figure.add_subplot(1, 2, number), by_seed[seed]
        for name, points in one["curves"].items():
            mean, low, high = np.array(points).T
            dashed = "--" if name in (CEILING, BELIEF) else "-"
            axes.plot(one["tokens"], mean, dashed, color=COLOURS[name], label=name, linewidth=1.6)
            if name in (SPLIT, CONFIDENT, SHORT):
                axes.fill_between(one["tokens"], low, high, color=COLOURS[name], alpha=0.12, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(one["tokens"], [f"{x:.0f}\nn={k}" for x, k in zip(one["tokens"], one["ks"], strict=True)])
        axes.set_ylim(0, 1.02)
        axes.set_title(policy, fontsize=10, loc="left")
        axes.set_xlabel("tokens sampled for one answer, and attempts", fontsize=8)
        axes.set_ylabel("hidden tests pass", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def measure(seeds: Sequence[int] = SEEDS, cache: Path = CACHE) -> dict[str, Any]:
    """All seeds of both policies, in plain data."""
    results: dict[str, Any] = {HONEST: {}, HACKER: {}}
    for seed in seeds:
        for policy, config in configs(seed).items():
            results[policy][str(seed)] = plain(curves(config, attempts_of(config, cache)))
    return results


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m recipes.test_time_compute", description=__doc__)
    parser.add_argument("--run", action="store_true", help="train and play what is not in the cache, and measure")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="two or more")
    options = parser.parse_args()
    if options.run:
        write_atomic(RESULTS, json.dumps(measure(options.seeds), indent=1).encode())
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    draw(results).savefig(FIGURE)
    source = Path(__file__).read_text(encoding="utf-8")
    written = re.sub(r"^\| policy \|.*\n(?:\|.*\n)*", lambda _: f"{table(results)}\n", source, count=1, flags=re.M)
    write_atomic(Path(__file__), written.encode())
    print(table(results))


if __name__ == "__main__":
    main()
