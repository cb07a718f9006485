"""Policies that sample more than once and hand in one answer.

They play through the same environments and the same loop as single attempts. What chooses may be a verifier, a reward
model or a vote; the task's own verdict stands on the traces too, so a chooser must not read it: the ones here read only
what they are given a function for. Ties are broken by a draw from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agentrl.engine.random import derive_seed
from agentrl.errors import SamplerError
from agentrl.evals.attempts import attempt_of
from agentrl.evals.running import Opener
from agentrl.harness.loop import AgentLoop
from agentrl.protocols import TaskSet
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.types import Message, Task, Trace

Play = Callable[[Task, AttemptId], Awaitable[Trace]]
"""Plays one attempt at a task."""
Chooser = Callable[[Sequence[Trace], random.Random], int]
"""The place of the attempt that is handed in."""
Weight = Callable[[Trace], float | None]
"""What a verifier or a reward model thinks of an attempt; None where it has no opinion, which is the lowest."""
Answer = Callable[[Trace], str | None]
"""The answer of an attempt, equal where two answer the same; None for none."""
Feedback = Callable[[Trace], str | None]
"""What is said to the policy about its last answer; None where there is nothing to say, which ends the revising."""

REVISE = "Look at your answer again, step by step. Correct it if it is wrong, and give the final answer once more."


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was handed in, and all that was played for it, in order."""

    trace: Trace
    played: tuple[Trace, ...]

    @property
    def tokens(self) -> float | None:
        """Tokens sampled for it, those of the attempts that were not taken too; None where one is not known."""
        counts = [attempt_of(trace, "").tokens for trace in self.played]
        return None if any(count is None for count in counts) else sum(count for count in counts if count is not None)


def player_of(task_set: TaskSet, harness: AgentLoop, open_session: Opener) -> Play:
    """Plays attempts with one policy in one loop. A conversation is open as soon as its attempt is asked for, so that
    an engine knows of all that are to run side by side before the first begins."""

    def play(task: Task, identity: AttemptId) -> Awaitable[Trace]:
        return attempt(task_set, task, harness, open_session(task, identity.seed), identity)

    return play


async def best_of_n(play: Play, task: Task, n: int, choose: Chooser, *, seed: int, group_id: str = "best") -> Chosen:
    """Play n attempts side by side and hand in the one that a chooser takes. Attempts that failed for our reasons are
    no candidates.

    Args:
        play: see `player_of`.
        task: the task.
        n: attempts, at least 1.
        choose: `pick_best` or `pick_vote`.
        seed: of the attempts and of ties.
        group_id: what the attempts are called.

    Raises:
        SamplerError: every attempt failed for our reasons.
    """
    played = tuple(await asyncio.gather(*(play(task, _identity(group_id, number, seed, task)) for number in range(n))))
    candidates = [trace for trace in played if trace.error is None]
    if not candidates:
        raise SamplerError(f"none of {n} attempts at {task.id} could be played: {played[0].error}")
    rng = random.Random(derive_seed(seed, "choice", task.id))
    return Chosen(trace=candidates[choose(candidates, rng)], played=played)


def pick_best(weight: Weight) -> Chooser:
    """The attempt with the highest weight."""

    def choose(traces: Sequence[Trace], rng: random.Random) -> int:
        weights = [-float("inf") if (found := weight(trace)) is None else found for trace in traces]
        return rng.choice([place for place, found in enumerate(weights) if found == max(weights)])

    return choose


def pick_vote(answer: Answer, weight: Weight = lambda trace: 1.0) -> Chooser:  # noqa: ARG005
    """An attempt with the answer that gets most votes, each with its weight of 0 or more; any attempt where nobody
    votes."""

    def choose(traces: Sequence[Trace], rng: random.Random) -> int:
        votes: dict[str, float] = {}
        answers = [answer(trace) for trace in traces]
        for trace, found in zip(traces, answers, strict=True):
            if found is not None:
                votes[found] = votes.get(found, 0.0) + (weight(trace) or 0.0)
        most = max(votes.values(), default=0.0)
        if most <= 0.0:
            return rng.randrange(len(traces))
        elected = rng.choice([found for found, count in votes.items() if count == most])
        return rng.choice([place for place, found in enumerate(answers) if found == elected])

    return choose


async def majority(play: Play, task: Task, n: int, answer: Answer, *, seed: int) -> Chosen:
    """Play n attempts and hand in the most frequent answer. Arguments and errors as `best_of_n`."""
    return await best_of_n(play, task, n, pick_vote(answer), seed=seed, group_id="majority")


async def revise(
    play: Play,
    task: Task,
    rounds: int,
    *,
    seed: int,
    feedback: Feedback = lambda trace: REVISE,  # noqa: ARG005
    number: int = 0,
) -> Chosen:
    """Answer, then answer again with the last answer in view, up to so many rounds; the last answer is handed in.

    Each round is an attempt of its own at the same task: its prompt is the task's, the last reply, and what is said to
    it. The environment is fresh, so this is for tasks that are answered in messages.

    Args:
        play: see `player_of`.
        task: the task.
        rounds: at most, at least 1.
        seed: of the draws.
        feedback: what is said about the last answer. It may run visible tests; the task's verdict is not for it.
        number: of this attempt at the task.

    Raises:
        SamplerError: the first round failed for our reasons. A later one that fails leaves the answer as it was.
    """
    played: list[Trace] = []
    asked = task
    for round_ in range(rounds):
        identity = AttemptId(
            group_id=f"revise-{number}", attempt=round_, seed=derive_seed(seed, "revise", task.id, number, round_)
        )
        trace = await play(asked, identity)
        played.append(trace)
        said = None if trace.error is not None else feedback(trace)
        if said is None:
            break
        asked = replace(task, prompt=(*task.prompt, _last_reply(trace), Message(role="user", content=said)))
    answered = [trace for trace in played if trace.error is None]
    if not answered:
        raise SamplerError(f"no answer to {task.id} could be had: {played[0].error}")
    return Chosen(trace=answered[-1], played=tuple(played))


def _last_reply(trace: Trace) -> Message:
    """The last reply without its calls and its reasoning, which belong to the round that is over."""
    replies = [node.message for node in trace.nodes if node.message.role == "assistant"]
    return Message(role="assistant", content=replies[-1].content if replies else "")


def _identity(group_id: str, number: int, seed: int, task: Task) -> AttemptId:
    return AttemptId(group_id=group_id, attempt=number, seed=derive_seed(seed, group_id, task.id, number))
