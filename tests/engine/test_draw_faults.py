"""Draws that are compiled with a fault are not taken, whichever mistake it is."""

import pytest
import torch

from agentrl.engine import draw as module
from agentrl.engine.draw import draw
from agentrl.policy import compiled
from tests.policy.planted import Fault, planted

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler on this machine")

FAULTS = (
    Fault("the last part is left out", "draw.c", "parts = (V + PART - 1) / PART", "parts = V / PART"),
    Fault("weights are not of what is below the largest", "draw.c", "below = x[i] - most", "below = x[i]"),
    Fault("of two likeliest the last", "draw.c", "i = V - 1; i >= 0; i--", "i = 0; i < V; i++"),
    Fault("greedy rows are drawn", "draw.c", "if (!greedy[b]) {", "{"),
    Fault("a target that is no share of the whole", "draw.c", "uniform[b] * total", "uniform[b]"),
    Fault("parts before are forgotten", "draw.c", "before += sums[part];", ";"),
    Fault(
        "a part that ends where the target is",
        "draw.c",
        "before + sums[part] <= target",
        "before + sums[part] < target",
    ),
    Fault("words one too early", "draw.c", "if (before > target) break;", "if (before + x[i + 1] > target) break;"),
    Fault("words that cannot be drawn", "draw.c", "if (x[i] > 0.0f) {", "{"),
    Fault("no last part of some weight", "draw.c", "if (sums[part] > 0.0) last = part;", ""),
    Fault("the weight in the place of its share", "draw.c", "(double)x[chosen] / total", "(double)x[chosen]"),
    Fault("a logarithm to another base", "draw.c", "= log((double)", "= log2((double)"),
    Fault("every row is the first", "draw.c", "b < B; b++, x += V", "b < B; b++"),
    Fault("an exponential of fewer terms", "layers.h", "p = p * r + 4.1665795894e-2f;", ""),
)


@pytest.fixture
def fresh():
    """What was decided of other functions, and of these, is forgotten."""
    module._compiled.cache_clear()
    yield
    module._compiled.cache_clear()


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=["none", *(fault.name for fault in FAULTS)])
def test_draws_with_a_fault_are_left_to_torch(fault, tmp_path, monkeypatch, fresh):
    monkeypatch.setattr(module, "SOURCE", planted(tmp_path, fault, "draw.c", monkeypatch))
    assert (module._compiled() is None) == (fault is not None)
    assert len(compiled.problems()) == (fault is not None)
    uniform, greedy = torch.tensor([0.999], dtype=torch.float64), torch.tensor([False])
    token, logprob = draw(torch.zeros(1, 1000), uniform, greedy)  # the 1000th of a thousand equal words
    assert token.tolist() == [999]
    assert logprob.tolist() == pytest.approx([-6.907755279], abs=1e-6)
