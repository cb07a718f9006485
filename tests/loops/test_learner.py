"""What a batch does to a policy: which optimizer steps are taken on what, and what stands beside the algorithm."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from agentrl.algorithms.presets import correction, preset
from agentrl.config import RlConfig
from agentrl.errors import TrainerError
from agentrl.loops.learner import Learner
from agentrl.loops.rl import configured_preset, credit, critic_settings, optimizer_settings
from agentrl.train.correct import with_correction
from agentrl.train.losses import PolicyGradient
from agentrl.train.parity.figures import compare, tolerance_of
from agentrl.train.scoring import score_samples
from agentrl.train.trainer import OptimizerSettings, Trainer
from tests.loops.test_algorithms import RL, SETTINGS, flat

REINFORCE = preset("reinforce")


@pytest.fixture
def trainer(played):
    return Trainer(copy.deepcopy(played[0]), SETTINGS)


@pytest.fixture
def batch(played):
    return credit(played[1], REINFORCE).samples


def settings(**changes):
    return RlConfig.model_validate({**RL.model_dump(), **changes})


def logprobs(model, batch):
    rows = score_samples(model, batch, lambda scored: scored.logprobs_K, temperature=1.0, max_tokens=8192)
    return [value for row in rows for value in row if value == value]


def test_minibatches_are_optimizer_steps_over_whole_groups_each_once_a_pass(trainer, batch):
    seen = []

    class Watched(Trainer):
        def step(self, samples, loss, **settings):
            seen.append([sample.trace_id for sample in samples])
            return super().step(samples, loss, **settings)

    watched = Watched(trainer.model, SETTINGS)
    learner = Learner(watched, REINFORCE, settings(minibatches=3, epochs=2), seed=5)
    metrics = learner.learn(batch, 0)
    assert metrics["optimizer_steps"] == 6 == len(seen)
    everything = sorted(sample.trace_id for sample in batch)
    for first in (0, 3):
        assert sorted(name for part in seen[first : first + 3] for name in part) == everything
    groups = [{name.rsplit("-", 1)[0] for name in part} for part in seen]
    assert [len(names) for names in groups] == [2, 1, 1] * 2  # four groups
    assert groups[:3] != groups[3:]  # another order in the second pass
    assert metrics["tokens_trained"] == 2 * sum(sum(sample.weights["pg"]) for sample in batch)


def test_the_second_minibatch_is_off_policy_and_the_gap_is_that_of_the_first(trainer, batch):
    fast = replace(SETTINGS, learning_rate=5e-2, warmup_steps=1)
    metrics = Learner(Trainer(trainer.model, fast), REINFORCE, settings(minibatches=2)).learn(batch, 0)
    assert metrics["logprob_gap"] < 1e-5
    assert metrics["kl"] > 1e-4


def test_the_old_policy_is_that_of_the_first_step_in_all_of_them(trainer, batch):
    """With two minibatches PPO's ratio in the second is to the policy before the first: to the sampler's, here."""
    clipped = preset("dr_grpo", clip_low=1e-5, clip_high=1e-5)
    metrics = Learner(trainer, clipped, settings(minibatches=2)).learn(batch, 0)
    alone = Trainer(copy.deepcopy(trainer.model), SETTINGS).step(batch, PolicyGradient(clipped))
    assert metrics["clip_share"] > 0.1
    assert alone["clip_share"] > 0.25  # 0.45 with two threads: all that has moved since


def off_by(batch, size):
    return [replace(sample, logprobs=tuple(v and v - size for v in sample.logprobs)) for sample in batch]


def test_tokens_of_these_weights_that_do_not_agree_are_an_error_and_older_ones_are_not(played, trainer, batch):
    wrong = off_by(batch, 0.01)
    assert Learner(trainer, REINFORCE, RL).learn(wrong, 3)["logprob_gap"] == pytest.approx(0.01, rel=1e-3)
    again = Trainer(copy.deepcopy(played[0]), SETTINGS)
    with pytest.raises(TrainerError, match=r"just sampled differ by 0\.01 nats") as refused:
        Learner(again, REINFORCE, RL).learn(wrong, 0)
    assert "at most 0.001 and 0.0001 with weights in float32" in str(refused.value)
    assert torch.equal(flat(again.model), flat(played[0]))  # no step was taken


def test_the_refusal_says_what_is_wrong(played, batch):
    """A trainer that scores at another temperature, or whose sampler has the weights of a checkpoint."""

    def refusal(policy, samples, temperature=1.0, earlier=tuple):
        learner = Learner(Trainer(policy, SETTINGS), REINFORCE, settings(temperature=temperature), earlier=earlier)
        with pytest.raises(TrainerError) as refused:
            learner.learn(samples, 0)
        return str(refused.value)

    model = played[0]
    at_half = refusal(copy.deepcopy(model), batch, temperature=0.5)
    assert "likely fault: temperature; the trainer agrees at temperature 1 and scored at 0.5" in at_half
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.blocks[0].up.weight.add_(0.02)
    stale = refusal(moved, batch, earlier=lambda: [("checkpoint rl-000001", model.tensors())])
    assert "likely fault: stale weights; the trainer agrees with the weights of checkpoint rl-000001" in stale
    assert "no known fault explains it" in refusal(copy.deepcopy(moved), batch)


def test_a_coarser_type_is_held_to_its_own_tolerance(played, batch):
    """0.01 nats are a fault in float32 and rounding in bfloat16."""
    half = copy.deepcopy(played[0])
    half.unused = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))  # the least exact of the weights decides
    metrics = Learner(Trainer(half, SETTINGS), REINFORCE, RL).learn(off_by(batch, 0.01), 0)
    assert metrics["logprob_gap"] == pytest.approx(0.01, rel=1e-3)


def test_the_first_step_alone_compares_in_full_where_nothing_else_is_asked_for(trainer, batch):
    learner = Learner(trainer, REINFORCE, settings(parity_every=0))
    assert ["parity_tokens" in learner.learn(batch, version) for version in (0, 1, 24)] == [True, False, False]


def test_the_first_step_and_every_nth_say_in_full_how_far_trainer_and_sampler_are_apart(trainer, batch):
    learner = Learner(trainer, REINFORCE, settings(parity_every=3))
    rows = [learner.learn(batch, version) for version in range(6)]
    assert [number for number, row in enumerate(rows, start=1) if "parity_tokens" in row] == [1, 3, 6]
    first = rows[0]
    assert first["parity_tokens"] == sum(sum(sample.weights["pg"]) for sample in batch)
    assert first["parity_difference"] < 1e-5
    assert first["parity_beyond"] == 0.0
    assert first["parity_sampler_nll"] == pytest.approx(first["parity_trainer_nll"], abs=1e-5)
    # the policy has moved away from the sampler meanwhile
    assert rows[5]["parity_difference"] > rows[2]["parity_difference"] > 1e-4
    assert rows[5]["parity_square"] >= rows[5]["parity_difference"] ** 2


def test_the_figures_are_those_of_the_tokens_before_the_step(played, trainer, batch):
    expected = compare(played[0], batch, temperature=1.0).figures(tolerance_of(played[0]))
    found = Learner(trainer, REINFORCE, settings(minibatches=1)).learn(off_by(batch, 0.25), 24)
    assert found["parity_difference"] == pytest.approx(0.25, rel=1e-3)
    assert found["parity_square"] == pytest.approx(0.0625, rel=1e-3)
    assert found["parity_k3"] == pytest.approx(math.exp(0.25) - 1.25, rel=1e-3)  # the trainer finds them likelier
    assert found["parity_beyond"] == 1.0
    assert found["parity_trainer_nll"] == pytest.approx(math.log(expected.trainer_perplexity), rel=1e-5)
    assert found["parity_sampler_nll"] == pytest.approx(found["parity_trainer_nll"] + 0.25, rel=1e-4)


def test_without_a_learning_rate_the_difference_does_not_grow(trainer, batch):
    """open-instruct#1473."""
    still = Trainer(trainer.model, replace(SETTINGS, learning_rate=0.0, matrix_learning_rate=0.0))
    learner = Learner(still, REINFORCE, settings(parity_every=1))
    assert len({learner.learn(batch, version)["parity_difference"] for version in range(3)}) == 1


