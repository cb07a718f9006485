"""``agentrl bench async`` at the smallest size, without any claim about time."""

import io

import pytest

from agentrl.bench.report import BenchError
from agentrl.bench.training import asynchronous
from agentrl.bench.training.asynchronous import ASYNC, LOCKSTEP, QUICK, SYNC, Plan, Played, check, difference
from tests.sandbox.backends import why_not


def played(arm, outcomes, *, seed=0, episodes=8, seconds=1.0, age_max=None):
    return Played(
        arm=arm,
        seed=seed,
        steps=2,
        episodes=episodes,
        seconds=seconds,
        unscored=0,
        age_mean=age_max,
        age_max=age_max,
        outcomes=outcomes,
    )


HALF, ALL = {"a": [1.0, 0.0], "b": [0.0, 1.0]}, {"a": [1.0, 1.0], "b": [1.0, 1.0]}


@pytest.mark.skipif(bool(why_not("zygote")), reason=why_not("zygote"))
def test_all_runs_train_as_many_episodes_from_the_same_weights():
    report = asynchronous.measure(Plan(), threads=1, log=io.StringIO(), quick=True)
    (table,) = report.tables
    assert [row[:4] for row in table.rows] == [(arm, 0, 2, 8) for arm in (LOCKSTEP, SYNC, ASYNC)]
    assert table.rows[2][table.columns.index("oldest")] <= QUICK.max_staleness
    assert [aim.wanted for aim in report.aims] == [1.6, -3.0, -3.0]
    assert report.as_json()["settings"]["steps"] == 2


def test_configurations_differ_in_the_mode_alone():
    sync, ahead = (Plan().config(3, ahead=ahead).model_dump() for ahead in (False, True))
    assert (ahead["rl"].pop("mode"), ahead["rl"].pop("max_staleness")) == ("async", 2)
    assert (sync["rl"].pop("mode"), sync["rl"].pop("max_staleness")) == ("sync", 1)
    assert sync == ahead
    assert sync["seed"] == 3


def test_other_numbers_of_episodes_and_too_old_tokens_are_refused():
    check([played(ASYNC, ALL, age_max=2)], QUICK)
    with pytest.raises(BenchError, match="trained 7 episodes; 8 were wanted"):
        check([played(SYNC, ALL, episodes=7)], QUICK)
    with pytest.raises(BenchError, match="a token 3 steps old; the bound is 2"):
        check([played(ASYNC, ALL, age_max=3)], QUICK)


def test_throughput_is_compared_with_the_faster_synchronous_run():
    runs = [played(LOCKSTEP, ALL, seconds=8.0), played(SYNC, ALL, seconds=4.0), played(ASYNC, ALL, seconds=2.0)]
    rate, points, low = asynchronous.aims(runs)
    assert (rate.name, rate.value, rate.reached) == (f"episodes/s, async / {SYNC}", 2.0, True)
    assert (points.value, points.reached) == (0.0, True)
    assert low.value <= 0.0


def test_one_seed_is_paired_by_task_and_several_by_seed():
    one = difference([played(SYNC, HALF)], [played(ASYNC, ALL)])
    assert (one.mean, one.num_tasks) == (0.5, 2)
    first = [played(SYNC, HALF, seed=seed) for seed in range(3)]
    second = [played(ASYNC, outcomes, seed=seed) for seed, outcomes in enumerate((ALL, HALF, ALL))]
    several = difference(first, second)
    # differences of 0.5, 0 and 0.5
    assert several.mean == pytest.approx(1 / 3)
    assert several.low < several.mean < several.high
