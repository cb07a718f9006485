"""Compiled functions with a fault are not taken, whichever mistake it is."""

import pytest

from agentrl.policy import compiled, native, ops, plain, plain_training, segments
from agentrl.policy.cache import next_logits
from tests.policy.planted import SHARED, Fault, planted
from tests.policy.test_plain import CONFIGS, IDS, make

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler on this machine")

TRAINING = (
    Fault(
        "a weight's gradient of the last token alone", "ops.c", "grad_weight[d] += inverse", "grad_weight[d] = inverse"
    ),
    Fault("a weight's gradient without the norm", "ops.c", "+= inverse * product", "+= product"),
    Fault("a norm's gradient without that of its mean", "ops.c", "- x[d] * pull)", ")"),
    Fault("a mean that is a sum", "ops.c", "inverse * sum / (REAL)D", "inverse * sum"),
    Fault("a mean of other products", "ops.c", "sum += weight[d] * product", "sum += product"),
    Fault("what goes around a norm", "ops.c", "out[d] += added[m * D + d]", "out[d] = added[m * D + d]"),
    Fault("what a norm gave without its weight", "ops.c", "x[d] * inverse[m] * weight[d]", "x[d] * inverse[m]"),
    Fault(
        "a norm that leaves out the end",
        "ops.c",
        "for (int64_t d = 0; d < D; d++) out[d] = x[d] * scale * weight[d]",
        "for (int64_t d = 0; d < D / 4 * 4; d++) out[d] = x[d] * scale * weight[d]",
    ),
    Fault("heads with the norm of another", "ops.c", "REAL scale = inverse[m * heads + h]", "REAL scale = inverse[m]"),
    Fault(
        "a gradient that is turned on",
        "ops.c",
        "grad[e] * cosine[e] + grad[e + half] * sine[e + half]",
        "grad[e] * cosine[e] - grad[e + half] * sine[e + half]",
    ),
    Fault("one sine for both halves", "ops.c", "grad[e + half] * sine[e + half]", "grad[e + half] * sine[e]"),
    Fault("a gate's gradient without the sigmoid's", "ops.c", "(share + kept - kept * share)", "share"),
    Fault(
        "gradients in each other's place",
        "ops.c",
        "out[F + f] = g * kept;\n            grad[f]",
        "out[F + f] = kept * b[f];\n            grad[f]",
    ),
    Fault("a row too short", "ops.c", "both += 2 * F, out += F)", "both += F, out += F)"),
)
"""Faults in what training alone has."""
SAMPLING = (
    Fault(
        "a norm of what was before",
        "between.h",
        "x[d] += added[m * D + d];\n        float scale = inverse_root(x, D, epsilon);",
        "out[d] = x[d] + added[m * D + d];\n        float scale = inverse_root(x, D, epsilon);",
    ),
    Fault("what is added of the first token", "between.h", "x[d] += added[m * D + d]", "x[d] += added[d]"),
    Fault("a norm without its weight", "between.h", "out[d] = x[d] * scale * weight[d];", "out[d] = x[d] * scale;"),
    Fault("positions of other tokens", "between.h", "cosines + turns[m] * E, sines", "cosines + m * E, sines"),
    Fault("heads without the factor", "between.h", "weight ? factor * inverse_root", "weight ? inverse_root"),
    Fault("heads without the weight of their norm", "between.h", "weight ? scale * weight[e] : scale", "scale"),
    Fault(
        "a gate that leaves out the end",
        "between.h",
        "for (int64_t i = 0; i < n; i++) x[i] = gated",
        "for (int64_t i = 0; i < n / 16 * 16 - 16; i++) x[i] = gated",
    ),
)
"""Faults in what sampling alone has."""
BETWEEN = (
    Fault("products without their bias", "between.h", "kept = weight_bias[1] ? 1.0f : 0.0f", "kept = 0.0f"),
    Fault(
        "later tokens with the positions of the first",
        "between.h",
        "(float)before->factor,\n               turns + begin",
        "(float)before->factor,\n               turns",
    ),
    Fault("later tokens with what the first attended to", "between.h", "attended + begin * w->Q", "attended"),
    Fault(
        "the norm of another place", "between.h", "added, before->norm", "added, behind ? behind->norm : before->norm"
    ),
    Fault(
        "keys that are multiplied",
        "between.h",
        "(float)before->k_epsilon, 1.0f,",
        "(float)before->k_epsilon, (float)before->factor,",
    ),
)
"""Faults in the passes from an attention to the next."""


@pytest.fixture
def fresh():
    """What was decided of other functions, and of these, is forgotten."""
    caches = ops.kernels, plain_training._halves_agree, native.kernels, segments._agree

    def forget():
        for one in caches:
            one.cache_clear()

    forget()
    yield
    forget()


def names(faults):
    return [fault.name if fault else "none" for fault in faults]


@pytest.mark.parametrize("fault", [None, *SHARED, *TRAINING], ids=names([None, *SHARED, *TRAINING]))
def test_training_does_without_functions_with_a_fault(fault, tmp_path, monkeypatch, fresh):
    monkeypatch.setattr(ops, "SOURCE", planted(tmp_path, fault, "ops.c", monkeypatch))
    taken = make(CONFIGS["qwen3"])._plain_training() is not None
    assert taken == (fault is None)
    said = "".join(compiled.problems())
    assert ("made of ops.c gives other numbers than its formulas" in said) == (fault is not None)


@pytest.mark.parametrize("fault", [None, *SHARED, *SAMPLING], ids=names([None, *SHARED, *SAMPLING]))
def test_sampling_does_without_functions_with_a_fault(fault, tmp_path, monkeypatch, fresh):
    monkeypatch.setattr(native, "SOURCE", planted(tmp_path, fault, "native.c", monkeypatch))
    policy = make(CONFIGS["qwen3"])
    next_logits(policy, IDS)
    assert isinstance(policy._sampling, plain._Compiled) == (fault is None)


@pytest.mark.skipif(segments.blas_product() is None, reason="torch has no BLAS under its usual name")
@pytest.mark.parametrize("fault", [None, *BETWEEN], ids=names([None, *BETWEEN]))
def test_sampling_does_without_passes_with_a_fault(fault, tmp_path, monkeypatch, fresh):
    monkeypatch.setattr(native, "SOURCE", planted(tmp_path, fault, "native.c", monkeypatch))
    policy = make(CONFIGS["qwen3"])
    next_logits(policy, IDS)
    assert isinstance(policy._sampling, plain._Compiled)  # each operation on its own is right
    assert (policy._sampling.segments is not None) == (fault is None)
    said = "".join(compiled.problems())
    assert ("formulas: the operations of a layer are called one by one" in said) == (fault is not None)
