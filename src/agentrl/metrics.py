"""Every metric's name in one place, with how its values merge over micro-batches, workers or steps.

A row is a mapping from a metric's name to a number, or to None where nothing was measured. Merging never averages
averages: a mean carries the name of the count that it was taken over, and is merged with that count as its weight. The
ends of an interval never merge: an interval over more attempts is computed anew from the attempts.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Merge = Literal["count", "sum", "mean", "max", "never"]
Row = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric: how it merges, its unit, and (for a mean) the metric that counts what it was taken over."""

    name: str
    merge: Merge
    unit: str
    meaning: str
    over: str = ""


def _count(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name=name, merge="count", unit=unit, meaning=meaning)


def _seconds(stage: str, meaning: str) -> Metric:
    return Metric(name=f"seconds_{stage}", merge="sum", unit="s", meaning=meaning)


def _mean(name: str, over: str, unit: str, meaning: str) -> Metric:
    return Metric(name=name, merge="mean", unit=unit, meaning=meaning, over=over)


def _maximum(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name=name, merge="max", unit=unit, meaning=meaning)


def _interval(name: str, meaning: str) -> Metric:
    return _alone(name, "", meaning)


def _alone(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name=name, merge="never", unit=unit, meaning=meaning)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _count("episodes", "attempts", "attempts that ended"),
        _count("episodes_scored", "attempts", "attempts with a reward"),
        _count("episodes_unscored", "attempts", "attempts without a reward: our failure, not the policy's"),
        _count("episodes_done", "attempts", "attempts that the policy ended itself"),
        _count("episodes_greedy", "attempts", "greedy attempts, which are a baseline and no others"),
        _count("episodes_overlong", "attempts", "attempts that a limit ended and that were not trained for it"),
        _count("episodes_passed", "attempts", "attempts that rejection sampling takes for successes"),
        _count("episodes_distinct", "attempts", "those of them that differ from every other at the same task"),
        _count("episodes_kept", "attempts", "those of them that were trained"),
        _count("episodes_left_out", "attempts", "attempts that were not trained, for whatever reason"),
        _count("episodes_left_out_scored", "attempts", "those of them with a reward"),
        _count("groups", "groups", "groups of attempts"),
        _count("groups_trained", "groups", "groups of which something was trained"),
        _count("groups_uncredited", "groups", "groups whose rewards had nothing to be compared with"),
        _count("groups_surplus", "groups", "groups beyond the size of a step that was refilled"),
        _count("groups_unsolved", "groups", "groups without a success"),
        _count("groups_solved", "groups", "groups of which every attempt was a success: the easiest tasks"),
        _count("refills", "times", "times that other tasks were played in the place of groups left out"),
        _count("groups_no_signal", "groups", "groups whose attempts all earned the same"),
        _count("groups_stale", "groups", "groups that were dropped whole because they were too old"),
        _count("episodes_consumed", "attempts", "attempts played ahead that the trainer took"),
        _count("episodes_stale", "attempts", "attempts of the groups that were too old"),
        _count("episodes_surplus", "attempts", "attempts that ended and that nobody needed"),
        _count("episodes_cancelled", "attempts", "attempts that were given up in flight, since nobody needed them"),
        _count("episodes_failed", "attempts", "attempts that broke and were played again"),
        _count("tokens_taken", "tokens", "sampled tokens that the trainer took, with those that it did not train"),
        _count("tokens_sampled", "tokens", "tokens that the policy sampled"),
        _count("tokens_prefilled", "tokens", "tokens that the engine read without sampling them"),
        _count("tokens_left_out", "tokens", "tokens sampled in attempts that were not trained"),
        _count("tokens_trained", "tokens", "tokens with a weight in the loss"),
        _count("parity_tokens", "tokens", "tokens whose logprobs by trainer and sampler were compared in full"),
        _count("tokens_validated", "tokens", "held-out tokens that the validation loss is a mean over"),
        _count("sequences_trained", "sequences", "sequences in the optimizer step"),
        _count("optimizer_steps", "steps", "updates of the weights"),
        _count("calls", "calls", "tool calls"),
        _count("calls_malformed", "calls", "tool calls that could not be carried out as written"),
        _seconds("step", "wall time of the step"),
        _seconds("sampling", "time in the sampler"),
        _seconds("tools", "time in tools and scorers"),
        _seconds("training", "time in forward, backward and optimizer"),
        _seconds("evaluation", "time in evaluation"),
        _seconds("waiting", "time that the trainer waited for attempts"),
        _seconds("overlap", "time in which attempts were in flight while the trainer worked"),
        _mean("reward", "episodes_scored", "", "reward of the scored attempts"),
        _mean("reward_left_out", "episodes_left_out_scored", "", "reward of the scored attempts that were not trained"),
        _mean("turns", "episodes", "turns", "replies in an attempt"),
        _mean("overlap", "seconds_step", "", "share of the step in which attempts were in flight while it learnt"),
        _mean("age_mean", "tokens_taken", "steps", "trainer steps since the version of the tokens that were taken"),
        _mean("no_signal_share", "groups", "", "share of groups without signal"),
        _mean("loss", "tokens_trained", "", "loss per trained token"),
        _mean("validation_loss", "tokens_validated", "nats", "cross entropy of the held-out tokens"),
        _mean("solved_share", "tokens_trained", "", "share of the trained weight from groups that were all successes"),
        _mean("entropy", "tokens_trained", "nats", "entropy of the policy where it sampled"),
        _mean("kl", "tokens_trained", "nats", "estimate of the divergence from the policy that sampled"),
        _mean("kl_reference", "tokens_trained", "nats", "estimate of the divergence from the reference policy"),
        _mean("ratio", "tokens_trained", "", "importance ratio of the trained tokens"),
        _mean("clip_share", "tokens_trained", "", "share of trained tokens whose ratio was clipped"),
        _mean("importance", "tokens_trained", "", "factor of the policy loss that a correction gave the tokens"),
        _mean("importance_ratio", "tokens_trained", "", "ratio of the old policy to the sampler before it is cut"),
        _mean("importance_rejected", "tokens_trained", "", "share of tokens whose factor is 0"),
        _mean("importance_capped", "tokens_trained", "", "share of tokens whose factor was cut down to the cap"),
        _mean("effective_sample_size", "tokens_trained", "", "share of the tokens that their weights are worth"),
        _mean(
            "imitation_loss",
            "tokens_trained",
            "nats",
            "cross entropy of imitated tokens over all trained ones",
        ),
        _mean("entropy_coef", "optimizer_steps", "", "weight of the entropy bonus"),
        _mean("value", "tokens_trained", "", "what the critic expected before the trained tokens, in units of return"),
        _mean("value_loss", "tokens_trained", "", "squared error of the critic"),
        _mean("explained_variance", "tokens_trained", "", "share of the variance of returns that the critic foresaw"),
        _mean("accuracy", "tokens_trained", "", "share of demonstrated tokens that are the policy's first choice"),
        _mean("grad_norm", "optimizer_steps", "", "norm of the gradient before it was clipped"),
        _mean("learning_rate", "optimizer_steps", "", "learning rate"),
        _mean("tokens_per_s", "seconds_step", "tokens/s", "sampled tokens per second of wall time"),
        _mean("episodes_per_s", "seconds_step", "attempts/s", "attempts per second of wall time"),
        _mean("parity_difference", "parity_tokens", "nats", "difference of trainer's and sampler's logprobs, unsigned"),
        _mean("parity_square", "parity_tokens", "nats^2", "square of that difference"),
        _mean("parity_k3", "parity_tokens", "nats", "k3 estimate of the divergence of the trainer from the sampler"),
        _mean("parity_beyond", "parity_tokens", "", "share of tokens whose difference is above that of rounding"),
        _mean("parity_sampler_nll", "parity_tokens", "nats", "log of the sampler's perplexity on its own tokens"),
        _mean("parity_trainer_nll", "parity_tokens", "nats", "log of the trainer's perplexity on those tokens"),
        _maximum("logprob_gap", "nats", "largest gap between the trainer's and the sampler's logprob of one token"),
        _maximum("resident_mib", "MiB", "resident memory"),
        _maximum("age_max", "steps", "age of the oldest token that the trainer took"),
        _maximum("age_max_updates", "updates", "the same in optimizer updates"),
        _alone("length_dropped_difference", "tokens", "mean length of dropped attempts minus that of kept ones"),
        _alone("length_dropped_error", "tokens", "standard error of that difference"),
        _alone("reward_dropped_difference", "", "mean reward of dropped attempts minus that of kept ones"),
        _alone("reward_dropped_error", "", "standard error of that difference"),
        _alone("family_shift", "", "total variation distance of the task families of dropped and kept attempts"),
        _mean("pass_rate", "episodes_scored", "", "share of held-out attempts that pass"),
        _interval("pass_rate_low", "lower end of the 95 % interval of the pass rate"),
        _interval("pass_rate_high", "upper end of the 95 % interval of the pass rate"),
    )
}


