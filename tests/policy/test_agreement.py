"""What must agree before another way to compute a model is taken."""

from copy import deepcopy
from functools import partial

import pytest
import torch

from agentrl.policy.agreement import agrees, wide
from agentrl.policy.hf import _own_layers
from agentrl.policy.plain import _Plain, probe
from tests.policy.test_plain import CONFIGS, make

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def decoder(name, dtype=torch.float32):
    return make(CONFIGS[name], dtype=dtype).model.model


def with_norm(base, factor):
    """A way whose last norm is by this factor larger."""
    other = deepcopy(base)
    with torch.no_grad():
        other.norm.weight.mul_(factor)
    return _Plain(other)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_same_in_fewer_operations_agrees(name, dtype):
    base = decoder(name, dtype)
    assert all(agrees(base, _Plain(base), _own_layers, count) for count in (7, 63))


def test_in_float32_another_digit_is_too_much():
    """The largest number is taken to be 1; 2e-5 of it is twice the tolerance."""
    base = decoder("qwen3")
    assert agrees(base, with_norm(base, 1 + 2e-6), _own_layers, 24)
    assert not agrees(base, with_norm(base, 1 + 2e-5), _own_layers, 24)


@HALF
def test_in_half_precision_what_is_further_off_than_rounding_is_refused(dtype):
    """The own layers are off by about 1 % in bfloat16 and 0.1 % in float16."""
    base = decoder("qwen3", dtype)
    assert not agrees(base, with_norm(base, 1.05), _own_layers, 24)
    assert agrees(base, with_norm(base, 1.0), _own_layers, 24)


def test_a_single_token_that_is_wrong_is_noticed():
    base = decoder("qwen3", torch.bfloat16)

    def last_is_that_before(ids, positions, attend):
        hidden = _Plain(base)(ids, positions, attend)
        return torch.cat((hidden[:-1], hidden[-2:-1]))

    assert not agrees(base, last_is_that_before, _own_layers, 511)


def test_a_window_that_was_forgotten_is_noticed():
    base = decoder("qwen2 with windows")

    def wide_open(ids, positions, attend):
        return _Plain(base)(ids, positions, lambda *inputs, window: attend(*inputs))

    assert not agrees(base, wide_open, _own_layers, 24)


def test_numbers_that_are_none_do_not_agree():
    for dtype in (torch.float32, torch.bfloat16):
        base = decoder("qwen3", dtype)
        assert not agrees(base, with_norm(base, float("nan")), _own_layers, 24)


@HALF
@pytest.mark.parametrize("name", CONFIGS)
def test_a_wide_model_is_that_in_float32_and_leaves_the_other_as_it_was(name, dtype):
    base = decoder(name, dtype)
    before = {key: (weight.data_ptr(), weight.clone()) for key, weight in base.state_dict().items()}
    found = probe(base, partial(_own_layers, wide(base)))
    copied = deepcopy(base).float()
    exact = probe(copied, partial(_own_layers, copied))
    assert found.hidden_MD.dtype == torch.float32
    torch.testing.assert_close(found.hidden_MD, exact.hidden_MD, rtol=0.0, atol=1e-6)
    assert found.windows == exact.windows
    narrow = probe(base, partial(_own_layers, base))
    assert (narrow.hidden_MD - exact.hidden_MD).abs().max() > 1e-4
    assert base.state_dict().keys() == before.keys()
    for key, weight in base.state_dict().items():
        place, numbers = before[key]
        assert weight.data_ptr() == place
        assert torch.equal(weight, numbers)


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_adapters_in_float32_on_half_precision_agree():
    lora = pytest.importorskip("agentrl.policy.lora")
    model = make(CONFIGS["qwen3"], dtype=torch.bfloat16).model
    lora.add_adapter(model, rank=2, alpha=6.0, targets=("all-linear",), seed=1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if lora.is_adapter(name):
                weight.add_(0.1 * torch.randn_like(weight))
    base = model.model
    assert {weight.dtype for weight in base.parameters()} == {torch.float32, torch.bfloat16}
    assert agrees(base, _Plain(base), _own_layers, 63)
    assert not agrees(base, with_norm(base, 1.05), _own_layers, 63)
