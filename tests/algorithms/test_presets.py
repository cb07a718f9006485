"""A preset means its sentence."""

import doctest

import pytest
import torch

from agentrl.algorithms import advantages, presets
from agentrl.algorithms.advantages import group_mean
from agentrl.algorithms.filters import no_signal
from agentrl.algorithms.presets import DR_GRPO, PRESETS, REINFORCE, preset
from agentrl.errors import ConfigError

# One token each: log ratios 0, log 1.5, log 0.5, 0 against credits .5, .5, -.5, -.5.
OLD = torch.full((4,), -1.0, dtype=torch.float64)
NEW = OLD + torch.tensor([1.0, 1.5, 0.5, 1.0], dtype=torch.float64).log()
CREDIT = torch.tensor(group_mean([1, 1, 0, 0]), dtype=torch.float64)
MASK = torch.ones(4, dtype=torch.bool)


def step_loss(chosen):
    loss_T = chosen.objective(NEW, OLD, CREDIT, MASK).loss_T
    return chosen.reduction(loss_T, torch.ones_like(loss_T), 4.0).item()


def test_dr_grpo_on_exact_numbers():
    # Losses -.5*1, -.5*min(1.5, 1.2), +.5*max(.5, .8), +.5*1 = -.5 - .6 + .4 + .5 = -.2; over 4 tokens -.05.
    assert step_loss(DR_GRPO) == pytest.approx(-0.05, abs=1e-12)
    assert (DR_GRPO.credit, DR_GRPO.filters) == (group_mean, (no_signal,))


def test_reinforce_on_exact_numbers():
    # -A log pi: .5, .5 - .5 log 1.5, -.5 + .5 log .5, -.5; the ones cancel: (.5 log .5 - .5 log 1.5) / 4.
    assert step_loss(REINFORCE) == pytest.approx((0.5 * -0.693147 - 0.5 * 0.405465) / 4, abs=1e-6)
    assert (REINFORCE.credit, REINFORCE.filters) == (group_mean, ())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_found_under_its_own_name(name):
    assert preset(name).name == name


@pytest.mark.parametrize(
    ("typo", "nearest"), [("drgrpo", "dr_grpo"), ("reinforcement", "reinforce"), ("grpo", "dr_grpo")]
)
def test_an_unknown_name_is_refused_with_the_nearest(typo, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        preset(typo)


@pytest.mark.parametrize("module", [advantages, presets], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