def metric(name: str) -> Metric:
    """The definition of a metric.

    Raises:
        ValueError: an unknown name, with the nearest one.
    """
    if name not in METRICS:
        close = difflib.get_close_matches(name, METRICS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "add it to METRICS with its merge rule"
        raise ValueError(f"unknown metric {name!r}; {hint}")
    return METRICS[name]


def merge(rows: Sequence[Row]) -> dict[str, float]:
    """One row for many.

    Counts and sums add up; of maxima the largest stays; a mean is weighted by its count in each row, so that the
    result does not depend on how the work was cut into rows. None, or a mean over a count of 0, adds nothing; a metric
    that no row measured is absent from the result.

    Raises:
        ValueError: an unknown metric, a mean in a row that lacks its count, or several ends of intervals.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    merged = {name: _merged(metric(name), rows) for name in names}
    return {name: value for name, value in merged.items() if value is not None}


def _merged(one: Metric, rows: Sequence[Row]) -> float | None:
    measured = [(row, value) for row in rows if (value := row.get(one.name)) is not None]
    if not measured:
        return None
    values = [value for _, value in measured]
    if one.merge == "never" and len(values) > 1:
        raise ValueError(
            f"metric {one.name!r} is an end of an interval and cannot be merged; compute the interval anew"
        )
    if one.merge == "max":
        return max(values)
    if one.merge != "mean":
        return sum(values)
    weights = [_weight(one, row) for row, _ in measured]
    total = sum(weights)
    return sum(w * v for w, v in zip(weights, values, strict=True) if w) / total if total else None


def _weight(one: Metric, row: Row) -> float:
    weight = row.get(one.over)
    if weight is None:
        raise ValueError(
            f"metric {one.name!r} is a mean over {one.over!r}, which its row lacks; add {one.over!r} to it"
        )
    return weight
