"""The evaluation that a training run makes: everything at once, one policy, attempts that say their cluster."""

import asyncio

import pytest

from agentrl.errors import SamplerError
from agentrl.evals.baselines import scripted_harness
from agentrl.evals.evaluate import evaluate
from agentrl.evals.result import mean_interval, table_of
from agentrl.evals.stats import pass_at_1
from tests.evals.test_running import Stale
from tests.evals.world import Coin, Lines


class Policy:
    """The coin as a sampler; sessions know their task by the order in which they are opened."""

    version = 0

    def __init__(self, task_set, attempts, *, stale=False):
        self.coin, self.stale = Coin(task_set), stale
        self.turns = iter([task_set[n] for n in range(len(task_set)) for _ in range(attempts)])

    def session(self, seed, *, greedy=False):
        session = self.coin(next(self.turns), seed)
        return Stale(session.script, session.write, session.read) if self.stale and seed % 2 else session


def measured(**kind):
    task_set = Lines(8)
    parts = {"harness": scripted_harness(4), "sampler": Policy(task_set, 2, **kind), "attempts": 2}
    return asyncio.run(evaluate(task_set, **parts, seed=0, name="test"))


def test_every_task_is_attempted_and_labelled():
    found = measured()
    assert list(found.outcomes) == [f"lines/{n}" for n in range(8)]
    rewards = [reward for attempts in found.outcomes.values() for reward in attempts]
    assert found.pass_at_1.mean == pytest.approx(sum(rewards) / 16)
    assert [trace.reward for trace in found.traces] == rewards
    clusters = [trace.metadata["cluster"] for trace in found.traces]
    assert len(set(clusters)) == 4
    assert clusters[:4] == [clusters[0]] * 4


def test_its_interval_is_that_of_the_command_and_not_of_independent_tasks():
    """Two tasks of each of four programs."""
    found = measured()
    assert len(found.clusters) == 8
    command = mean_interval(table_of("coin", found.traces))
    own = found.pass_at_1
    assert (own.low, own.high, own.method) == pytest.approx((command.low, command.high, command.method))
    assert own.num_clusters == 4
    assert pass_at_1(found.outcomes).num_clusters == 8


def test_a_policy_that_changes_meanwhile_is_refused():
    with pytest.raises(SamplerError, match=r"an evaluation mixed policy versions \[0, 1\]"):
        measured(stale=True)
