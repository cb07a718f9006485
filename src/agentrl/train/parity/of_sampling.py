"""Faults of how tokens are drawn: another temperature, or a part of the vocabulary that nobody was told of."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from agentrl.train.parity.case import Case, Explanation, Forward
from agentrl.train.parity.figures import flat
from agentrl.train.truncation import kept
from agentrl.types import Sampling

_RANKED = 96
"""Tokens from which the number of words kept is read, at most."""
_APART = 1e-4
"""By so much the logarithm of the kept probability must change with a word for the number of words to be read."""


def other_temperature(case: Case) -> Iterator[Explanation]:
    """The temperature at which the trainer comes nearest."""
    sampler_N = case.compared.sampler_N
    for support in (True, False) if case.has_support else (True,):
        temperature = fit_temperature(case.forward, sampler_N, case.temperature, support=support)
        rest_N = case.forward.scores(temperature, support=support)[0] - sampler_N
        whole = "" if support else ", over the whole vocabulary although it draws from a part of it"
        if abs(math.log(temperature / case.temperature)) > 1e-3:
            yield Explanation(
                "temperature",
                f"the trainer agrees at temperature {temperature:.4g} and scored at {case.temperature:g}{whole}",
                rest_N,
            )


def fit_temperature(
    forward: Forward, sampler_N: np.ndarray, start: float, *, support: bool = True, steps: int = 8
) -> float:
    """The temperature at which the squared differences are least, by Gauss-Newton in its logarithm.

    With H the entropy of its distribution, a token's log-probability changes by ``-(logprob + H)`` per unit of the
    logarithm of the temperature.
    """
    log_temperature = math.log(start)
    for _ in range(steps):
        logprobs_N, entropy_N = forward.scores(math.exp(log_temperature), support=support)
        slope_N = -(logprobs_N + entropy_N)
        curvature = float(slope_N @ slope_N)
        if curvature == 0.0:
            break
        step = float(slope_N @ (sampler_N - logprobs_N)) / curvature
        log_temperature = min(max(log_temperature + min(max(step, -0.7), 0.7), math.log(1e-2)), math.log(1e2))
        if abs(step) < 1e-6:
            break
    return math.exp(log_temperature)


def divided_after_softmax(case: Case) -> Iterator[Explanation]:
    """Log-probabilities at temperature 1 times a constant, which belong to no distribution."""
    plain_N, sampler_N = case.forward.scores(1.0)[0], case.compared.sampler_N
    factor = float(plain_N @ sampler_N) / max(float(plain_N @ plain_N), 1e-30)
    if factor > 0 and abs(factor - 1) > 1e-3:
        yield Explanation(
            "temperature",
            f"the sampler's numbers are the log-probabilities at temperature 1 times {factor:.4g}; the logits are "
            "divided by the temperature, before the softmax",
            factor * plain_N - sampler_N,
        )


def over_everything(case: Case) -> Iterator[Explanation]:
    """Log-probabilities from before the truncation, beside a support."""
    if case.has_support:
        yield Explanation(
            "truncation",
            "the sampler's numbers are those of the whole vocabulary, from before top-p, top-k or min-p, although it "
            "draws from a part of it",
            case.forward.scores(case.temperature, support=False)[0] - case.compared.sampler_N,
        )


def unreported_truncation(case: Case) -> Iterator[Explanation]:
    """A sampler that draws from a part of the vocabulary and says nothing of it: top-p, top-k or min-p alone.

    It says ``log(p / kept mass)``, so that the trainer's number is lower by the logarithm of the kept mass: never
    above, and with top-p never more than ``-log(top_p)`` below.
    """
    gap_N = case.compared.gap_N
    if case.has_support or gap_N.min() > -case.tolerance.of_one or gap_N.max() > case.tolerance.of_one:
        return
    mass = math.exp(float(gap_N.min()))
    counts, edges = _kept_counts(case)
    for name, rule in (
        (f"top_p about {mass:.3g}", Sampling(top_p=min(1.0, mass * (1 - 1e-5)))),
        (f"top_k {counts}", Sampling(top_k=counts)),
        (f"min_p about {edges:.3g}", Sampling(min_p=edges)),
    ):
        yield Explanation(
            "truncation",
            f"every token is likelier to the sampler, by what {name} cuts off of the trainer's own distribution (down "
            f"to {mass:.3g} of it is kept), and it does not report what it drew from",
            gap_N - _log_mass(case, rule),
        )


def _log_mass(case: Case, rule: Sampling) -> np.ndarray:
    """Logarithm of the probability that a rule keeps of the trainer's own distribution, per token."""
    rows = []
    for logits_RV in case.forward.logits(case.temperature):
        inside_RV = logits_RV.masked_fill(~kept(logits_RV, rule), -math.inf)
        rows.append((inside_RV.logsumexp(1) - logits_RV.logsumexp(1)).double().cpu().numpy())
    return flat(rows)


def _kept_counts(case: Case) -> tuple[int, float]:
    """How many words most tokens kept, and with which share of the likeliest's probability: between the least likely
    that any token kept and the likeliest that any dropped.

    A token says how many it kept where the words at the edge have enough probability to be told apart.
    """
    gap_N = case.compared.gap_N
    worst = set(np.argsort(gap_N)[:_RANKED].tolist())
    counts, lowest_kept, highest_dropped = [], 0.0, -math.inf
    start = 0
    for logits_RV in case.forward.logits(case.temperature):
        for row in worst & set(range(start, start + len(logits_RV))):
            ranked_V = logits_RV[row - start].double().log_softmax(0).sort(descending=True)[0]
            near_V = (ranked_V.logcumsumexp(0) - float(gap_N[row])).abs()
            count = int(near_V.argmin()) + 1
            beside = near_V[[max(0, count - 2), min(count, len(near_V) - 1)]]
            if count < len(near_V) and float(beside.min()) > _APART:
                counts.append(count)
                lowest_kept = min(lowest_kept, float(ranked_V[count - 1] - ranked_V[0]))
                highest_dropped = max(highest_dropped, float(ranked_V[count] - ranked_V[0]))
        start += len(logits_RV)
    if not counts:
        return 1, 1.0
    return max(set(counts), key=counts.count), math.exp((lowest_kept + highest_dropped) / 2)
