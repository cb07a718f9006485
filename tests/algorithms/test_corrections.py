"""Every correction against a loop of its own, poison behind the mask, packing, overflow and exact expectations."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms.corrections import (
    geometric_mask,
    geometric_tis,
    kpop,
    m2po,
    outlier_mask,
    sequence_mask_tis,
    sequence_mis,
    sequence_tis,
    token_mis,
    token_tis,
)
from agentrl.algorithms.decoupled import decoupled_ppo
from agentrl.algorithms.objectives import reinforce
from agentrl.errors import ConfigError, TrainerError


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


# Loops: the log-probabilities (old, sampler) of one sequence's trained tokens to (weight, kept) of each.


def ratios(rows):
    return [math.exp(old - sampler) for old, sampler in rows]


def product(rows):
    return math.exp(sum(old - sampler for old, sampler in rows))


def geometric(rows):
    return product(rows) ** (1 / len(rows))


def loop_token_tis(rows):
    return [(min(w, 2.0), True) for w in ratios(rows)]


def loop_sequence_tis(rows):
    return [(min(product(rows), 5.0), True)] * len(rows)


def loop_geometric_tis(rows):
    return [(min(geometric(rows), 2.0), True)] * len(rows)


def loop_token_mis(rows):
    return [(w, True) if 0.5 <= w <= 5 else (0, False) for w in ratios(rows)]


def loop_sequence_mis(rows):
    return [(product(rows), True) if 0.5 <= product(rows) <= 2 else (0, False)] * len(rows)


def loop_geometric_mask(rows):
    return [(1, True) if 0.9 <= geometric(rows) <= 1.2 else (0, False)] * len(rows)


def loop_sequence_mask_tis(rows):
    return [(w, True) if 0.5 <= geometric(rows) <= 5 else (0, False) for w in ratios(rows)]


def loop_outlier_mask(rows):
    return [(1, True) if all(0.1 <= w <= 8 for w in ratios(rows)) else (0, False)] * len(rows)


def loop_decoupled(rows):
    return [(w, True) if w <= 5 else (0, False) for w in ratios(rows)]


def loop_kpop(rows):
    def divergence(a, b):
        p, q = math.exp(a), math.exp(b)
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    kept = [max(divergence(a, b), divergence(b, a)) <= 0.1 for a, b in rows]
    return [(w, True) if k else (0, False) for w, k in zip(ratios(rows), kept, strict=True)]


PER_SEQUENCE = {
    "sequence_tis": (sequence_tis, loop_sequence_tis),
    "geometric_tis": (geometric_tis, loop_geometric_tis),
    "sequence_mis": (sequence_mis, loop_sequence_mis),
    "geometric_mask": (partial(geometric_mask, low=0.9, high=1.2), loop_geometric_mask),
    "sequence_mask_tis": (sequence_mask_tis, loop_sequence_mask_tis),
    "outlier_mask": (partial(outlier_mask, low=0.1, high=8.0), loop_outlier_mask),
}
PER_TOKEN = {
    "token_tis": (token_tis, loop_token_tis),
    "token_mis": (token_mis, loop_token_mis),
    "decoupled_ppo": (decoupled_ppo, loop_decoupled),
    "kpop": (partial(kpop, max_divergence=0.1), loop_kpop),
}
BATTERY = PER_SEQUENCE | PER_TOKEN
every_correction = pytest.mark.parametrize("name", [*BATTERY, "m2po", "m2po_credit"])


def run(name, old, sampler, mask, sequence):
    if name.startswith("m2po"):
        credit = torch.where(sequence % 2 == 0, 1.0, -1.0).to(old.dtype)
        return m2po(old, sampler, mask, advantages_T=credit if name == "m2po_credit" else None)
    function = BATTERY[name][0]
    return function(old, sampler, mask, sequence_T=sequence) if name in PER_SEQUENCE else function(old, sampler, mask)


LOGPROB = st.floats(min_value=-4, max_value=-0.02)
ROWS = st.lists(st.tuples(LOGPROB, LOGPROB, st.booleans(), st.integers(0, 3)), min_size=1, max_size=14)


def columns(rows, dtype=torch.float64):
    old, sampler, mask, sequence = zip(*rows, strict=True)
    return tensor(old, dtype), tensor(sampler, dtype), torch.tensor(mask), torch.tensor(sequence)


@pytest.mark.parametrize("name", BATTERY)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_agrees_with_a_loop_over_one_sequence_at_a_time(name, rows):
    expected = [(0.0, False)] * len(rows)
    for sequence in {row[3] for row in rows}:
        places = [i for i, row in enumerate(rows) if row[3] == sequence and row[2]]
        if places:
            for i, pair in zip(places, BATTERY[name][1]([rows[i][:2] for i in places]), strict=True):
                expected[i] = pair
    result = run(name, *columns(rows))
    assert result.weight_T.tolist() == pytest.approx([weight for weight, _ in expected], rel=1e-9)
    assert result.kept_T.tolist() == [kept for _, kept in expected]


@every_correction
@settings(max_examples=30, deadline=None)
@given(rows=ROWS, data=st.data())
def test_order_does_not_matter(name, rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    whole, mixed = run(name, *columns(rows)), run(name, *columns([rows[i] for i in order]))
    assert mixed.kept_T.tolist() == [whole.kept_T.tolist()[i] for i in order]
    assert mixed.weight_T.tolist() == pytest.approx([whole.weight_T.tolist()[i] for i in order], rel=1e-12)


@every_correction
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e9, -1e9])
def test_what_stands_behind_the_mask_changes_nothing_to_the_bit(name, dtype, poison):
    mask = torch.tensor([True, False, True, False, True])
    sequence = torch.tensor([0, 0, 0, 1, 1])

    def result(hidden):
        return run(
            name,
            tensor([-0.4, hidden, -1.1, hidden, -0.2], dtype),
            tensor([-0.5, hidden, -0.7, -hidden, -0.9], dtype),
            mask,
            sequence,
        )

    for clean, poisoned in zip(result(0.0), result(poison), strict=True):
        assert torch.equal(clean, poisoned)
    assert result(poison).weight_T[~mask].tolist() == [0.0, 0.0]
    assert not result(poison).kept_T[~mask].any()


@every_correction
def test_no_gradient_comes_back(name):
    old, sampler = tensor([-0.5, -0.6]).requires_grad_(), tensor([-0.4, -0.7]).requires_grad_()
    result = run(name, old, sampler, torch.ones(2).bool(), torch.zeros(2, dtype=torch.int64))
    assert not any(field.requires_grad for field in result)


@every_correction
def test_equal_policies_are_left_alone(name):
    logprobs, mask = tensor([-0.5, -3.0, -0.01]), torch.tensor([True, True, True])
    result = run(name, logprobs, logprobs, mask, torch.tensor([0, 0, 1]))
    assert result.weight_T.tolist() == [1.0, 1.0, 1.0]
    assert result.kept_T.tolist() == mask.tolist()
    assert not result.capped_T.any()


@every_correction
def test_nan_at_a_trained_token_is_not_dropped_in_silence(name):
    old, sampler = tensor([math.nan, -1.0]), tensor([-1.0, -1.0])
    result = run(name, old, sampler, torch.ones(2).bool(), torch.tensor([0, 1]))
    assert result.weight_T.isnan().tolist() == [True, False]


@every_correction
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("gap", [2000.0, math.inf])
def test_a_ratio_that_overflows_is_capped_or_rejected_and_never_nan(name, dtype, gap):
    old, sampler = tensor([-1.0, -gap], dtype), tensor([-gap, -1.0], dtype)
    result = run(name, old, sampler, torch.ones(2).bool(), torch.tensor([0, 1]))
    assert result.weight_T.isfinite().all()
    # What the loss makes of it: 0 * inf would be NaN here.
    assert (result.weight_T * tensor([0.0, 1.0], dtype)).isfinite().all()


def test_an_uncapped_weight_that_overflows_is_the_largest_number():
    # Both tokens in one sequence: +2000 and -2000 cancel in the mean, and the first token's own ratio overflows.
    result = sequence_mask_tis(
        tensor([-1, -2001]), tensor([-2001, -1]), torch.ones(2).bool(), sequence_T=torch.tensor([0, 0])
    )
    assert result.kept_T.all()
    assert result.weight_T.tolist() == [torch.finfo(torch.float64).max, 0.0]


def test_capped_tokens_are_named():
    # Ratios e^2, 1, and in a second sequence e^.5 twice: product e.
    old, sampler, mask = tensor([2, 0, 0.5, 0.5]) - 3, tensor([0, 0, 0, 0]) - 3, torch.tensor([True, True, True, True])
    sequence = torch.tensor([0, 0, 1, 1])
    assert token_tis(old, sampler, mask).capped_T.tolist() == [True, False, False, False]
    capped = sequence_tis(old, sampler, mask, sequence_T=sequence, cap=3.0)
    assert capped.capped_T.tolist() == [True, True, False, False]
    assert capped.weight_T.tolist() == pytest.approx([3.0, 3.0, math.e, math.e])
    assert not token_mis(old, sampler, mask).capped_T.any()


def test_the_product_shrinks_with_length_and_the_geometric_mean_does_not():
    # L02: 8,000 tokens that differ by -3.5e-4: e^-2.8 = 0.06081, e^-0.00035 = 0.99965.
    old, sampler = torch.full((8000,), -1.00035), torch.full((8000,), -1.0)
    mask, sequence = torch.ones(8000).bool(), torch.zeros(8000, dtype=torch.int64)
    assert sequence_tis(old, sampler, mask, sequence_T=sequence)[0][0].item() == pytest.approx(0.06081, rel=1e-3)
    assert geometric_tis(old, sampler, mask, sequence_T=sequence)[0][0].item() == pytest.approx(0.99965, abs=1e-6)
    assert token_tis(old, sampler, mask).weight_T[0].item() == pytest.approx(0.99965, abs=1e-6)


def test_a_loss_per_sequence_meets_a_weight_per_sequence():
    # L04: GMPO-like losses of two sequences with weights (0.5, 2) and (1.5, 1). Geometric means 1 and sqrt 1.5.
    weights = tensor([0.5, 2.0, 1.5, 1.0])
    sequence, mask = torch.tensor([0, 0, 1, 1]), torch.ones(4).bool()
    result = geometric_tis(weights.log(), torch.zeros(4).double(), mask, sequence_T=sequence)
    assert result.weight_T.tolist() == pytest.approx([1.0, 1.0, 1.224745, 1.224745], abs=1e-6)
    # (-1.221403 * 1 + 1.051271 * 1.224745) / 2
    loss = tensor([-1.221403, -1.221403, 1.051271, 1.051271]) / 2
    assert (result.weight_T * loss).sum().item() / 2 == pytest.approx(0.033068, abs=1e-6)


def test_one_bad_token_hides_in_a_long_sequence_from_the_mean_but_not_from_the_veto():
    # Ratio e^5 = 148 once in 1,000: geometric mean e^.005 = 1.005.
    old, sampler = torch.full((1000,), -2.0), torch.full((1000,), -2.0)
    old[7] = 3.0
    mask, sequence = torch.ones(1000).bool(), torch.zeros(1000, dtype=torch.int64)
    assert geometric_mask(old, sampler, mask, sequence_T=sequence).kept_T.all()
    assert not outlier_mask(old, sampler, mask, sequence_T=sequence).kept_T.any()


def test_kpop_minds_likely_tokens_more_than_rare_ones():
    # Ratio 5 at mu = 1e-4: D of about 5e-4. Ratio 1/9 at mu = 0.9: .1 ln(1/9) + .9 ln 9 = 1.758.
    old, sampler = tensor([5e-4, 0.1]).log(), tensor([1e-4, 0.9]).log()
    result = kpop(old, sampler, torch.ones(2).bool(), max_divergence=1.75)
    assert result.kept_T.tolist() == [True, False]
    assert result.weight_T.tolist() == pytest.approx([5.0, 0.0])
    assert kpop(old, sampler, torch.ones(2).bool(), max_divergence=1.76).kept_T.all()
    # A certain token (log-probability 0, or above by rounding) has no rest; against less than certain it is infinite.
    edge = kpop(tensor([0.0, 1e-9, 0.0]), tensor([0.0, 0.0, -0.5]), torch.ones(3).bool())
    assert edge.kept_T.tolist() == [True, True, False]


# M2PO


def loop_m2po(squares, bound):
    """Drop the largest until the mean of the rest is small enough."""
    kept = sorted(squares)
    while kept and sum(kept) / len(kept) > bound:
        kept.pop()
    return kept


@settings(max_examples=80, deadline=None)
@given(gaps=st.lists(st.floats(-1, 1), min_size=1, max_size=12, unique_by=abs))
def test_m2po_drops_the_largest_until_the_mean_is_small(gaps):
    gap = tensor(gaps)
    result = m2po(gap - 2, torch.full_like(gap, -2), torch.ones_like(gap).bool())
    squares = ((gap - 2) + 2).square()
    assert sorted(squares[result.kept_T].tolist()) == loop_m2po(squares.tolist(), 0.04)
    assert result.weight_T.tolist() == result.kept_T.double().tolist()


def test_m2po_on_exact_numbers():
    # Squares .01, .04, .09, .25: means .01, .025, .0467, .0975 against .04.
    old, sampler, mask = tensor([0.1, -0.2, 0.3, -0.5]) - 1, tensor([-1.0] * 4), torch.ones(4).bool()
    assert m2po(old, sampler, mask).kept_T.tolist() == [True, True, False, False]
    # With credit only the third (A > 0, w > 1) and the last (A < 0, w < 1) count: .09 alone is too much.
    credit = tensor([-1.0, 1.0, 1.0, -1.0])
    assert m2po(old, sampler, mask, advantages_T=credit).kept_T.tolist() == [True, True, False, False]
    assert m2po(old, sampler, mask, advantages_T=-credit).kept_T.tolist() == [True] * 4
    # Of equal values all go or none.
    twins = m2po(tensor([0.25, -0.25]) - 1, tensor([-1.0] * 2), mask[:2])
    assert twins.kept_T.tolist() == [False, False]


def test_m2po_on_pieces_is_not_m2po_on_the_step():
    # Why the docstring asks for the whole step: the second piece alone has no small values beside its large one.
    old, sampler, mask = tensor([0.01, 0.02, 0.3, 0.01]) - 1, tensor([-1.0] * 4), torch.ones(4).bool()
    whole = m2po(old, sampler, mask).kept_T.tolist()
    pieces = [m2po(old[i : i + 2], sampler[i : i + 2], mask[:2]).kept_T.tolist() for i in (0, 2)]
    assert whole == [True, True, True, True]
    assert pieces == [[True, True], [False, True]]


# Exact expectations: two tokens over three symbols, 9 sequences.


class TwoPolicies:
    """A policy and a sampler over sequences of two tokens; the second token depends on the first."""

    sequences = tuple(itertools.product(range(3), repeat=2))
    rewards = tensor([0.0, 1.0, 0.5, 0.0, 0.0, 2.0, 1.0, -1.0, 0.3])

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        draw = partial(torch.randn, generator=generator, dtype=torch.float64)
        self.policy = [draw(3).requires_grad_(), draw(3, 3).requires_grad_()]
        self.sampler = [self.policy[0].detach() + 0.5 * draw(3), self.policy[1].detach() + 0.5 * draw(3, 3)]

    def logprobs(self, logits, sequence):
        one, two = sequence
        return torch.stack([logits[0].log_softmax(-1)[one], logits[1][one].log_softmax(-1)[two]])

    def exact(self):
        probabilities = torch.stack([self.logprobs(self.policy, s).sum().exp() for s in self.sequences])
        return self.flat(torch.autograd.grad(probabilities @ self.rewards, self.policy))

    def expected(self, correct):
        """Expectation under the sampler of the corrected REINFORCE gradient."""
        total = torch.zeros(12, dtype=torch.float64)
        mask, sequence_T = torch.ones(2).bool(), torch.zeros(2, dtype=torch.int64)
        for sequence, reward in zip(self.sequences, self.rewards, strict=True):
            logprobs, sampler = (self.logprobs(logits, sequence) for logits in (self.policy, self.sampler))
            correction = correct(logprobs, sampler, mask, sequence_T)
            loss = (correction.weight_T * reinforce(logprobs, sampler, reward.expand(2), mask).loss_T).sum()
            total -= sampler.sum().exp() * self.flat(torch.autograd.grad(loss, self.policy))
        return total

    def flat(self, gradients):
        return torch.cat([gradient.flatten() for gradient in gradients])


def test_the_product_gives_the_exact_policy_gradient_and_token_weights_are_biased():
    problem = TwoPolicies()
    uncapped = problem.expected(lambda p, mu, mask, s: sequence_tis(p, mu, mask, sequence_T=s, cap=math.inf))
    torch.testing.assert_close(uncapped, problem.exact(), rtol=1e-12, atol=1e-12)
    # Negative controls: no correction, token weights, geometric means and a tight cap are all biased.
    biased = [
        lambda p, mu, mask, s: token_tis(mu, mu, mask),
        lambda p, mu, mask, s: token_tis(p, mu, mask, cap=math.inf),
        lambda p, mu, mask, s: geometric_tis(p, mu, mask, sequence_T=s, cap=math.inf),
        lambda p, mu, mask, s: sequence_tis(p, mu, mask, sequence_T=s, cap=1.0),
    ]
    for correct in biased:
        assert (problem.expected(correct) - problem.exact()).abs().max() > 1e-3


def test_the_mean_weight_under_the_sampler_is_one():
    problem = TwoPolicies()
    total = 0.0
    for sequence in problem.sequences:
        logprobs, sampler = (problem.logprobs(logits, sequence) for logits in (problem.policy, problem.sampler))
        weight = sequence_tis(
            logprobs, sampler, torch.ones(2).bool(), sequence_T=torch.zeros(2, dtype=torch.int64), cap=math.inf
        ).weight_T[0]
        total += (sampler.sum().exp() * weight).item()
    assert total == pytest.approx(1.0, abs=1e-12)


# Bad input


def test_settings_that_cannot_be_are_refused():
    one, mask, sequence = tensor([-1.0]), torch.tensor([True]), torch.tensor([0])
    for cap in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="cap is"):
            token_tis(one, one, mask, cap=cap)
        with pytest.raises(ConfigError, match="cap is"):
            sequence_tis(one, one, mask, sequence_T=sequence, cap=cap)
    for low, high in ((2.0, 1.0), (-0.1, 1.0), (math.nan, 1.0)):
        with pytest.raises(ConfigError, match="0 <= low <= high"):
            token_mis(one, one, mask, low=low, high=high)
    with pytest.raises(ConfigError, match="max_second_moment is 0"):
        m2po(one, one, mask, max_second_moment=0)
    with pytest.raises(ConfigError, match="max_divergence is -1"):
        kpop(one, one, mask, max_divergence=-1)


@every_correction
def test_shapes_that_do_not_fit_are_refused(name):
    flat, mask, sequence = tensor([-1.0, -1.0]), torch.ones(2).bool(), torch.tensor([0, 0])
    with pytest.raises(TrainerError, match="one entry per token, flat"):
        run(name, flat, tensor([-1.0]), mask, sequence)
    with pytest.raises(TrainerError, match="give booleans"):
        run(name, flat, flat, torch.ones(2), sequence)
    if name in PER_SEQUENCE:
        with pytest.raises(TrainerError, match="one int64 id per token"):
            run(name, flat, flat, mask, torch.tensor([0]))


@every_correction
def test_a_call_without_tokens_gives_none_back(name):
    empty = tensor([])
    result = run(name, empty, empty, empty.bool(), empty.long())
    assert [len(field) for field in result] == [0, 0, 0]
