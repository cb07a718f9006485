"""What counts as a loss, what a wrong one is told, and what stopping a gradient does to a slope."""

from functools import partial

import pytest
import torch

from agentrl.algorithms.invariance import examine
from agentrl.algorithms.objectives import ppo_clip, reinforce
from agentrl.algorithms.probe import NAMED, Loss, Totals, example_step
from agentrl.algorithms.sequence import gspo
from agentrl.errors import ConfigError, TrainerError


def zero(logprobs_T):
    return 0 * logprobs_T


LOSSES = {
    "four columns, whatever their names": (lambda a, b, c, d: -a, True),
    "star arguments": (lambda *columns: -columns[0], True),
    "a PolicyLoss": (reinforce, True),
    "settings bound": (partial(ppo_clip, clip_low=0.2, clip_high=0.2), True),
    "settings with defaults": (gspo, True),
    "a scalar": (lambda a, b, c, d, num_tokens: a.sum() / num_tokens, False),
}


@pytest.mark.parametrize(("function", "per_token"), LOSSES.values(), ids=LOSSES)
def test_what_a_loss_may_look_like(function, per_token):
    assert Loss(function).per_token is per_token


def test_named_arguments_are_those_of_the_step_and_given_only_where_taken():
    seen = []

    def loss(a, b, c, d, num_sequences, *, sequence_T, num_tokens=0):
        seen.append((sequence_T.tolist(), num_tokens, num_sequences))
        return zero(a).sum()

    step = example_step()
    probe = Loss(loss)
    # Masks 1, 1011, 1110111, 01111, 110: trained 1 + 3 + 6 + 4 + 2 = 16 of 20 tokens and 5 sequences.
    assert seen.pop() == ([0] + [1] * 4 + [2] * 7 + [3] * 5 + [4] * 3, 16, 5)
    probe.outcome(step.take(torch.tensor([0, 1])), Totals(num_tokens=16, num_sequences=5))
    assert seen.pop() == ([0, 1], 16, 5)
    assert len(NAMED) == 3


REFUSED = {
    "too few arguments": (lambda a, b: a, "too many positional arguments"),
    "a setting without a value": (ppo_clip, "missing a required.*clip_low.*functools.partial"),
    "by position only": (lambda a, b, c, d, sequence_T, /: a, "missing a required.*sequence_T"),
    "no loss": (lambda a, b, c, d: None, "returned NoneType, which is no loss"),
    "integers": (lambda a, b, c, d: d.sum(), "returned Tensor, which is no loss"),
    "a loss per sequence": (lambda a, b, c, d: a[:5], r"returned shape \(5,\) for 20 tokens"),
    "a sum with a dimension": (lambda a, b, c, d: a.sum()[None], r"returned shape \(1,\) for 20 tokens"),
    "an error": (lambda a, b, c, d: a @ b.new_zeros(3), "raised RuntimeError on a plain step"),
}


@pytest.mark.parametrize(("function", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_loss_is_told_what_to_write(function, words):
    with pytest.raises(ConfigError, match=words) as raised:
        Loss(function, "mine:loss")
    assert "mine:loss" in str(raised.value)
    assert "write loss(logprobs_T, old_logprobs_T, advantages_T, mask_T, *, sequence_T" in str(raised.value)


def test_a_loss_that_gives_two_values_for_one_step_is_refused():
    draw = torch.Generator().manual_seed(1)
    with pytest.raises(ConfigError, match="gave two values for one step"):
        Loss(lambda a, b, c, d: a * torch.rand(1, generator=draw))


def test_a_shape_that_changes_on_the_way_is_named():
    probe = Loss(lambda a, b, c, d: a.squeeze())
    with pytest.raises(TrainerError, match=r"it returned shape \(\) for 1 tokens, not \(1,\)"):
        probe.outcome(example_step().take(torch.tensor([0])))


def test_the_gradient_is_that_of_the_sum():
    step = example_step()
    outcome = Loss(lambda a, b, c, d: a.square()).outcome(step)
    assert torch.equal(outcome.gradient_T, 2 * step.logprobs_T)
    assert not outcome.loss.requires_grad


# ---- stopping a gradient: the slope is that of the surrogate which the code declares


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, upstream):
        return upstream * 3 * ctx.saved_tensors[0].square()


def under_no_grad(x):
    with torch.no_grad():
        weight = torch.zeros_like(x)
        weight += x.exp()
        weight[:] = weight * 2
    return weight * x


def under_inference_mode(x):
    with torch.inference_mode():
        total = float(x.sum())
    return total * x


STOPPED = {
    "detach": lambda x: x.detach().exp() * x,
    "data": lambda x: x.data.exp() * x,
    "item": lambda x: x.detach().sum().item() * x,
    "float": lambda x: float(x.detach().sum()) * x,
    "tolist": lambda x: x.new_tensor(x.detach().tolist()) * x,
    "no_grad, in place": under_no_grad,
    "inference_mode": under_inference_mode,
    "straight through": lambda x: (x - x.detach()).exp() * x.detach(),
    "in a decorated function": lambda x: torch.no_grad()(torch.exp)(x) * x,
    "detach beside an autograd function": lambda x: Cube.apply(x) * x.detach(),
}
PLAIN = {"nothing": torch.exp, "an autograd function": Cube.apply}


def slopes(inner):
    return next(
        finding
        for finding in examine(lambda a, b, c, d: inner(torch.where(d, a, 0.0)))
        if finding.check == "finite differences"
    )


@pytest.mark.parametrize("inner", STOPPED.values(), ids=STOPPED)
def test_what_is_stopped_is_held_constant(inner):
    found = slopes(inner)
    assert (found.verdict, found.note) == ("pass", "what it detaches is held constant")


@pytest.mark.parametrize("inner", PLAIN.values(), ids=PLAIN)
def test_without_a_stop_nothing_is_held(inner):
    found = slopes(inner)
    assert (found.verdict, found.note) == ("pass", "")


def test_a_path_that_depends_on_the_numbers_cannot_be_checked_and_does_not_pass():
    step = example_step()
    here = torch.where(step.mask_T, step.logprobs_T, 0.0).sum()
    found = slopes(lambda x: x.detach() * x if x.sum() > here else x * 1)
    assert (found.verdict, found.deviation) == ("not applicable", None)
    assert "path" in found.note


@pytest.mark.parametrize(
    "inner", [lambda x: torch.tensor(x.detach().numpy().copy()) * x, lambda x: max(x.tolist()) * x]
)
def test_numbers_that_leave_torch_are_held_too(inner):
    assert slopes(inner).verdict == "pass"
