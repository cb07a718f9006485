"""What k attempts elect: against enumeration, and against the exact majority of the statistics."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.evals import stats
from agentrl.evals.inference import vote_of_k
from agentrl.evals.inference.voting import DRAWS

NAN = float("nan")
answer_lists = st.lists(st.integers(-1, 3), min_size=3, max_size=7)


def elected(answers, gold, weights, drawn):
    """The worth of what one subset elects, by hand."""
    votes = {}
    for i in drawn:
        if answers[i] >= 0:
            votes[answers[i]] = votes.get(answers[i], 0.0) + weights[i]
    most = max(votes.values(), default=0.0)
    if most == 0.0:
        return np.mean([gold[i] for i in drawn])
    won = [name for name, count in votes.items() if count == most]
    return np.mean([np.mean([gold[i] for i in range(len(gold)) if answers[i] == name]) for name in won])


def test_a_known_vote():
    # 20 subsets of answers 7 7 7 5 5 9: three 7s 1, two 7s 9, and 7 5 9 (6 of them) a tie of three: (1 + 9 + 6/3) / 20
    assert vote_of_k([[7, 7, 7, 5, 5, 9]], [[1, 1, 1, 0, 0, 0]], 3)[0] == pytest.approx(0.6)


@given(answer_lists, st.data())
def test_it_is_the_mean_over_all_subsets(answers, data):
    n = len(answers)
    right = data.draw(st.sets(st.integers(0, 3)))
    gold = [float(answer in right) for answer in answers]
    weights = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=n, max_size=n))
    k = data.draw(st.integers(1, n))
    wanted = np.mean([elected(answers, gold, weights, drawn) for drawn in combinations(range(n), k)])
    assert vote_of_k([answers], [gold], k, weights=[weights])[0] == pytest.approx(wanted)


@given(answer_lists, st.integers(1, 3))
def test_without_weights_and_with_one_right_answer_it_is_the_majority(answers, k):
    gold = [float(answer == 0) for answer in answers]
    assert vote_of_k([answers], [gold], k)[0] == pytest.approx(stats.maj_at_k([answers], [0], k)[0])


def test_weights_of_0_and_1_leave_out_who_does_not_pass():
    # 5 is most frequent, but only the one 7 passes its verifier
    answers, gold, passed = [[5, 5, 5, 7]], [[0, 0, 0, 1]], [[0, 0, 0, 1]]
    assert vote_of_k(answers, gold, 4)[0] == 0.0
    assert vote_of_k(answers, gold, 4, weights=passed)[0] == 1.0


def test_many_subsets_are_drawn_without_bias_and_by_the_seed():
    # 40 attempts, 18 right, k = 3: more than DRAWS subsets; the exact majority of one wrong answer against the right
    answers = np.array([[0.0] * 18 + [1.0] * 22])
    gold = (answers == 0).astype(float)
    exact = stats.maj_at_k(answers, [0], 3)[0]
    found = [vote_of_k(answers, gold, 3, seed=seed)[0] for seed in range(40)]
    # a draw is a coin of that chance: the mean of 40 * DRAWS has an error of 0.5 / sqrt(40 * 512) = 0.0035
    assert np.mean(found) == pytest.approx(exact, abs=4 * 0.5 / (40 * DRAWS) ** 0.5)
    assert vote_of_k(answers, gold, 3, seed=1)[0] == found[1]
    assert len(set(found)) > 1


def test_missing_attempts_are_left_out():
    assert vote_of_k([[1, NAN, 2, 1]], [[1, 1, 0, 1]], 3)[0] == 1.0
    found = vote_of_k([[1, 1], [1, NAN]], [[1, 1], [1, 1]], 2)
    assert found[0] == 1.0
    assert np.isnan(found[1])


@pytest.mark.parametrize(
    ("arguments", "k", "message"),
    [
        (([[1, 2]], [[1.0]]), 1, "give \\[tasks, attempts\\]"),
        (([[1, 2]], [[1, 0]]), 3, "vote@3"),
        (([[1, 2]], [[1, 0]]), 0, "k"),
    ],
)
def test_bad_input_is_named(arguments, k, message):
    with pytest.raises(ValueError, match=message):
        vote_of_k(*arguments, k)
    with pytest.raises(ValueError, match="a weight is -1"):
        vote_of_k([[1, 2]], [[1, 0]], 1, weights=[[-1, 0]])
