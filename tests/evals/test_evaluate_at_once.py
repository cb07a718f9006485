"""An evaluation that plays a few attempts at a time makes the same draws."""

import asyncio

from agentrl.engine.local import LocalEngine
from agentrl.evals.evaluate import evaluate
from tests.rollout.test_rollout import HARNESS, ToySet, make_engine


def found(at_once):
    engine = make_engine()
    most = 0
    session = LocalEngine.session

    def counted(self, seed, *, greedy=False):
        nonlocal most
        made = session(self, seed, greedy=greedy)
        most = max(most, len(self._open))
        return made

    LocalEngine.session = counted
    try:
        evaluation = asyncio.run(
            evaluate(ToySet(), harness=HARNESS, sampler=engine, attempts=2, seed=3, name="e", at_once=at_once)
        )
    finally:
        LocalEngine.session = session
    return evaluation, most


def test_fewer_side_by_side_give_the_same_attempts():
    (whole, all_open), (parts, few_open) = found(None), found(3)
    assert (all_open, few_open) == (6, 2)  # three tasks; of three at once, one task's two attempts fit
    assert [(trace.id, trace.seed) for trace in parts.traces] == [(trace.id, trace.seed) for trace in whole.traces]
    assert [[node.sampled_ids for node in trace.nodes] for trace in parts.traces] == [
        [node.sampled_ids for node in trace.nodes] for trace in whole.traces
    ]
    assert parts.outcomes == whole.outcomes
