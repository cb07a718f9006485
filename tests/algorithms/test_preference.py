"""Every preference loss against a formula in plain Python, finite differences, its symmetries and its worked value."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.preference import bradley_terry, cdpo, discopop, dpo, exo, hinge, ipo, rdpo, rpo
from agentrl.algorithms.reference_free import cpo, orpo, simpo
from agentrl.algorithms.unpaired import (
    aot,
    aot_unpaired,
    apo_down,
    apo_zero,
    bco,
    bco_shift,
    kto,
    kto_reference_point,
    nca,
    sppo_hard,
)
from agentrl.errors import ConfigError, TrainerError

BETA = 0.1
LN2 = math.log(2)


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def s(x):
    """The logistic function, as it is written."""
    return 1 / (1 + math.exp(-x))


def softplus(x):
    return -math.log(s(-x))


def of_ratios(formula):
    """A plain loss of one pair from its two log ratios."""
    return lambda pairs: [formula(w - rw, v - rl) for w, v, rw, rl, *_ in pairs]


def of_pair(formula):
    return lambda pairs: [formula(*pair) for pair in pairs]


def logit(mean):
    return math.log(math.exp(mean) / (1 - math.exp(mean)))


def plain_sorted(upper, lower):
    """DPO's logistic loss between entries of equal rank, in the order of ``upper``."""
    rank = {index: k for k, index in enumerate(sorted(range(len(upper)), key=lambda i: (upper[i], i)))}
    return [softplus(-BETA * (u - sorted(lower)[rank[i]])) for i, u in enumerate(upper)]


PLAIN = {
    "dpo": of_ratios(lambda a, b: softplus(-BETA * (a - b))),
    "cdpo": of_ratios(lambda a, b: 0.9 * softplus(-BETA * (a - b)) + 0.1 * softplus(BETA * (a - b))),
    "rdpo": of_ratios(lambda a, b: (0.9 * softplus(-BETA * (a - b)) - 0.1 * softplus(BETA * (a - b))) / 0.8),
    "ipo_sum": of_ratios(lambda a, b: (a - b - 1 / (2 * BETA)) ** 2),
    "ipo_mean": of_pair(lambda w, v, rw, rl, n, m: ((w - rw) / n - (v - rl) / m - 1 / (2 * BETA)) ** 2),
    "hinge": of_ratios(lambda a, b: max(0.0, 1 - BETA * (a - b))),
    "rpo_sum": of_pair(lambda w, v, rw, rl, n, m: softplus(-BETA * (w - rw - v + rl)) - 0.005 * w),
    "rpo_mean": of_pair(lambda w, v, rw, rl, n, m: softplus(-BETA * (w - rw - v + rl)) - w / n),
    "exo": of_ratios(
        lambda a, b: (
            s(BETA * (a - b)) * math.log(s(BETA * (a - b)) / 0.9)
            + s(BETA * (b - a)) * math.log(s(BETA * (b - a)) / 0.1)
        )
    ),
    "discopop": of_ratios(
        lambda a, b: (
            (1 - s(BETA * (a - b) / 0.05)) * softplus(-BETA * (a - b))
            + s(BETA * (a - b) / 0.05) * math.exp(-BETA * (a - b))
        )
    ),
    "cpo": of_pair(lambda w, v, rw, rl, n, m: softplus(-BETA * (w - v)) - w),
    "cpo_mean": of_pair(lambda w, v, rw, rl, n, m: softplus(-BETA * (w - v)) - 0.5 * w / n),
    "simpo": of_pair(lambda w, v, rw, rl, n, m: softplus(1.375 - 2.5 * (w / n - v / m))),
    "orpo": of_pair(lambda w, v, rw, rl, n, m: -w / n + 0.1 * softplus(logit(v / m) - logit(w / n))),
    "apo_zero": of_ratios(lambda a, b: 1 - s(BETA * a) + s(BETA * b)),
    "apo_down": of_ratios(lambda a, b: s(BETA * a) + 1 - s(BETA * (a - b))),
    "sppo_hard": of_ratios(lambda a, b: (a - 0.5 / BETA) ** 2 + (b + 0.5 / BETA) ** 2),
    "nca": of_ratios(lambda a, b: softplus(-BETA * a) + softplus(BETA * a) / 2 + softplus(BETA * b) / 2),
    "aot": lambda pairs: plain_sorted([w - v for w, v, *_ in pairs], [rw - rl for _, _, rw, rl, *_ in pairs]),
    "aot_unpaired": lambda pairs: plain_sorted(
        [w - rw for w, _, rw, *_ in pairs], [v - rl for _, v, _, rl, *_ in pairs]
    ),
}


