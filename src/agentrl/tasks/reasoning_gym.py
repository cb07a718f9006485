"""The data sets of reasoning-gym: questions made from a seed, with a verifier for each kind, nothing downloaded.

Source: Stojanovski et al., "REASONING GYM: Reasoning Environments for Reinforcement Learning with Verifiable Rewards"
(2025), package ``reasoning-gym``. A task is made from its name, split and index alone. Making and verifying is done in
processes of `rewards.verifier`, in which sets have one order: without that four of the data sets differ from process
to process.
"""

from __future__ import annotations

import difflib
from functools import partial

from agentrl.engine.random import derive_seed
from agentrl.errors import ScorerError, TaskError
from agentrl.rewards.match import Rule
from agentrl.rewards.readable import NONSENSE
from agentrl.rewards.verifier import Verifier
from agentrl.tasks.answering import AnswerEnvironment
from agentrl.types import Message, Task

VERSION = "reasoning-gym-v1"
RULE: Rule = "tag"
SYSTEM_PROMPT = (
    "Solve the problem. Think as long as you need, and then give the final answer, and nothing else, between the tags "
    "<answer> and </answer>, in the form that the question asks for."
)
SPLITS = ("train", "validation", "test")
OTHERS = ("composite",)
"""Registered names that are no data set by themselves."""


class ReasoningGym:
    """Tasks of one data set and split.

    Ids are ``reasoning-gym-v1/PACKAGE_VERSION/NAME/SPLIT/INDEX``, since another version of the package may make other
    tasks under the same seeds.

    Args:
        name: of the data set, such as ``countdown``.
        split: ``train``, ``validation`` or ``test``, which have seeds of their own. In data sets with few different
            questions the same one may come up in two splits.
        num_tasks: how many, at least one. More tasks leave the earlier ones as they are.
        threshold: the verifier's reward from which an answer passes, above 0 and up to 1; None makes the reward itself
            the score.
        verifier: makes and verifies. None makes one, which `close` ends.

    Raises:
        TaskError: an unknown data set, split or threshold, the package is missing, or the data set's verifier
            does not credit its own answer, or credits nonsense.
        ScorerError: a task could not be made within the verifier's limits.
    """

    def __init__(
        self,
        name: str,
        split: str = "train",
        num_tasks: int = 100,
        *,
        threshold: float | None = 1.0,
        verifier: Verifier | None = None,
    ) -> None:
        if split not in SPLITS:
            raise TaskError(f"unknown split {split!r}; the splits are {', '.join(SPLITS)}")
        if num_tasks < 1:
            raise TaskError(f"num_tasks is {num_tasks}; a task set has at least one task")
        if threshold is not None and not 0.0 < threshold <= 1.0:
            raise TaskError(f"threshold {threshold:g}: write a number above 0 and up to 1, or none")
        self.name, self.threshold = name, threshold
        self._own = verifier is None
        self._verifier = verifier or Verifier()
        try:
            about = self._verifier.ask_now("about", {"package": "reasoning_gym"})
            _check_name(name, about["names"])
            self.version = f"{VERSION}/{about['version']}"
            self.id = f"{self.version}/{name}"
            self._answers: dict[str, str | None] = {}
            self._seeds: dict[str, int] = {}
            self._tasks = tuple(self._make(split, index) for index in range(num_tasks))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index]

    def environment(self, task: Task) -> AnswerEnvironment:
        """A fresh environment for one attempt at ``task``. Raises TaskError for a task that is not of this set."""
        if task.id not in self._seeds:
            raise TaskError(f"task {task.id!r} is not of this set; its tasks are {self[0].id} to {self[-1].id}")
        verify = partial(self._verify, self._seeds[task.id])
        control = self._answers[task.id] or NONSENSE
        return AnswerEnvironment(task, verify=verify, rule=RULE, threshold=self.threshold, control=control)

    def right_reply(self, task_id: str) -> str | None:
        """A reply that gives the data set's own answer; None where it keeps none, as many answers are right."""
        answer = self._answers[task_id]
        return None if answer is None else f"<answer>{answer}</answer>"

    def close(self) -> None:
        """End the processes that this set made for itself. Safe to call twice."""
        if self._own:
            self._verifier.close()

    async def _verify(self, seed: int, answer: str) -> dict[str, object]:
        return await self._verifier.ask("reasoning_gym", {"name": self.name, "seed": seed, "answer": answer})

    def _make(self, split: str, index: int) -> Task:
        seed = derive_seed(VERSION, self.name, split, index) % 2**31
        try:
            made = self._verifier.ask_now("make", {"name": self.name, "seed": seed})
        except ScorerError as error:
            raise TaskError(f"task {index} of {self.name} cannot be made: {error}") from error
        task = Task(
            id=f"{self.id}/{split}/{index}",
            prompt=(Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=made["question"])),
            metadata={"category": made["category"]},
            family=self.name,
            split=split,
        )
        self._check(task, made["known"], made["nonsense"])
        self._answers[task.id], self._seeds[task.id] = made["answer"], seed
        return task

    def _check(self, task: Task, known: float | None, nonsense: float) -> None:
        """A gold answer must pass and nonsense must not, else scores mean nothing."""
        needed = 1.0 if self.threshold is None else self.threshold
        if known is not None and known < needed:
            raise TaskError(f"{task.id}: its verifier gives its own answer {known:g}, below {needed:g}; leave it out")
        if nonsense >= needed:
            raise TaskError(f"{task.id}: its verifier gives nonsense {nonsense:g}; take a threshold above that")


def _check_name(name: str, known: list[str]) -> None:
    names = [one for one in known if one not in OTHERS]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or names[:3]
        raise TaskError(
            f"reasoning-gym has no data set {name!r}; it has {len(names)}, such as {', '.join(near)}; "
            "reasoning_gym.factory.DATASETS has all"
        )
