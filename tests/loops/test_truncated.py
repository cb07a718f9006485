"""Reinforcement learning on attempts that were drawn from a part of the vocabulary."""

from dataclasses import replace

import pytest

from agentrl.config import RlConfig
from agentrl.engine.local import LocalEngine
from agentrl.errors import TrainerError
from agentrl.loops.context import RunContext
from agentrl.loops.evaluation import run_parts
from agentrl.store import RunFolder
from agentrl.tokens.tiny import WORDS
from agentrl.types import Sampling
from tests.loops.test_run import Reporter, changed, reinforce_with_some_reward


def rl_rows(tmp_path, context_type=RunContext, **rl):
    """The steps of a run that begins with random weights, and its attempts."""
    config = changed(algorithm="reinforce", steps=2, eval_every=0, traces_every=1, **rl)
    folder = RunFolder.create(tmp_path, config)
    context = context_type(config, folder, Reporter())
    try:
        reinforce_with_some_reward(context)
    finally:
        context.close()
    return folder.metrics("rl"), list(folder.iter_traces("rl"))


def supports(traces):
    return [ids for trace in traces for node in trace.nodes for ids in node.support]


def test_the_configuration_says_how_tokens_are_drawn():
    assert RlConfig().sampling == Sampling()
    chosen = RlConfig(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05)
    assert chosen.sampling == Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05)


@pytest.mark.parametrize(
    "rules", [{"top_p": 0.9}, {"top_k": 5, "min_p": 0.02, "temperature": 1.3, "minibatches": 2, "entropy_coef": 0.01}]
)
def test_the_trainer_agrees_with_a_sampler_that_truncates(tmp_path, rules):
    rows, traces = rl_rows(tmp_path, **rules)
    assert [row["logprob_gap"] < 1e-5 for row in rows] == [True, True]
    assert len(supports(traces)) == sum(row["tokens_sampled"] for row in rows) > 0
    assert max(len(ids) for ids in supports(traces)) < len(WORDS)


def test_without_truncation_nothing_is_reported(tmp_path):
    rows, traces = rl_rows(tmp_path)
    assert [row["logprob_gap"] < 1e-5 for row in rows] == [True, True]
    assert supports(traces) == []


class Quiet(LocalEngine):
    """Truncates and does not say so."""

    def session(self, seed, *, greedy=False):
        session = super().session(seed, greedy=greedy)
        sample = session.sample

        async def silent(context_ids, *, max_tokens, stop_ids):
            return replace(await sample(context_ids, max_tokens=max_tokens, stop_ids=stop_ids), support=())

        session.sample = silent
        return session


@pytest.mark.parametrize(
    ("configured", "used", "message"),
    [
        (
            {"top_p": 0.9999},
            Sampling(top_p=0.9999),
            r"token \d+ has no support, though tokens are drawn with .*0\.9999",
        ),
        # Case L16: what the sampler inherited from somewhere, and the run does not know of.
        (
            {},
            Sampling(top_k=3),
            r"just sampled differ by .*: likely fault: truncation; .*top_k 3",
        ),
    ],
)
def test_a_sampler_that_truncates_in_silence_is_an_error_at_the_first_step(tmp_path, configured, used, message):
    class Silent(RunContext):
        def __init__(self, *parts):
            super().__init__(*parts)
            self.engine = self.current = Quiet(self.model, sampling=used)

    with pytest.raises(TrainerError, match=message):
        rl_rows(tmp_path, Silent, **configured)


def test_evaluation_draws_as_training_does_and_says_so(tmp_path):
    def parts(temperature, **rl):
        config = changed(temperature=0.8, **rl)
        context = RunContext(config, RunFolder.create(tmp_path, config), Reporter())
        try:
            return run_parts(
                context,
                None,
                task_set=context.train_tasks(),
                settings={"level": "tiny"},
                word="fresh",
                split="train",
                temperature=temperature,
                seed=0,
            )
        finally:
            context.close()

    cut = parts(0.5, top_p=0.9)
    assert cut.open_session(None, 1).engine.sampling == Sampling(temperature=0.5, top_p=0.9)
    assert cut.spec.settings == {"level": "tiny", "truncation": {"top_p": 0.9, "top_k": 0, "min_p": 0.0}}
    assert parts(0.0, top_k=3).open_session(None, 1).engine.sampling == Sampling(temperature=0.8, top_k=3)
    assert parts(0.5).spec.settings == {"level": "tiny"}  # what was measured before truncation keeps its folder