def with_reference(loss, **settings):
    return lambda w, v, rw, rl, n, m: loss(w, v, rw, rl, beta=BETA, **settings)


LOSSES = {
    "dpo": with_reference(dpo),
    "cdpo": with_reference(cdpo, label_smoothing=0.1),
    "rdpo": with_reference(rdpo, label_smoothing=0.1),
    "ipo_sum": lambda w, v, rw, rl, n, m: ipo(
        w, v, rw, rl, token_reduction="sum", chosen_lengths_N=n, rejected_lengths_N=m, beta=BETA
    ),
    "ipo_mean": lambda w, v, rw, rl, n, m: ipo(
        w, v, rw, rl, token_reduction="mean", chosen_lengths_N=n, rejected_lengths_N=m, beta=BETA
    ),
    "hinge": with_reference(hinge),
    "rpo_sum": lambda w, v, rw, rl, n, m: rpo(w, v, rw, rl, token_reduction="sum", chosen_lengths_N=n, beta=BETA),
    "rpo_mean": lambda w, v, rw, rl, n, m: rpo(
        w, v, rw, rl, token_reduction="mean", chosen_lengths_N=n, beta=BETA, nll_weight=1.0
    ),
    "exo": with_reference(exo, label_smoothing=0.1),
    "discopop": with_reference(discopop),
    "cpo": lambda w, v, rw, rl, n, m: cpo(w, v, token_reduction="sum", chosen_lengths_N=n),
    "cpo_mean": lambda w, v, rw, rl, n, m: cpo(w, v, token_reduction="mean", chosen_lengths_N=n, nll_weight=0.5),
    "simpo": lambda w, v, rw, rl, n, m: simpo(w, v, chosen_lengths_N=n, rejected_lengths_N=m),
    "orpo": lambda w, v, rw, rl, n, m: orpo(w, v, chosen_lengths_N=n, rejected_lengths_N=m),
    "apo_zero": with_reference(apo_zero),
    "apo_down": with_reference(apo_down),
    "sppo_hard": with_reference(sppo_hard),
    "nca": with_reference(nca),
    "aot": with_reference(aot),
    "aot_unpaired": with_reference(aot_unpaired),
}
BATCHWISE = {"aot", "aot_unpaired"}

every_loss = pytest.mark.parametrize("name", LOSSES)
LOGPROB = st.floats(min_value=-40, max_value=-0.5)
LENGTH = st.integers(min_value=1, max_value=30)
PAIRS = st.lists(st.tuples(LOGPROB, LOGPROB, LOGPROB, LOGPROB, LENGTH, LENGTH), min_size=1, max_size=6)
# The pair of the reference's table: z_w = 2, z_l = -1, 10 and 20 tokens, summed -12 and -30.
WORKED = (-12.0, -30.0, -14.0, -29.0, 10, 20)
BATCH = [WORKED, (-9.0, -7.0, -8.5, -9.0, 4, 9), (-19.5, -25.0, -22.0, -21.0, 12, 7), (-5.0, -6.0, -5.5, -4.0, 3, 3)]


def columns(pairs, dtype=torch.float64):
    *logprobs, n, m = zip(*pairs, strict=True)
    return [*(tensor(column, dtype) for column in logprobs), torch.tensor(n), torch.tensor(m)]


