"""Figures say what their data say, and are whole files."""

import matplotlib.image
import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.evals.attempts import Attempt
from agentrl.evals.compare import compare
from agentrl.evals.figures import calibration_bins, curve, draw_evaluation, forest, pass_curves
from agentrl.evals.metric import Metric
from agentrl.evals.table import Table


def table(names=("a",), *, partial=False):
    rng = np.random.default_rng(0)
    return Table.of(
        [
            Attempt(
                checkpoint=name,
                task=f"t{t}",
                number=k,
                score=float(rng.random() < 0.6) * (0.5 if partial else 1.0),
                family=f"f{t % 3}",
                others={"visible tests": float(rng.random() < 0.7), "constant": 0.5, "length": 30.0 + k},
            )
            for name in names
            for t in range(12)
            for k in range(5)
        ]
    )


def is_picture(path):
    pixels = matplotlib.image.imread(path)
    return pixels.ndim == 3 and len(np.unique(pixels[..., 0])) > 2


def test_curves_are_the_estimators_at_powers_of_two_and_at_the_most():
    found = curve(table(), "a", "pass@")
    assert found.ks == [1, 2, 4, 5]
    scores = table().of_checkpoint("a")
    assert found.intervals[0].mean == pytest.approx(scores.mean())
    assert found.intervals[-1].mean == pytest.approx((scores.max(axis=1) == 1.0).mean())
    falling = curve(table(), "a", "pass^")
    assert falling.intervals[-1].mean == pytest.approx((scores.min(axis=1) == 1.0).mean())
    assert all(one.low <= one.mean <= one.high for one in (*found.intervals, *falling.intervals))


def test_an_evaluation_has_the_figures_that_its_scores_allow(tmp_path):
    drawn = draw_evaluation(table(), tmp_path)
    assert set(drawn) == {
        "pass_curves",
        "families",
        "visible tests",
    }  # no probability: length; nothing to see: constant
    assert drawn["visible tests"].name == "calibration_visible_tests.png"
    assert all(is_picture(path) for path in drawn.values())
    assert "pass_curves" not in draw_evaluation(table(partial=True), tmp_path)
    with pytest.raises(StoreError, match="is neither 0 nor 1"):
        pass_curves(table(partial=True), tmp_path / "x.png")


def test_a_forest_of_several_differences(tmp_path):
    report = compare(table(("base", "one", "two")), Metric(name="mean"))
    assert is_picture(forest(report, tmp_path / "forest.png"))


def test_calibration_bins_hold_the_means():
    gold = np.array([[1.0, 0.0, 1.0, np.nan], [1.0, 1.0, 0.0, 1.0]])
    verifier = np.array([[0.95, 0.9, 1.0, 1.0], [0.15, np.nan, 0.1, 0.55]])
    low, middle, high = calibration_bins(gold, verifier)
    assert low[:3] == (pytest.approx(0.125), 0.5, 2)
    assert middle[:3] == (pytest.approx(0.55), 1.0, 1)
    assert high[:3] == (pytest.approx(0.95), pytest.approx(2 / 3), 3)
    assert [one.interval for one in (low, middle, high)] == [None] * 3  # each at one task
    (both,) = calibration_bins(gold, np.where(np.isnan(verifier), np.nan, 0.5))
    assert (both.attempts, both.interval.num_clusters) == (6, 2)
    with pytest.raises(ValueError, match=r"a verifier's score of 1\.5 is not in \[0, 1\]"):
        calibration_bins(np.array([1.0]), np.array([1.5]))
