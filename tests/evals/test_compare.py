"""What is concluded from two checkpoints: numbers by hand, words, flips, a gate."""

import pytest

from agentrl.errors import StoreError
from agentrl.evals import stats
from agentrl.evals.attempts import Attempt, Status
from agentrl.evals.compare import Verdict, compare, judge
from agentrl.evals.metric import Metric, parse_bounds, parse_metric
from agentrl.evals.table import Table

A = (1, 1, 0, 1, 1, 1, 1, 0, 1, 1)
B = (1, 0, 0, 1, 0, 1, 0, 0, 1, 1)
MEAN = Metric(name="mean")


def table(**checkpoints):
    """One attempt a task, or a tuple of several; None where it could not be scored."""
    return Table.of(
        [
            Attempt(
                checkpoint=name,
                task=f"t{t}",
                number=k,
                status=Status.UNSCORED if score is None else Status.SCORED,
                score=None if score is None else float(score),
                trace_id=f"{name}-{t}-{k}",
            )
            for name, tasks in checkpoints.items()
            for t, scores in enumerate(tasks)
            for k, score in enumerate(scores if isinstance(scores, tuple) else (scores,))
        ]
    )


def test_the_worked_example_of_ten_tasks():
    report = compare(table(B=B, A=A), MEAN)
    (found,) = report.differences
    assert found.comparison.difference.mean == pytest.approx(0.3)
    assert found.comparison.test == "McNemar exact"
    assert found.comparison.p_value == pytest.approx(0.25)  # b=3, c=0: 2 * (1/2)^3
    assert found.comparison.probability_better == pytest.approx(0.9375)
    assert (found.comparison.wins, found.comparison.losses, found.comparison.ties) == (3, 0, 7)
    assert found.sentence.startswith("A solves 30.0 points more than B, 95 % interval ")
    assert found.sentence.endswith(", 10 tasks, 1 attempt; chance may explain it")
    assert (found.different, found.blind) == (False, True)
    assert [flip.task for flip in found.gained] == ["t1", "t4", "t6"]
    assert (found.gained[0].trace_before, found.gained[0].trace_after) == ("B-1-0", "A-1-0")
    assert found.lost == ()


def test_a_clear_difference_is_said_to_be_one():
    (found,) = compare(table(base=[0] * 30, new=[1] * 24 + [0] * 6), MEAN).differences
    assert (found.different, found.blind) == (True, False)
    assert found.sentence.startswith("new solves 80.0 points more than base")
    assert found.sentence.endswith("not explained by chance")
    (worse,) = compare(table(base=[1] * 24 + [0] * 6, new=[0] * 30), MEAN).differences
    assert worse.sentence.startswith("new solves 80.0 points fewer than base")
    assert len(worse.lost) == 24


def test_a_checkpoint_does_not_differ_from_itself():
    (found,) = compare(table(base=A * 10, new=A * 10), MEAN, require="not-worse", margin=0.1).differences
    assert (found.comparison.difference.mean, found.different, found.p_value) == (0.0, False, 1.0)
    assert found.verdict is Verdict.MET
    assert found.sentence.startswith("new solves as many as base, 95 % interval ")
    assert (found.gained, found.lost) == ((), ())


def test_the_words_fit_the_metric_and_the_attempts():
    several = table(base=[(1, 0), (0, 0), (1, 1), (0, 1)], new=[(1, 1, 1), (0, 1, 0), (1, 1, 1), (1, 1, 0)])
    (found,) = compare(several, parse_metric("pass@2")).differences
    assert found.sentence.startswith("new has pass@2 ")
    assert "2 and 3 attempts" in found.sentence
    partial = table(base=[0.1, 0.2, 0.3], new=[0.2, 0.4, 0.6])
    (found,) = compare(partial, MEAN).differences
    assert found.sentence.startswith("new has a mean score 20.0 points higher than base")
    assert compare(partial, Metric(name="mean", threshold=0.3)).rows[1].interval.mean == pytest.approx(2 / 3)


def test_metrics_are_the_unbiased_ones():
    four = table(base=[(1, 0, 0, 0), (1, 0, 0, 0)], new=[(1, 0, 0, 0), (1, 1, 1, 1)])
    means = {k: compare(four, parse_metric(f"pass@{k}")).rows[0].interval.mean for k in (1, 2, 4)}
    assert means == pytest.approx({1: 0.25, 2: 0.5, 4: 1.0})  # case E04; with replacement it would be 0.683594 at 4
    assert compare(four, parse_metric("pass^4")).rows[1].interval.mean == pytest.approx(0.5)
    best = table(base=[(0.2, 0.4, 0.4, 0.9)] * 2, new=[(0.2, 0.4, 0.4, 0.9)] * 2)
    assert compare(best, parse_metric("best@2")).rows[0].interval.mean == pytest.approx(0.65)
    assert parse_metric("worst@3") == Metric(name="worst@", k=3)
    for wrong in ("pass@0", "pass", "pass@x", "Mean"):
        with pytest.raises(ValueError, match="is unknown; write mean, pass@K"):
            parse_metric(wrong)