def run(name, pairs, dtype=torch.float64):
    """The loss, and its gradient at chosen and rejected answers."""
    arguments = columns(pairs, dtype)
    for answers in arguments[:2]:
        answers.requires_grad_()
    result = LOSSES[name](*arguments)
    return result, torch.autograd.grad(result.loss_N.sum(), arguments[:2])


@every_loss
@settings(max_examples=20, deadline=None)
@given(pairs=PAIRS)
def test_agrees_with_the_formula_in_plain_python(name, pairs):
    assert LOSSES[name](*columns(pairs)).loss_N.tolist() == pytest.approx(PLAIN[name](pairs), rel=1e-9, abs=1e-9)


@every_loss
def test_gradient_agrees_with_finite_differences(name):
    step = 1e-5
    for column, gradient in enumerate(run(name, BATCH)[1]):
        for row, exact in enumerate(gradient.tolist()):

            def moved(by, row=row, column=column):
                pairs = [list(pair) for pair in BATCH]
                pairs[row][column] += by
                return sum(PLAIN[name](pairs))

            assert exact == pytest.approx((moved(step) - moved(-step)) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dpo", 0.554355),  # -ln s(.3)
        ("cdpo", 0.584355),  # + .1 * .3
        ("rdpo", 0.516855),  # - .1 * .3 / .8
        ("ipo_sum", 4.0),  # (3 - 5)^2
        ("ipo_mean", 22.5625),  # (2/10 + 1/20 - 5)^2
        ("hinge", 0.7),  # 1 - .3
        ("rpo_sum", 0.614355),  # .554355 + .005 * 12
        ("orpo", 1.251065),
        ("simpo", 1.053701),  # -ln s(2.5 * (-1.2 + 1.5) - 1.375)
        ("rpo_mean", 0.554355 + 1.2),
        # 1 - s(.2) + s(-.1), s(.2) + 1 - s(.3), (2-5)^2 + (-1+5)^2
        ("apo_zero", 0.925187),
        ("apo_down", 0.975391),
        ("sppo_hard", 25.0),
    ],
)
def test_worked_values(name, value):
    assert LOSSES[name](*columns([WORKED])).loss_N.item() == pytest.approx(value, abs=1e-6)


def test_worked_values_of_the_reward_model():
    # -ln s(.8); + .01 * 1.6^2; -ln s(.8 - .5)
    pair = tensor([1.2]), tensor([0.4])
    assert bradley_terry(*pair).loss_N.item() == pytest.approx(0.371101, abs=1e-6)
    assert bradley_terry(*pair, center_coefficient=0.01).loss_N.item() == pytest.approx(0.396701, abs=1e-6)
    assert bradley_terry(*pair, margins_N=tensor([0.5])).loss_N.item() == pytest.approx(0.554355, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-3, 3))
def test_an_offset_of_all_rewards_is_free_without_centring_and_paid_for_with_it(better, worse, offset):
    plain, centred = bradley_terry, partial(bradley_terry, center_coefficient=0.01)
    pair, moved = (tensor([better]), tensor([worse])), (tensor([better + offset]), tensor([worse + offset]))
    assert plain(*moved).loss_N.item() == pytest.approx(plain(*pair).loss_N.item(), abs=1e-9)
    paid = 0.01 * ((better + worse + 2 * offset) ** 2 - (better + worse) ** 2)
    assert (centred(*moved).loss_N - centred(*pair).loss_N).item() == pytest.approx(paid, abs=1e-9)


def test_centring_draws_the_rewards_of_a_pair_to_zero():
    # r = (3, 2): d/dr of .01 * 5^2 is .1 each, beside -+s(-1)
    rewards = tensor([3.0]).requires_grad_(), tensor([2.0]).requires_grad_()
    bradley_terry(*rewards, center_coefficient=0.01).loss_N.sum().backward()
    assert [r.grad.item() for r in rewards] == pytest.approx([0.1 - s(-1), 0.1 + s(-1)])


