"""Every objective per sequence against a loop over sequences, alone and packed, and against the exact gradient."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import sequence
from agentrl.algorithms.objectives import ppo_clip, reinforce
from agentrl.algorithms.surrogates import topr_token
from agentrl.errors import ConfigError, TrainerError
from tests.algorithms.tree import POISON, Tree, tensor

# One row per objective. A reference takes the trained tokens of one sequence (log-probabilities x, old ones, the credit
# of the sequence, and the log-probabilities at which weights without a gradient are frozen) and gives the sum of its
# losses. ``still`` gives, token by token, where the definition leaves no gradient.


def mean_ratio(x, old):
    return math.exp(sum(a - b for a, b in zip(x, old, strict=True)) / len(x))


def product(x, old):
    return math.exp(sum(a - b for a, b in zip(x, old, strict=True)))


def reference_gspo(x, old, credit, at, low=0.1, high=0.2):
    s = mean_ratio(x, old)
    return -len(x) * min(s * credit, min(max(s, 1 - low), 1 + high) * credit)


def reference_gmpo(x, old, credit, at):
    sign = (credit > 0) - (credit < 0)
    logs = [a - b for a, b in zip(x, old, strict=True)]
    bounded = [sign * min(sign * value, sign * min(max(value, -0.4), 0.3)) for value in logs]
    return -len(x) * credit * math.exp(sum(bounded) / len(bounded))


def reference_vespo(x, old, credit, at):
    weight = product(at, old)
    k, rate = (2, 3) if credit > 0 else (3, 2)
    return -(weight**k) * math.exp(rate * (1 - weight)) * credit * sum(x)


def reference_topr(x, old, credit, at):
    return -(min(product(at, old), 1) if credit < 0 else 1) * credit * sum(x)


def still_gspo(x, old, credit):
    s = mean_ratio(x, old)
    return [(credit > 0 and s > 1.2) or (credit < 0 and s < 0.9) or credit == 0] * len(x)


def still_gmpo(x, old, credit):
    logs = [a - b for a, b in zip(x, old, strict=True)]
    return [(credit > 0 and log > 0.3) or (credit < 0 and log < -0.4) or credit == 0 for log in logs]


def still_without_credit(x, old, credit):
    return [credit == 0] * len(x)


CLIP = {"clip_low": 0.1, "clip_high": 0.2}
BATTERY = {
    "gspo": (partial(sequence.gspo, **CLIP), reference_gspo, still_gspo),
    "gspo_token": (partial(sequence.gspo_token, **CLIP), reference_gspo, still_gspo),
    "luspo": (partial(sequence.luspo, **CLIP), reference_gspo, still_gspo),
    "gmpo": (partial(sequence.gmpo, log_clip_low=0.4, log_clip_high=0.3), reference_gmpo, still_gmpo),
    "vespo": (sequence.vespo, reference_vespo, still_without_credit),
    "topr": (sequence.topr, reference_topr, still_without_credit),
}
every_objective = pytest.mark.parametrize(("objective", "reference", "still"), BATTERY.values(), ids=BATTERY)
every_call = pytest.mark.parametrize("objective", [row[0] for row in BATTERY.values()], ids=BATTERY)

LOGPROB = st.floats(min_value=-3, max_value=-0.05)
SHIFT = st.floats(min_value=-0.8, max_value=0.8)


@st.composite
def packed(draw):
    """Tokens of up to four sequences in any order: (x, old, credit of its sequence, trained, sequence)."""
    credit = draw(st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.5]), min_size=1, max_size=4))
    token = st.tuples(LOGPROB, SHIFT, st.integers(0, len(credit) - 1), st.sampled_from([True, True, True, False]))
    tokens = draw(st.lists(token, min_size=1, max_size=14))
    return [(x, x - shift, credit[number], on, number) for x, shift, number, on in tokens]


def columns(tokens):
    x, old, credit, mask, number = zip(*tokens, strict=True)
    return (tensor(x), tensor(old), tensor(credit), torch.tensor(mask)), torch.tensor(number)


def by_sequence(tokens):
    """Places and columns of the trained tokens of each sequence."""
    for number in sorted({token[4] for token in tokens}):
        places = [place for place, token in enumerate(tokens) if token[4] == number and token[3]]
        if places:
            yield places, [tokens[p][0] for p in places], [tokens[p][1] for p in places], tokens[places[0]][2]


def near_a_corner(tokens):
    """Whether rounding or a step of 1e-6 could cross a bound at which some reference has no derivative."""
    gaps = [1.0]
    for _, x, old, _credit in by_sequence(tokens):
        gaps += [mean_ratio(x, old) - edge for edge in (0.9, 1.2)] + [product(x, old) - 1]
        gaps += [a - b - edge for a, b in zip(x, old, strict=True) for edge in (-0.4, 0.3)]
    return min(abs(gap) for gap in gaps) < 1e-4


@every_objective
@settings(max_examples=30, deadline=None)
@given(tokens=packed())
def test_the_sum_over_a_sequence_agrees_with_a_loop_over_sequences(objective, reference, still, tokens):
    if near_a_corner(tokens):
        return
    rows, numbers = columns(tokens)
    loss = objective(*rows, sequence_T=numbers).loss_T
    for places, x, old, credit in by_sequence(tokens):
        assert loss[places].sum().item() == pytest.approx(reference(x, old, credit, x), rel=1e-9, abs=1e-9)
    assert loss[~rows[3]].tolist() == [0.0] * int((~rows[3]).sum())


@every_objective
@settings(max_examples=30, deadline=None)
@given(tokens=packed())
def test_gradient_agrees_with_finite_differences_and_is_zero_where_the_definition_says(
    objective, reference, still, tokens
):
    if near_a_corner(tokens):
        return
    rows, numbers = columns(tokens)
    rows[0].requires_grad_()
    result = objective(*rows, sequence_T=numbers)
    gradient = torch.autograd.grad(result.loss_T.sum(), rows[0])[0]
    h = 1e-6
    for places, x, old, credit in by_sequence(tokens):
        for t, place in enumerate(places):
            up, down = ([*x[:t], x[t] + step, *x[t + 1 :]] for step in (h, -h))
            slope = (reference(up, old, credit, x) - reference(down, old, credit, x)) / (2 * h)
            assert gradient[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-6)
        assert (gradient[places] == 0).tolist() == still(x, old, credit)
        if still is not still_without_credit and credit:
            assert result.clipped_T[places].tolist() == still(x, old, credit)
    assert gradient[~rows[3]].tolist() == [0.0] * int((~rows[3]).sum())


@every_call
@settings(max_examples=12, deadline=None)
@given(tokens=packed())
def test_a_packed_call_equals_one_call_per_sequence(objective, tokens):
    rows, numbers = columns(tokens)
    whole = objective(*rows, sequence_T=numbers)
    for number in set(numbers.tolist()):
        own = numbers == number
        alone = objective(*(row[own] for row in rows), sequence_T=torch.zeros_like(numbers[own]))
        for packed_row, alone_row in zip(whole, alone, strict=True):
            torch.testing.assert_close(packed_row[own], alone_row, rtol=1e-12, atol=1e-12)


@every_call
@settings(max_examples=12, deadline=None)
@given(tokens=packed(), seed=st.integers(0, 99))
def test_permuting_tokens_and_renaming_sequences_changes_nothing_else(objective, tokens, seed):
    rows, numbers = columns(tokens)
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    permuted = objective(*(row[order] for row in rows), sequence_T=9 - numbers[order]).loss_T
    torch.testing.assert_close(permuted, objective(*rows, sequence_T=numbers).loss_T[order], rtol=1e-12, atol=1e-12)


@every_call
@settings(max_examples=12, deadline=None)
@given(tokens=packed())
def test_at_ratio_one_the_gradient_is_that_of_reinforce(objective, tokens):
    (_, old, credit, mask), numbers = columns(tokens)
    gradients = []
    for call in (partial(objective, sequence_T=numbers), reinforce):
        x = old.clone().requires_grad_()
        result = call(x, old, credit, mask)
        assert not result.clipped_T.any()
        gradients.append(torch.autograd.grad(result.loss_T.sum(), x)[0])
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


@every_call
def test_the_expected_gradient_on_policy_is_the_exact_policy_gradient(objective):
    tree = Tree()
    expected = tree.expected(objective, sequence_T=tree.sequence_T)
    torch.testing.assert_close(expected, tree.exact(), rtol=0.0, atol=1e-9)


IMPORTANCE_SAMPLING = partial(sequence.vespo, k_positive=1.0, lambda_positive=0.0, k_negative=1.0, lambda_negative=0.0)


def test_with_the_whole_product_as_its_weight_vespo_is_exact_for_any_sampler():
    policy, sampler = Tree(seed=3), Tree(seed=4)
    expected = policy.expected(IMPORTANCE_SAMPLING, sampler, sequence_T=policy.sequence_T)
    torch.testing.assert_close(expected, policy.exact(), rtol=0.0, atol=1e-9)


@every_call
def test_for_another_sampler_every_shaped_weight_is_biased(objective):
    # Negative control of the proof above.
    policy, sampler = Tree(seed=3), Tree(seed=4)
    assert (policy.expected(objective, sampler, sequence_T=policy.sequence_T) - policy.exact()).abs().max() > 0.01


def test_topr_in_one_token_is_topr_token_and_not_in_two():
    rows = tensor([-0.5, -1.0]), tensor([-0.2, -2.0]), tensor([-1.0, -1.0]), torch.ones(2).bool()
    apart, together = (sequence.topr(*rows, sequence_T=torch.tensor(numbers)).loss_T for numbers in ([0, 1], [0, 0]))
    torch.testing.assert_close(apart, topr_token(*rows).loss_T, rtol=1e-12, atol=0.0)
    # Ratios e^-.3 and e^1: weights e^-.3 and 1 apart; together e^.7, capped at 1.
    assert apart.tolist() == pytest.approx([-0.5 * math.exp(-0.3), -1.0])
    assert together.tolist() == pytest.approx([-0.5, -1.0])


# Log-ratios .02, -.01 and a pad of 7 | .01, .03, -.02, credit 1 and -.5.
RATIOS = tensor([0.02, -0.01, 7.0, 0.01, 0.03, -0.02])
NUMBERS = torch.tensor([0, 0, 0, 1, 1, 1])
TRAINED = torch.tensor([True, True, False, True, True, True])
PACKED = RATIOS - 2.0, torch.full((6,), -2.0, dtype=torch.float64), tensor([1.0, 1, 9, -0.5, -0.5, -0.5]), TRAINED


def sums_and_means(loss):
    sums = torch.zeros(2, dtype=torch.float64).index_add(0, NUMBERS, loss.loss_T)
    return sums, sums / tensor([2.0, 3.0])


def test_padding_is_no_part_of_a_sequence():
    # s = e^.005 = 1.00501252 and e^(.02 / 3) = 1.00668894. GSPO: mean of -min(s, 1.0004) and .5 * 1.00668894.
    # LUSPO: mean of -2 min(s, 1.0025) and 3 * .5 * 1.00668894.
    _, means = sums_and_means(sequence.gspo(*PACKED, sequence_T=NUMBERS))
    assert means.mean().item() == pytest.approx(-0.24852777, abs=1e-8)
    assert means[1].item() == pytest.approx(0.5 * 1.00668894, abs=1e-8)
    sums, _ = sums_and_means(sequence.luspo(*PACKED, sequence_T=NUMBERS))
    assert sums.mean().item() == pytest.approx(-0.24748330, abs=1e-8)


@every_call
def test_more_padding_leaves_the_same_bits(objective):
    def run(num_pads):
        pads = [torch.cat([row, row.new_full((num_pads,), 1)]) for row in PACKED[:3]]
        mask = torch.cat([TRAINED, torch.zeros(num_pads, dtype=torch.bool)])
        numbers = torch.cat([NUMBERS, torch.ones(num_pads, dtype=torch.int64)])
        x = pads[0].requires_grad_()
        loss = objective(x, *pads[1:], mask, sequence_T=numbers).loss_T
        return loss[:6].detach(), torch.autograd.grad(loss.sum(), x)[0][:6]

    for none, five in zip(run(0), run(5), strict=True):
        assert torch.equal(none, five)


@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("poison", POISON)
def test_what_stands_behind_the_mask_changes_nothing_to_the_bit(objective, dtype, poison):
    mask = torch.tensor([True, False, True, False, True])

    def run(hidden, hidden_number):
        rows = [
            tensor([a, hidden, b, hidden, c], dtype)
            for a, b, c in ((-0.4, -1.1, -0.3), (-0.45, -1.0, -0.25), (1.5, -0.5, -0.5))
        ]
        rows[0].requires_grad_()
        numbers = torch.tensor([0, hidden_number, 1, hidden_number, 1])
        result = objective(*rows, mask, sequence_T=numbers)
        loss = result.loss_T.sum()
        return loss.detach(), torch.autograd.grad(loss, rows[0])[0], result.ratio_T, result.clipped_T

    for clean, poisoned in zip(run(0.0, 0), run(poison, -(10**9)), strict=True):
        assert torch.equal(clean, poisoned)
        assert torch.isfinite(poisoned).all()
    assert run(poison, 10**12)[1][~mask].tolist() == [0.0, 0.0]
    assert run(poison, 1)[2][~mask].tolist() == [1.0, 1.0]


@every_call
def test_a_nan_stays_within_its_sequence_and_is_not_hidden(objective):
    x, credit = tensor([math.nan, -1.0, -1.0, -1.0]), tensor([-1.0, -1.0, 1.0, 1.0])
    mask, numbers = torch.tensor([True, True, True, False]), torch.tensor([0, 0, 1, 0])
    loss = objective(x, torch.full_like(x, -1.0), credit, mask, sequence_T=numbers).loss_T
    assert loss[0].isnan()
    assert loss[2].isfinite()
    assert loss[3] == 0.0


@every_call
@pytest.mark.parametrize("credit", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("gap", [-400.0, 400.0])
def test_a_weight_that_overflows_gives_no_nan(objective, credit, gap):
    x = tensor([-1.0, -1.0]).requires_grad_()
    rows = tensor([-1.0 - gap, -1.0 - gap]), torch.full((2,), credit, dtype=torch.float64), torch.ones(2).bool()
    result = objective(x, *rows, sequence_T=torch.tensor([0, 0]))
    assert not result.loss_T.isnan().any()
    assert not torch.autograd.grad(result.loss_T.sum(), x)[0].isnan().any()


@every_call
def test_a_sequence_without_trained_tokens_and_a_missing_number_are_no_loss(objective):
    rows = tensor([-1.0, -2.0]), tensor([-1.0, -2.0]), tensor([1.0, 1.0])
    loss = objective(*rows, torch.tensor([False, True]), sequence_T=torch.tensor([0, 5])).loss_T
    alone = objective(*(row[1:] for row in rows), torch.tensor([True]), sequence_T=torch.tensor([0])).loss_T
    assert torch.equal(loss[1:], alone)
    assert objective(*rows, torch.zeros(2).bool(), sequence_T=torch.tensor([0, 5])).loss_T.tolist() == [0.0, 0.0]
    empty = tensor([])
    nothing = objective(empty, empty, empty, torch.zeros(0).bool(), sequence_T=torch.zeros(0, dtype=torch.int64))
    assert nothing.loss_T.tolist() == []


def test_gspo_token_takes_credit_per_token():
    # s = e^.05 for both tokens; gradient -s A_t each, and GSPO refuses the same credit.
    x = tensor([-0.9, -2.0]).requires_grad_()
    rows = tensor([-1.0, -2.0]), tensor([1.0, -3.0]), torch.ones(2).bool()
    loss_T = sequence.gspo_token(x, *rows, sequence_T=torch.tensor([0, 0]), **CLIP).loss_T
    s = math.exp(0.05)
    assert loss_T.tolist() == pytest.approx([-s, 3 * s])
    assert torch.autograd.grad(loss_T.sum(), x)[0].tolist() == pytest.approx([-s, 3 * s])


TAKES_ONE_CREDIT = {**{name: row[0] for name, row in BATTERY.items() if name != "gspo_token"}}
TAKES_ONE_CREDIT["opsm_mask"] = partial(sequence.opsm_mask, delta=0.1)


@pytest.mark.parametrize("objective", TAKES_ONE_CREDIT.values(), ids=TAKES_ONE_CREDIT)
def test_credit_that_differs_within_a_sequence_is_refused(objective):
    rows = tensor([-1.0] * 4), tensor([-1.0] * 4), tensor([1.0, 0.5, -2.0, 7.0]), torch.tensor([True] * 3 + [False])
    with pytest.raises(TrainerError, match=r"the advantages of sequence 3 run from -2 to 0.5"):
        objective(*rows, sequence_T=torch.tensor([0, 3, 3, 0]))


def test_gspo_where_ppo_would_clip_single_tokens():
    # Ratios 2 and .5: the geometric mean is 1, so nothing is clipped, where PPO clips the first token.
    rows = tensor([math.log(2) - 2, -math.log(2) - 2]), tensor([-2.0, -2.0]), tensor([1.0, 1.0]), torch.ones(2).bool()
    assert not sequence.gspo(*rows, sequence_T=torch.tensor([0, 0])).clipped_T.any()
    assert ppo_clip(*rows, clip_low=0.2, clip_high=0.2).clipped_T.tolist() == [True, False]


def test_the_kernel_of_vespo_is_one_at_ratio_one_and_has_its_peak_at_k_over_lambda():
    weights = torch.linspace(0.05, 4, 400, dtype=torch.float64)
    x = (weights.log() - 9).requires_grad_()
    on, numbers = torch.ones(400).bool(), torch.arange(400)
    for credit, peak in ((1.0, 2 / 3), (-1.0, 3 / 2)):
        credits_T = torch.full_like(weights, credit)
        loss_T = sequence.vespo(x, torch.full_like(weights, -9.0), credits_T, on, sequence_T=numbers).loss_T
        kernel = -torch.autograd.grad(loss_T.sum(), x)[0] * credit
        assert weights[kernel.argmax()].item() == pytest.approx(peak, abs=0.01)
        assert kernel[(weights - 1).abs().argmin()].item() == pytest.approx(1.0, abs=0.01)


# Mean drift of the policy away from each sequence, log(old / new): .3, .3, .05, -.3.
OPSM = tensor([-1.3, -1.3, -1.0, -1.1, -0.7]), tensor([-1.0, -1.0, -1.0, -1.0, -1.0])


def test_opsm_drops_what_failed_and_has_been_left_behind():
    credit = tensor([-1.0, 1.0, -1.0, -1.0, -1.0])
    numbers = torch.tensor([0, 1, 2, 2, 3])
    keep = partial(sequence.opsm_mask, *OPSM, credit, sequence_T=numbers, delta=0.2)
    assert keep(torch.ones(5).bool()).tolist() == [False, True, True, True, True]
    # The sum over sequence 2 is .1 and its mean .05.
    assert keep(torch.ones(5).bool(), delta=0.09).tolist() == [False, True, True, True, True]
    # Only the second token of sequence 2 is trained: its drift is .1 and not .05, above .09 and not above .2.
    some = torch.tensor([True, True, False, True, True])
    assert keep(some).tolist() == [False, True, False, True, True]
    assert sequence.opsm_mask(*OPSM, credit, some, sequence_T=numbers, delta=0.09).tolist()[3] is False


@settings(max_examples=40, deadline=None)
@given(tokens=packed())
def test_opsm_agrees_with_a_loop_and_keeps_all_at_ratio_one(tokens):
    if near_a_corner(tokens):
        return
    rows, numbers = columns(tokens)
    keep = sequence.opsm_mask(*rows, sequence_T=numbers, delta=0.2)
    expected = [False] * len(tokens)
    for places, x, old, credit in by_sequence(tokens):
        drift = sum(b - a for a, b in zip(x, old, strict=True)) / len(x)
        for place in places:
            expected[place] = not (credit < 0 and drift > 0.2)
    gaps = [abs(math.log(mean_ratio(x, old)) + 0.2) for _, x, old, _ in by_sequence(tokens)]
    if min(gaps, default=1.0) > 1e-9:
        assert keep.tolist() == expected
    assert torch.equal(sequence.opsm_mask(rows[1], *rows[1:], sequence_T=numbers, delta=0.0), rows[3])


@pytest.mark.parametrize("poison", POISON)
def test_opsm_is_blind_behind_the_mask_and_keeps_a_trained_nan(poison):
    x, old = tensor([-1.0, poison]), tensor([-0.5, poison])
    numbers, credit = torch.tensor([0, 0]), tensor([-1.0, -1.0])
    mask = torch.tensor([True, False])
    assert sequence.opsm_mask(x, old, credit, mask, sequence_T=numbers, delta=0.4).tolist() == [False, False]
    nan = tensor([math.nan, -1.0])
    assert sequence.opsm_mask(nan, nan, credit, ~mask | mask, sequence_T=numbers, delta=0.4).all()


@every_call
def test_credit_and_the_old_policy_are_constants(objective):
    x, old, credit = (tensor(row).requires_grad_() for row in ([-1.0, -2.0], [-1.1, -1.9], [-1.0, -1.0]))
    objective(x, old, credit, torch.ones(2).bool(), sequence_T=torch.tensor([0, 0])).loss_T.sum().backward()
    assert [row.grad is None for row in (x, old, credit)] == [False, True, True]


@every_call
@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        (torch.tensor([0]), r"sequence_T has shape \(1,\)"),
        (torch.tensor([0.0, 1.0]), "float32"),
        (torch.tensor([0, -1]), "-1"),
    ],
)
def test_numbers_of_sequences_that_are_none_are_refused(objective, numbers, match):
    flat = tensor([-1.0, -1.0])
    with pytest.raises(TrainerError, match=match):
        objective(flat, flat, flat, torch.ones(2).bool(), sequence_T=numbers)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (partial(sequence.gspo, clip_low=-1.0), r"clip_low is -1.0"),
        (partial(sequence.gspo_token, clip_high=-1.0), r"clip_high is -1.0"),
        (partial(sequence.gmpo, log_clip_low=-0.1), r"log_clip_low is -0.1"),
        (partial(sequence.vespo, k_negative=0.0), r"k_negative is 0.0"),
        (partial(sequence.vespo, lambda_positive=-1.0), r"lambda_positive is -1.0"),
        (partial(sequence.opsm_mask, delta=-1.0), r"delta is -1.0"),
    ],
)
def test_an_impossible_setting_is_refused(call, match):
    one = tensor([-1.0])
    with pytest.raises(ConfigError, match=match):
        call(one, one, one, torch.tensor([True]), sequence_T=torch.tensor([0]))
