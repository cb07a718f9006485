"""Attempts become one table, and what contradicts itself is refused by name."""

import math

import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.evals import stats
from agentrl.evals.attempts import Attempt, Status, attempt_of
from agentrl.evals.table import Counts, Table
from agentrl.types import Fault, Score, Stop, Trace


def attempt(task, number=0, score=1.0, *, checkpoint="a", **fields):
    status = fields.pop("status", Status.SCORED)
    return Attempt(
        checkpoint=checkpoint,
        task=task,
        number=number,
        status=status,
        score=score if status is Status.SCORED else None,
        origin=f"{checkpoint} {task} {number}",
        **fields,
    )


def trace(**fields):
    given = {"id": "t", "task_id": "x", "group_id": "g", "attempt": 2, "seed": 0, "nodes": (), "stop": Stop.DONE}
    return Trace(**{**given, **fields})


def test_attempts_stand_by_task_number_and_checkpoint():
    table = Table.of(
        [
            attempt("x", 1, 0.0, trace_id="x1"),
            attempt("x", 0, 1.0, trace_id="x0"),
            attempt("y", 0, 0.5),
            attempt("x", 7, 0.25, checkpoint="b", tokens=10.0),
        ]
    )
    assert (table.checkpoints, table.tasks) == (("a", "b"), ("x", "y"))
    np.testing.assert_array_equal(table.of_checkpoint("a"), [[1.0, 0.0], [0.5, np.nan]])
    np.testing.assert_array_equal(table.of_checkpoint("b"), [[0.25, np.nan], [np.nan, np.nan]])
    assert table.trace_ids[0, :, 0].tolist() == ["x0", "x1"]
    assert (table.tokens[0, 0, 1], table.clusters) == (10.0, None)
    assert table.counts("a") == Counts(3, 0, 0, 0, 1)
    assert table.shared().tasks == ("x",)
    assert table.tasks_of("a") == {"x", "y"}


def outcomes(errors):
    """Ten tasks: 4 right, 2 wrong, 3 errored, 1 unscored (case E09)."""
    kinds = [(1.0, Status.SCORED)] * 4 + [(0.0, Status.SCORED)] * 2
    kinds += [(None, Status.ERRORED)] * 3 + [(None, Status.UNSCORED)]
    return Table.of([attempt(f"t{n}", 0, s, status=k) for n, (s, k) in enumerate(kinds)], errors=errors)


def test_errored_attempts_count_as_zero_and_unscored_ones_are_missing():
    table = outcomes("zero")
    scored = table.shared()
    assert stats.mean_score(scored.scores).mean() == pytest.approx(4 / 9)  # 4 of the 9 that the agent answers for
    assert table.bounds("a") == pytest.approx((0.4, 0.5))  # 4 and 5 of 10
    assert table.counts("a") == Counts(6, 3, 0, 1, 0)
    assert table.counts("a").made == 10


def test_errored_attempts_are_missing_on_demand():
    table = outcomes("missing")
    assert stats.mean_score(table.shared().scores).mean() == pytest.approx(4 / 6)
    assert table.bounds("a") == pytest.approx((0.4, 0.8))  # 4 and 8 of 10
    assert table.counts("a") == Counts(6, 3, 0, 1, 0)  # reported apart all the same


def test_a_trace_that_failed_for_our_reasons_is_unscored_and_a_timeout_is_the_agents():
    scores = (Score(name="hidden", value=1.0), Score(name="visible", value=0.0, weight=0.0))
    found = attempt_of(trace(scores=scores, metadata={"cluster": "p", "family": "f"}, seconds={"tools": 1.5}), "a")
    assert (found.status, found.score, found.number, found.others) == (Status.SCORED, 1.0, 2, {"visible": 0.0})
    assert (found.cluster, found.family, found.seconds, found.tokens) == ("p", "f", 1.5, 0.0)
    fault = Fault(boundary="sandbox", message="gone")
    assert attempt_of(trace(scores=scores, error=fault, stop=Stop.ERROR), "a").status is Status.UNSCORED
    assert attempt_of(trace(stop=Stop.TIMEOUT), "a").status is Status.TIMED_OUT
    assert attempt_of(trace(stop=Stop.TIMEOUT, scores=scores), "a").score == 1.0
    assert attempt_of(trace(stop=Stop.MAX_TURNS), "a").status is Status.UNSCORED


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no attempts"),
        ([attempt("17"), attempt("17", score=0.0)], "attempt 0 at task '17' occurs twice (a 17 0 and a 17 0)"),
        ([attempt("x", cluster="p"), attempt("x", 1, cluster="q")], "is of cluster 'q' here and of 'p' elsewhere"),
        ([attempt("x", family="p"), attempt("x", 1, family="q")], "is of family 'q' here"),
    ],
)
def test_contradictions_are_refused(rows, message):  # cases E13 and W19
    with pytest.raises(StoreError) as refused:
        Table.of(rows)
    assert message in str(refused.value)


@pytest.mark.parametrize("score", [math.inf, math.nan, None])
def test_a_score_is_a_finite_number(score):
    with pytest.raises(StoreError, match="is not a finite number"):
        attempt("x", score=score)


def test_a_score_beside_a_failure_is_refused():
    with pytest.raises(StoreError, match=r"score 1\.0 beside status errored"):
        Attempt(checkpoint="a", task="x", number=0, status=Status.ERRORED, score=1.0)


def test_clusters_are_numbered_and_a_task_without_one_is_its_own():
    table = Table.of([attempt("x", cluster="p"), attempt("y"), attempt("z", cluster="p"), attempt("p", cluster="y")])
    assert table.clusters is not None
    assert table.clusters.tolist() == [0, 1, 0, 2]
    assert table.select(np.array([False, True, True, False])).clusters.tolist() == [1, 0]


def test_partial_scores_need_a_threshold():
    table = Table.of([attempt("x", score=0.5), attempt("y", score=1.0)])
    with pytest.raises(StoreError, match=r"score 0\.5 of task 'x', attempt 0, is neither 0 nor 1 .* --threshold"):
        table.passing(None)
    assert table.passing(0.5).scores.ravel().tolist() == [1.0, 1.0]
    assert table.passing(0.51).scores.ravel().tolist() == [0.0, 1.0]
    assert (table.is_binary(), table.passing(0.5).is_binary()) == (False, True)


def test_scores_outside_the_unit_interval_are_refused_by_task():
    table = Table.of([attempt("x", score=1.5), attempt("y", score=1.0)])
    with pytest.raises(StoreError, match=r"a: score 1\.5 of task 'x', attempt 0, is not in \[0, 1\]"):
        table.within(0.0, 1.0)
    assert table.passing(1.0).within(0.0, 1.0).is_binary()
    assert table.within(-1.0, 2.0) is table
    assert (table.bounds_of_scores(), table.passing(1.0).bounds_of_scores()) == (None, (0.0, 1.0))


def test_an_unknown_checkpoint_is_refused():
    with pytest.raises(StoreError, match="no checkpoint 'b'; there are a"):
        Table.of([attempt("x")]).of_checkpoint("b")
