"""What is wrong is named, with the value and what to do about it; nothing is guessed."""

import math
from functools import partial

import numpy as np
import pytest

from agentrl.evals import stats

NAN, INF = math.nan, math.inf
VARIANCE = stats.PairedVariance(task=0.1, before=0.1, after=0.1)
TWO = [[1.0, 0.0], [0.0, 1.0]]

REFUSED = {
    "one task": (partial(stats.interval_of, [1.0]), r"1 scored task.*at least 2"),
    "no task": (partial(stats.interval_of, []), r"0 scored task.*at least 2"),
    "one cluster": (partial(stats.interval_of, [1.0, 0.5], clusters=[3, 3]), r"1 cluster.*at least 2"),
    "one shared task": (partial(stats.compare, [1.0, NAN], [1.0, 1.0]), r"1 scored task.*at least 2"),
    "negative cluster": (partial(stats.interval_of, [1, 0], clusters=[0, -1]), r"clusters\[1\] is -1.*from 0"),
    "cluster not whole": (partial(stats.interval_of, [1, 0], clusters=[0.0, 1.5]), "number the groups .* as integers"),
    "a cluster missing": (partial(stats.interval_of, [1, 0], clusters=[0]), r"shape \(1,\).*each of the 2 tasks"),
    "value above 1": (partial(stats.interval_of, [0.5, 1.5]), r"value 1.5 of task 1 is outside \[0, 1\].*bounds="),
    "value outside, after a hole": (partial(stats.interval_of, [NAN, 1.5, 1], drop_undefined=True), "1.5 of task 1"),
    "value outside on one side": (partial(stats.compare, [NAN, 1, 0], [1, 1, -2]), "value -2 of task 2"),
    "value infinite": (partial(stats.interval_of, [0.5, INF]), r"values\[1\] is inf"),
    "level in percent": (partial(stats.interval_of, [1, 0], level=95), r"level is 95.*0.95"),
    "no spread, no bounds": (
        partial(stats.interval_of, [3.0, 3.0], bounds=None),
        r"has the mean 3.*bounds=\(low, high\)",
    ),
    "k of 0": (partial(stats.pass_at_k, TWO, 0), "k is 0.*1 or more"),
    "k not whole": (partial(stats.best_at_k, TWO, 1.5), "k is 1.5"),
    "k above attempts": (
        partial(stats.pass_at_k, TWO, 4),
        r"pass@4 needs 4 attempts.*more than 2; run more or lower k",
    ),
    "pass^k above attempts": (partial(stats.pass_hat_k, TWO, 3), r"pass\^3 needs 3 attempts"),
    "G-Pass@k above attempts": (partial(stats.g_pass_at_k, TWO, 3, tau=0.5), "G-Pass@3 needs 3 attempts"),
    "best@k above attempts": (partial(stats.best_at_k, TWO, 3), "best@3 needs 3 attempts"),
    "worst@k above attempts": (partial(stats.worst_at_k, TWO, 3), "worst@3 needs 3 attempts"),
    "best of k above attempts": (partial(stats.best_of_k, TWO, TWO, 3), "best-of-3 needs 3 attempts"),
    "tau of 0": (partial(stats.g_pass_at_k, TWO, 1, tau=0.0), "tau is 0.0"),
    "partial reward": (partial(stats.pass_at_k, [[1, 0.5]], 1), r"score 0.5 of task 0, attempt 1.*threshold"),
    "reward above 1": (partial(stats.pass_at_k, [[1, 0], [3, 0]], 1), r"score 3 of task 1, attempt 0.*threshold"),
    "threshold of NaN": (partial(stats.pass_at_k, TWO, 1, threshold=NAN), "threshold is nan"),
    "only NaN": (partial(stats.mean_score, [[NAN, NAN]]), "every attempt is NaN"),
    "infinite score": (partial(stats.mean_score, [[1.0, INF]]), r"scores\[0, 1\] is inf"),
    "one dimension": (partial(stats.mean_score, [1.0, 0.0]), r"shape \(2,\); give \[tasks, attempts\]"),
    "no attempts": (partial(stats.mean_score, np.empty((3, 0))), "no task or no attempt"),
    "proxy of another shape": (
        partial(stats.best_of_k, TWO, [[1.0]], 1),
        r"proxy has shape \(2, 2\) and gold \(1, 1\)",
    ),
    "more passes than attempts": (partial(stats.pass_at_k_of, 4, 5, 1), "5 passes of 4 attempts"),
    "negative passes": (partial(stats.pass_hat_k_of, [4, 4], [1, -1], 1), "-1 passes of 4 attempts"),
    "sides of other lengths": (
        partial(stats.compare, [1, 0, 1], [1, 0]),
        "before has 3 tasks and after 2.*one task list",
    ),
    "one checkpoint": (partial(stats.compare_all, [[1.0], [0.0]]), "at least 2 checkpoints"),
    "negative wins": (partial(stats.mcnemar_exact, -1, 2), "wins -1 and losses 2"),
    "negative losses": (partial(stats.probability_better_paired, 1, -2), "wins 1 and losses -2"),
    "negative e counts": (partial(stats.mixture_e_value, 1, -2), "losses -2"),
    "p-value above 1": (partial(stats.holm, [0.1, 1.2]), r"p_values\[1\] is 1.2"),
    "p-value of NaN": (partial(stats.benjamini_hochberg, [NAN]), r"p_values\[0\] is nan"),
    "no trials": (partial(stats.wilson, 0.5, 0), "n is 0"),
    "p above 1": (partial(stats.wilson, 1.2, 10), "p is 1.2"),
    "passes above trials": (partial(stats.clopper_pearson, 11, 10), "11 passes of 10"),
    "prior of 0": (partial(stats.beta_interval, 1, 2, prior=0.0), "prior is 0.0"),
    "rate of 0": (partial(stats.trials_for_zero_events, 0.0), "rate is 0.0"),
    "delta of 0": (partial(stats.tasks_needed, VARIANCE, delta=0.0), "delta is 0.0.*such as 0.03"),
    "half an attempt": (partial(stats.tasks_needed, VARIANCE, delta=0.1, attempts_after=0.5), "attempts is 0.5"),
    "one planned task": (partial(stats.minimum_detectable, VARIANCE, tasks=1), "tasks is 1; .*at least 2"),
    "power of 1": (partial(stats.tasks_needed, VARIANCE, delta=0.1, power=1.0), "power is 1.0"),
    "one attempt to split": (
        partial(stats.variance_split, [[1.0], [0.0]]),
        r"0 task\(s\) have two attempts.*attempts=2",
    ),
    "checkpoints to split": (partial(stats.variance_split, np.ones((3, 2, 2))), "of one checkpoint"),
    "chances above 1": (partial(stats.mcnemar_power, 10, p10=0.7, p01=0.7), "p10=0.7, p01=0.7"),
    "no difference planned": (partial(stats.mcnemar_tasks_needed, p10=0.1, p01=0.1), "no number of tasks"),
    "bounds reversed": (partial(stats.confidence_sequence, [0.5], bounds=(1.0, 0.0)), r"bounds are \(1.0, 0.0\)"),
    "nothing done yet": (partial(stats.confidence_sequence, [NAN, NAN]), "none of 2 tasks has a value yet"),
    "difference without its bounds": (partial(stats.decided, [0.5, -0.5]), r"value -0.5 of task 1 is outside \[0, 1\]"),
    "negative margin": (partial(stats.decided, [0.5], margin=-0.1), "margin is -0.1"),
    "bootstrap of NaN": (partial(stats.bootstrap_interval, [1, NAN], stats.weighted_mean, seed=0), "task 1 is NaN"),
    "few resamples": (
        partial(stats.bootstrap_interval, [1, 0], stats.weighted_mean, seed=0, resamples=9),
        "resamples is 9",
    ),
    "stratum of one": (
        partial(stats.bootstrap_interval, [1, 0, 1], stats.weighted_mean, seed=0, strata=[0, 0, 1]),
        "stratum 1 has one unit",
    ),
    "cluster in two strata": (
        partial(stats.bootstrap_interval, [1, 0, 1], stats.weighted_mean, seed=0, strata=[0, 1, 1], clusters=[0, 0, 1]),
        "cluster of task 0 lies in two strata",
    ),
    "one run": (partial(stats.iqm_interval, [[1.0, 0.5]], seed=0), "at least 2 runs"),
    "a run misses a task": (partial(stats.iqm, [[1.0, NAN]]), r"scores\[0, 1\] are missing"),
    "runs on other tasks": (partial(stats.probability_of_improvement, TWO, [[1.0]]), "of the same tasks"),
    "positive logprob": (partial(stats.min_k_logprob, [-1.0, 0.5]), "logprobs hold 0.5"),
    "percent as a share of more": (partial(stats.min_k_logprob, [-1.0], 200), "percent is 200"),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
