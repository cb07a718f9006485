"""A curve is found where there is one, and a forecast is made only where the data say how high it goes."""

import numpy as np
import pytest

from agentrl.evals.report.forecast import WIDEST, fit, forecast


def curve(number, start, ceiling, middle, steepness):
    x = np.arange(number)
    return start + (ceiling - start) * x**steepness / (x**steepness + middle**steepness)


def noisy(seed, number, *shape, attempts=128):
    """What a run measures: at each step the share of attempts that pass."""
    return np.random.default_rng(seed).binomial(attempts, curve(number, *shape)) / attempts


LEARNT, LEARNING = (0.35, 0.92, 15, 1.5), (0.35, 0.92, 400, 1.2)


def test_a_curve_without_noise_is_found():
    found = fit(np.arange(100.0), curve(100, 0.25, 0.75, 8, 2))
    assert (found.start, found.ceiling.value) == (pytest.approx(0.25, abs=0.01), pytest.approx(0.75, abs=0.01))
    assert (found.middle, found.steepness) == (pytest.approx(8, rel=0.1), pytest.approx(2, rel=0.1))
    # half-way at step 8: 0.25 + 0.5 * 8^2 / (8^2 + 8^2) = 0.5
    assert found(np.array([0.0, 8.0])) == pytest.approx([0.25, 0.5], abs=0.02)


def test_the_interval_of_the_ceiling_covers_it():
    seen = [fit(np.arange(120.0), noisy(seed, 120, *LEARNT)).ceiling for seed in range(60)]
    covered = sum(one.low <= 0.92 <= one.high for one in seen)
    assert covered >= 53  # 53 of 60 or fewer have a chance of 3 % where 95 % are covered
    assert max(one.width for one in seen) < WIDEST


def test_a_curve_that_has_flattened_is_forecast_and_scored():
    found = forecast(noisy(0, 145, *LEARNT))
    assert found.refused == ""
    assert (found.early.num_steps, found.score.num_steps, found.ahead_steps) == (87, 58, 290)
    assert abs(found.score.error.mean) < found.score.band / 2
    assert found.score.covered.mean > 0.85
    assert found.ahead.low <= found.ahead.value <= found.ahead.high


def test_a_curve_that_still_rises_has_no_ceiling_yet():
    found = forecast(noisy(0, 145, *LEARNING))
    assert "the ceiling is not identified by the first 87 steps" in found.refused
    assert "asks for at most 0.15" in found.refused
    assert found.early.ceiling.width > WIDEST
    assert (found.score, found.ahead) == (None, None)


def test_a_flat_curve_says_nothing_of_a_ceiling():
    assert "is not identified" in forecast(np.random.default_rng(1).binomial(128, 0.5, 145) / 128).refused


def test_a_forecast_that_reality_leaves_is_seen_to_be_wrong():
    values = noisy(0, 145, *LEARNT)
    values[87:] -= 0.3  # the run falls apart after the steps that the forecast was made from
    whole, early = fit(np.arange(145.0), values), fit(np.arange(87.0), values[:87])
    assert early.identified
    low, high = early.prediction(np.arange(87.0, 145.0))
    assert np.mean((values[87:] >= low) & (values[87:] <= high)) < 0.05
    assert whole.correlation > early.correlation  # of errors that hang together


def test_what_cannot_be_forecast_says_why():
    assert forecast(np.full(19, 0.5)).refused == "19 steps are too few to fit a curve and to score it; it takes 20"
    assert "outside [0, 1]" in forecast(np.full(30, 1.5)).refused
    with pytest.raises(ValueError, match="7 steps cannot carry a curve with 4 parameters"):
        fit(np.arange(7.0), np.full(7, 0.5))
    with pytest.raises(ValueError, match="has no known ceiling"):
        fit(np.arange(9.0), np.full(9, -0.5))


def test_the_same_values_give_the_same_forecast():
    first, second = (forecast(noisy(3, 60, *LEARNT)) for _ in range(2))
    assert first.whole.ceiling == second.whole.ceiling
