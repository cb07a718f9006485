"""The optimizer step: it learns, it repeats itself bit for bit, and it refuses numbers that it must not use."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.presets import preset
from agentrl.errors import TrainerError
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.losses import LossShare, PolicyGradient, supervised
from agentrl.train.packing import count, micro_batches, pack
from agentrl.train.scoring import score_tokens
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Sample

SHAPE = TransformerShape(vocab_size=12, layers=1, width=16, heads=2, mlp_width=32, context=32)
DR_GRPO, REINFORCE = preset("dr_grpo"), preset("reinforce")
SETTINGS = OptimizerSettings(learning_rate=1e-2, matrix_learning_rate=1e-2, total_steps=100)


def make_sample(ids, trained, *, group="g", advantage=1.0, objective="pg", logprob=-2.0):
    """Untrained tokens have no logprob and advantage 0."""
    return Sample(
        token_ids=tuple(ids),
        weights={objective: tuple(map(float, trained))},
        logprobs=tuple(logprob if flag else None for flag in trained),
        advantages=tuple(advantage if flag else 0.0 for flag in trained),
        trace_id=f"{group}/{ids}",
        group_id=group,
    )


def lessons():
    """Copy the second token twice: one demonstration for each of six tokens."""
    return [make_sample([1, t, t, t], [0, 0, 1, 1], group=str(t), objective="ce") for t in range(2, 8)]


def attempts():
    """The book example: one group with rewards 1, 0, 0, 1 has advantages +0.5, -0.5, -0.5, +0.5."""
    rows = [([1, 2, 3, 4], 0.5), ([1, 2, 5], -0.5), ([1, 2, 6, 7, 8], -0.5), ([1, 2, 9], 0.5)]
    return [make_sample(ids, [0, 0, *[1] * (len(ids) - 2)], advantage=advantage) for ids, advantage in rows]


def make_trainer(seed=0, **changes):
    return Trainer(TinyTransformer(SHAPE, seed=seed), replace(SETTINGS, **changes))


def weights(trainer):
    return torch.cat([parameter.detach().flatten().clone() for parameter in trainer.model.parameters()])


def gradient(samples, loss, max_tokens=10_000, temperature=1.0):
    """Loss and gradient of a step, without the step."""
    model = TinyTransformer(SHAPE, seed=0)
    total = 0.0
    for batch in micro_batches(samples, max_tokens=max_tokens):
        share = loss(score_tokens(model, batch, temperature), batch).loss
        share.backward()
        total += share.item()
    return total, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_a_step_leaves_no_gradients_whether_it_was_taken_or_not():
    trainer = make_trainer(learning_rate=2e-2)
    trainer.step(lessons(), supervised)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())

    def endless(scored, batch):
        return LossShare(scored.logprobs_K.sum() * float("inf"), {}, {})

    with pytest.raises(TrainerError, match="gradient norm is"):
        trainer.step(lessons(), endless)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_supervised_training_learns_a_tiny_set():
    trainer = make_trainer(learning_rate=2e-2)
    losses = [trainer.step(lessons(), supervised)["loss"] for _ in range(30)]
    assert losses[0] == pytest.approx(math.log(12), abs=0.5)  # fresh weights guess among 12 words
    assert losses[-1] < 0.2
    assert make_trainer(learning_rate=0.0).step(lessons(), supervised)["loss"] == losses[0]


def test_reinforcement_raises_what_was_good_and_lowers_what_was_bad():
    samples = attempts()
    trainer = make_trainer()
    batch = pack([samples], count(samples))

    def logprobs():
        with torch.no_grad():
            return score_tokens(trainer.model, batch).logprobs_K

    before = logprobs()
    samples = [
        replace(sample, logprobs=tuple(before[0].item() if w else None for w in sample.weights["pg"]))
        for sample in samples
    ]
    for _ in range(5):
        trainer.step(samples, PolicyGradient(REINFORCE))
    first, second = logprobs() - before, batch.advantages_K
    # Only the first trained token of each attempt follows the same prompt: 3 and 9 are good, 5 and 6 bad.
    heads = torch.tensor([0, 2, 3, 6])
    assert (first[heads] * second[heads] > 0).all()


def test_the_book_example_by_hand():
    samples = attempts()
    model = TinyTransformer(SHAPE, seed=0)
    batch = pack([samples], count(samples))
    scored = score_tokens(model, batch)
    # 2 + 1 + 3 + 1 trained tokens; the divisor is 7, and -A log p is summed over them.
    expected = -(torch.tensor([0.5, 0.5, -0.5, -0.5, -0.5, -0.5, 0.5]) * scored.logprobs_K).sum() / 7
    assert PolicyGradient(REINFORCE)(scored, batch).loss.item() == pytest.approx(expected.item(), rel=1e-6)
    # On fresh data the clipped objective has the same gradient, and its loss is minus the mean advantage.
    fresh = replace(batch, old_logprobs_K=scored.logprobs_K.detach())
    share = PolicyGradient(DR_GRPO)(scored, fresh)
    assert share.loss.item() == pytest.approx(-(3 * 0.5 - 4 * 0.5) / 7, rel=1e-6)
    ours = torch.autograd.grad(share.loss, model.embedding.weight, retain_graph=True)
    theirs = torch.autograd.grad(PolicyGradient(REINFORCE)(scored, fresh).loss, model.embedding.weight)
    torch.testing.assert_close(ours, theirs)


def test_on_fresh_data_the_ratio_is_one_and_nothing_is_reported_to_have_moved():
    trainer = make_trainer(learning_rate=0.0)
    samples = attempts()
    with torch.no_grad():
        scored = score_tokens(trainer.model, pack([samples], count(samples))).logprobs_K.tolist()
    fresh = []
    for sample in samples:
        logprobs = tuple(scored.pop(0) if weight else None for weight in sample.weights["pg"])
        fresh.append(replace(sample, logprobs=logprobs))
    reported = trainer.step(fresh, PolicyGradient(DR_GRPO))
    assert reported["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert reported["kl"] == pytest.approx(0.0, abs=1e-6)
    assert reported["clip_share"] == 0.0
    stale = trainer.step(samples, PolicyGradient(DR_GRPO))  # sampled elsewhere, at -2.0 each
    assert abs(stale["ratio"] - 1.0) > 0.1
    assert stale["kl"] > 0.01


@pytest.mark.parametrize(("loss", "samples"), [(supervised, lessons()), (PolicyGradient(DR_GRPO), attempts())])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_micro_batches_do_not_change_the_step(loss, samples, temperature):
    samples = [*samples, *(replace(sample, group_id="second") for sample in samples)]
    value, whole = gradient(samples, loss, temperature=temperature)
    for max_tokens in (1, 10, 25):
        again, pieces = gradient(samples[::-1], loss, max_tokens, temperature)
        assert again == pytest.approx(value, rel=1e-6)
        assert (pieces - whole).norm() <= 1e-6 * whole.norm() + 1e-8


poison = st.sampled_from([math.nan, math.inf, -math.inf, 1e9, None])


@settings(max_examples=8, deadline=None)
@given(st.lists(poison, min_size=4, max_size=4))
def test_what_stands_at_an_untrained_token_changes_nothing_to_the_bit(values):
    def poisoned(sample):
        place = iter(values * 3)
        logprobs = tuple(
            old if w else next(place) for old, w in zip(sample.logprobs, sample.weights["pg"], strict=True)
        )
        advantages = tuple(
            old if w else (next(place) or 1e9) for old, w in zip(sample.advantages, sample.weights["pg"], strict=True)
        )
        return replace(sample, logprobs=logprobs, advantages=advantages)

    value, clean = gradient(attempts(), PolicyGradient(DR_GRPO))
    again, dirty = gradient(list(map(poisoned, attempts())), PolicyGradient(DR_GRPO))
    assert again == value
    assert torch.equal(dirty, clean)
    moved, other = gradient(
        [replace(s, advantages=(3.0,) * len(s.token_ids)) for s in attempts()], PolicyGradient(DR_GRPO)
    )
    assert moved != value
    assert not torch.equal(other, clean)


@pytest.mark.parametrize("bad", [{"advantage": math.nan}, {"advantage": math.inf}, {"logprob": math.nan}])
def test_a_gradient_that_is_not_finite_is_refused_and_the_weights_stay(bad):
    trainer = make_trainer()
    trainer.step(attempts(), PolicyGradient(DR_GRPO))
    before = weights(trainer)
    with pytest.raises(TrainerError, match=r"gradient norm is (nan|inf); the step was not taken"):
        trainer.step([*attempts(), make_sample([1, 2, 3], [0, 0, 1], group="bad", **bad)], PolicyGradient(DR_GRPO))
    assert torch.equal(weights(trainer), before)
    assert trainer.steps == 1
    trainer.step(attempts(), PolicyGradient(DR_GRPO))  # and goes on as if it had not been
    expected = make_trainer()
    for _ in range(2):
        expected.step(attempts(), PolicyGradient(DR_GRPO))
    assert torch.equal(weights(trainer), weights(expected))


@pytest.mark.parametrize("samples", [[], [make_sample([1, 2], [0, 0])]])
def test_a_step_without_a_trained_token_is_refused(samples):
    trainer = make_trainer()
    before = weights(trainer)
    with pytest.raises(TrainerError, match=f"none of the {len(samples)} samples has a trained token"):
        trainer.step(samples, supervised)
    assert torch.equal(weights(trainer), before)


def test_the_same_seed_twice_gives_the_same_weights_bit_for_bit():
    def train(seed):
        trainer = make_trainer(seed, max_tokens=12)
        for _ in range(4):
            trainer.step(lessons(), supervised)
            trainer.step(attempts(), PolicyGradient(DR_GRPO), temperature=0.9)
        return weights(trainer)

    first = train(0)
    assert torch.equal(first, train(0))
    assert not torch.equal(first, train(1))


def test_the_learning_rate_number_by_number():
    schedule = OptimizerSettings(
        learning_rate=1.0, matrix_learning_rate=1.0, total_steps=10, warmup_steps=4, final_fraction=0.2
    )
    # warm-up (step + 1) / 4, at most 1, times 1 - 0.8 * step / 10, at least 0.2
    assert [schedule.scale(step) for step in (0, 1, 3, 5, 10, 99)] == pytest.approx(
        [0.25 * 1.0, 0.5 * 0.92, 1.0 * 0.76, 0.6, 0.2, 0.2]
    )
    trainer = make_trainer(learning_rate=1.0, total_steps=10, warmup_steps=4, final_fraction=0.2, max_grad_norm=1e-9)
    rates = [trainer.step(lessons(), supervised)["learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.25, 0.46, 0.75 * 0.84, 0.76])


def test_entropies_are_those_of_the_distribution_that_was_sampled():
    samples = lessons()
    model = TinyTransformer(SHAPE, seed=0)
    batch = pack([[sample] for sample in samples], count(samples))
    logits = model(batch).logits_KV
    for temperature in (1.0, 0.5):
        expected = torch.distributions.Categorical(logits=logits / temperature)
        scored = score_tokens(model, batch, temperature)
        torch.testing.assert_close(scored.entropy_K, expected.entropy())
        torch.testing.assert_close(scored.logprobs_K, expected.log_prob(batch.target_K))
    reported = make_trainer().step(samples, supervised)
    assert reported["entropy"] == pytest.approx(score_tokens(model, batch).entropy_K.mean().item(), rel=1e-5)
