"""Arms that take turns: each round runs all of them, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl import __version__


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of doing a thing.

    Args:
        name: for people and for JSON.
        run: does it once, in the lane of that number.
        runs: how often each lane does it in a round.
        lanes: how many do it at a time.
    """

    name: str
    run: Callable[[int], Awaitable[object]]
    runs: int
    lanes: int = 2


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What an arm did: the median over rounds of the runs per second of all lanes together, and the best round.

    ``ms`` is how long one run took in its lane, from the median.
    """

    per_s: float
    best_per_s: float
    ms: float


async def rates(arms: Sequence[Arm], rounds: int) -> dict[str, Rate]:
    """Name of each arm -> what it did. Every arm runs once before the clock does.

    Args:
        arms: they take turns in this order.
        rounds: how many turns each has.
    """
    for arm in arms:
        await _round(arm, 1)
    seen: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            seen[arm.name].append(await _round(arm, arm.runs))
    return {arm.name: _rate(seen[arm.name], arm.lanes) for arm in arms}


def _rate(found: Sequence[float], lanes: int) -> Rate:
    middle = statistics.median(found)
    return Rate(per_s=middle, best_per_s=max(found), ms=1000 * lanes / middle)


async def _round(arm: Arm, runs: int) -> float:
    """Runs per second of one round."""

    async def lane(number: int) -> None:
        for _ in range(runs):
            await arm.run(number)

    started = time.perf_counter()
    await asyncio.gather(*map(lane, range(arm.lanes)))
    return arm.lanes * runs / (time.perf_counter() - started)


@dataclass(frozen=True, kw_only=True)
class Took:
    """What each round of a contestant took: seconds that passed, and seconds of processor time of all its threads."""

    passed: tuple[float, ...]
    used: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way of doing the same thing.

    Args:
        play: does it once.
        used: processor seconds used so far by the process that does it.
    """

    play: Callable[[], object]
    used: Callable[[], float] = time.process_time


def turns(
    contestants: Mapping[str, Contestant],
    rounds: int,
    *,
    pause_s: float = 0.0,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Took]:
    """What each contestant took in each round, after one round that is not counted.

    Args:
        contestants: they take turns in this order.
        rounds: how many turns each has.
        pause_s: before each turn, so that threads of the one before have stopped spinning.
        tell: is told what is done.
    """
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, contestant in contestants.items():
            tell(f"round {number} of {rounds}: {name}")
            time.sleep(pause_s)
            took = _clocked(contestant)
            if number:
                seen[name].append(took)
    return {
        name: Took(passed=tuple(row[0] for row in rows), used=tuple(row[1] for row in rows))
        for name, rows in seen.items()
    }


def _clocked(contestant: Contestant) -> tuple[float, float]:
    started, used = time.perf_counter(), contestant.used()
    contestant.play()
    return time.perf_counter() - started, contestant.used() - used


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """How often as long the others took within a round: median, least and greatest."""
    found = [b / a for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(found), min(found), max(found)


def machine() -> dict[str, object]:
    """What the numbers were measured on: processor, cores, kernel, versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "agentrl": __version__,
        "pytest": version_of("pytest"),
    }


def version_of(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def pss_mib(pids: Sequence[int]) -> float | None:
    """Memory of processes in MiB, what they share counted once, or None where the kernel does not tell."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            return None
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def descendants() -> Mapping[int, str]:
    """Id -> name of every process below this one."""
    found: dict[int, str] = {}
    left = [os.getpid()]
    while left:
        for child in _children(left.pop()):
            try:
                found[child] = Path(f"/proc/{child}/comm").read_text().strip()
            except OSError:
                continue  # it has ended
            left.append(child)
    return found


def _children(pid: int) -> list[int]:
    """Processes that a thread of `pid` started; none where it has ended, or where the kernel does not tell."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += [int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    except OSError:
        pass
    return found
