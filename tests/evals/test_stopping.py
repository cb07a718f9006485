"""An evaluation ends early when its question is decided, and only then."""

import asyncio

import pytest

from agentrl.errors import StoreError
from agentrl.evals.result import table_of
from agentrl.evals.stopping import Question, means_of
from tests.evals.world import Coin, Lines, evaluator


def stopped(path, chance, question, tasks=60):
    """The decision and the attempts that it took."""
    task_set = Lines(tasks)
    parts, listed = evaluator(path, task_set, Coin(task_set, chance), wave=10)
    found = []

    def watch(standing):
        found.append((question.answer(standing), standing.done))
        return found[-1][0] is not None and found[-1][0].verdict != "undecided"

    asyncio.run(parts.run(listed, 1, watch))
    return found[-1]


def test_a_clear_answer_ends_it_early_and_an_unclear_one_does_not(tmp_path):
    decision, done = stopped(tmp_path / "a", 1.0, Question(target=0.3))
    assert (decision.verdict, done < 60) == ("above", True)
    assert decision.low > 0.3
    decision, done = stopped(tmp_path / "b", 0.0, Question(target=0.7))
    assert (decision.verdict, done < 60) == ("below", True)
    decision, done = stopped(tmp_path / "c", 0.5, Question(target=0.5), tasks=20)
    assert (decision.verdict, done) == ("undecided", 20)


def test_another_policy_is_compared_with_on_the_same_tasks(tmp_path):
    never = {f"lines/{n}": 0.0 for n in range(60)}
    decision, done = stopped(tmp_path / "a", 1.0, Question(baseline=never))
    assert (decision.verdict, done < 60) == ("above", True)
    always = dict.fromkeys(never, 1.0)
    decision, _ = stopped(tmp_path / "b", 1.0, Question(baseline=always), tasks=20)
    assert decision.verdict == "undecided"  # no difference at all is never shown to be one


def test_tasks_that_the_other_policy_lacks_are_named():
    with pytest.raises(StoreError, match="has no score of 1 of 2 tasks, such as b; evaluate both"):
        Question(baseline={"a": 1.0}).check(["a", "b"])
    Question(baseline={"a": 1.0}).check(["a"])
    Question(target=0.5).check(["a"])


def test_nothing_is_said_before_a_task_is_done(tmp_path):
    task_set = Lines(4)
    parts, tasks = evaluator(tmp_path / "e", task_set, Coin(task_set), wave=1)
    answers = []
    asyncio.run(parts.run(tasks, 1, lambda standing: bool(answers.append(Question(target=0.5).answer(standing)))))
    assert [answer is None for answer in answers] == [True, True, False, False, False]  # a cluster has two tasks
    means = means_of(table_of("coin", parts.folder.traces()))
    assert set(means) == {f"lines/{n}" for n in range(4)}
