"""Intervals of a proportion from independent trials, for few trials too, where mean +- 1.96 errors is badly wrong."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc, betaincinv, betaln, ndtri  # type: ignore[import-untyped]

from agentrl.evals.stats.checks import check_share

LEVEL = 0.95


def wilson(p: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion ``p`` in [0, 1] seen in ``n`` independent trials.

    Raises:
        ValueError: p outside [0, 1], n < 1 or a level that is no share.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    >>> tuple(round(end, 6) for end in wilson(0.9, 10))
    (0.59585, 0.982124)
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p is {p!r}; a proportion lies in [0, 1]")
    _check(0, n, level)
    return wilson_ends(p, n, float(ndtri((1 + level) / 2)))


def wilson_ends(p: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's interval from a quantile ``z`` and a number of trials ``n`` > 0 that need not be whole."""
    centre = p + z * z / (2 * n)
    reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)


def clopper_pearson(passes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval from two binomial tests; never covers less than ``level``, often more.

    Raises:
        ValueError: passes outside 0 .. n, n < 1 or a level that is no share.

    Source: Clopper and Pearson 1934, "The use of confidence or fiducial limits".
    """
    _check(passes, n, level)
    tail = (1 - level) / 2
    low = float(betaincinv(passes, n - passes + 1, tail)) if passes else 0.0
    high = float(betaincinv(passes + 1, n - passes, 1 - tail)) if passes < n else 1.0
    return low, high


def beta_interval(passes: int, n: int, level: float = LEVEL, *, prior: float = 1.0) -> tuple[float, float]:
    """Central posterior interval of a proportion under a Beta(prior, prior) prior; uniform by default.

    Raises:
        ValueError: passes outside 0 .. n, n < 1, a level that is no share, or a prior that is not positive.
    """
    _check(passes, n, level)
    if not prior > 0:
        raise ValueError(f"prior is {prior!r}; give the positive parameter of Beta(prior, prior), 1.0 for uniform")
    a, b, tail = passes + prior, n - passes + prior, (1 - level) / 2
    return float(betaincinv(a, b, tail)), float(betaincinv(a, b, 1 - tail))


def jeffreys(passes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Central posterior interval under the prior Beta(1/2, 1/2). Errors as ``beta_interval``.

    Source: Brown, Cai and DasGupta 2001, "Interval estimation for a binomial proportion".
    """
    return beta_interval(passes, n, level, prior=0.5)


def zero_events_upper(n: int, level: float = LEVEL) -> float:
    """Highest rate that zero events in ``n`` independent trials leave possible, one-sided: 1 - (1 - level)^(1/n).

    >>> round(zero_events_upper(30), 6)
    0.095034
    """
    _check(0, n, level)
    return -math.expm1(math.log1p(-level) / n)


def trials_for_zero_events(rate: float, level: float = LEVEL) -> int:
    """Fewest trials without an event that show a rate below ``rate``.

    >>> trials_for_zero_events(0.05), trials_for_zero_events(0.01)
    (59, 299)
    """
    check_share(rate, "rate")
    check_share(level)
    return math.ceil(math.log1p(-level) / math.log1p(-rate))


def probability_better(passes_a: int, n_a: int, passes_b: int, n_b: int) -> float:
    """P(theta_A > theta_B) for two independent proportions under uniform priors, exactly.

        sum over i < alpha_A of  B(alpha_B + i, beta_A + beta_B) / ((beta_A + i) B(1 + i, beta_A) B(alpha_B, beta_B))

    with Beta(alpha, beta) = Beta(1 + passes, 1 + fails). For two policies on the same tasks take
    ``probability_better_paired``, which knows the pairs.

    Raises:
        ValueError: passes outside 0 .. n, or n < 1.

    Source: Miller 2015, "Formulas for Bayesian A/B Testing".

    >>> round(probability_better(9, 10, 7, 10), 6)
    0.844612
    """
    _check(passes_a, n_a, LEVEL)
    _check(passes_b, n_b, LEVEL)
    alpha_a, beta_a = 1 + passes_a, 1 + n_a - passes_a
    alpha_b, beta_b = 1 + passes_b, 1 + n_b - passes_b
    i = np.arange(alpha_a)
    logs = betaln(alpha_b + i, beta_a + beta_b) - np.log(beta_a + i) - betaln(1 + i, beta_a) - betaln(alpha_b, beta_b)
    return min(1.0, float(np.exp(logs).sum()))


def probability_better_paired(wins: int, losses: int) -> float:
    """P(p_win > p_loss | data) for pairs of one trial each, under a uniform Dirichlet prior on the four outcomes.

    Only the ``wins`` (second passed, first failed) and ``losses`` (the reverse) matter: the posterior share of wins
    among the discordant is Beta(wins + 1, losses + 1).

    >>> round(probability_better_paired(12, 3), 6)
    0.989365
    """
    _check_discordant(wins, losses)
    return float(betainc(losses + 1, wins + 1, 0.5))


def _check_discordant(wins: int, losses: int) -> None:
    if wins < 0 or losses < 0:
        raise ValueError(f"wins {wins} and losses {losses} are counts of pairs, 0 or more")


def _check(passes: int, n: int, level: float) -> None:
    if n < 1:
        raise ValueError(f"n is {n!r}; a proportion needs at least one trial")
    if not 0 <= passes <= n:
        raise ValueError(f"{passes} passes of {n}; passes must be between 0 and the trials")
    check_share(level)
