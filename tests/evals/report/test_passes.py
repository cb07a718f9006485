"""Curves over k cross where they do, and who solves a task is counted."""

import math

import numpy as np
import pytest

from agentrl.evals.attempts import Attempt, Status
from agentrl.evals.report.passes import fisher, passes, solved_by
from agentrl.evals.table import Table


def table(base, trained, *, clusters=None):
    """From passes of attempts, one pair a task and side."""
    rows = []
    for name, side in (("base", base), ("trained", trained)):
        for t, (passed, made) in enumerate(side):
            cluster = None if clusters is None else str(clusters[t])
            for k in range(made):
                score = float(k < passed)
                one = Attempt(
                    checkpoint=name, task=f"t{t}", number=k, score=score, cluster=cluster, trace_id=f"{name}{t}-{k}"
                )
                rows.append(one)
    return Table.of(rows)


SHARPENED = table([(2, 8)] * 40, [(8, 8)] * 24 + [(0, 8)] * 16)
"""The base passes a quarter of its attempts at any task; the trained policy all of them at 60 % of the tasks."""


def test_the_curves_are_the_estimators_and_they_cross():
    found = passes(SHARPENED)
    assert [one.k for one in found.at] == [1, 2, 4, 8]
    # base: 1 - C(6, k) / C(8, k) = 2/8, 1 - 15/28, 1 - 15/70, 1
    assert [one.comparison.before.mean for one in found.at] == pytest.approx([0.25, 13 / 28, 55 / 70, 1.0])
    assert [one.comparison.after.mean for one in found.at] == pytest.approx([0.6] * 4)
    # k = 2: 0.464 below 0.6; k = 3: 1 - C(6, 3) / C(8, 3) = 1 - 20/56 = 0.643 above it
    assert found.crossing.k == 3
    assert 2 <= found.crossing.low <= 3 <= found.crossing.high <= 5
    assert found.crossing.share == pytest.approx(1.0, abs=0.01)
    assert found.at[-1].p_value < 0.001
    assert (found.attempts, found.num_tasks, found.num_clusters, found.left_out) == (8, 40, 40, 0)


def test_a_policy_that_got_better_everywhere_is_never_overtaken():
    found = passes(table([(2, 8), (1, 8), (0, 8)] * 10, [(8, 8), (6, 8), (3, 8)] * 10))
    assert (found.crossing.k, found.crossing.low, found.crossing.share) == (None, math.inf, 0.0)


def test_nothing_crosses_where_training_did_not_help():
    assert passes(table([(4, 8)] * 6, [(2, 8)] * 6)).crossing is None


def test_the_same_seed_gives_the_same_interval():
    values = table([(1, 4), (2, 4), (0, 4), (3, 4)] * 5, [(4, 4), (0, 4), (2, 4), (3, 4)] * 5)
    assert passes(values, seed=1).crossing == passes(values, seed=1).crossing


def test_tasks_of_a_cluster_are_resampled_together():
    alone = passes(SHARPENED)
    together = passes(table([(2, 8)] * 40, [(8, 8)] * 24 + [(0, 8)] * 16, clusters=[n // 8 for n in range(40)]))
    assert together.num_clusters == 5
    assert together.crossing.k == alone.crossing.k
    assert together.crossing.high - together.crossing.low > alone.crossing.high - alone.crossing.low
    wide, narrow = (one.at[0].comparison.difference for one in (together, alone))
    assert wide.high - wide.low > narrow.high - narrow.low


def test_only_tasks_with_scores_of_both_count_with_the_attempts_that_all_have():
    found = passes(table([(1, 4), (2, 4), (1, 4)], [(3, 4), (3, 3)]))
    assert (found.left_out, found.attempts, found.num_tasks) == (1, 3, 2)
    lost = Attempt(checkpoint="base", task="t", number=0, status=Status.UNSCORED)
    with pytest.raises(ValueError, match="evaluate both on the same tasks"):
        passes(Table.of([lost, Attempt(checkpoint="trained", task="t", number=0, score=1.0)]))


def test_who_solves_a_task():
    found = solved_by(table([(1, 4), (0, 4), (2, 4), (0, 4)], [(4, 4), (4, 4), (0, 4), (0, 4)]))
    assert [one.who for one in found.tasks] == ["both", "trained only", "base only", "neither"]
    assert [found.shares[who].mean for who in ("both", "trained only", "base only", "neither")] == [0.25] * 4
    only = found.tasks[1]
    assert (only.base, only.trained) == ((0, 4), (4, 4))
    assert (only.trace_base, only.trace_trained) == ("base1-0", "trained1-0")
    assert found.tasks[2].trace_trained == "trained2-0"  # a failure to look at
    # 0 of 4 and 4 of 4: one way of C(8, 4) = 70, two-sided 2/70; smallest of four p-values, adjusted 4 * 2/70
    assert only.p_value == pytest.approx(8 / 70)


@pytest.mark.parametrize(
    ("base", "trained", "p"),
    [
        ((0, 4), (4, 4), 2 / 70),
        ((2, 4), (2, 4), 1.0),
        ((0, 2), (2, 2), 2 / 6),
        ((0, 3), (0, 5), 1.0),
        # trained 3 or 4 of 4 when 4 of 8 pass: (16 + 1) / 70
        ((1, 4), (3, 4), 2 * 17 / 70),
    ],
)
def test_fishers_test_by_hand(base, trained, p):
    assert fisher(base, trained) == pytest.approx(p)
    assert fisher(trained, base) == pytest.approx(p)


def test_the_test_rarely_rejects_where_nothing_differs():
    rng = np.random.default_rng(0)
    found = [fisher((int(a), 16), (int(b), 16)) for a, b in rng.binomial(16, 0.3, (1000, 2))]
    assert np.mean(np.array(found) <= 0.05) <= 0.05
