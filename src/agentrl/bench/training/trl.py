"""``agentrl bench trl``: episodes a second of synchronous GRPO, ours beside TRL's trainer.

Both begin with the same weights and take the same number of optimizer steps on the same prompts, with the same group
size, reward, loss (GRPO, one mini-batch, no KL term), AdamW, clipping of the gradient and sampling at temperature 1.
They take turns: when TRL has finished a step, ours takes one. A step is sampling, tools, rewards, loss, optimizer.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentrl.bench.floor import Shape
from agentrl.bench.generation.engine import described, of_threads, threads_of, told
from agentrl.bench.generation.models import SMALL, model
from agentrl.bench.report import Aim, Cell, Report, Table
from agentrl.bench.rounds import ratio, version_of
from agentrl.bench.training import words
from agentrl.bench.training.ours import Ours
from agentrl.bench.training.taught import PLAN, demonstrations, teach
from agentrl.bench.training.trl_peer import Budget, Sides, compare, schemas
from agentrl.bench.training.worlds import Digits, Repairs, num_tokens
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.sandbox.choose import choose
from agentrl.sandbox.pool import Pool
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.vocabulary import Vocabulary

COLUMNS = (
    "side",
    "episodes/s",
    "time / ours",
    "least",
    "most",
    "processor time / ours",
    "sampled tokens",
    "given tokens",
    "optimizer steps",
)
CONTEXT = 2048
TAUGHT_STEPS = 100
DIFFERENCES = (
    "sampled and given tokens: a mean over the episodes of the last step; both draw, so lengths differ a little",
    "ours keeps the sampler's log-probabilities and trains with them; TRL takes those of its own forward pass as old",
    "TRL without gradient checkpointing, which is on by default and slower; logging, saving and progress bars off",
    "TRL samples by `generate`, its default on one machine; its vLLM mode needs a GPU or a server and was not measured",
)
TOOL_DIFFERENCES = (
    "the policy was taught by heart to read, test twice and say that it is done; the reward is a draw, and the hidden "
    "tests are run for it on both sides",
    "TRL calls tools and rewards one after the other; ours while other attempts are sampled",
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is played and taught.

    Attributes:
        shape: of the single turn.
        tasks: of the multi-turn run, with as many attempts each as ``shape.group``.
        taught: steps in which the policy learns the plan.
        reply: tokens of a reply with tools at most.
    """

    shape: Shape
    tasks: int
    taught: int
    reply: int = 64


FULL = Size(shape=Shape(groups=8, group=8, prompt=200, reply=48), tasks=4, taught=TAUGHT_STEPS)
QUICK = Size(shape=Shape(groups=1, group=2, prompt=20, reply=4), tasks=1, taught=2)


