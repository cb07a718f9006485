"""Decoupled PPO: the proximal policy between the sampler and the current policy."""

import math

import pytest
import torch

from agentrl.algorithms.decoupled import decoupled_ppo, proximal_logprobs
from agentrl.algorithms.objectives import ppo_clip
from agentrl.errors import TrainerError


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def test_the_proximal_policy_lies_between_by_version():
    # Version 8 in training, clip around 7. Sampled at 3: alpha 4/5; at 6: 1/2; at 7 or 8: the sampler itself.
    current, sampler = tensor([-1.0] * 4), tensor([-2.0] * 4)
    proximal = proximal_logprobs(
        current,
        sampler,
        torch.ones(4).bool(),
        versions_T=torch.tensor([3, 6, 7, 8]),
        proximal_version=7,
        current_version=8,
    )
    assert proximal.tolist() == pytest.approx([-1.2, -1.5, -2.0, -2.0])


def test_the_proximal_policy_may_be_the_current_one():
    proximal = proximal_logprobs(
        tensor([-1.0, -1.0]),
        tensor([-2.0, -2.0]),
        torch.ones(2).bool(),
        versions_T=torch.tensor([3, 8]),
        proximal_version=8,
        current_version=8,
    )
    # alpha 1 for the stale token; the fresh one has no distance to divide.
    assert proximal.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e9])
def test_nothing_behind_the_mask_is_read(poison):
    def run(hidden, version):
        current = tensor([-1.0, hidden]).requires_grad_()
        result = proximal_logprobs(
            current,
            tensor([-2.0, hidden]),
            torch.tensor([True, False]),
            versions_T=torch.tensor([3, version]),
            proximal_version=7,
            current_version=8,
        )
        assert not result.requires_grad
        return result

    assert torch.equal(run(0.0, 3), run(poison, 99))
    assert run(poison, -1).tolist() == pytest.approx([-1.2, 0.0])


def test_a_version_from_the_future_is_refused():
    for versions, proximal in ((9, 7), (3, 9)):
        with pytest.raises(TrainerError, match="version 9 is newer than current_version 8"):
            proximal_logprobs(
                tensor([-1.0]),
                tensor([-1.0]),
                torch.tensor([True]),
                versions_T=torch.tensor([versions]),
                proximal_version=proximal,
                current_version=8,
            )


def test_the_decoupled_objective_on_exact_numbers():
    # mu .2, prox .4, pi .44, A 1: w = 2, rho = 1.1, loss -2.2 and gradient -2.2. Around mu, 2.2 is clipped at 1.2.
    current = tensor([0.44]).log().requires_grad_()
    proximal, sampler, mask = tensor([0.4]).log(), tensor([0.2]).log(), torch.tensor([True])
    weight = decoupled_ppo(proximal, sampler, mask).weight_T
    loss = weight * ppo_clip(current, proximal, tensor([1.0]), mask, clip_low=0.2, clip_high=0.2).loss_T
    loss.sum().backward()
    assert (loss.item(), current.grad.item()) == (pytest.approx(-2.2), pytest.approx(-2.2))
    around_sampler = ppo_clip(current, sampler, tensor([1.0]), mask, clip_low=0.2, clip_high=0.2)
    assert around_sampler.loss_T.item() == pytest.approx(-1.2)


def test_a_behaviour_weight_above_the_cap_is_left_out_and_not_cut():
    result = decoupled_ppo(tensor([0.0, 0.0]), -tensor([4.0, 6.0]).log(), torch.ones(2).bool())
    assert result.weight_T.tolist() == pytest.approx([4.0, 0.0])
    assert result.kept_T.tolist() == [True, False]
    uncut = decoupled_ppo(tensor([0.0]), -tensor([6.0]).log(), torch.ones(1).bool(), cap=math.inf)
    assert uncut.weight_T.item() == pytest.approx(6.0)
