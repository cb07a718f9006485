"""maj@k: how often the most frequent of k answers is right, exactly, ties split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy  # type: ignore[import-untyped]

from agentrl.evals.stats.checks import Array, as_scores, check_enough, check_k

_ROWS_AT_ONCE = 2_000


class Coded(NamedTuple):
    """Answers as numbers [tasks, attempts] (NaN missing, negative without an answer) and the right ones [tasks]."""

    answers: Array
    correct: Array


def answer_codes(answers: Sequence[Sequence[str | None]], correct: Sequence[str], *, none: str = "") -> Coded:
    """Number the answers of each task, so that equal text has equal numbers.

    Args:
        answers: for each task its attempts' answers; None where an attempt is missing. Tasks may differ in length.
        correct: the right answer of each task.
        none: the text that stands for "gave no answer"; it is drawn like any attempt but casts no vote.

    Raises:
        ValueError: not one right answer per task.
    """
    if len(answers) != len(correct):
        raise ValueError(f"{len(correct)} right answers for {len(answers)} tasks; give one for each task")
    length = max((len(row) for row in answers), default=0)
    coded = np.full((len(answers), length), np.nan)
    for i, (row, right) in enumerate(zip(answers, correct, strict=True)):
        numbers = {text: number for number, text in enumerate(dict.fromkeys([right, *(x for x in row if x)]))}
        numbers[none] = -1
        coded[i, : len(row)] = [np.nan if text is None else numbers[text] for text in row]
    return Coded(coded, np.zeros(len(answers)))


def maj_at_k(answers: ArrayLike, correct: ArrayLike, k: int) -> Array:
    """Chance that the right answer wins the vote of k attempts drawn without replacement.

    A tie of t answers for the first place is won by each with chance 1 / t. An attempt without an answer is drawn
    like the others and votes for nothing. The result is exact: it equals the mean over all C(n, k) subsets.

    Args:
        answers: numbers that stand for answers, [tasks, attempts, *checkpoints]; NaN missing, negative no answer.
        correct: the number of the right answer, [tasks], 0 or more.
        k: attempts that vote.

    Returns:
        [tasks, *checkpoints]; NaN where a task has fewer than k attempts.

    Raises:
        ValueError: no task has k attempts, k < 1, or not one right answer >= 0 per task.

    >>> round(float(maj_at_k([[7, 7, 7, 5, 5, 9]], [7], 3)[0]), 6)
    0.6
    """
    check_k(k)
    array = as_scores(answers, "answers")
    right = np.asarray(correct, dtype=np.float64)
    if right.shape != array.shape[:1] or not (right >= 0).all():
        raise ValueError(f"correct is {right!r}; give the right answer's number, 0 or more, for {array.shape[0]} tasks")
    check_enough((~np.isnan(array)).sum(axis=1), k, f"maj@{k}")
    rest = array.shape[2:]
    rows = np.moveaxis(array, 1, -1).reshape(-1, array.shape[1])
    votes = _count_votes(rows, np.repeat(right, int(np.prod(rest))))
    patterns, inverse = np.unique(votes, axis=0, return_inverse=True)
    return _chances(patterns, k)[inverse.ravel()].reshape(array.shape[0], *rest)


def _count_votes(rows: Array, right: Array) -> NDArray[np.int64]:
    """For each row: votes for the right answer, attempts without an answer, then the other answers' votes, falling."""
    length = rows.shape[1]
    ascending = np.sort(rows, axis=1)
    fresh = np.zeros(rows.shape, dtype=np.int64)
    fresh[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    place = np.cumsum(fresh, axis=1) + np.arange(len(rows))[:, None] * length
    wrong = (ascending >= 0) & (ascending != right[:, None])
    others = np.bincount(place[wrong], minlength=rows.size).reshape(rows.shape)
    others = -np.sort(-others, axis=1)
    others = others[:, : max(1, int((others > 0).sum(axis=1).max()))]
    return np.column_stack([(rows == right[:, None]).sum(axis=1), (rows < 0).sum(axis=1), others])


def _chances(votes: NDArray[np.int64], k: int) -> Array:
    """Chance of winning for each pattern of votes (its own, none, the others falling); NaN below k votes.

    With every attempt drawn or not by a coin of chance k / n, the votes of the answers are independent binomials,
    and "k were drawn" is a condition of known chance. Sums over the others' votes are then products of polynomials.
    """
    number, result = votes.sum(axis=1), np.full(len(votes), np.nan)
    answers = (votes[:, 2:] > 0).sum(axis=1)
    for n in np.unique(number[number >= k]):
        here = np.flatnonzero(number == n)
        here = here[np.argsort(-answers[here], kind="stable")]
        table = _binomials(int(n), k)
        for start in range(0, len(here), _ROWS_AT_ONCE):
            some = here[start : start + _ROWS_AT_ONCE]
            won = sum(_won_with(i, votes[some], table) for i in range(1, k + 1))
            result[some] = np.clip(won / table[k, n], 0.0, 1.0)
    return result


def _won_with(won: int, votes: NDArray[np.int64], table: Array) -> Array:
    """Chance that the right answer has ``won`` of the k votes and wins, before the condition that k were drawn.

    Rows are in falling order of the number of answers.
    """
    chance: Array = table[won, votes[:, 0]]
    left = len(table) - 1 - won
    rows = np.flatnonzero(chance)
    if left < won:
        return np.asarray(chance * table[left, votes[:, 1:].sum(axis=1)])
    if len(rows):
        chance[rows] *= _others_below(votes[rows, 1:], won, left, table)
    return chance


def _others_below(votes: NDArray[np.int64], won: int, left: int, table: Array) -> Array:
    """Chance that the others give ``left`` votes with no answer above ``won``; a tie of t counts 1 / (t + 1).

    That is the integral of y^t over 0 .. 1, which Gauss-Legendre nodes give exactly. Polynomials of the number of
    votes are [nodes, left + 1, rows].
    """
    nodes, weights = np.polynomial.legendre.leggauss(left // won // 2 + 1)
    ties = (nodes + 1) / 2
    poly = np.repeat(table[None, : left + 1, votes[:, 0]], len(ties), axis=0)
    for column in votes.T[1:]:
        rows = np.count_nonzero(column)
        if not rows:
            break
        highest = min(won, int(column.max()))
        factors = np.repeat(table[None, : highest + 1, column[:rows]], len(ties), axis=0)
        if highest == won:
            factors[:, won] *= ties[:, None]
        poly[:, :, :rows] = _multiply(poly[:, :, :rows], factors)
    return np.asarray(weights / 2 @ poly[:, left])


def _multiply(poly: Array, factors: Array) -> Array:
    """Product of polynomials [nodes, degree, rows], cut to the degree of the first."""
    product = poly * factors[:, :1]
    for i in range(1, factors.shape[1]):
        product[:, i:] += poly[:, :-i] * factors[:, i : i + 1]
    return product


def _binomials(n: int, k: int) -> Array:
    """Chance of 0 .. k hits (rows) among 0 .. n votes (columns) when each is drawn with chance k / n."""
    hits, votes = np.arange(k + 1)[:, None], np.arange(n + 1)[None]
    missed = np.maximum(votes - hits, 0)
    logs = gammaln(votes + 1) - gammaln(hits + 1) - gammaln(missed + 1)
    return np.where(hits <= votes, np.exp(logs + xlogy(hits, k / n) + xlogy(missed, 1 - k / n)), 0.0)
