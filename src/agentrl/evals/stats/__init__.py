"""Evaluation statistics over arrays: estimators, intervals, paired comparison, power, sequential tests. No torch.

Scores are float arrays [tasks, attempts, *checkpoints] with NaN for a missing attempt; an estimator makes one value
per task of them, and an interval or a comparison speaks of the mean of those values over tasks.

>>> from agentrl.evals import stats
>>> scores = [[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 0]]
>>> round(stats.interval_of(stats.pass_at_k(scores, 2)).mean, 6)
0.75
"""

from agentrl.evals.stats.bootstrap import (
    bootstrap_interval,
    percentile,
    weighted_iqm,
    weighted_mean,
    weighted_median,
)
from agentrl.evals.stats.checks import Counts, counts
from agentrl.evals.stats.contamination import min_k_logprob
from agentrl.evals.stats.estimators import (
    g_pass_at_k,
    g_pass_at_k_of,
    mean_score,
    missing_bounds,
    pass_at_k,
    pass_at_k_of,
    pass_hat_k,
    pass_hat_k_of,
)
from agentrl.evals.stats.intervals import ClusterErrors, Interval, cluster_errors, interval_of, standard_error
from agentrl.evals.stats.majority import Coded, answer_codes, maj_at_k
from agentrl.evals.stats.multiplicity import benjamini_hochberg, holm
from agentrl.evals.stats.order import best_at_k, best_of_k, worst_at_k
from agentrl.evals.stats.outcomes import Outcomes, paired_difference, pass_at_1
from agentrl.evals.stats.paired import Comparison, Pair, compare, compare_all, mcnemar_exact, mcnemar_mid_p
from agentrl.evals.stats.power import (
    PairedVariance,
    VarianceSplit,
    attempts_needed,
    mcnemar_power,
    mcnemar_tasks_needed,
    minimum_detectable,
    paired_power,
    paired_variance,
    tasks_needed,
    variance_split,
)
from agentrl.evals.stats.proportions import (
    LEVEL,
    beta_interval,
    clopper_pearson,
    jeffreys,
    probability_better,
    probability_better_paired,
    trials_for_zero_events,
    wilson,
    zero_events_upper,
)
from agentrl.evals.stats.seeds import (
    improvement_interval,
    iqm,
    iqm_interval,
    optimality_gap,
    optimality_gap_interval,
    probability_of_improvement,
)
from agentrl.evals.stats.sequential import (
    ConfidenceSequence,
    Decision,
    confidence_sequence,
    decided,
    mixture_e_value,
    paired_e_process,
)

__all__ = [
    "LEVEL",
    "ClusterErrors",
    "Coded",
    "Comparison",
    "ConfidenceSequence",
    "Counts",
    "Decision",
    "Interval",
    "Outcomes",
    "Pair",
    "PairedVariance",
    "VarianceSplit",
    "answer_codes",
    "attempts_needed",
    "benjamini_hochberg",
    "best_at_k",
    "best_of_k",
    "beta_interval",
    "bootstrap_interval",
    "clopper_pearson",
    "cluster_errors",
    "compare",
    "compare_all",
    "confidence_sequence",
    "counts",
    "decided",
    "g_pass_at_k",
    "g_pass_at_k_of",
    "holm",
    "improvement_interval",
    "interval_of",
    "iqm",
    "iqm_interval",
    "jeffreys",
    "maj_at_k",
    "mcnemar_exact",
    "mcnemar_mid_p",
    "mcnemar_power",
    "mcnemar_tasks_needed",
    "mean_score",
    "min_k_logprob",
    "minimum_detectable",
    "missing_bounds",
    "mixture_e_value",
    "optimality_gap",
    "optimality_gap_interval",
    "paired_difference",
    "paired_e_process",
    "paired_power",
    "paired_variance",
    "pass_at_1",
    "pass_at_k",
    "pass_at_k_of",
    "pass_hat_k",
    "pass_hat_k_of",
    "percentile",
    "probability_better",
    "probability_better_paired",
    "probability_of_improvement",
    "standard_error",
    "tasks_needed",
    "trials_for_zero_events",
    "variance_split",
    "weighted_iqm",
    "weighted_mean",
    "weighted_median",
    "wilson",
    "worst_at_k",
    "zero_events_upper",
]
