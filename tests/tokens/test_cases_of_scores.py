"""Public faults of rows whose scores stood at another token than the one they were for."""

import math

import pytest
import torch

from agentrl.policy.hf import HuggingFacePolicy
from agentrl.tokens.samples import samples
from agentrl.types import Message, Node, Stop, Trace
from tests.policy.small_models import QWEN3, build, scored

PROMPT, COMPLETION = (5, 6, 7, 8, 9), (20, 21, 22)


def row(prompt, completion):
    """A row of a demonstration: what is given, and what is imitated."""
    nodes = (
        Node(parent=None, message=Message(role="user", content=""), context_ids=prompt),
        Node(
            parent=0,
            message=Message(role="assistant", content=""),
            context_ids=(),
            sampled_ids=completion,
            logprobs=(0.0,) * len(completion),
            versions=(0,) * len(completion),
        ),
    )
    trace = Trace(id="t", task_id="t", group_id="t", attempt=0, seed=0, nodes=nodes, stop=Stop.DONE)
    (found,) = samples(trace, None, objective="ce")
    return found


def test_t42_the_scores_of_a_completion_are_its_own():
    # Prompt of 5, completion of 3: the logits at 4, 5 and 6 score the ids at 5, 6 and 7. Cut by one place only, they
    # were those of the prompt.
    model = build(QWEN3)
    found = scored(HuggingFacePolicy(build(QWEN3)), [row(PROMPT, COMPLETION)]).logprobs_K
    ids = (*PROMPT, *COMPLETION)
    with torch.no_grad():
        whole = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        one_by_one = [
            model(input_ids=torch.tensor([ids[:place]]), use_cache=False).logits[0, -1].log_softmax(-1)[ids[place]]
            for place in (5, 6, 7)
        ]
    assert found.shape == (3,)
    assert found.tolist() == pytest.approx([whole[place, ids[place + 1]].item() for place in (4, 5, 6)], abs=1e-6)
    assert found.tolist() == pytest.approx([value.item() for value in one_by_one], abs=1e-6)
    # The control: the places of the report have other scores.
    assert found.tolist() != pytest.approx([whole[place, ids[place + 1]].item() for place in (1, 2, 3)], abs=1e-2)


def test_l11_labels_are_shifted_once():
    # The loss of a class that shifts, over labels that were shifted before, is that of the token after the next.
    model = build(QWEN3)
    ids = (3, *range(5, 17))
    ours = -scored(HuggingFacePolicy(build(QWEN3)), [row(ids[:1], ids[1:])]).logprobs_K.mean().item()
    with torch.no_grad():
        whole = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        theirs = model(input_ids=torch.tensor([ids]), labels=torch.tensor([ids]), use_cache=False).loss.item()
    assert ours == pytest.approx(-sum(whole[place, ids[place + 1]].item() for place in range(12)) / 12, abs=1e-6)
    assert ours == pytest.approx(theirs, abs=1e-6)
    twice = -sum(whole[place, ids[place + 2]].item() for place in range(11)) / 11
    assert math.fabs(ours - twice) > 1e-2


def test_l11_a_model_that_memorises_a_count_goes_on_with_the_next_number():
    model, trained = build(QWEN3), build(QWEN3)
    policy, numbers = HuggingFacePolicy(trained), row((1,), tuple(range(2, 21)))
    parameters = list(policy.parameters())
    for step in range(40):
        grads = torch.autograd.grad(-scored(policy, [numbers]).logprobs_K.mean(), parameters)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter -= 0.02 * 0.95**step * grad.sign()
    model.load_state_dict(trained.state_dict())
    with torch.no_grad():
        likeliest = model(input_ids=torch.tensor([list(range(1, 20))]), use_cache=False).logits[0].argmax(-1)
    assert likeliest[4].item() == 6  # behind 5
    assert likeliest.tolist() == list(range(2, 21))
