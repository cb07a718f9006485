"""Majority votes against the mean over all subsets."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.evals import stats


def by_subsets(row, right, k):
    total, number = 0.0, 0
    for subset in itertools.combinations(row, k):
        votes = Counter(answer for answer in subset if answer >= 0)
        most = max(votes.values(), default=0)
        winners = [answer for answer, count in votes.items() if count == most]
        total += (right in winners) / max(1, len(winners))
        number += 1
    return total / number


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=9), st.data())
def test_a_vote_is_the_mean_over_subsets(row, data):
    k = data.draw(st.integers(1, len(row)))
    assert stats.maj_at_k([row], [0], k)[0] == pytest.approx(by_subsets(row, 0, k), abs=1e-12)


def test_all_tasks_at_once_are_each_task_alone():
    rng = np.random.default_rng(0)
    answers = rng.integers(-1, 5, size=(30, 10)).astype(float)
    answers[rng.random(answers.shape) < 0.2] = math.nan
    right = rng.integers(0, 5, size=30)
    together = stats.maj_at_k(answers, right, 4)
    for row, answer, found in zip(answers, right, together, strict=True):
        drawn = row[~np.isnan(row)]
        assert found == pytest.approx(by_subsets(drawn, answer, 4), abs=1e-12) if len(drawn) >= 4 else math.isnan(found)


def test_one_vote_is_the_share_of_right_answers_and_all_votes_the_majority():
    rows = [[7, 7, 7, 5, 5, 9], [5, 5, 7, 7, 1, 1], [1, 1, 1, 1, 7, 7]]
    assert stats.maj_at_k(rows, [7, 7, 7], 1) == pytest.approx([1 / 2, 1 / 3, 1 / 3])
    assert stats.maj_at_k(rows, [7, 7, 7], 6) == pytest.approx([1, 1 / 3, 0])


def test_no_answer_is_no_vote():
    # Of the three pairs of (7, none, none) two have one vote for 7, and the third has none at all.
    assert stats.maj_at_k([[7, -1, -1]], [7], 2)[0] == pytest.approx(2 / 3)
    # Negative control: were "none" an answer like others, each of those two would be a tie, and 1/3 the result.
    assert stats.maj_at_k([[7, 5, 5]], [7], 2)[0] == pytest.approx(1 / 3)


def test_many_attempts_against_drawing():
    rng = np.random.default_rng(1)
    row = rng.permutation([0] * 24 + [1] * 20 + [2] * 12 + list(range(3, 11)))
    drawn = rng.permuted(np.tile(row, (20_000, 1)), axis=1)[:, :15]
    votes = (drawn[:, :, None] == np.arange(11)).sum(axis=1)
    winners = votes == votes.max(axis=1, keepdims=True)
    expected = (winners[:, 0] / winners.sum(axis=1)).mean()
    assert stats.maj_at_k([row], [0], 15)[0] == pytest.approx(expected, abs=0.01)


def test_text_becomes_numbers():
    coded = stats.answer_codes([["a", "b", None], ["x", "", "x", "a"]], ["b", "a"])
    np.testing.assert_equal(coded.answers, [[1, 0, math.nan, math.nan], [1, -1, 1, 0]])
    assert coded.correct.tolist() == [0, 0]
    # b of {a, b} is a tie; of pairs of x, none, x, a: x wins 3, x-a ties twice and none-a is a's
    assert stats.maj_at_k(*coded, 2) == pytest.approx([1 / 2, (2 * 0.5 + 1) / 6])


def test_what_is_no_vote_is_refused():
    with pytest.raises(ValueError, match="maj@3 needs 3 attempts"):
        stats.maj_at_k([[1, 2]], [1], 3)
    with pytest.raises(ValueError, match="right answer's number, 0 or more, for 1 tasks"):
        stats.maj_at_k([[1, 2]], [-1], 1)
    with pytest.raises(ValueError, match="2 right answers for 1 tasks"):
        stats.answer_codes([["a"]], ["a", "b"])