def test_watching_changes_no_weight_to_the_bit(played, batch):
    """The same step without the learner around it."""
    watched, plain = (Trainer(copy.deepcopy(played[0]), SETTINGS) for _ in range(2))
    Learner(watched, REINFORCE, RL).learn(batch, 0)
    plain.step(batch, PolicyGradient(REINFORCE))
    assert torch.equal(flat(watched.model), flat(plain.model))


def test_while_a_critic_warms_up_there_is_nothing_to_compare_and_then_it_is_compared_first(trainer, returns):
    learner = Learner(trainer, preset("ppo"), with_critic(critic_warmup=2, parity_every=0))
    assert ["parity_tokens" in learner.learn(returns, version) for version in range(4)] == [False, False, True, False]


def test_a_fresh_sampler_needs_no_correction(trainer, batch):
    plain = Trainer(copy.deepcopy(trainer.model), SETTINGS)
    Learner(plain, REINFORCE, RL).learn(batch, 0)
    metrics = Learner(trainer, replace(REINFORCE, correction=correction("token_tis")), RL).learn(batch, 0)
    assert metrics["importance"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["effective_sample_size"] == pytest.approx(1.0, abs=1e-5)
    assert (metrics["importance_rejected"], metrics["importance_capped"]) == (0.0, 0.0)
    torch.testing.assert_close(flat(trainer.model), flat(plain.model), rtol=1e-3, atol=1e-5)


def test_a_correction_multiplies_each_tokens_loss_by_what_old_and_sampler_say(trainer, batch):
    """A sampler that found each token e times less likely: its tokens weigh 2, the cap, and so does the gradient."""
    off = [replace(sample, logprobs=tuple(v and v - 1.0 for v in sample.logprobs)) for sample in batch]
    corrected = replace(REINFORCE, correction=correction("token_tis"))
    measured = Learner(trainer, corrected, RL).learn(off, 1)
    plain = Learner(Trainer(copy.deepcopy(trainer.model), SETTINGS), REINFORCE, RL).learn(off, 1)
    assert measured["importance"] == 2.0
    assert measured["importance_capped"] == 1.0
    # taken at the same weights, the step before has moved only the trainer's own model
    again = Learner(Trainer(copy.deepcopy(trainer.model), SETTINGS), corrected, RL).learn(off, 1)
    assert again["grad_norm"] == pytest.approx(2 * plain["grad_norm"], rel=1e-4)


def test_a_reply_of_several_versions_is_corrected_token_by_token(trainer, batch):
    """Each token has the number of the version that sampled it: every second one is said to be half as likely, under an
    older version, so its weight is 2 and the others' 1; a reply over a publication is not compared with the trainer's
    weights."""
    mixed = [
        replace(
            sample,
            logprobs=tuple(v and v - math.log(2) * (n % 2) for n, v in enumerate(sample.logprobs)),
            versions=tuple(v if v is None else 6 + (n + 1) % 2 for n, v in enumerate(sample.versions)),
        )
        for sample in batch
    ]
    old = score_samples(trainer.model, mixed, lambda scored: scored.logprobs_K, temperature=1.0, max_tokens=8192)
    rule = correction("token_tis", cap=4.0)
    made, _ = with_correction(mixed, old, rule)
    for sample in made:
        trained = [n for n, weight in enumerate(sample.weights["pg"]) if weight]
        assert [sample.importance[n] for n in trained] == pytest.approx([1.0 + n % 2 for n in trained], rel=1e-3)
    learner = Learner(trainer, replace(REINFORCE, correction=rule), RL)
    share = sum(n % 2 for sample in made for n, weight in enumerate(sample.weights["pg"]) if weight)
    tokens = sum(map(bool, (weight for sample in made for weight in sample.weights["pg"])))
    assert learner.learn(mixed, 7)["importance"] == pytest.approx(1.0 + share / tokens, rel=1e-3)


def test_a_reply_that_is_labelled_with_these_weights_alone_is_compared(trainer, batch):
    """The control of the last test: the same numbers, said to be of the trainer's version throughout."""
    off = off_by(batch, math.log(2))
    fresh = [replace(one, versions=tuple(v if v is None else 7 for v in one.versions)) for one in off]
    with pytest.raises(TrainerError, match="just sampled differ"):
        Learner(trainer, REINFORCE, RL).learn(fresh, 7)


def test_rejected_tokens_teach_nothing_and_keep_their_place(trainer, batch):
    far = [replace(sample, logprobs=tuple(v and v - 3.0 for v in sample.logprobs)) for sample in batch]
    masked = replace(REINFORCE, correction=correction("token_mis"))  # e^3 = 20 is above 5
    measured = Learner(trainer, masked, RL).learn(far, 1)
    assert (measured["importance_rejected"], measured["grad_norm"]) == (1.0, 0.0)


def test_an_entropy_bonus_keeps_the_policy_less_certain(played, batch):
    def after(**changes):
        fast = OptimizerSettings(learning_rate=2e-2, matrix_learning_rate=2e-2, total_steps=8, warmup_steps=1)
        trainer = Trainer(copy.deepcopy(played[0]), fast)
        learner = Learner(trainer, REINFORCE, settings(**changes))
        for _ in range(4):
            metrics = learner.learn(batch, 9)
        return metrics["entropy"]

    plain = after()
    assert after(entropy_coef=0.3) > 1.5 * plain
    assert after(entropy_coef=1e-9) == pytest.approx(plain, rel=1e-3)


def test_an_adaptive_bonus_grows_below_its_target_and_is_off_above(trainer, batch):
    entropy = Learner(trainer, REINFORCE, RL).learn(batch, 0)["entropy"]
    below = Learner(trainer, REINFORCE, settings(entropy_target=entropy + 1.0), entropy_coef=0.01)
    assert below.entropy.target == entropy + 1.0
    assert below.learn(batch, 9)["entropy_coef"] == 0.01
    assert below.learn(batch, 9)["entropy_coef"] == pytest.approx(0.015)
    assert below.entropy.coefficient == pytest.approx(0.02)
    above = Learner(trainer, REINFORCE, settings(entropy_target=0.0), entropy_coef=0.01)
    assert "entropy_coef" not in above.learn(batch, 9)
    assert above.entropy.coefficient == pytest.approx(0.005)


def with_critic(**changes):
    return settings(algorithm="ppo", **changes)


@pytest.fixture
def returns(played):
    return credit(played[1], preset("ppo")).samples


def test_while_the_critic_warms_up_the_policy_stays_and_the_value_head_moves(trainer, returns):
    before, head = logprobs(trainer.model, returns), trainer.model.value.weight.detach().clone()
    learner = Learner(trainer, preset("ppo"), with_critic(critic_warmup=2))
    measured = [learner.learn(returns, version) for version in (0, 1)]
    assert logprobs(trainer.model, returns) == before
    assert not torch.equal(trainer.model.value.weight, head)
    assert measured[1]["value_loss"] < measured[0]["value_loss"]
    assert "logprob_gap" not in measured[0]
    learner.learn(returns, 2)
    assert logprobs(trainer.model, returns) != before
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())


