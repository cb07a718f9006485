"""Plans: the worked numbers of the source, and numbers from data of known spread."""

import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.evals.attempts import Attempt
from agentrl.evals.plan import Rates, assume, plan
from agentrl.evals.table import Table


def uniform(checkpoints, tasks=400, attempts=4, clusters=None):
    """Tasks whose chances are uniform and independent between checkpoints: task variance 1/12, attempt noise 1/6."""
    rng = np.random.default_rng(0)
    rows = []
    for name in checkpoints:
        for t in range(tasks):
            chance = rng.random()
            rows += [
                Attempt(
                    checkpoint=name,
                    task=f"t{t}",
                    number=k,
                    score=float(rng.random() < chance),
                    cluster=None if clusters is None else str(t // clusters),
                )
                for k in range(attempts)
            ]
    return Table.of(rows)


def test_the_worked_numbers_of_the_source():
    made = plan(assume(None), 0.03, rates=Rates(tokens=10.0, seconds=0.5))
    assert [(option.attempts, option.tasks) for option in made.options][:3] == [(1, 3876), (2, 2423), (4, 1696)]
    assert made.cheapest.attempts == 1
    assert made.options[2].tokens == 2 * 4 * 1696 * 10.0
    assert made.options[2].seconds == 2 * 4 * 1696 * 0.5
    assert (made.tasks, made.attempts_with_tasks, made.limit) == (0, None, None)


def test_with_the_tasks_at_hand():
    made = plan(assume(None), 0.03, rates=Rates(), tasks=1260)
    assert made.attempts_with_tasks == 10  # the source's 1260 tasks at K = 10
    assert made.options[0].tokens is None
    few = plan(assume(None), 0.03, rates=Rates(), tasks=900)
    assert few.attempts_with_tasks is None  # 969 are the least, with attempts without end
    assert few.limit == pytest.approx(0.03 * (969 / 900) ** 0.5, rel=1e-3)


def test_two_sides_are_measured():
    found = assume(uniform(["a", "b"])).variance
    # independent sides: variance of the difference 2/12; noise 1/6 each
    assert (found.task, found.before, found.after) == pytest.approx((1 / 6, 1 / 6, 1 / 6), abs=0.03)


def test_one_side_needs_a_correlation():
    table = uniform(["a"])
    found = assume(table, correlation=0.0)
    assert (found.variance.task, found.variance.before) == pytest.approx((1 / 6, 1 / 6), abs=0.03)
    half = assume(table, correlation=0.5)
    assert half.variance.task == pytest.approx(found.variance.task / 2)
    assert (half.tasks, half.design_effect) == (400, 1.0)
    assert "correlation of 0.5" in half.source


def test_clusters_of_like_tasks_cost_more_tasks():
    rng = np.random.default_rng(1)
    rows = []
    for c in range(60):
        chance = float(rng.random() < 0.5)
        rows += [
            Attempt(checkpoint="a", task=f"t{c}-{t}", number=k, score=chance, cluster=str(c))
            for t in range(5)
            for k in range(2)
        ]
    found = assume(Table.of(rows))
    assert found.design_effect == pytest.approx(5.0, rel=0.1)  # five tasks of a cluster say what one does
    alone, clustered = (plan(one, 0.1, rates=Rates()).options[0].tasks for one in (assume(uniform(["a"])), found))
    assert clustered > alone


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: plan(assume(None), 0.0, rates=Rates()), ValueError, r"delta 0 is not in \(0, 1\]; 0\.03 is"),
        (lambda: plan(assume(None), 3, rates=Rates()), ValueError, r"delta 3 is not in \(0, 1\]"),
        (lambda: plan(assume(None), 0.1, rates=Rates(), tasks=1), ValueError, "tasks 1: a comparison needs two"),
        (lambda: assume(uniform(["a"], 4), correlation=1.0), ValueError, r"correlation 1\.0 is not in \[0, 1\)"),
        (lambda: assume(uniform(["a", "b", "c"], 4)), StoreError, "one or two checkpoints, not a, b, c"),
        (lambda: assume(uniform(["a"], 4, attempts=1)), ValueError, "two attempts"),
    ],
)
def test_bad_input_is_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