def measure(
    *,
    rounds: int = 5,
    threads: int = 0,
    quick: bool = False,
    only: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure the single turn and tools, or the one named by ``only`` (``single``, ``tools``).

    Args:
        rounds: optimizer steps of each side that are counted; one more goes before them.
        threads: of both; 0 for as many as there are cores.
        quick: one task and two attempts, to see that it runs.
        only: which part; both when empty.
        tell: is told what is done.

    Raises:
        BenchError: TRL is not installed, or the two did not do the same work.
    """
    before, used, size = os.getloadavg()[0], threads_of(threads), QUICK if quick else FULL
    parts: dict[str, Callable[[Size, int, Callable[[str], None]], Sides]] = {"single": single, "tools": tools}
    with of_threads(used):
        found = {name: part(size, rounds + 1, tell) for name, part in parts.items() if only in ("", name)}
    return Report(
        bench="trl",
        settings={"rounds": rounds, "threads": used, "quick": int(quick)},
        machine={**described(), "trl": version_of("trl")},
        load=(before, os.getloadavg()[0]),
        tables=[as_table(name, took) for name, took in found.items()],
        aims=[aim(name, took) for name, took in found.items()],
    )


def single(size: Size, steps: int, tell: Callable[[str], None]) -> Sides:
    """One reply to a prompt of digits."""
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        words.write(Path(folder), [Path(__file__).read_text()])
        renderer = ChatMLRenderer(Vocabulary.load(folder), thinking=False)
        shape = size.shape
        tasks = Digits(shape.groups, shape.prompt, renderer)
        harness = ToolLoop(renderer, Limits(turns=1, reply=shape.reply, context=CONTEXT))
        ours = Ours(HuggingFacePolicy(model(SMALL)), tasks, harness, group=shape.group, steps=steps)
        budget = Budget(completion=shape.reply)
        theirs = model(SMALL)
        return compare(
            theirs,
            Path(folder),
            tasks,
            ours.step,
            group=shape.group,
            steps=steps,
            budget=budget,
            tools=False,
            tell=tell,
        )


def tools(size: Size, steps: int, tell: Callable[[str], None]) -> Sides:
    """Repairs in a sandbox with four tools."""
    with _pool() as pool, tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        tasks = Repairs(size.tasks, pool, schemas())
        words.write(Path(folder), _texts(tasks))
        renderer = ChatMLRenderer(Vocabulary.load(folder), thinking=False)
        policy = HuggingFacePolicy(model(SMALL))
        traces = demonstrations(tasks, renderer)
        loss = teach(policy, traces, size.taught)
        tell(f"taught: {loss:.3f} nats a token")
        theirs = model(SMALL)
        theirs.load_state_dict(policy.model.state_dict())
        limits = Limits(turns=len(PLAN) + 1, reply=size.reply, context=CONTEXT)
        group = size.shape.group
        ours = Ours(policy, tasks, ToolLoop(renderer, limits), group=group, steps=steps)
        longest = max(sum(len(node.context_ids) + len(node.sampled_ids) for node in trace.nodes) for trace in traces)
        opening = min(num_tokens(renderer, tasks[n].prompt, tasks.specs) for n in range(len(tasks)))
        budget = Budget(completion=longest - opening + size.reply, tool_rounds=len(PLAN))
        return compare(
            theirs, Path(folder), tasks, ours.step, group=group, steps=steps, budget=budget, tools=True, tell=tell
        )


@contextmanager
def _pool() -> Iterator[Pool]:
    with Pool(choose(allow_unsafe=True).backend, size=2, cache_size=0) as pool:
        yield pool


def _texts(tasks: Repairs) -> list[str]:
    """What the pieces of the vocabulary are learnt from: prompts, programs, and how tools are told and called."""
    told_tools = [f"{spec.name} {spec.description} {spec.parameters}".replace("'", '"') for spec in tasks.specs]
    prompts = [message.content for n in range(len(tasks)) for message in tasks[n].prompt]
    programs = [text for n in range(len(tasks)) for text in tasks[n].files.values()]
    return [*told_tools, *prompts, *programs, Path(__file__).read_text()]


def as_table(name: str, took: Sides) -> Table:
    """A row for each side."""
    rows: list[tuple[Cell, ...]] = []
    for side, one, counts in (("ours", took.ours, took.our_counts), ("TRL", took.theirs, took.their_counts)):
        rate = counts.episodes / statistics.median(one.passed)
        ratios = (*ratio(took.ours.passed, one.passed), ratio(took.ours.used, one.used)[0])
        rows.append((side, rate, *ratios, counts.sampled, counts.given, counts.steps))
    what = "one reply" if name == "single" else f"{len(PLAN)} tool calls and a last reply"
    return Table(
        title=f"{name}: {told(SMALL)}; {took.our_counts.episodes} episodes a step, {what}",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=DIFFERENCES + (TOOL_DIFFERENCES if name == "tools" else ()),
    )


def aim(name: str, took: Sides) -> Aim:
    """How much faster ours is, beside what it should be."""
    wanted = {"single": 4.0, "tools": 8.0}[name]
    return Aim(name=f"{name}: TRL / ours", value=ratio(took.ours.passed, took.theirs.passed)[0], wanted=wanted)
