"""Truncated sampling from the draw to the gradient: the trainer's numbers are the sampler's at any setting.

The way is the real one: the engine, the transcript of the agent loop, the samples of the trace, a packed batch.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from agentrl.algorithms.presets import preset
from agentrl.engine.local import LocalEngine
from agentrl.errors import SamplerError
from agentrl.harness.transcript import Transcript
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tokens.samples import samples
from agentrl.train.losses import PolicyGradient
from agentrl.train.packing import count, micro_batches, pack
from agentrl.train.scoring import score_tokens
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.train.truncation import kept
from agentrl.types import Message, Sampling, Score, Stop, Trace

VOCABULARY = 40
STOP = frozenset((0,))
SHAPE = TransformerShape(vocab_size=VOCABULARY, layers=2, width=16, heads=2, mlp_width=24, context=96)
PLANS = {
    11: [(1, 2, 3), (4,), (5, 6)],
    12: [(1, 2, 3), (7, 8)],
    13: [(1, 2, 3)],
    14: [(9, 10), (4, 4, 4, 4), (), (6,)],
    15: [(9, 10), (5,)],
}
NUCLEUS = Sampling(temperature=0.9, top_p=0.8)


def tiny(seed=0):
    """A model with opinions: fresh weights predict nearly uniformly."""
    model = TinyTransformer(SHAPE, seed=seed)
    with torch.no_grad():
        model.embedding.weight.mul_(6.0)
    return model


def traces(model, sampling, plans=PLANS, *, greedy=False):
    """One attempt a conversation, as the agent loop writes it down."""
    engine = LocalEngine(model, sampling=sampling)

    async def attempt(session, contexts):
        transcript = Transcript()
        for context in contexts:
            reply = await session.sample(context, max_tokens=6, stop_ids=STOP)
            transcript.add(Message(role="assistant"), context, reply)
        await session.close()
        return tuple(transcript.nodes)

    async def all_of_them():
        sessions = [(engine.session(seed, greedy=greedy), contexts) for seed, contexts in plans.items()]
        return await asyncio.gather(*(attempt(*conversation) for conversation in sessions))

    played = asyncio.run(asyncio.wait_for(all_of_them(), 60.0))
    return [
        Trace(
            id=str(seed),
            task_id="task",
            group_id=str(contexts[0]),
            attempt=0,
            seed=seed,
            nodes=nodes,
            stop=Stop.DONE,
            scores=(Score(name="pass", value=1.0),),
        )
        for (seed, contexts), nodes in zip(plans.items(), played, strict=True)
    ]


def to_samples(played):
    return [sample for trace in played for sample in samples(trace, 0.5 - trace.seed % 2)]


def largest_gap(model, made, temperature):
    """Between the trainer's and the sampler's log-probability of a sampled token."""
    (batch,) = micro_batches(made, max_tokens=100_000)
    with torch.no_grad():
        scored = score_tokens(model, batch, temperature)
    return (scored.logprobs_K - batch.sampler_logprobs_K).abs().max().item()


def without_support(made):
    return [replace(sample, support=()) for sample in made]


samplings = st.builds(
    Sampling,
    temperature=st.floats(0.3, 2.0),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 20, 1000]),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 1.0)),
)


@settings(max_examples=15, deadline=None)
@given(samplings, st.integers(0, 3))
def test_right_after_publication_the_trainer_agrees_with_the_sampler_at_any_setting(sampling, seed):
    model = tiny(seed)
    assert largest_gap(model, to_samples(traces(model, sampling)), sampling.temperature) < 1e-5


@pytest.mark.parametrize("rule", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_without_the_support_they_differ(rule):
    """Negative control; and other weights, and another temperature, are noticed with it."""
    model, sampling = tiny(), Sampling(temperature=0.8, **rule)
    made = to_samples(traces(model, sampling))
    assert largest_gap(model, made, 0.8) < 1e-5
    assert largest_gap(model, without_support(made), 0.8) > 1e-2
    assert largest_gap(model, made, 0.9) > 1e-3
    assert largest_gap(tiny(seed=1), made, 0.8) > 1e-3


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_so_does_a_hugging_face_model(family):
    transformers = pytest.importorskip("transformers")
    from agentrl.policy.hf import HuggingFacePolicy  # an optional dependency

    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=1,
    )
    torch.manual_seed(0)
    model = HuggingFacePolicy(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())
    for rules in ({"top_p": 0.8}, {"top_k": 4, "min_p": 0.05}, {"top_k": 20, "top_p": 0.9, "min_p": 0.02}):
        sampling = Sampling(temperature=1.3, **rules)
        made = to_samples(traces(model, sampling))
        assert largest_gap(model, made, 1.3) < 1e-5
        assert largest_gap(model, without_support(made), 1.3) > 1e-2


def test_the_support_is_what_the_rules_keep_of_the_models_logits():
    model = tiny()
    made = to_samples(traces(model, NUCLEUS))
    for sample in made:
        batch = pack([[sample]], count([sample]))
        with torch.no_grad():
            mask_KV = kept(model(batch).logits_KV / NUCLEUS.temperature, NUCLEUS)
        found = [ids for ids in sample.support if ids is not None]
        assert found == [tuple(row.nonzero().squeeze(1).tolist()) for row in mask_KV]
    sizes = {len(ids) for sample in made for ids in sample.support if ids is not None}
    assert len(sizes) > 3
    assert max(sizes) < VOCABULARY


@pytest.mark.parametrize("rules", [{"top_p": 0.7}, {"top_k": 6}, {"min_p": 0.2}])
def test_tokens_come_with_the_probabilities_that_are_left(rules):
    model, draws = tiny(), 3000
    sampling = Sampling(temperature=1.2, **rules)
    engine = LocalEngine(model, sampling=sampling)

    async def first_tokens():
        sessions = [engine.session(seed) for seed in range(draws)]
        asked = [session.sample((1, 2, 3), max_tokens=1, stop_ids=STOP) for session in sessions]
        return [reply.token_ids[0] for reply in await asyncio.gather(*asked)]

    counts = np.bincount(asyncio.run(first_tokens()), minlength=VOCABULARY)
    (probe,) = to_samples(traces(model, sampling, {1: [(1, 2, 3)]}))
    batch = pack([[probe]], count([probe]))
    with torch.no_grad():
        scaled_1V = model(batch).logits_KV[:1].double() / 1.2
    (mask_V,) = kept(scaled_1V, sampling)
    assert not counts[~mask_V.numpy()].any()
    expected = draws * scaled_1V[0][mask_V].softmax(-1).numpy()
    assert (expected >= 5).all()
    assert stats.chisquare(counts[mask_V.numpy()], expected).pvalue > 1e-3


def test_a_setting_that_keeps_every_token_changes_no_draw():
    model = tiny()
    plain = traces(model, Sampling(temperature=0.9))
    whole = traces(model, Sampling(temperature=0.9, top_k=VOCABULARY))
    for before, after in zip(plain, whole, strict=True):
        for one, other in zip(before.nodes, after.nodes, strict=True):
            assert one.support == ()
            assert replace(other, support=()) == one
            assert set(other.support) <= {tuple(range(VOCABULARY))}


def test_a_greedy_conversation_takes_the_likeliest_of_what_is_kept():
    model = tiny()
    cut, plain = (traces(model, sampling, greedy=True) for sampling in (NUCLEUS, Sampling(temperature=0.9)))
    assert [n.sampled_ids for t in cut for n in t.nodes] == [n.sampled_ids for t in plain for n in t.nodes]
    assert largest_gap(model, to_samples(cut), 0.9) < 1e-5
    assert largest_gap(model, without_support(to_samples(cut)), 0.9) > 1e-2


def test_the_same_seeds_give_the_same_supports_bit_for_bit():
    model = tiny()
    assert traces(model, NUCLEUS) == traces(model, NUCLEUS)
    backwards = traces(model, NUCLEUS, dict(reversed(PLANS.items())))
    assert sorted(backwards, key=lambda trace: trace.seed) == traces(model, NUCLEUS)


def test_the_ratio_stays_that_of_two_distributions_over_one_set_when_the_weights_move():
    """Its mean under the sampler is 1, over the words of the support; a nucleus that the trainer chose anew would be
    another set, in which some sampled tokens have no probability at all."""
    model = tiny()
    made = to_samples(traces(model, NUCLEUS))
    trainer = Trainer(model, OptimizerSettings(learning_rate=3e-2, matrix_learning_rate=3e-2, total_steps=9))
    loss = PolicyGradient(preset("reinforce"))
    reported = trainer.step(made, loss, temperature=0.9)
    assert reported["logprob_gap"] < 1e-5
    assert reported["ratio"] == pytest.approx(1.0, abs=1e-5)
    for _ in range(5):
        reported = trainer.step(made, loss, temperature=0.9)
    assert reported["logprob_gap"] > 0.1
    assert reported["grad_norm"] > 0
    lost = 0
    for sample in made:
        batch = pack([[sample]], count([sample]))
        with torch.no_grad():
            scaled_KV = model(batch).logits_KV / 0.9
            assert score_tokens(model, batch, 0.9).logprobs_K.isfinite().all()
        lost += int((~kept(scaled_KV, NUCLEUS).gather(1, batch.target_K[:, None])).sum())
    assert lost > 0


def test_case_l16_a_top_k_of_the_sampler_that_nobody_reports_is_noticed():
    """Logits 2, 1, .5, -1 with top-k 2: 0.833668 of the mass is kept, so that every log-probability is off by
    -ln 0.833668 = 0.181920."""
    logits = torch.tensor([[2.0, 1.0, 0.5, -1.0]])
    mask = kept(logits, Sampling(top_k=2))
    assert mask.tolist() == [[True, True, False, False]]
    assert logits.softmax(-1)[mask].sum().item() == pytest.approx(0.833668, abs=1e-6)
    model, sampling = tiny(), Sampling(top_k=2)
    silent = without_support(to_samples(traces(model, sampling)))
    trainer = Trainer(model, OptimizerSettings(learning_rate=0.0, matrix_learning_rate=0.0, total_steps=1))
    assert trainer.step(silent, PolicyGradient(preset("reinforce")))["logprob_gap"] > 0.18


@pytest.mark.parametrize("rules", [{"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.1}, {"top_k": 3, "top_p": 0.8}])
def test_a_model_whose_logits_are_no_numbers_is_an_error(rules):
    model = tiny()
    with torch.no_grad():
        model.norm.fill_(float("nan"))
    with pytest.raises(SamplerError):
        traces(model, Sampling(**rules), {1: [(1, 2, 3)]})