AT_REFERENCE = {
    "dpo": LN2,
    "cdpo": LN2,
    "rdpo": LN2,
    "ipo_sum": 25.0,  # 1 / (4 beta^2)
    "ipo_mean": 25.0,
    "hinge": 1.0,
    "exo": 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1),
    "discopop": 0.5 * LN2 + 0.5,
    "apo_zero": 1.0,
    "apo_down": 1.0,
    "sppo_hard": 50.0,
    "nca": 2 * LN2,
    "aot": LN2,
    "aot_unpaired": LN2,
}


@pytest.mark.parametrize("name", AT_REFERENCE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_where_policy_and_reference_agree(name, dtype):
    pairs = [(w, v, w, v, n, m) for w, v, _, _, n, m in BATCH]
    result = run(name, pairs, dtype)[0]
    assert result.loss_N.tolist() == pytest.approx([AT_REFERENCE[name]] * 4, rel=1e-6)
    assert result.margins_N.tolist() == [0.0] * 4
    assert result.accuracies_N.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("name", "factor"),
    [("dpo", 1.0), ("cdpo", 0.8), ("rdpo", 1 / 0.8), ("ipo_sum", 2 / BETA**2), ("sppo_hard", 2 / BETA**2)],
)
def test_a_swapped_pair_costs_more_by_a_multiple_of_its_margin(name, factor):
    # With x = beta delta. DPO: softplus(x) - softplus(-x) = x; cDPO (1 - 2 eps) x; rDPO x / (1 - 2 eps);
    # IPO and SPPO: 4 delta / (2 beta).
    swapped = [(v, w, rl, rw, m, n) for w, v, rw, rl, n, m in BATCH]
    here, there = LOSSES[name](*columns(BATCH)), LOSSES[name](*columns(swapped))
    expected = [factor * x for x in here.margins_N.tolist()]
    assert (there.loss_N - here.loss_N).tolist() == pytest.approx(expected, abs=1e-9)


@every_loss
def test_a_swapped_pair_has_the_opposite_margin(name):
    swapped = [(v, w, rl, rw, m, n) for w, v, rw, rl, n, m in BATCH]
    here, there = LOSSES[name](*columns(BATCH)), LOSSES[name](*columns(swapped))
    assert there.margins_N.tolist() == pytest.approx((-here.margins_N).tolist())
    assert there.accuracies_N.tolist() == (1 - here.accuracies_N).tolist()
    assert there.chosen_rewards_N.tolist() == here.rejected_rewards_N.tolist()


def losses_by_delta(name, deltas):
    pairs = [(-12.0, -12.0 - delta, -12.0, -12.0, 12, 12) for delta in deltas]
    return [LOSSES[name](*columns([pair])).loss_N.item() for pair in pairs]


@pytest.mark.parametrize(
    "name",
    ["dpo", "rdpo", "hinge", "rpo_sum", "cpo", "simpo", "orpo", "apo_zero", "apo_down", "aot", "aot_unpaired", "nca"],
)
def test_the_loss_falls_as_the_pair_moves_apart(name):
    values = losses_by_delta(name, [-8.0, -3.0, -0.5, 0.0, 0.5, 3.0, 8.0, 40.0])
    if name == "hinge":
        assert values.pop() == 0.0  # beta delta = 4
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)


@pytest.mark.parametrize(
    ("name", "best"),
    [("cdpo", math.log(9) / BETA), ("exo", math.log(9) / BETA), ("ipo_sum", 5.0), ("ipo_mean", 60.0)],
)
def test_losses_with_a_best_margin_rise_on_both_sides_of_it(name, best):
    # log((1 - eps) / eps) / beta; 1 / (2 beta); the mean of 12 tokens, 12 times further
    left, lowest, right = losses_by_delta(name, [best - 1, best, best + 1])
    assert lowest < min(left, right)
    if name != "cdpo":
        assert lowest == pytest.approx(0.0, abs=1e-12)


