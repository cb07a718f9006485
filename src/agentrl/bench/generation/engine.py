"""``agentrl bench engine``: generated tokens a second of our engine beside `generate` of `transformers` and vLLM.

The same weights, prompts, observations, number and length of replies, threads and kind of sampling for all: temperature
1 from all tokens, no stop id, float32. Contestants take turns in every round; a ratio is the median over rounds of the
quotient within a round.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from agentrl.bench.floor import Floor, Shape, Sizes, Speed, floor, working_set
from agentrl.bench.generation import vllm_peer
from agentrl.bench.generation.models import LARGE, SMALL, model
from agentrl.bench.generation.players import Generate, OurEngine, Replies, check
from agentrl.bench.generation.speed import speed
from agentrl.bench.generation.work import Work, make
from agentrl.bench.report import Aim, Cell, Report, Table
from agentrl.bench.rounds import Contestant, Took, machine, ratio, turns, version_of
from agentrl.policy.hf import HuggingFacePolicy

OURS, GENERATE, ONCE = "ours", "generate", "generate, prompt once"
LOCKSTEP, VLLM, VLLM_LOGPROBS = "ours, lockstep", "vLLM", "vLLM with logprobs"
COLUMNS = ("contestant", "tokens/s", "time / ours", "least", "most", "processor time / ours", "share of the floor")
SINGLE = Shape(groups=8, group=8, prompt=200, reply=48)
TURNS = Shape(groups=8, group=8, prompt=200, reply=48, turns=4, observation=60)
PAUSE_S = 0.3
NOTES = (
    "ours computes the log-probability of each sampled token; generate and vLLM only where it says so",
    "generate: num_return_sequences for the group; a later turn begins again with the whole conversation",
    "generate, prompt once: the cache of a prompt is computed once and repeated by hand, and continued in later turns",
    "vLLM: in its own process with its prefix cache, which is empty at the beginning of a round; compiled",
    "share of the floor: least time for the arithmetic, or the bytes, over the median time",
)
TARGETS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "small": ((GENERATE, 3.0), (VLLM, 1.0)),
    "large": ((GENERATE, 1.5), (VLLM, 1.0)),
    "turns": ((GENERATE, 6.0),),
}
"""Of each workload: how much faster than whom ours should be."""
Workload = tuple[Sizes, Shape]


def workloads(*, quick: bool) -> dict[str, Workload]:
    """Name -> model and shape; as small as they can be when ``quick``."""
    if quick:
        tiny = Shape(groups=2, group=2, prompt=6, reply=3)
        return {"small": (SMALL, tiny), "turns": (SMALL, Shape(**{**vars(tiny), "turns": 2, "observation": 4}))}
    return {"small": (SMALL, SINGLE), "large": (LARGE, SINGLE), "turns": (SMALL, TURNS)}


def measure(
    *,
    rounds: int = 5,
    threads: int = 0,
    quick: bool = False,
    only: str = "",
    peers: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure all workloads, or the one named by ``only``.

    Args:
        rounds: that are counted.
        threads: of every contestant; 0 for as many as there are cores.
        quick: the smallest work there is, to see that it runs.
        only: the name of a workload; all when empty.
        peers: whether vLLM takes part where it is there.
        tell: is told what is done.

    Raises:
        BenchError: a contestant did other work than it was given, or vLLM failed.
    """
    before, used = os.getloadavg()[0], threads_of(threads)
    with of_threads(used):
        chosen = {name: work for name, work in workloads(quick=quick).items() if only in ("", name)}
        found = {name: workload(name, *work, rounds, used, peers, tell) for name, work in chosen.items()}
    return Report(
        bench="engine",
        settings={"rounds": rounds, "threads": used, "quick": int(quick)},
        machine=described(),
        load=(before, os.getloadavg()[0]),
        tables=[table for table, _ in found.values()],
        aims=[aim for _, aims in found.values() for aim in aims],
    )


def threads_of(threads: int) -> int:
    """So many, or as many as there are cores when 0."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return threads or cores


@contextmanager
def of_threads(threads: int) -> Iterator[None]:
    """Within the block torch has so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def described() -> dict[str, object]:
    """The machine, and the versions that count."""
    return {
        **{key: value for key, value in machine().items() if key != "pytest"},
        "torch": str(torch.__version__),
        "transformers": version_of("transformers"),
    }


def workload(
    name: str, sizes: Sizes, shape: Shape, rounds: int, threads: int, peers: bool, tell: Callable[[str], None]
) -> tuple[Table, list[Aim]]:
    """The table of one workload, and what it should have been."""
    work = make(shape, sizes.vocabulary)
    players = ours(sizes) | library(sizes)
    with players_of_vllm(sizes, shape, threads, wanted=peers) as (served, note):
        players |= served
        contestants = {key: player.on(key, work) for key, player in players.items()}
        took = turns(contestants, rounds, pause_s=PAUSE_S, tell=tell)
    fast = speed(working_set(sizes, shape))
    return as_table(name, sizes, shape, took, fast, note), aims(name, took, note)