def test_a_separate_critic_leaves_the_policy_to_the_policys_loss(trainer, returns):
    critic = Trainer(copy.deepcopy(trainer.model), SETTINGS)
    start, head = flat(critic.model), trainer.model.value.weight.detach().clone()
    measured = Learner(trainer, preset("ppo"), with_critic(separate_critic=True), critic=critic).learn(returns, 0)
    assert measured["value_loss"] > 0
    assert measured["optimizer_steps"] == 1
    assert not torch.equal(flat(critic.model), start)
    assert torch.equal(trainer.model.value.weight, head)  # nobody asked it


def test_nothing_to_train_is_no_step(trainer):
    before = flat(trainer.model)
    assert Learner(trainer, REINFORCE, RL).learn([], 0) == {"tokens_trained": 0.0, "optimizer_steps": 0.0}
    assert torch.equal(flat(trainer.model), before)


def test_what_is_configured_is_what_the_preset_is():
    found = configured_preset(settings(algorithm="grpo", reduction="token", mask_truncated=True))
    assert found.reduction.__name__ == "over_tokens"
    assert [rule.__name__ for rule in found.attempt_filters] == ["overlong"]
    assert configured_preset(settings(algorithm="grpo")).reduction.__name__ == "over_sequences"
    old_T, sampler_T = torch.tensor([0.0]), torch.tensor([-9.0])
    capped = configured_preset(settings(correction="token_tis", correction_parameters={"cap": 1.5}))
    assert capped.correction.rule(old_T, sampler_T, torch.tensor([True]), None).weight_T.item() == 1.5
    assert configured_preset(settings(algorithm="ppo", parameters={"value_clip": 0.2})).critic.value_clip == 0.2


