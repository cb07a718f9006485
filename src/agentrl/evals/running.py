"""Plays the attempts of an evaluation that are missing, keeps each as it comes, and says how it stands.

Tasks are taken in an order that is drawn from the seed before anything is known, those of one cluster beside each
other, and each wave is played to its end. So what is known at any moment is a prefix of that order, and a test that is
valid under peeking may look at it; attempts in the order in which they finish would favour what is done fast.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentrl.engine.random import derive_seed
from agentrl.errors import SamplerError
from agentrl.evals.baselines import Solved
from agentrl.evals.folder import EvaluationFolder, Key
from agentrl.harness.loop import AgentLoop
from agentrl.protocols import Session, TaskSet
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.types import Task, Trace

WAVE = 64
"""Attempts that are played at the same time."""

Opener = Callable[[Task, int], Session]
"""Opens the conversation of one attempt at a task, given the seed of its draws."""


class Place(NamedTuple):
    """A task of the design and its cluster; a task that is in none is a cluster of its own."""

    task: Task
    cluster: str


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How an evaluation stands after a wave.

    Attributes:
        done: attempts that were made, of those asked for.
        total: attempts asked for.
        traces: those that were made.
        complete: ids of the tasks whose attempts are all made, and those of the other tasks of their clusters too; a
            prefix of ``design``.
        design: every task, in the order in which they are played.
    """

    done: int
    total: int
    traces: Sequence[Trace]
    complete: Sequence[str]
    design: Sequence[Place]


Watch = Callable[[Standing], bool]
"""Is told after each wave; True ends the evaluation early."""


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """The parts of an evaluation that stay the same from attempt to attempt."""

    folder: EvaluationFolder
    task_set: TaskSet
    harness: AgentLoop
    open_session: Opener
    version: int
    seed: int
    wave: int = WAVE

    async def run(self, tasks: Sequence[Task], attempts: int, watch: Watch) -> None:
        """Play what is missing of ``attempts`` attempts at each task.

        An attempt that could not be scored counts as missing, and is made again; one that fails again stays unscored
        until the next call.

        Raises:
            SamplerError: an attempt was sampled from another version of the policy.
        """
        self.folder.mend()
        design = self.design(tasks)
        wanted = [(place.task, number) for place in design for number in range(attempts)]
        stored = {(trace.task_id, trace.attempt): trace for trace in self.folder.traces()}
        check_version(list(stored.values()), self.version)
        todo = [(task, n) for task, n in wanted if _missing(stored.get((task.id, n)))]
        ended = {(task.id, n) for task, n in wanted} - {(task.id, n) for task, n in todo}
        if watch(_standing(stored, design, attempts, ended)):
            return
        for wave in waves(todo, self.wave):
            for trace in await asyncio.gather(*self._open(wave, tasks)):
                stored[trace.task_id, trace.attempt] = trace
                ended.add((trace.task_id, trace.attempt))
            if watch(_standing(stored, design, attempts, ended)):
                return

    def design(self, tasks: Sequence[Task]) -> list[Place]:
        """The tasks in the order in which they are played: clusters by a draw of their own, which more tasks do not
        change, and within a cluster by id."""
        places = [Place(task, cluster_of(self.task_set, task) or task.id) for task in tasks]
        return sorted(places, key=lambda one: (derive_seed(self.seed, "order", one.cluster), one.cluster, one.task.id))

    def _open(self, wave: Sequence[tuple[Task, int]], tasks: Sequence[Task]) -> Iterator[asyncio.Future[Trace]]:
        """All conversations of a wave are open before the first begins, as engines with a shared schedule ask for."""
        places = {task.id: index for index, task in enumerate(tasks)}
        opened = []
        for task, number in wave:
            identity = AttemptId(
                group_id=f"eval-{places[task.id]}",
                attempt=number,
                seed=derive_seed(self.seed, "evaluation", task.id, number),
            )
            opened.append((task, identity, self.open_session(task, identity.seed)))
        return (asyncio.ensure_future(self._play(*one)) for one in opened)

    async def _play(self, task: Task, identity: AttemptId, session: Session) -> Trace:
        trace = await attempt(self.task_set, task, self.harness, session, identity)
        check_version([trace], self.version)
        kept = labelled(trace, self.task_set, task)
        self.folder.append(kept)
        return kept


def _standing(stored: dict[Key, Trace], design: Sequence[Place], attempts: int, ended: set[Key]) -> Standing:
    wanted = [(place.task.id, number) for place in design for number in range(attempts)]
    whole = sum(1 for _ in itertools.takewhile(lambda one: _played(one, attempts, ended), design))
    if whole < len(design):  # of a cluster, all tasks or none
        going_on = design[whole].cluster
        whole = next(n for n, place in enumerate(design) if place.cluster == going_on)
    return Standing(
        done=sum(key in ended for key in wanted),
        total=len(wanted),
        traces=[stored[key] for key in wanted if key in stored],
        complete=[place.task.id for place in design[:whole]],
        design=design,
    )


def _played(place: Place, attempts: int, ended: set[Key]) -> bool:
    return all((place.task.id, number) in ended for number in range(attempts))


def waves(todo: Sequence[tuple[Task, int]], size: int) -> Iterator[Sequence[tuple[Task, int]]]:
    """What is to be played in lots of at most ``size``."""
    return (todo[first : first + size] for first in range(0, len(todo), size))


def check_version(traces: Sequence[Trace], version: int) -> None:
    """Refuse attempts that were not sampled from this version of the policy. Raises SamplerError."""
    for trace in traces:
        other = {found for node in trace.nodes for found in node.versions} - {version}
        if other:
            raise SamplerError(
                f"attempt {trace.id} was sampled from version {min(other)} of the policy and the evaluation is of "
                f"version {version}; publish before or after it"
            )


def labelled(trace: Trace, task_set: TaskSet, task: Task) -> Trace:
    """The attempt with the cluster and the family of its task, as far as they are known, in its metadata."""
    labels = {"cluster": cluster_of(task_set, task), "family": task.family}
    return replace(trace, metadata={**trace.metadata, **{name: label for name, label in labels.items() if label}})


def cluster_of(task_set: TaskSet, task: Task) -> str | None:
    """What tasks that are not independent have in common: the tag ``cluster`` of their metadata, or the same solution,
    such as several bugs in one program. None where neither is known."""
    if "cluster" in task.metadata:
        return str(task.metadata["cluster"])
    if isinstance(task_set, Solved):
        files = sorted(task_set.solution(task.id).items())
        return hashlib.sha256(repr(files).encode()).hexdigest()[:12]
    return None


def _missing(trace: Trace | None) -> bool:
    return trace is None or trace.error is not None
