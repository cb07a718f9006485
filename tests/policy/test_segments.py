"""The passes between attentions see the weights that the model has, and leave to its modules what is not theirs."""

import copy

import pytest
import torch
from torch import nn

from agentrl.policy import plain, segments
from agentrl.policy.hf import _own_layers
from agentrl.policy.native import BLOCK
from agentrl.policy.segments import NotPlain
from tests.policy.test_plain import CONFIGS, make

pytestmark = pytest.mark.skipif(
    plain.kernels(16) is None or segments.blas_product() is None, reason="no C compiler, or another BLAS"
)


class Step:
    """A step in which each token attends to itself."""

    def attend(self, layer, q, k, v, *, window=None):
        shared = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
        return (torch.sigmoid((q * k).sum(-1, keepdim=True)) * v).flatten(1)


class Played:
    """A model's passes, and its own layers beside them."""

    def __init__(self, name="qwen3"):
        self.base = make(CONFIGS[name]).model.base_model
        self.way = next(iter(plain.plain_ways(self.base)))
        self.step = Step()

    def again(self, tokens=5):
        """A step like the one before, and what the model's own layers give now."""
        ids = torch.arange(tokens) % 60
        with torch.inference_mode():
            ours = self.way.segments(
                self.base.embed_tokens(ids).clone(), self.way._turns(self.base.embed_tokens(ids), ids), self.step.attend
            )
            return ours, _own_layers(self.base, ids, ids, self.step.attend)

    def agrees(self, tokens=5):
        ours, own = self.again(tokens)
        return bool((ours - own).abs().max() <= 1e-5 * own.abs().max())

    def laid_out_anew(self):
        self.step = Step()


@pytest.mark.parametrize("tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_tokens_of_several_blocks(name, tokens):
    played = Played(name)
    assert played.agrees(tokens)
    assert played.agrees(tokens)  # by what was found before


def test_what_a_trainer_writes_in_place_is_seen_at_the_next_step():
    played = Played()
    assert played.agrees()
    before, _ = played.again()
    with torch.no_grad():
        played.base.layers[1].mlp.up_proj.weight.mul_(2.0)
    assert played.agrees()
    assert not torch.equal(played.again()[0], before)


def test_weights_that_lie_elsewhere_are_found_at_the_next_step():
    played = Played()
    assert played.agrees()
    weight = played.base.layers[0].self_attn.k_proj.weight
    weight.data = 2.0 * weight.data
    assert played.agrees()


def test_a_module_that_was_exchanged_is_found_when_a_step_is_laid_out():
    played = Played()
    assert played.agrees()
    played.base.layers[2].mlp.down_proj = nn.Linear(40, 32, bias=False)
    played.laid_out_anew()
    assert played.agrees()


class Wider(nn.Linear):
    """A module that computes something more."""

    def forward(self, x):
        return 2.0 * super().forward(x)


def exchanged(base):
    base.layers[0].mlp.gate_proj = Wider(32, 40, bias=False)


def hooked(base):
    base.layers[0].self_attn.o_proj.register_forward_hook(lambda _, __, out: 2.0 * out)


def asked_before(base):
    base.layers[0].self_attn.v_proj.register_forward_pre_hook(lambda _, given: (2.0 * given[0],))


def norm_hooked(base):
    base.norm.register_forward_hook(lambda _, __, out: 2.0 * out)


def of_other_numbers(base):
    base.layers[1].mlp.up_proj.weight.data = base.layers[1].mlp.up_proj.weight.data.double()


def turned_round(base):
    weight = base.layers[1].self_attn.q_proj.weight
    weight.data = weight.data.T.contiguous().T


def of_another_shape(base):
    base.layers[1].mlp.up_proj = nn.Linear(32, 48, bias=False)


@pytest.mark.parametrize(
    "change", [exchanged, hooked, asked_before, norm_hooked, of_other_numbers, turned_round, of_another_shape]
)
def test_what_is_not_plain_is_left_to_the_modules(change):
    played = Played()
    assert played.agrees()
    change(played.base)
    played.laid_out_anew()
    with pytest.raises(NotPlain):
        played.again()


@pytest.mark.parametrize("change", [exchanged, hooked, asked_before])
def test_then_it_is_computed_by_them(change):
    played = Played()
    change(played.base)
    ids = torch.arange(5)
    with torch.inference_mode():
        ours, own = (way(ids, ids, played.step.attend) for way in (played.way, lambda *x: _own_layers(played.base, *x)))
    torch.testing.assert_close(ours, own, rtol=0.0, atol=1e-5)


def test_nothing_of_a_step_is_kept():
    played = Played()
    played.again()
    kept = played.way.segments._step
    assert kept() is played.step
    played.laid_out_anew()
    assert kept() is None


def test_a_copy_has_its_own_weights():
    played = Played()
    played.again()
    other = copy.deepcopy(played)
    with torch.no_grad():
        other.base.norm.weight.mul_(2.0)
    assert played.agrees()
    assert other.agrees()
