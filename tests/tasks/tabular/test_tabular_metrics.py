"""Metrics of one column, worked by hand on unequal classes and on values without a spread."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coachrl.tasks.tabular.metrics import (
    CLASSIFICATION,
    REGRESSION,
    Classified,
    Regressed,
    classification_metrics,
    regression_metrics,
)

THREE = Classified(np.array(list("aaabbc")), np.array(list("aabbcc")), ("a", "b", "c"))
LABELS = ("no", "yes")
TWO = Classified(
    np.array(["yes", "no", "no", "yes", "no"]),
    np.array(["yes", "no", "no", "no", "no"]),
    LABELS,
    np.array([0.9, 0.4, 0.3, 0.4, 0.1]),
)


def test_three_unequal_classes():
    """One class against the rest: 2 of 3 and 3 of 3, 1 of 2 and 3 of 4, 1 of 1 and 4 of 5."""
    found = classification_metrics(THREE, "quadratic_weighted_kappa")
    assert found["roc_auc"] == pytest.approx(((2 / 3 + 1) / 2 + (1 / 2 + 3 / 4) / 2 + (1 + 4 / 5) / 2) / 3)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["f1"] == pytest.approx((4 / 5 + 1 / 2 + 2 / 3) / 3)
    # squared distances 2 of 6 pairs; expected over all pairs of a true and a predicted one
    expected = sum((ord(t) - ord(p)) ** 2 for t in "aaabbc" for p in "aabbcc") / 6
    assert found["quadratic_weighted_kappa"] == pytest.approx(1 - 2 / expected)
    assert math.isnan(CLASSIFICATION["log_loss"](THREE))


def test_a_class_that_does_not_occur_is_in_no_mean():
    two_of_three = Classified(np.array(list("aab")), np.array(list("abb")), ("a", "b", "c"))
    assert CLASSIFICATION["roc_auc"](two_of_three) == pytest.approx((3 / 4 + 3 / 4) / 2)


def test_two_classes_by_scores_of_the_second():
    """Of six pairs five are in order and one is tied."""
    found = classification_metrics(TWO, "log_loss")
    assert found["roc_auc"] == pytest.approx(5.5 / 6)
    assert CLASSIFICATION["normalized_gini"](TWO) == pytest.approx(5 / 6)
    assert found["f1"] == pytest.approx(2 / 3) and found["accuracy"] == 0.8
    assert found["log_loss"] == pytest.approx(-np.log([0.9, 0.6, 0.7, 0.4, 0.9]).mean())
    beyond = Classified(TWO.true_N, TWO.predicted_N, LABELS, np.array([1.1, 0.4, 0.3, 0.4, 0.1]))
    assert math.isnan(CLASSIFICATION["log_loss"](beyond))


def test_one_class_alone_has_no_ranking():
    alone = Classified(np.array(["yes", "yes"]), np.array(["yes", "no"]), LABELS, np.array([0.9, 0.1]))
    assert math.isnan(CLASSIFICATION["roc_auc"](alone)) and CLASSIFICATION["f1"](alone) == pytest.approx(2 / 3)
    of_three = Classified(np.array(["a", "a"]), np.array(["a", "b"]), ("a", "b", "c"))
    assert math.isnan(CLASSIFICATION["roc_auc"](of_three))


def test_regression_on_zeros_negatives_and_no_spread():
    values = Regressed(np.array([0.0, 0.0, 4.0]), np.array([0.0, 2.0, 1.0]))
    found = regression_metrics(values, "smape")
    assert found["smape"] == pytest.approx(200 * (0 + 1 + 3 / 5) / 3)
    assert found["mae"] == pytest.approx(5 / 3) and found["rmse"] == pytest.approx(math.sqrt(13 / 3))
    assert found["mae_pct_range"] == pytest.approx(100 * 5 / 3 / 4)
    assert found["mae_pct_iqr"] == pytest.approx(100 * 5 / 3 / 2) and REGRESSION["medae"](values) == 2.0
    flat = regression_metrics(Regressed(np.array([3.0, 3.0]), np.array([3.0, -1.0])), "rmse")
    assert math.isnan(flat["rmsle"]) and math.isnan(flat["rmse_pct_range"]) and math.isnan(flat["mae_pct_iqr"])
    assert math.isnan(REGRESSION["pearson"](Regressed(np.array([1.0, 2.0]), np.array([5.0, 5.0]))))


@pytest.mark.parametrize("scale", [1e-320, 1e-160, 1.0, 1e150, 1e308])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4, 1e7])
def test_a_correlation_depends_neither_on_the_mean_nor_on_the_scale_of_a_prediction(offset, scale):
    true_N, moved_N = np.array([1.0, 2.0, 3.0, 4.0]), offset + np.array([0.25, 1.0, 0.0, 0.75])
    predicted_N = moved_N * (scale / moved_N.max()) if scale != 1e-320 else np.array([1.0, 4.0, 0.0, 3.0]) * scale
    assert REGRESSION["pearson"](Regressed(true_N, predicted_N)) == pytest.approx(1 / math.sqrt(50), rel=1e-2)
    assert REGRESSION["pearson"](Regressed(offset + true_N, offset + true_N)) == pytest.approx(1.0, rel=1e-12)
    assert math.isnan(REGRESSION["pearson"](Regressed(true_N, np.full(4, 0.1 + offset))))
