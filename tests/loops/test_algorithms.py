"""Every algorithm takes a step on real attempts: from the groups of one rollout to other weights."""

import copy

import pytest
import torch

from agentrl.algorithms.presets import preset
from agentrl.catalogue import CATALOGUE, entry
from agentrl.loops.learner import Learner
from agentrl.loops.rl import credit
from agentrl.train.parity.figures import tolerance_of
from agentrl.train.trainer import OptimizerSettings, Trainer
from tests.loops.test_learning import CONFIG

RL = CONFIG.rl
SETTINGS = OptimizerSettings(learning_rate=1e-3, matrix_learning_rate=2e-3, total_steps=2)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_algorithm_takes_a_step_on_real_attempts(played, name):
    model, groups = played
    trainer = Trainer(copy.deepcopy(model), SETTINGS)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    algorithm = preset(name)
    credited = credit(groups, algorithm)
    metrics = Learner(trainer, algorithm, RL).learn(credited.samples, 0)
    assert metrics["tokens_trained"] == sum(map(sum, (sample.weights["pg"] for sample in credited.samples)))
    assert metrics["logprob_gap"] < tolerance_of(model).largest
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["grad_norm"] > 0
    moved = [not torch.equal(p, q) for p, q in zip(trainer.model.parameters(), before, strict=True)]
    assert sum(moved) >= len(moved) - 2  # all but the value head of an algorithm without a critic
    assert ("value_loss" in metrics) == entry(name).critic == (algorithm.critic is not None)
    assert ("imitation_loss" in metrics) == (name == "vapo")


def test_algorithms_differ_where_they_say_so(played):
    """Not one thing under many names: after a step on fresh data any two of these have other weights."""
    model, groups = played

    def after(name):
        trainer = Trainer(copy.deepcopy(model), SETTINGS)
        algorithm = preset(name)
        Learner(trainer, algorithm, RL).learn(credit(groups, algorithm).samples, 0)
        return flat(trainer.model)

    names = ("rloo", "remax", "dr_grpo", "grpo", "dapo", "gigpo", "reinforce_pp", "opo", "maxrl", "pass_at_k")
    weights = {name: after(name) for name in (*names, "ppo", "ppo_turn", "vapo")}
    for first in weights:
        for second in weights:
            assert torch.equal(weights[first], weights[second]) == (first == second), (first, second)


def test_turns_from_the_same_state_are_found(played):
    """All attempts at a task begin in one state, and those of different tasks in others."""
    _, groups = played
    first = [{trace.metadata["states"][0] for trace in group.traces} for group in groups]
    assert all(len(states) == 1 for states in first)
    assert len(set.union(*first)) == len(groups)
    found = credit(groups, preset("gigpo"))
    noted = [trace.metadata for trace in found.traces if "advantages" in trace.metadata]
    assert len(noted) == sum(len(group.traces) for group in groups)
    assert any(len(set(note["advantages"])) > 1 for note in noted)  # turns of one attempt differ
