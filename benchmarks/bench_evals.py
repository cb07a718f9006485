"""Evaluation statistics at size, and against scipy, rliable and inspect_ai on the same data where they are installed.

python benchmarks/bench_evals.py [tasks]

The size that counts: 10,000 tasks x 64 attempts x 5 checkpoints, every metric with clustered intervals and all pairs
of checkpoints compared. Peers do one part each, ours and theirs in turn, as a ratio of processor time. Where the
numbers differ the reason stands beside them.
"""

import importlib
import math
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agentrl.evals import stats

ATTEMPTS, CHECKPOINTS, K = 64, 5, 8


class Data(NamedTuple):
    """One evaluation: scores, rewards and answers [tasks, attempts, checkpoints], and clusters of five tasks."""

    scores: np.ndarray
    rewards: np.ndarray
    proxy: np.ndarray
    answers: np.ndarray
    clusters: np.ndarray


def make(tasks: int) -> Data:
    """Passes whose chances differ by task; one attempt in fifty is missing."""
    rng = np.random.default_rng(0)
    shape = (tasks, ATTEMPTS, CHECKPOINTS)
    scores = (rng.random(shape) < rng.beta(1, 1, size=(tasks, 1, 1))).astype(float)
    answers = np.where(scores == 1, 0, rng.integers(1, 12, size=shape)).astype(float)
    missing = rng.random(shape) < 0.02
    scores[missing] = answers[missing] = np.nan
    rewards = rng.random(shape)
    proxy = np.round(rewards + 0.3 * rng.normal(size=shape), 2)
    return Data(scores, rewards, proxy, answers, np.arange(tasks) // 5)


METRICS: dict[str, Callable[[Data], np.ndarray]] = {
    "mean": lambda data: stats.mean_score(data.scores),
    f"pass@{K}": lambda data: stats.pass_at_k(data.scores, K),
    f"pass^{K}": lambda data: stats.pass_hat_k(data.scores, K),
    f"G-Pass@{K}, half": lambda data: stats.g_pass_at_k(data.scores, K, tau=0.5),
    f"best@{K}": lambda data: stats.best_at_k(data.rewards, K),
    f"worst@{K}": lambda data: stats.worst_at_k(data.rewards, K),
    f"best of {K} by proxy": lambda data: stats.best_of_k(data.proxy, data.scores, K),
    f"maj@{K}": lambda data: stats.maj_at_k(data.answers, np.zeros(len(data.answers)), K),
}

PARTS: dict[str, Callable[[Data, int], str]] = {
    "variance split": lambda data, i: _split(stats.variance_split(data.scores[..., i])),
    "IQM, bootstrap": lambda data, i: ends(
        stats.bootstrap_interval(stats.mean_score(data.scores[..., i]), stats.weighted_iqm, seed=0)
    ),
    "confidence sequence": lambda data, i: ends(
        [end[-1] for end in stats.confidence_sequence(stats.mean_score(data.scores[..., i]), clusters=data.clusters)]
    ),
}


def cost(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor time, and what came of it."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def report(values: np.ndarray, clusters: np.ndarray) -> tuple[list[stats.Interval], tuple[stats.Pair, ...]]:
    """An interval for every checkpoint, and every pair of checkpoints compared."""
    intervals = [stats.interval_of(column, clusters=clusters) for column in values.T]
    return intervals, stats.compare_all(values, clusters=clusters)


def whole_job(data: Data) -> None:
    """Everything, metric by metric."""
    total = 0.0
    print(f"{len(data.scores):,} tasks x {ATTEMPTS} attempts x {CHECKPOINTS} checkpoints, clusters of 5")
    print(f"{'metric':<20}{'estimate':>10}{'intervals and pairs':>22}   first checkpoint")
    for name, metric in METRICS.items():
        seconds, values = cost(lambda metric=metric: metric(data))
        more, (intervals, _) = cost(lambda values=values: report(values, data.clusters))
        total += seconds + more
        first = intervals[0]
        print(f"{name:<20}{seconds:>8.2f} s{more:>20.2f} s   {first.mean:.4f} ({first.low:.4f} to {first.high:.4f})")
    for name, part in PARTS.items():
        seconds, found = cost(lambda part=part: [part(data, i) for i in range(CHECKPOINTS)])
        total += seconds
        print(f"{name:<20}{seconds:>8.2f} s{'':>23}{found[0]}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"all of it: {total:.2f} s of processor time, {peak:.0f} MiB at most, the data among them")


def ratio(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], show: Callable[[Any], str], why: str) -> None:
    """Both sides once each to warm up and once for the clock, on the same data."""
    ours(), theirs()
    (our_s, our_result), (their_s, their_result) = cost(ours), cost(theirs)
    print(f"\n{name}: theirs / ours {their_s / max(our_s, 1e-9):.1f} ({their_s:.3f} s / {our_s:.3f} s)")
    print(f"  ours   {show(our_result)}\n  theirs {show(their_result)}\n  {why}")


def ends(interval: Any) -> str:
    """Two ends, from our interval or a pair."""
    low, high = (interval.low, interval.high) if hasattr(interval, "low") else interval
    return f"{float(low):.5f} to {float(high):.5f}"


def _split(split: stats.VarianceSplit) -> str:
    return f"task {split.task:.4f}, attempt {split.attempt:.4f}"


def against_scipy(data: Data) -> None:
    """A bootstrap of a mean over tasks, and of an interquartile mean."""
    from scipy import stats as scipy_stats  # half a second, which the statistics themselves do without

    values = stats.mean_score(data.scores[..., 0])
    for name, weighted, plain in (
        ("mean", stats.weighted_mean, np.mean),
        ("interquartile mean", stats.weighted_iqm, lambda x, axis: scipy_stats.trim_mean(x, 0.25, axis=axis)),
    ):
        ratio(
            f"scipy.stats.bootstrap of the {name}, 1000 resamples",
            lambda weighted=weighted: stats.bootstrap_interval(values, weighted, seed=0, resamples=1000),
            lambda plain=plain: (
                scipy_stats.bootstrap(
                    (values,), plain, n_resamples=1000, batch=200, method="percentile", rng=np.random.default_rng(0)
                ).confidence_interval
            ),
            ends,
            "percentile intervals both; the draws differ, and 1000 of them leave either width uncertain by 3 %",
        )


def against_rliable(data: Data) -> None:
    """The interquartile mean over runs, stratified by task."""
    library = importlib.import_module("rliable.library")
    metrics = importlib.import_module("rliable.metrics")
    rewards = data.rewards[:500, :10, 0].T

    def theirs(scores: np.ndarray, metric: Callable[[np.ndarray], float]) -> np.ndarray:
        with_array = {"agent": scores}
        return library.get_interval_estimates(with_array, lambda x: np.array([metric(x)]), reps=1000)[1]["agent"][:, 0]

    why = "theirs ignores its seed, so another run gives other ends; ours are the same every time"
    ratio(
        "rliable, interquartile mean of 10 runs x 500 tasks, 1000 resamples",
        lambda: stats.iqm_interval(rewards, seed=0, resamples=1000),
        lambda: theirs(rewards, metrics.aggregate_iqm),
        ends,
        why,
    )
    ratio(
        "rliable, optimality gap of the same",
        lambda: stats.optimality_gap_interval(rewards, seed=0, resamples=1000),
        lambda: theirs(rewards, metrics.aggregate_optimality_gap),
        ends,
        why,
    )


def against_inspect(data: Data) -> None:
    """Clustered error and interval of the mean, the bootstrap error, and pass@k by its reducer."""
    scorer = importlib.import_module("inspect_ai.scorer")
    values = stats.mean_score(data.scores[..., 0])
    samples = [
        scorer.SampleScore(score=scorer.Score(value=float(value)), sample_metadata={"cluster": str(cluster)})
        for value, cluster in zip(values, data.clusters, strict=True)
    ]
    ratio(
        "inspect_ai stderr(cluster=)",
        lambda: stats.cluster_errors(values, data.clusters).cr1,
        lambda: scorer.stderr(cluster="cluster")(samples),
        lambda error: f"{error:.8f}",
        "the same CR1 error",
    )
    ratio(
        "inspect_ai bootstrap_stderr, 1000 resamples",
        lambda: np.subtract(*stats.percentile(_bootstrap_means(values), 0.6826895)[::-1]) / 2,
        lambda: scorer.bootstrap_stderr(num_samples=1000)(samples),
        lambda error: f"{error:.6f}",
        "an unseeded standard deviation of resampled means there, half the middle 68.27 % of seeded ones here",
    )
    rows = data.scores[:1000, :, 0]
    scored = [[scorer.Score(value=float(x)) for x in row if not math.isnan(x)] for row in rows]
    reducer = scorer.pass_at(K)
    ratio(
        f"inspect_ai pass_at({K}) of 1000 tasks",
        lambda: stats.pass_at_k(rows, K).mean(),
        lambda: np.mean([reducer(scores).as_float() for scores in scored]),
        lambda value: f"{value:.8f}",
        "the same estimator",
    )


def _bootstrap_means(values: np.ndarray) -> np.ndarray:
    found: list[np.ndarray] = []

    def keep(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        found.append(stats.weighted_mean(x, weights))
        return found[-1]

    stats.bootstrap_interval(values, keep, seed=0, resamples=1000)
    return np.concatenate(found[:-1])  # the last is the mean of the data themselves


def main() -> None:
    """The whole job, then the peers that are there."""
    data = make(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    whole_job(data)
    for name, peer in (("scipy", against_scipy), ("rliable", against_rliable), ("inspect_ai", against_inspect)):
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"\n{name}: not compared, it does not import here ({error})")
            continue
        peer(data)


if __name__ == "__main__":
    main()