def test_discopop_is_not_monotone():
    low, high = losses_by_delta("discopop", [-2.0, 0.0])
    assert low == pytest.approx(0.982014 * 0.798139 + 0.017986 * 1.221403, abs=1e-6)  # x = -.2, s(4)
    assert low < high


def test_nca_lets_the_chosen_answer_rise_to_log_two_only():
    # s(x) = 2/3
    pairs = [(-12.0 + LN2 / BETA, -30.0, -12.0, -30.0, 1, 1)]
    assert run("nca", pairs)[1][0].item() == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.floats(-40, 40), st.floats(0.0, 0.45))
def test_robust_dpo_is_unbiased_over_flipped_labels(delta, eps):
    def at(loss, x, **settings):
        zero = tensor([0.0])
        return loss(tensor([x]), zero, zero, zero, beta=BETA, **settings).loss_N.item()

    mean = (1 - eps) * at(rdpo, delta, label_smoothing=eps) + eps * at(rdpo, -delta, label_smoothing=eps)
    assert mean == pytest.approx(at(dpo, delta), abs=1e-9)
    # Negative control: smoothing is another thing than undoing the flips.
    if eps > 0.1 and abs(delta) > 5:
        mean = (1 - eps) * at(cdpo, delta, label_smoothing=eps) + eps * at(cdpo, -delta, label_smoothing=eps)
        assert mean != pytest.approx(at(dpo, delta), abs=1e-3)


def test_no_smoothing_is_dpo():
    expected = LOSSES["dpo"](*columns(BATCH)).loss_N
    for loss in (cdpo, rdpo):
        assert torch.equal(loss(*columns(BATCH)[:4], label_smoothing=0.0).loss_N, expected)


def test_optimal_transport_of_one_pair_is_dpo():
    for name in BATCHWISE:
        assert LOSSES[name](*columns([WORKED])).loss_N.item() == pytest.approx(0.554355, abs=1e-6)


@every_loss
def test_a_permuted_batch_is_the_same_losses_permuted(name):
    order = [2, 0, 3, 1]
    here, there = run(name, BATCH), run(name, [BATCH[i] for i in order])
    torch.testing.assert_close(there[0].loss_N, here[0].loss_N[order], rtol=1e-14, atol=0)
    for a, b in zip(here[1], there[1], strict=True):
        torch.testing.assert_close(b, a[order], rtol=1e-14, atol=0)


@every_loss
def test_a_batch_is_its_pairs_one_by_one_except_where_the_docstring_says_otherwise(name):
    whole = LOSSES[name](*columns(BATCH)).loss_N.tolist()
    parts = [LOSSES[name](*columns([pair])).loss_N.item() for pair in BATCH]
    assert (whole == pytest.approx(parts, rel=1e-12)) is (name not in BATCHWISE)


EXTREME = [(w, v, 0.0, 0.0, 10, 10) for w in (0.0, -5e4, -1e5) for v in (0.0, -5e4, -1e5)]
EXTREME += [(-1e5, -1e5, rw, rl, 10, 10) for rw, rl in ((-1e5, -2e5), (-2e5, -1e5), (-1.5e5, -5e4), (-5e4, -1.5e5))]


@every_loss
def test_single_precision_holds_margins_of_ten_thousand(name):
    # beta |delta| reaches 1e4; ORPO and SimPO meet answers of probability 1 and exp(-1e4) per token. ORPO's odds of a
    # certain answer end at the resolution of the float: 16 against 36 nats.
    single, double = run(name, EXTREME, torch.float32), run(name, EXTREME)
    assert single[0].loss_N.isfinite().all()
    torch.testing.assert_close(
        single[0].loss_N.double(), double[0].loss_N, rtol=0.6 if name == "orpo" else 1e-5, atol=1e-4
    )
    for gradient in single[1]:
        assert gradient.isfinite().all()


