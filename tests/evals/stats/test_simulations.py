"""What an interval, a test and a plan promise, by simulation: coverage, false findings, peeking, power.

Seeds are fixed; the number of repeats leaves each share uncertain by the error that stands beside it.
"""

import math

import numpy as np
import pytest

from agentrl.evals import stats


def clustered_passes(rng, clusters, size, a=0.5, b=0.5):
    """One attempt at each task; the tasks of a cluster have one chance, which differs widely between clusters."""
    chance = np.repeat(rng.beta(a, b, size=clusters), size)
    return (rng.random(clusters * size) < chance).astype(float), np.repeat(np.arange(clusters), size)


def covered(clusters, truth, a, b, *, tell, repeats=2000):
    rng, hits = np.random.default_rng(0), 0
    for _ in range(repeats):
        values, labels = clustered_passes(rng, clusters, 5, a, b)
        interval = stats.interval_of(values, clusters=labels if tell else None)
        hits += interval.low <= truth <= interval.high
    return hits / repeats


def test_95_percent_intervals_cover_at_10_clusters_of_5():
    # +-0.005 (one error of 2000 repeats)
    assert covered(10, 0.5, 0.5, 0.5, tell=True) >= 0.94
    # Negative control: 50 tasks taken as independent.
    assert covered(10, 0.5, 0.5, 0.5, tell=False) < 0.8


def test_they_cover_near_the_ends_too_where_t_alone_does_not():
    # Chances Beta(0.2, 0.8): mean 0.2, most clusters are all failed. CR1 with t alone covers 0.91.
    assert covered(10, 0.2, 0.2, 0.8, tell=True) >= 0.94


def test_they_cover_when_one_cluster_holds_half_the_tasks():
    # As when half of all tasks come from one repository. C - 1 = 9 degrees of freedom would cover 78 %.
    labels = np.repeat(np.arange(10), [45] + [5] * 9)
    rng, hits, naive = np.random.default_rng(1), 0, 0
    for _ in range(1000):
        values = (rng.random(len(labels)) < rng.beta(0.5, 0.5, size=10)[labels]).astype(float)
        interval = stats.interval_of(values, clusters=labels)
        hits += interval.low <= 0.5 <= interval.high
        naive += abs(values.mean() - 0.5) <= 2.262157 * stats.cluster_errors(values, labels).cr1
    assert hits / 1000 >= 0.94
    assert naive / 1000 < 0.85


def test_intervals_of_task_means_cover_with_missing_attempts():
    rng, hits, repeats = np.random.default_rng(1), 0, 1500
    for _ in range(repeats):
        scores = (rng.random((30, 4)) < rng.beta(1, 1, size=(30, 1))).astype(float)
        scores[rng.random(scores.shape) < 0.3] = math.nan
        interval = stats.interval_of(stats.mean_score(scores), drop_undefined=True)
        hits += interval.low <= 0.5 <= interval.high
    assert 0.935 <= hits / repeats <= 0.97


def noisy_twice(rng, tasks, attempts, better=0.0):
    """Task means of one checkpoint that was evaluated twice, or of one and another that is ``better`` on each task."""
    chance = (1 - better) * rng.beta(0.5, 0.5, size=(tasks, 1))
    passed = [rng.random((tasks, attempts)) < chance + shift for shift in (0.0, better)]
    return [stats.mean_score(side.astype(float)) for side in passed]


@pytest.mark.parametrize(("tasks", "attempts"), [(60, 1), (200, 4)])
def test_the_same_checkpoint_twice_is_seldom_different(tasks, attempts):
    rng = np.random.default_rng(2)
    found = [stats.compare(*noisy_twice(rng, tasks, attempts)).different for _ in range(400)]
    assert sum(found) <= 20  # 5 % of 400
    # Negative control: a better one mostly is.
    better = [stats.compare(*noisy_twice(rng, tasks, attempts, better=0.25)).different for _ in range(50)]
    assert sum(better) > 35


def test_over_many_more_repeats_the_level_is_5_percent():
    rng = np.random.default_rng(3)
    share = np.mean([stats.compare(*noisy_twice(rng, 40, 4)).different for _ in range(1500)])
    assert 0.035 <= share <= 0.065  # +-0.006


def discordant(rng, repeats, tasks, share):
    u = rng.random((repeats, tasks))
    return u < share / 2, u > 1 - share / 2