def test_a_correction_that_leaves_out_keeps_the_ratio_to_the_sampler(played, batch):
    """A sampler 0.15 nats behind: PPO's ratio is e^0.15 = 1.162 with no correction, and with a mask that keeps all."""
    behind = [replace(sample, logprobs=tuple(v and v - 0.15 for v in sample.logprobs)) for sample in batch]

    def ratio(**changes):
        trainer = Trainer(copy.deepcopy(played[0]), SETTINGS)
        chosen = settings(**changes)
        return Learner(trainer, configured_preset(chosen), chosen).learn(behind, 1)

    wide = {"low": 0.0, "high": 9.0}
    assert ratio()["ratio"] == pytest.approx(1.16183, rel=1e-4)
    masked = ratio(correction="geometric_mask", correction_parameters=wide)
    assert masked["ratio"] == pytest.approx(1.16183, rel=1e-4)
    assert masked["importance"] == 1.0
    weighed = ratio(correction="token_tis")
    assert weighed["ratio"] == pytest.approx(1.0, rel=1e-4)
    assert weighed["importance"] == weighed["importance_ratio"] == pytest.approx(1.16183, rel=1e-4)
    assert masked["grad_norm"] == pytest.approx(weighed["grad_norm"], rel=1e-4)


def test_an_adaptive_bonus_waits_for_the_critic(trainer, returns):
    learner = Learner(trainer, preset("ppo"), with_critic(critic_warmup=2, entropy_target=9.0))
    for version in (0, 1):
        assert "entropy_coef" not in learner.learn(returns, version)
    assert learner.entropy.coefficient == 0.0