def test_the_formulas_as_written_overflow_there():
    # Negative control: log(sigmoid(x)) at x = -1e4, and exp(-x) beside a sigmoid of 0.
    x = torch.tensor([-1e4], requires_grad=True)
    assert x.sigmoid().log().item() == -math.inf
    assert ((x / 0.05).sigmoid() * (-x).exp()).isnan().item()


def test_odds_of_an_answer_that_is_certain():
    # A rejected answer at probability 1 must be pushed down by a finite gradient, not NaN and not 0.
    arguments = [torch.tensor([-5.0]).requires_grad_(), torch.tensor([0.0]).requires_grad_()]
    lengths = torch.tensor([5])
    result = orpo(*arguments, chosen_lengths_N=lengths, rejected_lengths_N=lengths)
    result.loss_N.sum().backward()
    assert result.rejected_rewards_N.item() == pytest.approx(-math.log(2**-23), rel=1e-3)
    assert 0 < arguments[1].grad.item() < 1e7


@every_loss
def test_only_the_policy_gets_a_gradient_and_only_from_the_loss(name):
    arguments = columns(BATCH)
    for column in arguments[:4]:
        column.requires_grad_()
    loss, *statistics = LOSSES[name](*arguments)
    assert not any(statistic.requires_grad for statistic in statistics)
    loss.sum().backward()
    assert arguments[0].grad is not None
    assert arguments[2].grad is None
    assert arguments[3].grad is None


@every_loss
def test_statistics_of_the_worked_pair(name):
    rewards = {
        "ipo_mean": (0.1 * 2 / 10, 0.1 * -1 / 20),
        "cpo": (-1.2, -3.0),
        "cpo_mean": (-1.2, -3.0),
        "simpo": (2.5 * -1.2, 2.5 * -1.5),
        "orpo": (logit(-1.2), logit(-1.5)),
    }
    chosen, rejected = rewards.get(name, (0.2, -0.1))
    result = LOSSES[name](*columns([WORKED]))
    assert result.chosen_rewards_N.item() == pytest.approx(chosen)
    assert result.rejected_rewards_N.item() == pytest.approx(rejected)
    assert result.margins_N.item() == pytest.approx(chosen - rejected)
    assert result.accuracies_N.item() == 1.0


@every_loss
def test_nan_comes_out_at_its_own_pair(name):
    pairs = [BATCH[0], (math.nan, *BATCH[1][1:]), BATCH[2]]
    result = LOSSES[name](*columns(pairs))
    assert result.loss_N.isnan().tolist() == [False, True, False]
    assert result.accuracies_N.isnan().tolist() == [False, True, False]


def test_ipo_averages_over_scored_tokens():
    # beta .5: .6 over 2 scored, -.2 over 1 scored: (.3 + .2 - 1)^2
    zero, mean = tensor([0.0]), {"token_reduction": "mean", "beta": 0.5}
    pair = tensor([0.6]), tensor([-0.2]), zero, zero

    def at(n, m):
        return ipo(*pair, chosen_lengths_N=torch.tensor([n]), rejected_lengths_N=torch.tensor([m]), **mean)

    assert at(2, 1).loss_N.item() == pytest.approx(0.25)
    # Negative control: 3 and 2 tokens were kept as context.
    assert at(3, 2).loss_N.item() == pytest.approx(0.49)


def test_ipo_of_sums_and_of_means_differ_by_length():
    # 10 tokens at +.1, 2 at -.1: delta 1.2 or .2, target 5
    zero = tensor([0.0])
    lengths = {"chosen_lengths_N": torch.tensor([10]), "rejected_lengths_N": torch.tensor([2])}

    def at(reduction):
        return ipo(tensor([1.0]), tensor([-0.2]), zero, zero, token_reduction=reduction, **lengths).loss_N.item()

    assert (at("mean"), at("sum")) == pytest.approx((23.04, 14.44))


