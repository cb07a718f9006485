import doctest
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import entropy
from agentrl.algorithms.entropy import (
    AdaptiveEntropy,
    above_entropy_mask,
    entropy_bonus,
    entropy_threshold,
    top_entropy_mask,
)
from agentrl.algorithms.reduce import token_mean
from agentrl.errors import ConfigError, TrainerError
from tests.algorithms.tree import POISON, tensor

TOKENS = st.lists(st.tuples(st.floats(min_value=0, max_value=5), st.booleans()), min_size=1, max_size=20)


def columns(tokens):
    values, mask = zip(*tokens, strict=True)
    return tensor(values), torch.tensor(mask)


@settings(deadline=None)
@given(tokens=TOKENS)
def test_the_bonus_is_minus_coefficient_times_entropy(tokens):
    values, mask = columns(tokens)
    values.requires_grad_()
    loss = entropy_bonus(values, mask, coefficient=0.3)
    assert loss.tolist() == pytest.approx([-0.3 * value if on else 0.0 for value, on in tokens])
    gradient = torch.autograd.grad(loss.sum(), values)[0]
    assert gradient.tolist() == pytest.approx([-0.3 if on else 0.0 for _, on in tokens])


def test_the_gradient_of_the_bonus_is_that_of_the_entropy():
    # d H / d z_i = -p_i (log p_i + H), for a distribution of three logits.
    logits = tensor([2.0, 1.0, 0.0]).requires_grad_()
    logp = logits.log_softmax(-1)
    entropy_T = -(logp.exp() * logp).sum().reshape(1)
    assert entropy_T.item() == pytest.approx(0.832396, abs=1e-6)
    gradient = torch.autograd.grad(entropy_bonus(entropy_T, torch.tensor([True]), coefficient=1.0).sum(), logits)[0]
    p = logp.exp().tolist()
    assert gradient.tolist() == pytest.approx([q * (math.log(q) + 0.832396) for q in p], abs=1e-5)


@pytest.mark.parametrize("poison", POISON)
def test_padding_does_not_enter_the_entropy(poison):
    # Surprisal 1, 2 | .5 four times and two pads: 5 / 6 = .833333 per token. A pad filled with 1.0 must not count.
    values = tensor([1.0, 2.0, poison, poison, 0.5, 0.5, 0.5, 0.5]).requires_grad_()
    mask = torch.tensor([True, True, False, False, True, True, True, True])
    loss = token_mean(entropy_bonus(values, mask, coefficient=1.0), mask.double(), 6.0)
    assert loss.item() == pytest.approx(-0.833333, abs=1e-6)
    assert torch.autograd.grad(loss, values)[0][~mask].tolist() == [0.0, 0.0]


def test_nan_at_a_trained_token_is_not_hidden():
    values, mask = tensor([math.nan, 1.0, 2.0]), torch.ones(3).bool()
    assert entropy_bonus(values, mask, coefficient=1.0).isnan().tolist() == [True, False, False]
    assert top_entropy_mask(values, mask, share=0.5).tolist() == [True, False, True]


def test_the_coefficient_follows_the_entropy_and_acts_below_the_target():
    state = AdaptiveEntropy(coefficient=0.0, target=0.2, step=0.005, maximum=0.012)
    # The coefficient of a step is the one before that step's own entropy moves it.
    used = []
    for measured in (0.1, 0.1, 0.1, 0.1, 0.2, 0.3, 0.1):
        used.append(state.alpha(measured))
        state = state.after(measured)
    # c: 0, .005, .010, .012 (bound), .012, .012 at the target unchanged, .007; alpha is 0 above the target.
    assert used == pytest.approx([0.0, 0.005, 0.010, 0.012, 0.012, 0.0, 0.007])
    assert state.coefficient == pytest.approx(0.012)


@given(st.lists(st.floats(min_value=0, max_value=3), max_size=30))
def test_the_coefficient_stays_within_its_bounds_and_the_state_is_all_there_is(entropies):
    state = AdaptiveEntropy(coefficient=0.1, target=1.0, step=0.07, minimum=0.05, maximum=0.3)
    for measured in entropies:
        moved = state.after(measured)
        assert 0.05 <= moved.coefficient <= 0.3
        assert moved == AdaptiveEntropy(**{name: getattr(state, name) for name in vars(state)}).after(measured)
        assert (moved.coefficient - state.coefficient) * (1.0 - measured) >= 0
        state = moved