def test_peeking_after_every_task_finds_nothing_in_5_percent():
    wins, losses = discordant(np.random.default_rng(4), 3000, 500, 0.3)
    e_values = stats.mixture_e_value(wins.cumsum(axis=1), losses.cumsum(axis=1))
    assert (e_values.max(axis=1) >= 1 / 0.05).mean() <= 0.05
    # Negative control: the paired t test at every look from the tenth task on.
    number = np.arange(1, 501)
    total, squares = (wins.astype(int) - losses).cumsum(axis=1), (wins | losses).cumsum(axis=1)
    variance = (squares - total**2 / number) / np.maximum(number - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(total) / number / np.sqrt(variance / number)
    assert (t[:, 9:] > 1.97).any(axis=1).mean() > 0.3


def ever_outside(draw, truth, repeats, bounds=(0.0, 1.0)):
    misses = 0
    for _ in range(repeats):
        values, clusters = draw()
        low, high = stats.confidence_sequence(values, clusters=clusters, bounds=bounds)
        misses += bool(((low > truth) | (high < truth)).any())
    return misses / repeats


def test_a_confidence_sequence_holds_at_all_times_for_differences_of_task_means():
    rng = np.random.default_rng(5)

    def draw():
        before, after = noisy_twice(rng, 120, 4)
        return after - before, None

    assert ever_outside(draw, 0.0, 200, (-1.0, 1.0)) <= 0.05


def test_a_confidence_sequence_holds_at_all_times_for_clustered_tasks_of_unequal_sizes():
    rng = np.random.default_rng(6)

    def draw():
        labels = np.repeat(np.arange(40), rng.integers(1, 8, size=40))
        return (rng.random(len(labels)) < rng.beta(0.5, 0.5, size=40)[labels]).astype(float), labels

    assert ever_outside(draw, 0.5, 200) <= 0.05
    # Negative control: the same tasks taken as independent.
    assert ever_outside(lambda: (draw()[0], None), 0.5, 60) > 0.15


def test_a_stopped_comparison_is_seldom_wrong_and_mostly_decided():
    rng, verdicts = np.random.default_rng(7), []
    for _ in range(100):
        chance = rng.beta(2, 2, size=(150, 1)) * 0.7
        before, after = ((rng.random((150, 4)) < chance + shift).mean(axis=1) for shift in (0.0, 0.2))
        verdicts.append(stats.decided(after - before, bounds=(-1.0, 1.0)).verdict)
    assert verdicts.count("above") >= 90
    assert verdicts.count("below") == 0


def test_a_plan_has_the_power_that_it_says():
    # Chances before uniform on [0, 0.8]; after 0 or 0.2 higher: delta = 0.1, omega^2 = 0.01.
    # E[p (1 - p)]: before 0.4 - 0.64/3 = 0.186667; after 0.5 - (0.64/3 + 2 * 0.4 * 0.1 + 0.02) = 0.186667
    variance = stats.PairedVariance(task=0.01, before=0.4 - 0.64 / 3, after=0.4 - 0.64 / 3)
    tasks = stats.tasks_needed(variance, delta=0.1, attempts_before=4, attempts_after=4)
    rng, repeats = np.random.default_rng(8), 2000
    chance = rng.random((repeats, tasks)) * 0.8
    before = rng.binomial(4, chance) / 4
    after = rng.binomial(4, chance + 0.2 * rng.integers(0, 2, size=chance.shape)) / 4
    found = np.mean([stats.compare(a, b).different for a, b in zip(before, after, strict=True)])
    assert found == pytest.approx(0.8, abs=0.02)  # +-0.009
    # Negative control: half the tasks have not.
    half = [stats.compare(a[::2], b[::2]).different for a, b in zip(before[:400], after[:400], strict=True)]
    assert np.mean(half) < 0.65


def test_mcnemars_test_has_the_power_that_it_says():
    tasks = stats.mcnemar_tasks_needed(p10=0.2, p01=0.1)
    draws = np.random.default_rng(9).multinomial(tasks, [0.2, 0.1, 0.7], size=6000)
    found = np.mean([stats.mcnemar_exact(b, c) <= 0.05 for b, c, _ in draws.tolist()])
    assert found == pytest.approx(0.8, abs=0.02)  # +-0.005