@pytest.mark.parametrize(
    ("loss", "value", "slope"),
    [
        (dpo, 0.371101, -0.062005),
        (hinge, 0.2, -0.2),
        (partial(cdpo, label_smoothing=0.1), 0.451101, -0.042005),
        (
            partial(
                ipo, token_reduction="sum", chosen_lengths_N=torch.tensor([1]), rejected_lengths_N=torch.tensor([1])
            ),
            2.25,
            3.0,
        ),
    ],
    ids=["dpo", "hinge", "cdpo", "ipo"],
)
def test_each_name_is_its_own_loss(loss, value, slope):
    # delta = 4, beta = .2
    zero, chosen = tensor([0.0]), tensor([4.0]).requires_grad_()
    result = loss(chosen, zero, zero, zero, beta=0.2)
    result.loss_N.sum().backward()
    assert (result.loss_N.item(), chosen.grad.item()) == pytest.approx((value, slope), abs=1e-6)


ANSWER = tensor([2.0, -1.0]), tensor([0.0, 0.0]), torch.tensor([True, False])


def test_worked_values_of_kto():
    # s(-.1 * (2 - .5)) and s(.1 * (-1 - .5))
    result = kto(*ANSWER, reference_point=0.5)
    assert result.loss_N.tolist() == pytest.approx([0.462570] * 2, abs=1e-6)
    assert result.rewards_N.tolist() == pytest.approx([0.2, -0.1])
    weighed = kto(*ANSWER, reference_point=tensor(0.5), desirable_weight=4 / 3, undesirable_weight=2.0)
    assert weighed.loss_N.tolist() == pytest.approx([0.462570 * 4 / 3, 0.462570 * 2], abs=1e-6)


def test_bco_is_a_classifier_around_its_shift():
    # rewards .2 and -.1: shift .05; -ln s(.15) both
    result = bco(*ANSWER, shift=bco_shift(tensor([0.2, -0.1]), ANSWER[2]))
    assert result.loss_N.tolist() == pytest.approx([softplus(-0.15)] * 2)
    assert bco(*ANSWER, shift=0.0).loss_N.tolist() == pytest.approx([softplus(-0.2), softplus(-0.1)])


SINGLE = {
    "kto": (
        lambda p, r, d: kto(p, r, d, reference_point=0.7, desirable_weight=1.5, undesirable_weight=0.8),
        lambda z, good: 1.5 * (1 - s(BETA * (z - 0.7))) if good else 0.8 * (1 - s(BETA * (0.7 - z))),
    ),
    "bco": (
        lambda p, r, d: bco(p, r, d, shift=0.3),
        lambda z, good: softplus(-(BETA * z - 0.3)) if good else softplus(BETA * z - 0.3),
    ),
}
every_single = pytest.mark.parametrize(("loss", "plain"), SINGLE.values(), ids=SINGLE)


@every_single
@settings(max_examples=40, deadline=None)
@given(answers=st.lists(st.tuples(LOGPROB, LOGPROB, st.booleans()), min_size=1, max_size=6))
def test_single_answers_agree_with_the_formula_and_its_slope(loss, plain, answers):
    policy, reference, desirable = zip(*answers, strict=True)
    policy_N, step = tensor(policy).requires_grad_(), 1e-5
    result = loss(policy_N, tensor(reference), torch.tensor(desirable))
    assert result.loss_N.tolist() == pytest.approx([plain(p - r, d) for p, r, d in answers])
    assert not result.rewards_N.requires_grad
    result.loss_N.sum().backward()
    slopes = [(plain(p - r + step, d) - plain(p - r - step, d)) / (2 * step) for p, r, d in answers]
    assert policy_N.grad.tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-8)
    assert all((slope < 0) == d for slope, d in zip(slopes, desirable, strict=True))