def test_the_coefficient_pulls_a_simulated_policy_to_its_target():
    # Entropy falls by .01 a step and rises by 2 alpha: without the bonus it reaches 0, with it it stays near .2.
    state, measured = AdaptiveEntropy(target=0.2, step=0.002), 0.4
    for _ in range(300):
        measured = max(0.0, measured - 0.01 + 2 * state.alpha(measured))
        state = state.after(measured)
    assert measured == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(
    ("settings_", "match"),
    [
        ({"coefficient": 2.0}, r"the coefficient is 2.0 with bounds 0.0 and 1.0"),
        ({"minimum": -0.1}, r"bounds -0.1"),
        ({"maximum": math.inf}, r"bounds 0.0 and inf"),
        ({"coefficient": math.nan}, r"the coefficient is nan"),
        ({"step": 0.0}, r"step is 0.0"),
        ({"target": -1.0}, r"target -1.0"),
    ],
)
def test_an_impossible_state_is_refused(settings_, match):
    with pytest.raises(ConfigError, match=match):
        AdaptiveEntropy(**settings_)


@pytest.mark.parametrize("method", ["alpha", "after"])
def test_an_entropy_that_is_no_number_moves_nothing(method):
    with pytest.raises(TrainerError, match="entropy nan is not finite"):
        getattr(AdaptiveEntropy(), method)(math.nan)


@settings(deadline=None)
@given(tokens=TOKENS, share=st.sampled_from([0.05, 0.2, 0.5, 1.0]))
def test_the_top_tokens_are_those_of_a_sorted_list(tokens, share):
    values, mask = columns(tokens)
    trained = sorted((value for value, on in tokens if on), reverse=True)
    count = max(1, int(share * len(trained)))
    expected = [bool(on and value >= trained[count - 1]) for value, on in tokens]
    assert top_entropy_mask(values, mask, share=share).tolist() == expected


def test_ties_are_chosen_together_and_nothing_trained_chooses_nothing():
    values = tensor([1.0, 1.0, 0.5, 1.0, 0.2])
    assert top_entropy_mask(values, torch.ones(5).bool(), share=0.2).tolist() == [True, True, False, True, False]
    assert top_entropy_mask(values, torch.zeros(5).bool()).tolist() == [False] * 5
    assert top_entropy_mask(values[:0], torch.zeros(0).bool()).tolist() == []


@settings(deadline=None)
@given(tokens=TOKENS, cut=st.integers(min_value=0, max_value=20))
def test_with_the_threshold_of_the_step_a_cut_changes_nothing(tokens, cut):
    values, mask = columns(tokens)
    bound = entropy_threshold(values, mask, share=0.3)
    pieces = [above_entropy_mask(values[part], mask[part], threshold=bound) for part in (slice(cut), slice(cut, None))]
    assert torch.equal(torch.cat(pieces), top_entropy_mask(values, mask, share=0.3))


def test_without_it_a_cut_does():
    # Negative control: of .1, .2 | 3, 4 half is 3, 4; half of each piece is .2 and 4.
    values, mask = tensor([0.1, 0.2, 3.0, 4.0]), torch.ones(4).bool()
    assert top_entropy_mask(values, mask, share=0.5).tolist() == [False, False, True, True]
    pieces = [top_entropy_mask(part, part > 0, share=0.5) for part in values.split(2)]
    assert torch.cat(pieces).tolist() == [False, True, False, True]


@pytest.mark.parametrize("poison", POISON)
def test_what_stands_behind_the_mask_is_not_ranked(poison):
    values, mask = tensor([1.0, poison, 2.0]), torch.tensor([True, False, True])
    assert top_entropy_mask(values, mask, share=0.5).tolist() == [False, False, True]


def test_bad_arguments_are_refused():
    one, on = tensor([1.0]), torch.tensor([True])
    with pytest.raises(ConfigError, match=r"share is 0.0"):
        top_entropy_mask(one, on, share=0.0)
    with pytest.raises(ConfigError, match=r"coefficient is -1.0"):
        entropy_bonus(one, on, coefficient=-1.0)
    with pytest.raises(TrainerError, match="give booleans"):
        above_entropy_mask(one, one, threshold=0.1)


def test_the_examples_in_the_docstrings_run():
    result = doctest.testmod(entropy)
    assert result.attempted > 0
    assert result.failed == 0
