"""Every algorithm takes a step on real attempts: from the groups of one rollout to other weights."""

import asyncio
import copy
from dataclasses import replace

import pytest
import torch

from agentrl.algorithms.presets import preset
from agentrl.catalogue import CATALOGUE
from agentrl.loops.context import RunContext
from agentrl.loops.rl import LOGPROB_TOLERANCE, credit, train_on
from agentrl.loops.sft import warm_start
from agentrl.rollout.group import rollout
from agentrl.store import RunFolder
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Score
from tests.loops.test_learning import CONFIG, Silent

RL = CONFIG.rl
SETTINGS = OptimizerSettings(learning_rate=1e-3, matrix_learning_rate=2e-3, total_steps=2)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A half-taught model with a value head, and groups of its attempts, scored by the share of well-formed calls."""
    config = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"value_head": True})})
    context = RunContext(config, RunFolder.create(tmp_path_factory.mktemp("algorithms"), config), Silent())
    try:
        warm_start(context)
        tasks = context.train_tasks()
        context.engine.publish(0)
        played = rollout(
            tasks,
            [tasks[index] for index in range(4)],
            harness=context.harness,
            sampler=context.engine,
            attempts=6,
            seed=0,
            name="one",
        )
        groups = [replace(group, traces=tuple(map(scored, group.traces))) for group in asyncio.run(played)]
    finally:
        context.close()
    rewards = [set(group.rewards) for group in groups]
    assert sum(len(values) > 1 for values in rewards) >= 2  # something to learn from
    return context.model, groups


def scored(trace):
    calls = [call for node in trace.nodes for call in node.message.tool_calls]
    value = sum(call.problem is None for call in calls) / len(calls)
    return replace(trace, scores=(Score(name="well_formed", value=value),))


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_algorithm_takes_a_step_on_real_attempts(played, name):
    model, groups = played
    trainer = Trainer(copy.deepcopy(model), SETTINGS)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    algorithm = preset(name)
    credited = credit(groups, algorithm)
    metrics = train_on(trainer, credited.samples, algorithm, RL)
    assert metrics["tokens_trained"] == sum(map(sum, (sample.weights["pg"] for sample in credited.samples)))
    assert metrics["logprob_gap"] < LOGPROB_TOLERANCE
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["grad_norm"] > 0
    moved = [not torch.equal(p, q) for p, q in zip(trainer.model.parameters(), before, strict=True)]
    assert sum(moved) >= len(moved) - 2  # all but the value head of an algorithm without a critic
    assert ("value_loss" in metrics) == (algorithm.critic is not None)


def test_algorithms_differ_where_they_say_so(played):
    """Not one thing under many names: after a step on fresh data any two of these have other weights."""
    model, groups = played

    def after(name):
        trainer = Trainer(copy.deepcopy(model), SETTINGS)
        algorithm = preset(name)
        train_on(trainer, credit(groups, algorithm).samples, algorithm, RL)
        return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])

    names = ("rloo", "dr_grpo", "grpo", "dapo", "reinforce_pp", "opo", "maxrl", "pass_at_k", "ppo")
    weights = {name: after(name) for name in names}
    for first in names:
        for second in names:
            assert torch.equal(weights[first], weights[second]) == (first == second), (first, second)