@dataclass(frozen=True, kw_only=True)
class Player:
    """Who can play any workload, and the processor time that this has taken so far."""

    play: Callable[[Work], Replies]
    used: Callable[[], float] = time.process_time

    def on(self, name: str, work: Work) -> Contestant:
        """It, on one workload; each play is checked to be that work."""
        return Contestant(play=lambda: check(name, self.play(work), work), used=self.used)


def ours(sizes: Sizes) -> dict[str, Player]:
    """Our engine in its two schedules."""
    policy = HuggingFacePolicy(model(sizes)).eval()
    return {
        OURS: Player(play=OurEngine(policy, schedule="continuous").play),
        LOCKSTEP: Player(play=OurEngine(policy, schedule="lockstep").play),
    }


def library(sizes: Sizes) -> dict[str, Player]:
    """`generate`, as documented and with the prompt computed once; on a model of its own, as ours changes its one."""
    theirs = model(sizes)
    return {
        GENERATE: Player(play=Generate(theirs).play),
        ONCE: Player(play=Generate(theirs, prompt_once=True).play),
    }


@contextmanager
def players_of_vllm(
    sizes: Sizes, shape: Shape, threads: int, *, wanted: bool
) -> Iterator[tuple[dict[str, Player], str]]:
    """vLLM without and with log-probabilities, and its versions; none and why, where it is not there."""
    if not wanted or vllm_peer.interpreter() is None:
        yield {}, vllm_peer.MISSING if wanted else "vLLM was left out, as was asked for"
        return
    room = -(-(shape.longest + 1) // 128) * 128
    with vllm_peer.running(model(sizes), context=room, sequences=shape.conversations, threads=threads) as server:
        versions = ", ".join(f"{key} {value}" for key, value in server.versions.items())
        with_logprobs = partial(server.play, logprobs=True)
        yield (
            {
                VLLM: Player(play=server.play, used=server.used),
                VLLM_LOGPROBS: Player(play=with_logprobs, used=server.used),
            },
            f"versions there: {versions}",
        )


def as_table(name: str, sizes: Sizes, shape: Shape, took: Mapping[str, Took], fast: Speed, note: str) -> Table:
    """One row a contestant, and the floor."""
    least = floor(sizes, shape)
    limit = least.seconds(fast)
    rows: list[tuple[Cell, ...]] = []
    mine = took[OURS]
    for contestant, one in took.items():
        middle = statistics.median(one.passed)
        used = ratio(mine.used, one.used)[0]
        rows.append((contestant, shape.sampled / middle, *ratio(mine.passed, one.passed), used, limit / middle))
    rows.append(("floor", shape.sampled / limit, limit / statistics.median(mine.passed), None, None, None, 1.0))
    return Table(
        title=f"{name}: {told(sizes)}; {told_work(shape)}",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(*NOTES, floor_note(shape, least, fast), note),
    )


def told(sizes: Sizes) -> str:
    """A model in words."""
    numbers = sizes.layers * sizes.layer_weights + sizes.head_weights
    return f"{numbers / 1e6:.2f} M weights, {sizes.layers} layers of {sizes.width}, vocabulary {sizes.vocabulary:,}"


def told_work(shape: Shape) -> str:
    """A workload in words."""
    later = f", {shape.turns} turns with {shape.observation} tokens between" if shape.turns > 1 else ""
    return (
        f"{shape.conversations} conversations in groups of {shape.group} on prompts of {shape.prompt} tokens, "
        f"{shape.reply} new tokens a turn{later}"
    )


def floor_note(shape: Shape, least: Floor, fast: Speed) -> str:
    """What the floor is made of, for each generated token."""
    each = shape.sampled
    return (
        f"floor for each generated token: {least.operations / each / 1e6:.3g} M operations, "
        f"{least.bytes / each / 1e3:.3g} kB read; here {fast.operations_per_s / 1e9:.0f} GFLOP/s and "
        f"{fast.bytes_per_s / 1e9:.0f} GB/s, so {least.bound(fast)} is what bounds it"
    )


def aims(name: str, took: Mapping[str, Took], note: str) -> list[Aim]:
    """How much faster than each peer ours is, beside what it should be."""
    made = []
    for peer, wanted in TARGETS[name]:
        value = ratio(took[OURS].passed, took[peer].passed)[0] if peer in took else None
        made.append(Aim(name=f"{name}: {peer} / ours", value=value, wanted=wanted, note="" if peer in took else note))
    return made
