"""Looking while it runs: exact e-values, what a confidence sequence does on simple data, and stopping."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.evals import stats
from agentrl.evals.stats.sequential import _bets

NAN = math.nan


def test_an_e_value_is_fair_under_the_null():
    # The mean of e over all 2^8 equally likely results of 8 discordant pairs is 1, so no one can bet it up.
    values = [stats.mixture_e_value(sum(wins), 8 - sum(wins)) for wins in itertools.product([0, 1], repeat=8)]
    assert np.mean(values) == pytest.approx(1.0)
    # Negative control: with wins at 80 % it grows.
    chances = [0.8 ** sum(wins) * 0.2 ** (8 - sum(wins)) for wins in itertools.product([0, 1], repeat=8)]
    assert np.dot(values, chances) > 3


@pytest.mark.filterwarnings("error")
def test_overwhelming_evidence_is_infinite_and_no_warning():
    assert stats.mixture_e_value(5000, 10) == math.inf
    assert stats.mixture_e_value(5000, 5000) < 0.1


def test_the_process_moves_at_discordant_tasks_only():
    process = stats.paired_e_process([0, 1, 0, NAN, 0, 1], [1, 1, NAN, 0, 1, 0])
    # Wins after each task 1 1 1 1 2 2, losses 0 0 0 0 0 1: 2 B(2, 1) = 1, 4 B(3, 1) = 4/3, 8 B(3, 2) = 2/3
    assert process == pytest.approx([1, 1, 1, 1, 4 / 3, 2 / 3])


def test_means_of_attempts_are_sent_to_the_confidence_sequence():
    with pytest.raises(ValueError, match=r"value 0.5 of task 1 is neither 0 nor 1.*confidence_sequence"):
        stats.paired_e_process([0, 0.5], [1, 1])


def test_a_sequence_narrows_and_finds_the_mean():
    values = (np.random.default_rng(0).random(1000) < 0.3).astype(float)
    low, high = stats.confidence_sequence(values)
    assert len(low) == 1000
    assert (np.diff(low) >= 0).all()
    assert (np.diff(high) <= 0).all()
    assert low[-1] < 0.3 < high[-1]
    # Twice the width that is right for one look, not ten times.
    assert high[-1] - low[-1] < 2.2 * 2 * 1.96 * math.sqrt(0.21 / 1000)


def test_the_first_ends_by_hand():
    # Five passes, each bet at most 0.5 / m on more: m is out when (1 + 0.5 / m * (1 - m))^5 >= 2 / 0.05 = 40,
    # that is below 0.5 / (40^(1/5) - 0.5) = 0.314199. After four 40^(1/4) = 2.514867 gives 0.248155.
    low = stats.confidence_sequence([1, 1, 1, 1, 1]).low
    assert low[3:] == pytest.approx([0.248, 0.314], abs=1e-12)


def test_a_stake_is_set_before_its_unit_is_seen():
    sums, sizes = np.array([0.2, 0.9, 0.4, 0.6]), np.ones(4)
    other = sums.copy()
    other[2] = 0.0
    before, after = _bets(sums, sizes, 0.05), _bets(other, sizes, 0.05)
    np.testing.assert_array_equal(before[:3], after[:3])
    assert before[3] != after[3]


def test_clusters_come_in_the_order_of_the_list_and_not_of_their_numbers():
    values, clusters = [1, 1, 1, 1, 1, 1, 0, 0, 0, 0], [9, 9, 7, 7, 5, 5, 3, 3, 1, 1]
    np.testing.assert_allclose(
        stats.confidence_sequence(values, clusters=clusters).low, stats.confidence_sequence([1, 1, 1, 0, 0]).low
    )
    # Negative control: the other way round it is another sequence.
    assert stats.confidence_sequence([0, 0, 1, 1, 1]).low[2] < stats.confidence_sequence([1, 1, 1, 0, 0]).low[2]


def test_the_past_does_not_depend_on_the_future():
    values = np.random.default_rng(1).random(60)
    whole, part = stats.confidence_sequence(values), stats.confidence_sequence(values[:25])
    np.testing.assert_array_equal(whole.low[:25], part.low)
    np.testing.assert_array_equal(whole.high[:25], part.high)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30))
def test_mirrored_values_have_the_mirrored_sequence(values):
    low, high = stats.confidence_sequence(values)
    mirrored = stats.confidence_sequence([1 - value for value in values])
    assert mirrored.low == pytest.approx(1 - high, abs=1e-9)
    assert mirrored.high == pytest.approx(1 - low, abs=1e-9)


def test_bounds_only_change_the_scale():
    values = np.random.default_rng(2).random(50)
    low, high = stats.confidence_sequence(values)
    wide = stats.confidence_sequence(values * 20 - 10, bounds=(-10.0, 10.0))
    assert wide.low == pytest.approx(low * 20 - 10)
    assert wide.high == pytest.approx(high * 20 - 10)


def test_longer_than_a_block():
    values = np.random.default_rng(3).random(2500)
    whole, part = stats.confidence_sequence(values), stats.confidence_sequence(values[:1500])
    np.testing.assert_array_equal(whole.low[:1500], part.low)
    assert whole.low[-1] < 0.5 < whole.high[-1] < whole.low[-1] + 0.06


def test_clusters_are_units_and_tasks_not_done_wait():
    clusters = [4, 4, 1, 1, 7, 7]
    sequence = stats.confidence_sequence([1, 0, 1, 1, NAN, NAN], clusters=clusters)
    assert len(sequence.low) == 2
    # Clusters of equal size are their means.
    means = stats.confidence_sequence([0.5, 1.0])
    np.testing.assert_allclose(sequence.low, means.low)
    np.testing.assert_allclose(sequence.high, means.high)
    # A task that was never scored makes its cluster a smaller bet.
    smaller = stats.confidence_sequence([1, NAN, 1, 1, 1, 1], clusters=clusters)
    assert smaller.low[-1] <= stats.confidence_sequence([1, 1, 1, 1, 1, 1], clusters=clusters).low[-1]


def test_copies_in_a_cluster_do_not_speed_things_up():
    values = np.random.default_rng(4).random(40)
    alone = stats.confidence_sequence(values)
    copied = stats.confidence_sequence(np.repeat(values, 5), clusters=np.repeat(np.arange(40), 5))
    np.testing.assert_allclose(copied.low, alone.low)
    # Negative control
    naive = stats.confidence_sequence(np.repeat(values, 5))
    assert naive.high[-1] - naive.low[-1] < 0.7 * (alone.high[-1] - alone.low[-1])


def differences(effect, tasks):
    rng = np.random.default_rng(5)
    chance = rng.beta(2, 2, size=tasks)
    after = rng.binomial(4, np.clip(chance + effect, 0, 1)) / 4
    return after - rng.binomial(4, chance) / 4


@pytest.mark.parametrize(("effect", "verdict"), [(0.25, "above"), (-0.25, "below"), (0.0, "undecided")])
def test_a_comparison_is_decided_when_zero_is_ruled_out(effect, verdict):
    found = stats.decided(differences(effect, 150), bounds=(-1.0, 1.0))
    assert found.verdict == verdict
    assert found.decided == (verdict != "undecided")
    assert found.num_units == 150


def test_no_difference_worth_having_is_a_decision_too():
    found = stats.decided(differences(0.0, 900), bounds=(-1.0, 1.0), margin=0.1)
    assert found.verdict == "within"
    assert -0.1 <= found.low < 0 < found.high <= 0.1


def test_a_rate_against_a_bar():
    assert stats.decided([1] * 40, against=0.5).verdict == "above"
    assert stats.decided([0] * 40, against=0.5).verdict == "below"
    assert stats.decided([1, 0, 1], against=0.5).verdict == "undecided"
    # Nothing is above a bar at the floor, because nothing rules the floor out but a value that cannot be.
    assert stats.decided([0] * 40, against=0.0).verdict == "undecided"
    assert stats.decided([1] + [0] * 4, against=0.0).verdict == "undecided"