def test_rewards_have_other_bounds_on_demand():
    rewards = table(base=[-1, -1, 0.5, -1], new=[2, 1, 0.5, 2])
    with pytest.raises(StoreError, match=r"score -1 of task 't0', attempt 0, is not in \[0, 1\]"):
        compare(rewards, MEAN)
    found = compare(rewards, parse_metric("mean", bounds=parse_bounds("-1,2")))
    assert [row.interval.mean for row in found.rows] == pytest.approx([-0.625, 1.375])
    assert found.differences[0].comparison.difference.high <= 3.0
    for text in ("0", "1,0", "a,b", "0,inf"):
        with pytest.raises(ValueError, match="bounds"):
            parse_bounds(text)


def test_too_few_attempts_are_refused_or_left_out_and_said():
    suite = table(base=[(1, 0, 0, 0), (0, 0, 0, 0), (1, 0)], new=[(1, 0, 0, 0), (0, 0, 0, 0), (1, 0)])  # case E01
    with pytest.raises(ValueError, match=r"pass@4 needs 4 attempts at a task, and 1 of 3 tasks have fewer .*\(t2\)"):
        compare(suite, parse_metric("pass@4"))
    report = compare(suite, parse_metric("pass@4"), drop_undefined=True)
    assert (report.num_tasks, report.undefined) == (2, ("t2",))
    assert report.rows[0].interval.mean == pytest.approx(0.5)  # 1 and 0
    greedy = table(base=[1] * 50 + [0] * 114, new=[1] * 50 + [0] * 114)  # case E02
    assert compare(greedy, parse_metric("pass@1")).rows[0].interval.mean == pytest.approx(0.304878, abs=1e-6)
    with pytest.raises(ValueError, match="10"):
        compare(greedy, parse_metric("pass@10"))


def test_what_is_left_out_is_listed():
    unequal = table(base=[1, 0, 1, None], new=[1, 1, 0, 1, 1])
    report = compare(unequal, MEAN)
    assert report.num_tasks == 3
    assert report.left_out == {"new": ("t4",), "attempted by all and not scored by all": ("t3",)}
    with pytest.raises(StoreError, match=r"0 task\(s\) have a score of every checkpoint; two are needed"):
        compare(table(base=[None, None], new=[1, 1]), MEAN)
    with pytest.raises(StoreError, match="base is one checkpoint"):
        compare(table(base=[1, 0]), MEAN)
    with pytest.raises(StoreError, match="say with --threshold"):
        compare(table(base=[1.5, 0], new=[1, 0]), MEAN)


def test_several_comparisons_are_adjusted_by_holm():
    report = compare(table(base=[0] * 40, one=[1] * 6 + [0] * 34, two=[1] * 30 + [0] * 10), MEAN)
    first, second = report.differences
    raw = [one.comparison.p_value for one in report.differences]
    assert [first.p_value, second.p_value] == pytest.approx(list(stats.holm(raw)))
    assert first.comparison.p_value == pytest.approx(2 * 0.5**6)  # 0.03125, and the larger of two keeps it
    assert first.p_value == pytest.approx(0.03125)


@pytest.mark.parametrize(
    ("low", "high", "require", "margin", "verdict"),
    [
        (0.01, 0.05, "better", 0.0, "met"),
        (0.01, 0.05, "better", 0.02, "undecided"),
        (-0.05, 0.0, "better", 0.0, "not met"),
        (-0.01, 0.05, "better", 0.0, "undecided"),
        (-0.01, 0.05, "not-worse", 0.02, "met"),
        (-0.02, 0.05, "not-worse", 0.02, "undecided"),
        (-0.01, 0.05, "not-worse", 0.0, "undecided"),
        (-0.09, -0.03, "not-worse", 0.02, "not met"),
    ],
)
def test_a_requirement_is_met_when_the_whole_interval_says_so(low, high, require, margin, verdict):
    interval = stats.Interval(mean=(low + high) / 2, low=low, high=high, method="t", num_tasks=9, num_attempts=9)
    assert judge(interval, require, margin) == verdict
