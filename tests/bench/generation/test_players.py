"""Everyone plays the same work: so many tokens, of the same model."""

import pytest

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

import torch

from agentrl.bench.floor import Shape, Sizes
from agentrl.bench.generation.models import model
from agentrl.bench.generation.players import Generate, OurEngine, check
from agentrl.bench.generation.work import make
from agentrl.bench.report import BenchError
from agentrl.policy.hf import HuggingFacePolicy

SIZES = Sizes(name="tiny", vocabulary=50, width=16, layers=2, heads=2, key_heads=1, mlp_width=24)
WORK = make(Shape(groups=2, group=3, prompt=7, reply=4, turns=3, observation=5), 50)


def players():
    theirs = model(SIZES, spread=0.3)
    policy = HuggingFacePolicy(model(SIZES, spread=0.3)).eval()
    return {
        "continuous": OurEngine(policy, schedule="continuous"),
        "lockstep": OurEngine(policy, schedule="lockstep"),
        "generate": Generate(theirs),
        "prompt once": Generate(theirs, prompt_once=True),
    }


@pytest.mark.parametrize("name", ["continuous", "lockstep", "generate", "prompt once"])
def test_everyone_plays_all_of_it(name):
    replies = players()[name].play(WORK)
    assert check(name, replies, WORK) == 6 * 3 * 4
    assert all(0 <= index < 50 for turns in replies for ids in turns for index in ids)


def test_a_workload_is_drawn_and_the_same_each_time():
    assert make(WORK.shape, 50) == WORK
    assert {len(prompt) for prompt in WORK.prompts} == {7}
    assert {len(ids) for observed in WORK.observations for ids in observed} == {5}
    assert len(set(WORK.seeds)) == len(WORK.seeds) == 6
    assert WORK.opening[:3] == (WORK.prompts[0],) * 3


@pytest.mark.parametrize("schedule", ["continuous", "lockstep"])
@torch.no_grad()
def test_our_logprobs_are_those_of_the_library_model(schedule):
    """The same weights, and each conversation computed as a whole without any cache."""
    theirs = model(SIZES, spread=0.3)
    policy = HuggingFacePolicy(model(SIZES, spread=0.3)).eval()
    played = OurEngine(policy, schedule=schedule).completions(WORK)
    for prompt, observations, replies in zip(WORK.opening, WORK.observations, played, strict=True):
        ids = list(prompt)
        for observed, reply in zip((*observations, ()), replies, strict=True):
            whole = torch.tensor([[*ids, *reply.token_ids]])
            logprobs = theirs(whole).logits[0].log_softmax(-1)[len(ids) - 1 : -1]
            wanted = logprobs.gather(1, torch.tensor(reply.token_ids)[:, None]).squeeze(1)
            torch.testing.assert_close(torch.tensor(reply.logprobs), wanted, atol=1e-4, rtol=0)
            ids += [*reply.token_ids, *observed]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda replies: replies[:-1],
        lambda replies: [turns[:-1] for turns in replies],
        lambda replies: [[ids[:-1] for ids in turns] for turns in replies],
    ],
)
def test_other_work_is_no_number(wrong):
    right = [[(1,) * 4 for _ in range(3)] for _ in range(6)]
    assert check("x", right, WORK) == 72
    with pytest.raises(BenchError, match="x gave"):
        check("x", wrong(right), WORK)
