"""Which forward pass sampling takes: one that gives the right numbers, and that was measured to be quicker."""

import re
import time
from functools import partial

import pytest
import torch
from transformers import MistralConfig

from agentrl.policy.cache import next_logits
from agentrl.policy.choice import OWN, Guarded, choose_forward, quickest
from agentrl.policy.hf import _own_layers
from agentrl.policy.pieces import Compilation, Pieces
from agentrl.policy.plain import _Plain, plain_ways
from tests.policy.test_plain import CONFIGS, IDS, SIZES, make

LATE_S = 0.02
"""Many times as long as a step of these models takes."""


def decoder(dtype=torch.float32):
    return make(CONFIGS["qwen3"], dtype=dtype).model.model


def late(way, seconds=LATE_S):
    """The same numbers, later."""

    def waiting(*inputs):
        time.sleep(seconds)
        return way(*inputs)

    return waiting


def slow(graph, inputs):
    return late(graph, 0.002)  # four times in a step


def wrong(graph, inputs):
    """A compiler that takes sums for differences: the residuals are subtracted."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target.__name__ == "add":
            node.target = torch.sub
    graph.recompile()
    return graph


def broken(graph, inputs):
    raise OSError("no compiler here")


def chosen(backend, *, late_s=LATE_S, dtype=torch.float32):
    """Between pieces and the own layers, so much later than they are."""
    base = decoder(dtype)
    own = late(partial(_own_layers, base), late_s)
    return quickest(base, _own_layers, [own], [Pieces(base, Compilation(backend=backend))])


def outcomes(choice):
    return {trial.name: trial.refused or "timed" for trial in choice.trials}


def test_pieces_are_taken_where_they_agree_and_are_quicker():
    """What they do not take is computed by the quickest of the others; what fails later is told."""
    base = decoder()
    own, plain = late(partial(_own_layers, base), 2 * LATE_S), late(_Plain(base))
    choice = quickest(base, _own_layers, [own, plain], [Pieces(base, Compilation(backend="eager"))])
    assert isinstance(choice.forward, Guarded)
    assert choice.forward.other is plain
    assert [trial.refused for trial in choice.trials] == [None, None, None]
    slowest, middle, quick = (trial.seconds for trial in choice.trials)
    assert quick < middle < slowest
    assert slowest >= 2 * LATE_S
    choice.forward.failure = "RuntimeError: out of memory"
    assert str(choice).endswith("; given up: RuntimeError: out of memory")


def test_pieces_that_are_slower_are_not_taken():
    choice = chosen(slow, late_s=0.0)
    assert choice.name == OWN
    assert outcomes(choice) == {OWN: "timed", "compiled pieces": "timed"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pieces_that_give_other_numbers_are_not_taken_however_quick(dtype):
    choice = chosen(wrong, dtype=dtype)
    assert choice.name == OWN
    assert outcomes(choice)["compiled pieces"] == f"gives other numbers than {OWN} with 7 tokens"
    assert choice.trials[1].seconds is None


def test_pieces_that_cannot_be_compiled_are_left_out_and_the_reason_is_told():
    choice = chosen(broken)
    assert choice.name == OWN
    assert outcomes(choice)["compiled pieces"] == "failed: OSError: no compiler here"
    reason = "compiled pieces: failed: OSError: no compiler here"
    assert re.fullmatch(rf"sampled by {OWN} \(a step of 60 tokens: {OWN}: [\d.]+ ms; {reason}\)", str(choice))


def test_on_the_cpu_nothing_is_measured_or_compiled_unless_it_is_asked_for():
    policy = make(CONFIGS["qwen3"])
    assert policy.sampling_choice is None
    next_logits(policy, IDS)
    quick = plain_ways(policy.model.model)[0]
    assert policy.sampling_choice.trials == ()
    assert type(policy.sampling_choice.forward) is type(quick)
    assert str(policy.sampling_choice) == f"sampled by {quick.name}"
    asked = choose_forward(policy.model.model, _own_layers, Compilation(backend="eager"))
    assert len(asked.trials) == 2 + len(plain_ways(policy.model.model))
    assert all(trial.refused is None for trial in asked.trials)


def test_half_precision_keeps_its_own_layers_on_the_cpu_unless_it_is_asked_for():
    base = decoder(torch.bfloat16)
    assert choose_forward(base, _own_layers).name == OWN
    asked = choose_forward(base, _own_layers, Compilation(backend="eager"))
    assert outcomes(asked) == {OWN: "timed", "plain operations": "timed", "compiled pieces": "timed"}


def test_other_models_and_types_keep_their_own_layers():
    mistral = make(MistralConfig(**SIZES, sliding_window=4)).model.model
    for base in (mistral, decoder().double()):
        choice = choose_forward(base, _own_layers, Compilation(backend="eager"))
        assert (choice.name, choice.trials) == (OWN, ())
