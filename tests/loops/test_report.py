"""Stored attempts under stored checkpoints, and a run whose reward was drawn."""

import math
from dataclasses import replace

import pytest
import torch

from agentrl.errors import StoreError
from agentrl.evals.report.findings import Missing, measure
from agentrl.evals.report.sources import checkpoints
from agentrl.evals.report.weights import bfloat16
from agentrl.loops.context import RunContext
from agentrl.loops.evaluation import open_context
from agentrl.loops.report import _model, compare_models, readings
from agentrl.loops.run import train
from agentrl.tasks.bugfix.environment import drawn_reward
from agentrl.tokens.samples import samples
from agentrl.train.checkpoint import read_checkpoint
from agentrl.train.scoring import score_samples
from tests.loops.test_learning import Silent
from tests.loops.test_run import SMALL, run, same

DRAWN = SMALL.model_copy(
    update={
        "tasks": SMALL.tasks.model_copy(update={"reward": "random"}),
        "warm_start": SMALL.warm_start.model_copy(update={"steps": 3}),
        "rl": SMALL.rl.model_copy(update={"steps": 3, "groups_per_step": 2, "eval_every": 0, "traces_every": 1}),
        "eval": SMALL.eval.model_copy(update={"attempts": 2}),
    }
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A small run with a random reward, so that reinforcement learning moves even a policy that can do nothing."""
    return run(tmp_path_factory.mktemp("drawn"), DRAWN)[0]


@pytest.fixture(scope="module")
def models(drawn):
    base, *_, last = checkpoints(drawn)
    return _model(drawn, base), _model(drawn, last)


def test_the_reward_of_training_is_drawn_and_that_of_evaluations_is_not(drawn):
    trained = [trace for step in (1, 2, 3) for trace in drawn.iter_traces("rl", step)]
    rewards = [trace.reward for trace in trained]
    assert rewards == [drawn_reward(trace.seed).value for trace in trained]
    assert set(rewards) == {0.0, 1.0}
    assert {score.weight for trace in trained for score in trace.scores if score.name != "random"} == {0.0}
    for phase, step in (("eval_before", 0), ("eval", 3)):
        for trace in drawn.iter_traces(phase, step):
            assert [score.name for score in trace.scores if score.weight] == ["hidden_tests"]


def test_what_evaluates_such_a_run_measures(drawn):
    with open_context(drawn.config, Silent()) as context:
        assert context.config.tasks.reward == "hidden"
    context = RunContext(drawn.config, drawn, Silent())
    try:
        assert context.config.tasks.reward == "random"
    finally:
        context.close()


def test_a_run_without_a_warm_start_keeps_the_weights_that_it_began_with(tmp_path):
    without = DRAWN.model_copy(update={"warm_start": DRAWN.warm_start.model_copy(update={"steps": 0})})
    folder, _ = run(tmp_path / "whole", without)
    base, *_, last = checkpoints(folder)
    assert base.path.name == "warm_start-000000-end"
    context = RunContext(without, folder, Silent())
    try:
        began = context.reference().state_dict()
    finally:
        context.close()
    kept = read_checkpoint(base.path).weights
    assert same({name: tensor for name, tensor in began.items() if name in kept}, kept)
    assert not same(read_checkpoint(last.path).weights, kept)
    stopped, _ = run(tmp_path / "stopped", without, stop=("rl", 2))
    train(without, stopped, Silent(), resume=True)
    assert same(read_checkpoint(checkpoints(stopped)[-1].path).weights, read_checkpoint(last.path).weights)


def test_the_divergence_is_the_sum_over_the_vocabulary(drawn, models):
    """One token of one attempt, with every word of the vocabulary in its place."""
    trace = next(iter(drawn.iter_traces("eval_before", 0)))
    (sample,) = samples(trace, None, objective="ce")
    place = next(t for t, weight in enumerate(sample.weights["ce"]) if weight)
    words = models[0].shape.vocab_size
    only = tuple(float(t == place) for t in range(place + 1))
    swapped = [
        replace(
            sample,
            token_ids=(*sample.token_ids[:place], word),
            weights={"ce": only},
            logprobs=(None,) * place + (-1.0,),
            advantages=(0.0,) * (place + 1),
            versions=(None,) * place + (0,),
            trace_id=f"{word}",
        )
        for word in range(words)
    ]
    p, q = (
        [row[place] for row in score_samples(one, swapped, lambda s: s.logprobs_K, temperature=1.0, max_tokens=4096)]
        for one in models
    )
    assert sum(map(math.exp, p)) == pytest.approx(1.0, abs=1e-4)
    expected = sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
    cut = first_token_alone(trace)
    (found,) = compare_models(*models, [cut])
    assert found.tokens == 1
    assert found.divergence == pytest.approx(expected, abs=1e-5)
    word = cut.nodes[-1].sampled_ids[0]
    assert (found.loss_base, found.loss) == (pytest.approx(-p[word], abs=1e-4), pytest.approx(-q[word], abs=1e-4))


def first_token_alone(trace):
    """The attempt, cut off behind the first token that was sampled."""
    at = next(index for index, node in enumerate(trace.nodes) if node.sampled_ids)
    node = trace.nodes[at]
    short = {name: getattr(node, name)[:1] for name in ("sampled_ids", "logprobs", "versions")}
    return replace(trace, nodes=(*trace.nodes[:at], replace(node, **short)))


def test_a_policy_does_not_diverge_from_itself(drawn, models):
    base, _ = models
    traces = list(drawn.iter_traces("eval_before", 0))
    for trace, found in zip(traces, compare_models(base, base, traces), strict=True):
        assert found.trace is trace
        assert found.tokens == trace.num_sampled
        assert found.divergence == pytest.approx(0.0, abs=1e-9)
        assert found.loss == found.loss_base
        stored = -sum(logprob for node in trace.nodes for logprob in node.logprobs)
        assert found.loss == pytest.approx(stored, abs=1e-3)


def test_every_stored_attempt_is_read_under_every_checkpoint(drawn):
    found = readings(drawn)
    assert {one.step for one in found} == {2, 3}  # a checkpoint every two steps and the last
    own = [one for one in found if one.kind == "own" and one.step == 3]
    assert len(own) == 8  # 4 tasks, 2 attempts
    assert all(one.divergence > 0 for one in own)
    assert len([one for one in found if one.kind != "own" and one.step == 3]) == 24
    assert {one.kind for one in found} == {"own", "retained", "other"}


def test_attempts_of_another_policy_are_noticed(drawn):
    traces = list(drawn.iter_traces("eval_before", 0))
    wrong = [replace(one, nodes=tuple(changed(node) for node in one.nodes)) for one in traces]
    drawn.write_traces("eval_before", 0, wrong)
    try:
        with pytest.raises(StoreError, match=r"differ by 0\.\d+ nats from those of the checkpoint"):
            readings(drawn)
    finally:
        drawn.write_traces("eval_before", 0, traces)


def changed(node):
    return replace(node, logprobs=tuple(logprob - 0.25 for logprob in node.logprobs))


def test_a_real_run_is_reported(drawn):
    found = measure(drawn, readings)
    assert not isinstance(found.drift, Missing)
    assert [one.step for one in found.drift] == [2, 3]
    assert not isinstance(found.changes, Missing)
    whole = sum(tensor.numel() for tensor in read_checkpoint(checkpoints(drawn)[-1].path).weights.values())
    assert sum(one.weights for one in found.changes) == whole
    assert 0 < sum(one.changed_bf16 for one in found.changes) < sum(one.changed for one in found.changes)
    assert "the training reward was drawn" in found.forecast.refused


def test_numpy_and_torch_agree_on_bfloat16():
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 100
    theirs = numbers.to(torch.bfloat16).view(torch.int16).numpy().astype("uint16")
    assert (bfloat16(numbers.numpy()) == theirs).all()