def test_groups_share_a_step_with_others_in_each_batch(trainer, batch):
    learner = Learner(trainer, REINFORCE, settings(minibatches=2), seed=1)
    parts = [[{s.group_id for s in part} for part in learner._parts(batch, version)] for version in range(4)]
    assert len({tuple(map(frozenset, part)) for part in parts}) > 1
    again = [{s.group_id for s in part} for part in learner._parts(batch, 0)]
    assert again == parts[0]


def test_one_older_token_is_enough_to_expect_a_gap(trainer, batch):
    mixed = [replace(sample, logprobs=tuple(v and v - 0.01 for v in sample.logprobs)) for sample in batch]
    mixed[0] = replace(mixed[0], versions=tuple(None if v is None else 7 for v in mixed[0].versions))
    assert Learner(trainer, REINFORCE, RL).learn(mixed, 0)["logprob_gap"] == pytest.approx(0.01, rel=1e-3)


def test_everything_is_scored_at_the_temperature_of_the_sampler(trainer, batch):
    rows = score_samples(trainer.model, batch, lambda scored: scored.logprobs_K, temperature=0.7, max_tokens=8192)
    cool = [
        replace(sample, logprobs=tuple(row[i] if v is not None else None for i, v in enumerate(sample.logprobs)))
        for sample, row in zip(batch, rows, strict=True)
    ]
    algorithm = replace(REINFORCE, correction=correction("token_tis"))
    reference = copy.deepcopy(trainer.model)
    chosen = settings(temperature=0.7, kl_coef=0.1, kl_loss="k3")
    metrics = Learner(trainer, algorithm, chosen, reference=reference).learn(cool, 0)
    assert metrics["logprob_gap"] < 1e-5
    assert metrics["importance"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert Learner(trainer, algorithm, settings(), reference=reference).learn(cool, 9)["importance_ratio"] != 1.0


@pytest.mark.parametrize(("name", "coefficient"), [("k2", 0.5), ("k3", 0.5), ("k3", 5.0)])
def test_the_pull_is_the_one_that_was_configured(played, batch, name, coefficient):
    """Against a reference of other weights the loss is the policy's and the coefficient times the estimator's mean."""
    reference = Trainer(copy.deepcopy(played[0]), replace(SETTINGS, learning_rate=3e-2, warmup_steps=1))
    reference.step(batch, PolicyGradient(REINFORCE))

    def loss(**changes):
        trainer = Trainer(copy.deepcopy(played[0]), SETTINGS)
        return Learner(trainer, REINFORCE, settings(**changes), reference=reference.model).learn(batch, 0)

    far = [b - a for a, b in zip(logprobs(played[0], batch), logprobs(reference.model, batch), strict=True)]
    expected = {"k2": [d * d / 2 for d in far], "k3": [math.exp(d) - 1 - d for d in far]}[name]
    mean = sum(expected) / len(expected)
    plain = Learner(Trainer(copy.deepcopy(played[0]), SETTINGS), REINFORCE, RL).learn(batch, 0)["loss"]
    found = loss(kl_coef=coefficient, kl_loss=name)
    assert found["kl_reference"] == pytest.approx(mean, rel=1e-3)
    assert found["loss"] == pytest.approx(plain + coefficient * mean, rel=1e-3, abs=1e-5)


def test_schedules_count_optimizer_steps_of_who_is_trained():
    plain = optimizer_settings(settings(steps=10, epochs=2, minibatches=3))
    assert (plain.total_steps, plain.delay_steps) == (60, 0)
    head = optimizer_settings(with_critic(steps=10, epochs=2, critic_warmup=4))
    assert (head.total_steps, head.delay_steps) == (12, 8)
    # the head learns at full rate, then the schedule begins
    assert [head.scale(step) for step in (0, 7, 8)] == [1.0, 1.0, pytest.approx(0.2)]
    assert head.scale(8 + 12) == pytest.approx(0.1)
    own = with_critic(steps=10, epochs=2, critic_warmup=4, separate_critic=True)
    assert (optimizer_settings(own).total_steps, optimizer_settings(own).delay_steps) == (12, 0)
    assert (critic_settings(own).total_steps, critic_settings(own).delay_steps) == (20, 0)


def test_a_step_in_which_nothing_is_trained_is_compared_too_when_it_is_its_turn(played, trainer, batch):
    """All rewards are alike at the first step of many runs; a wrong sampler must be noticed all the same."""
    learner = Learner(trainer, REINFORCE, settings(parity_every=4))
    first = learner.compare(batch, 0)
    assert first["parity_tokens"] == sum(sum(map(bool, sample.weights["pg"])) for sample in batch)
    assert first["parity_difference"] < 1e-5
    told = [version for version in range(8) if learner.compare(batch, version)]
    assert told == [0, 3, 7]  # the first, and every fourth
    assert learner.compare([], 0) == {}
    with pytest.raises(TrainerError, match="differ by"):
        learner.compare([replace(sample, versions=()) for sample in off_by(batch, 0.5)], 0)