@every_single
def test_single_answers_hold_large_ratios_in_single_precision(loss, plain):
    policy_N = torch.tensor([-1e5, 0.0, -1e5, 0.0]).requires_grad_()
    reference_N, desirable_N = torch.tensor([0.0, -1e5, 0.0, -1e5]), torch.tensor([True, True, False, False])
    result = loss(policy_N, reference_N, desirable_N)
    result.loss_N.sum().backward()
    assert result.loss_N.isfinite().all()
    assert policy_N.grad.isfinite().all()


@every_single
def test_nan_comes_out_at_its_own_answer(loss, plain):
    policy_N = tensor([-1.0, math.nan, -2.0])
    assert loss(policy_N, policy_N, torch.tensor([True, False, True])).loss_N.isnan().tolist() == [False, True, False]


def test_reference_point_is_the_mean_mismatched_ratio_and_never_negative():
    # (2 + -1 + .5) / 3
    policy = tensor([-8.0, -9.0, -7.5]).requires_grad_()
    point = kto_reference_point(policy, tensor([-10.0, -8.0, -8.0]))
    assert point.item() == pytest.approx(0.5)
    assert not point.requires_grad
    assert kto_reference_point(tensor([-3.0, -4.0]), tensor([-1.0, -1.0])).item() == 0.0


def test_a_reference_point_of_one_answer_is_refused():
    with pytest.raises(TrainerError, match=r"1 mismatched answers; .* at least 2"):
        kto_reference_point(tensor([-3.0]), tensor([-1.0]))


@pytest.mark.parametrize("desirable", [[True, True], [False, False]])
def test_a_shift_without_both_kinds_is_refused(desirable):
    with pytest.raises(TrainerError, match="needs both kinds"):
        bco_shift(tensor([0.2, -0.1]), torch.tensor(desirable))


ONE = tensor([-1.0])
FOUR = (ONE, ONE, ONE, ONE)
LENGTHS = {"chosen_lengths_N": torch.tensor([1]), "rejected_lengths_N": torch.tensor([1])}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dpo(*FOUR, beta=0.0), "beta is 0.0; give"),
        (lambda: dpo(*FOUR, beta=math.nan), "beta is nan"),
        (lambda: cdpo(*FOUR, label_smoothing=0.5), r"label_smoothing is 0.5; .* \[0, 0.5\)"),
        (lambda: rdpo(*FOUR, label_smoothing=-0.1), "label_smoothing is -0.1"),
        (lambda: exo(*FOUR, label_smoothing=0.0), "EXO's loss is infinite"),
        (lambda: discopop(*FOUR, tau=1.0), "tau is 1.0"),
        (lambda: ipo(*FOUR, token_reduction="average", **LENGTHS), "token_reduction is 'average'; write 'sum'"),
        (lambda: simpo(ONE, ONE, **LENGTHS, gamma=math.inf), "gamma is inf"),
        (lambda: orpo(ONE, ONE, **LENGTHS, odds_weight=-1), "weight of a term is -1"),
        (lambda: bradley_terry(ONE, ONE, center_coefficient=-0.1), "center_coefficient is -0.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dpo(ONE, tensor([-1.0, -2.0]), ONE, ONE), r"rejected_N has shape \(2,\) and chosen_N \(1,\)"),
        (lambda: dpo(ONE, ONE, ONE, tensor(-1.0)), r"reference_rejected_N has shape \(\)"),
        (lambda: dpo(*(column[None] for column in FOUR)), "one number per answer, flat"),
        (lambda: dpo(ONE.bfloat16(), *FOUR[1:]), "chosen_N has dtype torch.bfloat16, .* sum in float32"),
        (lambda: simpo(ONE, ONE, **LENGTHS | {"rejected_lengths_N": torch.tensor([0])}), "at least 1, and leave out"),
        (lambda: kto(ONE, ONE, tensor([1.0]), reference_point=0.0), "desirable_N has dtype torch.float64"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(call, message):
    with pytest.raises(TrainerError, match=message):
        call()
